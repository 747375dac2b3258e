//! Windows of A2 that land, and ranks that wait for them.

use veriep_verify::a2_window_model::explore;

#[test]
fn two_halves_are_safe_for_ever() {
    for ranks in 2..=3 {
        let report = explore(ranks, 2, None, 1_000_000, || false);
        assert!(report.complete && report.counterexample.is_none(), "{ranks} ranks: {report:?}");
    }
}

#[test]
fn catches_one_half() {
    let report = explore(2, 1, None, 1_000_000, || false);
    assert!(report.counterexample.is_some());
}

#[test]
fn one_half_is_enough_for_one_operator() {
    assert!(explore(2, 1, Some(1), 1000, || false).counterexample.is_none());
}
