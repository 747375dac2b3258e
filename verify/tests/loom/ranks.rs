//! Three ranks of one core. Bound: every execution of one operator.

use veriep_core::units::RankId;
use veriep_verify::defects::Defect;
use veriep_verify::loom::group::{Group, Size};
use veriep_verify::loom::round::Traffic;
use veriep_verify::loom::search::{Bound, failure, model};

const THREE: Size<'_> = Size { cores: &[1, 1, 1], experts: 3, bs: 1, k: 1 };
/// Every rank sends to the next.
const RING: Traffic<'_> = &[&[&[1]], &[&[2]], &[&[0]]];
/// Ranks 0 and 1 send to each other, rank 2 sends nothing.
const PAIR: Traffic<'_> = &[&[&[1]], &[&[0]], &[&[]]];

const TWO_EXPERTS: Size<'_> = Size { k: 2, ..THREE };
/// Rank 0 needs the experts of both others; each of these needs rank 0 and itself.
const STAR: Traffic<'_> = &[&[&[1, 2]], &[&[0, 1]], &[&[0, 2]]];

#[test]
fn a_dispatch_of_three_ranks() {
    let group = Group::new(THREE, &[RING], "D");
    model("D, three ranks", Bound::Complete, 52_000..=65_000, group.body());
}

#[test]
fn a_combine_of_three_ranks() {
    let group = Group::new(THREE, &[RING], "C");
    model("C, three ranks", Bound::Complete, 660..=820, group.body());
    let group = Group::new(TWO_EXPERTS, &[STAR], "C");
    model("C, three ranks, two experts", Bound::Complete, 3_900..=4_900, group.body());
}

/// Rank 2 never comes to the combine, and the others end theirs.
#[test]
fn a_combine_does_not_wait_for_ranks_that_owe_it_nothing() {
    let group = Group::new(THREE, &[PAIR], "C").but(RankId(2));
    model("C, two of three ranks", Bound::Complete, 33..=41, group.body());
}

/// Fails on any memory as soon as one rank stays away from one combine.
#[test]
fn catches_a_combine_that_waits_for_all() {
    let group = Group::new(THREE, &[PAIR], "C").but(RankId(2));
    let how = failure("C, wait for all", Bound::Complete, group.bent(Defect::CombineWaitsForDispatch));
    assert!(how.contains("endless wait, missing: combine flag"), "{how}");
}

/// Fails on any memory; one combine, a token with two experts elsewhere.
#[test]
fn catches_a_combine_that_waits_for_one_expert_of_two() {
    let group = Group::new(TWO_EXPERTS, &[STAR], "C");
    let defect = Defect::CombineIgnoresFlag;
    let how = failure("C, one flag of two", Bound::Complete, group.bent(defect));
    assert!(how.contains("Causality violation"), "{how}");
}

/// Relaxed flags race with three ranks as with two.
#[test]
fn catches_a_relaxed_publish_among_three_ranks() {
    for operator in ["D", "C"] {
        let group = Group::new(THREE, &[RING], operator);
        let name = format!("{operator}, three ranks, relaxed publish");
        let how = failure(&name, Bound::Complete, group.bent(Defect::RelaxedPublish));
        assert!(how.contains("Causality violation"), "{how}");
    }
}
