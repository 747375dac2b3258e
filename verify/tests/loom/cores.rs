//! A rank with two cores: what one of them puts, the other publishes; and the join between operators, which is the driver's.
//! Bound: every execution, but where a name says else; loom's preemption bound is of no use with three threads, since it
//! lets two that wait pass the turn to each other while the third starves.

use veriep_verify::defects::Defect;
use veriep_verify::loom::group::{Group, Size};
use veriep_verify::loom::round::Traffic;
use veriep_verify::loom::search::{Bound, failure, model};

/// One rank alone: core `i` sends token `i` and publishes for expert `i`.
const ALONE: Size<'_> = Size { cores: &[2], experts: 2, bs: 2, k: 1 };
/// Each core puts a record that the other publishes and copies out.
const SWAP: Traffic<'_> = &[&[&[1], &[0]]];

/// Rank 0 has two cores, rank 1 has one; core `i` of rank 0 publishes to rank `i`.
const TWO_AND_ONE: Size<'_> = Size { cores: &[2, 1], experts: 2, bs: 2, k: 1 };
/// Core 0 puts to rank 1, for which core 1 publishes, and the other way round.
const ACROSS: Traffic<'_> = &[&[&[1], &[0]], &[&[], &[]]];
/// Rank 1 returns a row to each core of rank 0.
const BACK: Traffic<'_> = &[&[&[1], &[1]], &[&[0], &[]]];

/// Rank 1 has the two cores, so its core 0 publishes to the other rank.
const ONE_AND_TWO: Size<'_> = Size { cores: &[1, 2], ..TWO_AND_ONE };
/// Core 1 of rank 1 puts to rank 0.
const HIGHER_PUTS: Traffic<'_> = &[&[&[], &[]], &[&[], &[0]]];

#[test]
fn a_core_publishes_what_the_other_has_put() {
    let group = Group::new(ALONE, &[SWAP], "D");
    model("D, two cores", Bound::Complete, 500..=650, group.body());
}

#[test]
#[ignore = "takes 1 min; run: cargo test -p veriep-verify --test loom -- --ignored cores:: --nocapture"]
fn a_core_publishes_to_another_rank_what_the_other_has_put() {
    let group = Group::new(TWO_AND_ONE, &[ACROSS], "D");
    model("D, two cores and one", Bound::Complete, 700_000..=850_000, group.body());
}

#[test]
fn two_cores_combine_with_one() {
    let group = Group::new(TWO_AND_ONE, &[BACK], "C");
    model("C, two cores and one", Bound::Complete, 400..=550, group.body());
}

fn fails(name: &str, size: Size<'_>, traffic: Traffic<'_>, defect: Defect) -> String {
    let group = Group::new(size, &[traffic], "D");
    failure(name, Bound::Complete, group.bent(defect))
}

/// Fails on any memory in one dispatch, but only when a row goes to another rank: on this rank the barrier
/// that carries the sums comes before the copy, too.
#[test]
fn catches_a_missing_core_barrier() {
    for (name, size, traffic) in [("across", TWO_AND_ONE, ACROSS), ("higher puts", ONE_AND_TWO, HIGHER_PUTS)]
    {
        let how = fails(&format!("D, no barrier, {name}"), size, traffic, Defect::NoBarrier);
        assert!(how.contains("Causality violation"), "{how}");
    }
    let alone = Group::new(ALONE, &[SWAP], "D").bent(Defect::NoBarrier);
    model("D, no barrier, alone", Bound::Complete, 30..=45, alone);
}

/// Fails on any memory; one dispatch in which the higher core puts to another rank what the lower one publishes.
#[test]
fn catches_a_barrier_that_waits_for_lower_cores_only() {
    let how = fails("D, lower cores only", ONE_AND_TWO, HIGHER_PUTS, Defect::BarrierOfLowerCores);
    assert!(how.contains("Causality violation"), "{how}");
}

/// Quiet comes before the barrier: here the puts land after the word that says so. Any memory; a row that goes
/// to another rank.
#[test]
fn catches_a_quiet_that_does_not_wait_for_puts() {
    let how = fails("D, puts past quiet", TWO_AND_ONE, ACROSS, Defect::FlagFirst);
    assert!(how.contains("Causality violation"), "{how}");
}

