//! Two ranks of one core: partitions in use over several operators. Every execution compares `expand_x`,
//! counts, triples and `x_out` with the oracle; the payload differs in every round.

use kernel_core::layout::state::Kind;
use verify::loom::group::{
    Group,
    Operator::{C, D},
    Size,
};
use verify::loom::round::Traffic;
use verify::loom::search::{Bound, failure, model};
use verify::loom::twins::{
    ClearsAtQuiet, ClearsPastQuiet, FlagFirst, NoClear, OnePartition, RelaxedObserve, RelaxedPublish,
};

const TWO: Size<'_> = Size { cores: &[1, 1], experts: 2, bs: 1, k: 1 };
/// Each rank sends to the other.
const CROSS: Traffic<'_> = &[&[&[1]], &[&[0]]];
/// Each rank sends to itself.
const OWN: Traffic<'_> = &[&[&[0]], &[&[1]]];
/// Nobody sends.
const IDLE: Traffic<'_> = &[&[&[]], &[&[]]];
/// Both send to rank 0, which therefore waits for nobody in combine.
const TO_FIRST: Traffic<'_> = &[&[&[0]], &[&[0]]];

#[test]
fn dispatch_combine_dispatch() {
    let group = |traffic| Group::new(TWO, &[traffic; 2], &[D(0), C(0), D(1)]);
    model("D C D, cross", Bound::Complete, 1..=1_000_000, group(CROSS).body());
    model("D C D, own", Bound::Complete, 1..=1_000_000, group(OWN).body());
    model("D C D, idle", Bound::Complete, 1..=1_000_000, group(IDLE).body());
    model("D C D, to first", Bound::Complete, 1..=1_000_000, group(TO_FIRST).body());
}

#[test]
fn dispatch_combine_dispatch_with_every_traffic_in_both_rounds() {
    const CHOICES: [&[&[i32]]; 3] = [&[&[0]], &[&[1]], &[&[]]];
    let mut total = 0;
    for code in 0..81 {
        let [a, b, c, d] = [1, 3, 9, 27].map(|unit| CHOICES[code / unit % 3]);
        let group = Group::new(TWO, &[&[a, b], &[c, d]], &[D(0), C(0), D(1)]);
        total += model(&format!("D C D, traffic {code}"), Bound::Complete, 1..=20_000, group.body());
    }
    println!("loom D C D, every traffic: {total} executions");
}

#[test]
fn combine_dispatch_combine() {
    let group = |traffic| Group::new(TWO, &[traffic; 2], &[C(0), D(1), C(1)]);
    model("C D C, cross", Bound::Complete, 1..=1_000_000, group(CROSS).body());
    model("C D C, to first", Bound::Complete, 1..=1_000_000, group(TO_FIRST).body());
}

#[test]
fn dispatch_combine_twice() {
    let group = Group::new(TWO, &[CROSS; 2], &[D(0), C(0), D(1), C(1)]);
    model("D C D C, cross", Bound::Complete, 1..=1_000_000, group.body());
}

#[test]
fn partitions_come_back_in_the_third_dispatch() {
    let group = |traffic| Group::new(TWO, &[traffic; 3], &[D(0), D(1), D(2)]);
    model("D D D, cross", Bound::Complete, 1..=1_000_000, group(CROSS).body());
    model("D D D, own", Bound::Complete, 1..=1_000_000, group(OWN).body());
    model("D D D, idle", Bound::Complete, 1..=1_000_000, group(IDLE).body());
    let group = |traffic| Group::new(TWO, &[traffic; 3], &[D(0), C(0), D(1), C(1), D(2)]);
    model("D C D C D, own", Bound::Complete, 1..=1_000_000, group(OWN).body());
    model("D C D C D, idle", Bound::Complete, 1..=1_000_000, group(IDLE).body());
    model("D C D C D, cross", Bound::Preemptions(3), 1..=1_000_000, group(CROSS).body());
}

#[test]
fn partitions_come_back_in_the_third_combine() {
    let group = |traffic| Group::new(TWO, &[traffic; 3], &[C(0), D(1), C(1), D(2), C(2)]);
    model("C D C D C, to first", Bound::Complete, 1..=1_000_000, group(TO_FIRST).body());
    model("C D C D C, cross", Bound::Preemptions(3), 1..=1_000_000, group(CROSS).body());
}

#[test]
fn two_batches_in_flight() {
    let group = |traffic| Group::new(TWO, &[traffic; 2], &[D(0), D(1), C(0), C(1)]);
    model("D D C C, cross", Bound::Preemptions(3), 1..=1_000_000, group(CROSS).body());
    model("D D C C, to first", Bound::Complete, 1..=1_000_000, group(TO_FIRST).body());
    let group = |traffic| Group::new(TWO, &[traffic; 4], &[C(0), C(1), D(2), D(3), C(2), C(3)]);
    model("C C D D C C, to first", Bound::Preemptions(3), 1..=1_000_000, group(TO_FIRST).body());
    let group = |traffic| Group::new(TWO, &[traffic; 3], &[C(0), C(1), D(2), C(2)]);
    model("C C D C, to first", Bound::Complete, 1..=1_000_000, group(TO_FIRST).body());
}

