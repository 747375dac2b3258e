//! Two ranks of one core: partitions in use over several operators. Every execution compares `expand_x`,
//! counts, triples and `x_out` with the reference; the payload differs in every round.

use veriep_verify::defects::Defect;
use veriep_verify::loom::group::{Group, Size};
use veriep_verify::loom::round::Traffic;
use veriep_verify::loom::search::{Bound, failure, model};

const TWO: Size<'_> = Size { cores: &[1, 1], experts: 2, bs: 1, k: 1 };
/// Each rank sends to the other.
const CROSS: Traffic<'_> = &[&[&[1]], &[&[0]]];
/// Each rank sends to itself.
const OWN: Traffic<'_> = &[&[&[0]], &[&[1]]];
/// No rank sends.
const IDLE: Traffic<'_> = &[&[&[]], &[&[]]];
/// Both send to rank 0, which therefore waits for no rank in combine.
const TO_FIRST: Traffic<'_> = &[&[&[0]], &[&[0]]];

#[test]
fn dispatch_combine_dispatch() {
    let group = |traffic| Group::new(TWO, &[traffic; 2], "DCD");
    model("D C D, cross", Bound::Complete, 8_900..=11_000, group(CROSS).body());
    model("D C D, own", Bound::Complete, 510..=630, group(OWN).body());
    model("D C D, idle", Bound::Complete, 510..=630, group(IDLE).body());
    model("D C D, to first", Bound::Complete, 1_500..=1_900, group(TO_FIRST).body());
}

#[test]
fn dispatch_combine_dispatch_with_every_traffic_in_both_rounds() {
    const CHOICES: [&[&[i32]]; 3] = [&[&[0]], &[&[1]], &[&[]]];
    let mut total = 0;
    for code in 0..81 {
        let [a, b, c, d] = [1, 3, 9, 27].map(|unit| CHOICES[code / unit % 3]);
        let group = Group::new(TWO, &[&[a, b], &[c, d]], "DCD");
        total += model(&format!("D C D, traffic {code}"), Bound::Complete, 30..=10_900, group.body());
    }
    assert!((190_000..=240_000).contains(&total), "{total}");
}

#[test]
fn combine_dispatch_combine() {
    let group = |traffic| Group::new(TWO, &[traffic; 2], "CDC");
    model("C D C, cross", Bound::Complete, 8_900..=11_000, group(CROSS).body());
    model("C D C, to first", Bound::Complete, 810..=1_000, group(TO_FIRST).body());
}

#[test]
fn dispatch_combine_twice() {
    let group = Group::new(TWO, &[CROSS; 2], "DCDC");
    model("D C D C, cross", Bound::Preemptions(5), 30_000..=38_000, group.body());
}

#[test]
fn partitions_come_back_in_the_third_dispatch() {
    let group = |traffic| Group::new(TWO, &[traffic; 3], "DDD");
    model("D D D, cross", Bound::Complete, 8_200..=11_000, group(CROSS).body());
    model("D D D, own", Bound::Complete, 8_200..=11_000, group(OWN).body());
    model("D D D, idle", Bound::Complete, 8_200..=11_000, group(IDLE).body());
    let group = |traffic| Group::new(TWO, &[traffic; 3], "DCDCD");
    model("D C D C D, own", Bound::Complete, 8_200..=11_000, group(OWN).body());
    model("D C D C D, idle", Bound::Complete, 8_200..=11_000, group(IDLE).body());
    model("D C D C D, to first", Bound::Complete, 84_000..=110_000, group(TO_FIRST).body());
    model("D C D C D, cross", Bound::Preemptions(4), 29_500..=36_500, group(CROSS).body());
}

#[test]
fn partitions_come_back_in_the_third_combine() {
    let group = |traffic| Group::new(TWO, &[traffic; 3], "CDCDC");
    model("C D C D C, to first", Bound::Complete, 56_000..=70_000, group(TO_FIRST).body());
    model("C D C D C, cross", Bound::Preemptions(3), 7_000..=8_600, group(CROSS).body());
}