/// The barrier's words must be a release and an acquire, too. One rank is enough, on a memory weaker than total
/// store order: nothing else orders a row that one core puts and the other copies out.
#[test]
fn catches_relaxed_core_words() {
    let how = fails("D, relaxed publish", ALONE, SWAP, Defect::RelaxedPublish);
    assert!(how.contains("Causality violation"), "{how}");
    let how = fails("D, relaxed observe", ALONE, SWAP, Defect::RelaxedObserve);
    assert!(how.contains("Causality violation"), "{how}");
}

/// After the join the last core runs the experts, who read all that the rank has put out, and a combine reads triples and
/// counts that other cores wrote.
#[test]
fn cores_join_after_an_operator() {
    let alone = |schedule: &str| Group::new(ALONE, &[SWAP; 2], schedule).joined(Defect::None).body();
    model("D, two cores, join", Bound::Complete, 9_300..=11_400, alone("D"));
    model("C, two cores, join", Bound::Complete, 520..=640, alone("C"));
    let back = Group::new(TWO_AND_ONE, &[BACK], "C").joined(Defect::None);
    model("C, two cores and one, join", Bound::Complete, 7_450..=9_150, back.body());
    model("D C, two cores, join", Bound::Preemptions(4), 19_450..=23_800, alone("DC"));
    model("D C D, two cores, join", Bound::Preemptions(3), 14_290..=17_470, alone("DCD"));
}

/// Fails on any memory: without it experts read what has not been written. One operator.
#[test]
fn catches_a_missing_join() {
    for (name, group) in [
        ("D, no join", Group::new(ALONE, &[SWAP], "D")),
        ("C, no join, two cores and one", Group::new(TWO_AND_ONE, &[BACK], "C")),
    ] {
        let how = failure(name, Bound::Complete, group.joined(Defect::NoJoin).body());
        assert!(how.contains("Causality violation"), "{how}");
    }
}

/// Needs a memory weaker than total store order; one operator, since the experts read what the other core has put out.
#[test]
fn catches_a_relaxed_arrival_at_the_join() {
    for (name, group) in [
        ("D, relaxed arrival", Group::new(ALONE, &[SWAP], "D")),
        ("C, relaxed arrival, two cores and one", Group::new(TWO_AND_ONE, &[BACK], "C")),
    ] {
        let how = failure(name, Bound::Complete, group.joined(Defect::RelaxedArrival).body());
        assert!(how.contains("Causality violation"), "{how}");
    }
}

/// Needs a memory weaker than total store order, and a combine after a dispatch, which reads what the other core has put
/// out; after one operator no test asks.
#[test]
fn catches_a_join_that_opens_relaxed() {
    let group = |schedule| Group::new(ALONE, &[SWAP], schedule).joined(Defect::RelaxedOpen).body();
    let how = failure("D C, join opens relaxed", Bound::Complete, group("DC"));
    assert!(how.contains("Causality violation"), "{how}");
    model("D, join opens relaxed", Bound::Complete, 9_300..=11_400, group("D"));
}

/// Needs loads that overtake loads; a combine after a dispatch.
#[test]
fn catches_a_relaxed_look_at_the_join() {
    let group = |schedule| Group::new(ALONE, &[SWAP], schedule).joined(Defect::RelaxedLook).body();
    let how = failure("D C, join looked at relaxed", Bound::Complete, group("DC"));
    assert!(how.contains("Causality violation"), "{how}");
}

/// One word for all barriers of a core: within one operator the sums are at its last barrier, so the join hides it; so it did in
/// all 71 880 executions. The litmus test `catches_a_barrier_with_one_word_per_core` has no join, and fails.
#[test]
fn one_barrier_word_is_enough_for_one_operator_behind_a_join() {
    let group = Group::new(ALONE, &[SWAP], "D").joined(Defect::None).bent(Defect::OneBarrierWord);
    model("D, one barrier word, join", Bound::Preemptions(3), 2_210..=2_710, group);
}