#[test]
fn in_strict_order_one_combine_partition_is_enough() {
    let group = |traffic| Group::new(TWO, &[traffic; 2], &[C(0), D(1), C(1)]);
    let twist = |_, _| OnePartition(Kind::Combine);
    model("C D C, one partition, cross", Bound::Complete, 1..=1_000_000, group(CROSS).twisted(twist));
    model("C D C, one partition, to first", Bound::Complete, 1..=1_000_000, group(TO_FIRST).twisted(twist));
}

#[test]
fn clears_may_land_as_late_as_the_next_quiet() {
    let group = |traffic| Group::new(TWO, &[traffic; 3], &[D(0), D(1), D(2)]);
    let twist = |_, _| ClearsAtQuiet::default();
    model("D D D, late clears, own", Bound::Complete, 1..=1_000_000, group(OWN).twisted(twist));
    model("D D D, late clears, idle", Bound::Complete, 1..=1_000_000, group(IDLE).twisted(twist));
    let group = |traffic| Group::new(TWO, &[traffic; 2], &[D(0), C(0), D(1), C(1)]);
    model("D C D C, late clears, to first", Bound::Complete, 1..=1_000_000, group(TO_FIRST).twisted(twist));
}

/// Needs a release that is not one; one dispatch, any traffic that crosses.
#[test]
fn catches_a_relaxed_publish() {
    let group = Group::new(TWO, &[CROSS], &[D(0)]);
    let how = failure("D, relaxed publish", Bound::Complete, group.twisted(|_, _| RelaxedPublish));
    assert!(how.contains("Causality violation"), "{how}");
    let group = Group::new(TWO, &[CROSS], &[C(0)]);
    let how = failure("C, relaxed publish", Bound::Complete, group.twisted(|_, _| RelaxedPublish));
    assert!(how.contains("Causality violation"), "{how}");
}

/// The same on the reader's side.
#[test]
fn catches_a_relaxed_observe() {
    let group = Group::new(TWO, &[CROSS], &[D(0)]);
    let how = failure("D, relaxed observe", Bound::Complete, group.twisted(|_, _| RelaxedObserve));
    assert!(how.contains("Causality violation"), "{how}");
    let group = Group::new(TWO, &[CROSS], &[C(0)]);
    let how = failure("C, relaxed observe", Bound::Complete, group.twisted(|_, _| RelaxedObserve));
    assert!(how.contains("Causality violation"), "{how}");
}

/// Fails on any memory; one operator, any traffic that crosses.
#[test]
fn catches_a_publish_before_its_put() {
    for (name, operator) in [("D", D(0)), ("C", C(0))] {
        let group = Group::new(TWO, &[CROSS], &[operator]);
        let name = format!("{name}, flag first");
        let how = failure(&name, Bound::Complete, group.twisted(|_, _| FlagFirst::default()));
        assert!(how.contains("Causality violation") || how.contains("triple of row 0"), "{how}");
    }
}

/// Fails on any memory in the second dispatch, but only when ranks send to themselves or are idle: else combine
/// makes each wait for the other.
#[test]
fn catches_one_dispatch_partition() {
    for (name, traffic) in [("own", OWN), ("idle", IDLE), ("to first", TO_FIRST)] {
        let group = Group::new(TWO, &[traffic; 2], &[D(0), C(0), D(1)]);
        let name = format!("D C D, one dispatch partition, {name}");
        let how = failure(&name, Bound::Complete, group.twisted(|_, _| OnePartition(Kind::Dispatch)));
        println!("{how}");
    }
    let group = Group::new(TWO, &[CROSS; 2], &[D(0), C(0), D(1)]);
    let twist = |_, _| OnePartition(Kind::Dispatch);
    model("D C D, one dispatch partition, cross", Bound::Complete, 1..=1_000_000, group.twisted(twist));
}

/// Fails on any memory in the second combine of two batches in flight; rank 0 must not need rank 1.
#[test]
fn catches_one_combine_partition_with_two_batches_in_flight() {
    let group = Group::new(TWO, &[TO_FIRST; 2], &[D(0), D(1), C(0), C(1)]);
    let twist = |_, _| OnePartition(Kind::Combine);
    let how = failure("D D C C, one combine partition", Bound::Complete, group.twisted(twist));
    println!("{how}");
}

/// Two partitions for three batches: rank 0, which needs nobody, overwrites in its third combine what rank 1
/// has not read in its first. Any memory.
#[test]
fn catches_three_batches_in_flight() {
    let group = Group::new(TWO, &[TO_FIRST; 3], &[D(0), D(1), D(2), C(0), C(1), C(2)]);
    let how = failure("D D D C C C", Bound::Complete, group.body());
    println!("{how}");
}

/// Fails on any memory in the third dispatch, which takes the flags of the first for its own.
#[test]
fn catches_a_clear_that_never_happens() {
    let group = Group::new(TWO, &[CROSS; 3], &[D(0), D(1), D(2)]);
    let how = failure("D D D, no clear", Bound::Complete, group.twisted(|_, _| NoClear));
    println!("{how}");
}

/// Quiet must also wait for clears: else a clear of the first dispatch wipes a flag of the third. Three
/// dispatches, a memory that lands clears late, and ranks that need nothing of each other in combine.
#[test]
fn catches_a_quiet_that_does_not_wait_for_clears() {
    let group = Group::new(TWO, &[IDLE; 3], &[D(0), C(0), D(1), C(1), D(2)]);
    let twist = |_, _| ClearsPastQuiet::default();
    let how = failure("D C D C D, clears past quiet", Bound::Complete, group.twisted(twist));
    assert!(how.contains("maximum number of branches"), "{how}");
}