#[test]
#[ignore = "takes 5 min; run: cargo test -p veriep-verify --test loom -- --ignored rounds:: --nocapture"]
fn partitions_come_back_in_every_execution() {
    let group = |schedule: &str| Group::new(TWO, &[CROSS; 3], schedule);
    let expected = 1_700_000..=2_200_000;
    let body = group("DCDCD").body();
    model("D C D C D, cross", Bound::Complete, expected.clone(), body);
    let body = group("CDCDC").body();
    model("C D C D C, cross", Bound::Complete, expected, body);
}

#[test]
fn two_batches_in_flight() {
    let group = |traffic| Group::new(TWO, &[traffic; 2], "DDCC");
    model("D D C C, cross", Bound::Preemptions(5), 30_000..=38_000, group(CROSS).body());
    model("D D C C, to first", Bound::Complete, 10_000..=13_000, group(TO_FIRST).body());
    let group = |schedule: &str| Group::new(TWO, &[TO_FIRST; 4], schedule);
    let body = group("CCDCC").body();
    model("C C D C C, to first", Bound::Complete, 8_500..=11_000, body);
    let body = group("CCDDCC").body();
    model("C C D D C C, to first", Bound::Preemptions(5), 12_500..=16_000, body);
}

#[test]
#[ignore = "takes 5 min; run: cargo test -p veriep-verify --test loom -- --ignored rounds:: --nocapture"]
fn two_rounds_in_every_execution() {
    let body = Group::new(TWO, &[CROSS; 2], "DCDC").body();
    model("D C D C, cross", Bound::Complete, 140_000..=180_000, body);
    let body = Group::new(TWO, &[CROSS; 2], "DDCC").body();
    model("D D C C, cross", Bound::Complete, 140_000..=180_000, body);
    let body = Group::new(TWO, &[TO_FIRST; 4], "CCDDCC").body();
    model("C C D D C C, to first", Bound::Complete, 120_000..=155_000, body);
}

#[test]
fn in_strict_order_one_combine_partition_is_enough() {
    let group = |traffic| Group::new(TWO, &[traffic; 2], "CDC");
    let defect = Defect::OneCombinePartition;
    model("C D C, one partition, cross", Bound::Complete, 8_200..=11_000, group(CROSS).bent(defect));
    model("C D C, one partition, to first", Bound::Complete, 910..=1_200, group(TO_FIRST).bent(defect));
}

#[test]
fn clears_may_land_as_late_as_the_next_quiet() {
    let group = |traffic| Group::new(TWO, &[traffic; 3], "DDD");
    let defect = Defect::ClearsAtQuiet;
    model("D D D, late clears, own", Bound::Complete, 8_200..=11_000, group(OWN).bent(defect));
    model("D D D, late clears, idle", Bound::Complete, 8_200..=11_000, group(IDLE).bent(defect));
    let group = |traffic| Group::new(TWO, &[traffic; 2], "DCDC");
    model("D C D C, late clears, to first", Bound::Complete, 13_000..=17_000, group(TO_FIRST).bent(defect));
}

/// Needs a memory that is weaker than total store order; one operator, any traffic that crosses.
#[test]
fn catches_a_relaxed_publish() {
    let group = Group::new(TWO, &[CROSS], "D");
    let how = failure("D, relaxed publish", Bound::Complete, group.bent(Defect::RelaxedPublish));
    assert!(how.contains("Causality violation"), "{how}");
    let group = Group::new(TWO, &[CROSS], "C");
    let how = failure("C, relaxed publish", Bound::Complete, group.bent(Defect::RelaxedPublish));
    assert!(how.contains("Causality violation"), "{how}");
}

/// Needs loads that overtake loads; one operator, any traffic that crosses.
#[test]
fn catches_a_relaxed_observe() {
    let group = Group::new(TWO, &[CROSS], "D");
    let how = failure("D, relaxed observe", Bound::Complete, group.bent(Defect::RelaxedObserve));
    assert!(how.contains("Causality violation"), "{how}");
    let group = Group::new(TWO, &[CROSS], "C");
    let how = failure("C, relaxed observe", Bound::Complete, group.bent(Defect::RelaxedObserve));
    assert!(how.contains("Causality violation"), "{how}");
}

/// Fails on any memory; one operator, any traffic that crosses.
#[test]
fn catches_a_publish_before_its_put() {
    for operator in ["D", "C"] {
        let group = Group::new(TWO, &[CROSS], operator);
        let name = format!("{operator}, flag first");
        let how = failure(&name, Bound::Complete, group.bent(Defect::FlagFirst));
        assert!(how.contains("Causality violation") || how.contains("assist_info of row 0"), "{how}");
    }
}

/// No race and no lost flag here: only the reference sees it. Rank 0 sends, so that a triple of zeros looks right.
#[test]
fn catches_a_put_that_never_lands() {
    for (operator, output) in [("D", "expand_x of rank 1"), ("C", "x_out of rank 0")] {
        let group = Group::new(TWO, &[&[&[&[1]], &[&[]]]], operator);
        let how = failure(&format!("{operator}, no put"), Bound::Complete, group.bent(Defect::NoPut));
        assert!(how.contains(output), "{how}");
    }
}

/// Fails on any memory in the second dispatch, but only when some rank's combine does not wait for the other:
/// ranks send to themselves or are idle. A flag is lost.
#[test]
fn catches_one_dispatch_partition() {
    let group = |traffic| Group::new(TWO, &[traffic; 2], "DCD");
    let defect = Defect::OneDispatchPartition;
    for (name, traffic) in [("own", OWN), ("idle", IDLE), ("to first", TO_FIRST)] {
        let name = format!("D C D, one dispatch partition, {name}");
        let how = failure(&name, Bound::Complete, group(traffic).bent(defect));
        assert!(how.contains("endless wait, missing: dispatch flag"), "{how}");
    }
    let body = group(CROSS).bent(defect);
    model("D C D, one dispatch partition, cross", Bound::Complete, 8_200..=11_000, body);
}

/// Fails on any memory in the second combine of two batches in flight, whatever the traffic between ranks.
#[test]
fn catches_one_combine_partition_with_two_batches_in_flight() {
    for (name, traffic) in [("cross", CROSS), ("to first", TO_FIRST)] {
        let group = Group::new(TWO, &[traffic; 2], "DDCC");
        let name = format!("D D C C, one combine partition, {name}");
        let how = failure(&name, Bound::Complete, group.bent(Defect::OneCombinePartition));
        assert!(how.contains("Causality violation"), "{how}");
    }
}

/// Two partitions for three batches: a rank that needs no other overwrites in its third combine what the other
/// has not read in its first. Any memory. When each rank needs the other, the second combine holds it back.
#[test]
fn catches_three_batches_in_flight() {
    let group = Group::new(TWO, &[TO_FIRST; 3], "DDDCCC");
    let how = failure("D D D C C C, to first", Bound::Complete, group.body());
    assert!(how.contains("Causality violation"), "{how}");
    let group = Group::new(TWO, &[CROSS; 3], "CCC");
    model("C C C, cross", Bound::Complete, 8_200..=11_000, group.body());
}

/// Fails on any memory in the third dispatch, which takes the flags of the first for its own; with idle ranks
/// they say the same.
#[test]
fn catches_a_clear_that_never_happens() {
    let group = |traffic, schedule: &str| Group::new(TWO, &[traffic; 3], schedule).bent(Defect::NoClear);
    let how = failure("D D D, no clear, cross", Bound::Complete, group(CROSS, "DDD"));
    assert!(how.contains("Causality violation"), "{how}");
    model("D D, no clear, cross", Bound::Complete, 510..=630, group(CROSS, "DD"));
    model("D D D, no clear, idle", Bound::Complete, 6_100..=7_500, group(IDLE, "DDD"));
}

/// Quiet must also wait for clears: else a clear of the first dispatch wipes a flag of the third. Three
/// dispatches, a memory that lands clears late, and a rank whose combine needs nothing of the other.
#[test]
fn catches_a_quiet_that_does_not_wait_for_clears() {
    let group = |traffic| {
        let group = Group::new(TWO, &[traffic; 3], "DCDCD");
        group.bent(Defect::LateClear)
    };
    for (name, traffic) in [("idle", IDLE), ("own", OWN), ("to first", TO_FIRST)] {
        let name = format!("D C D C D, clears past quiet, {name}");
        let how = failure(&name, Bound::Complete, group(traffic));
        assert!(how.contains("endless wait, missing: dispatch flag"), "{how}");
    }
    model("D C D C D, clears past quiet, cross", Bound::Preemptions(3), 8_500..=11_000, group(CROSS));
}
