//! Dispatch with separate flags, and fullmesh_v2: the orderings that they need, under every execution.

use veriep_core::protocol::Flags;
use veriep_verify::defects::Defect;
use veriep_verify::loom::group::{Group, Layout, Size};
use veriep_verify::loom::round::Traffic;
use veriep_verify::loom::search::{Bound, failure, model};

const SEPARATE: Layout = Layout::Plain(Flags::Separate);
const TWO: Size<'_> = Size { cores: &[1, 1], experts: 2, bs: 1, k: 1 };
/// Each rank sends to the other.
const CROSS: Traffic<'_> = &[&[&[1]], &[&[0]]];
/// Each rank sends to itself.
const OWN: Traffic<'_> = &[&[&[0]], &[&[1]]];
/// Both send to rank 0.
const TO_FIRST: Traffic<'_> = &[&[&[0]], &[&[0]]];

/// One rank of two cores. With separate flags each core puts what the other publishes; with blocks core 0 counts and
/// core 1 sends.
const ALONE: Size<'_> = Size { cores: &[2], experts: 2, bs: 2, k: 1 };
const SWAP: Traffic<'_> = &[&[&[1], &[0]]];

#[test]
fn dispatch_combine_dispatch() {
    let group = |layout, traffic, schedule: &str| Group::with(layout, TWO, &[traffic; 2], schedule).body();
    model("separate, D, cross", Bound::Complete, 510..=630, group(SEPARATE, CROSS, "D"));
    model("blocks, D, cross", Bound::Complete, 350..=440, group(Layout::Blocks, CROSS, "D"));
    let runs = Group::with(SEPARATE, TWO, &[CROSS], "D").in_runs();
    model("separate, D in runs, cross", Bound::Complete, 820..=1_000, runs.body());
    let body = group(SEPARATE, TO_FIRST, "DCD");
    model("separate, D C D, to first", Bound::Preemptions(3), 4_500..=5_600, body);
    let body = group(Layout::Blocks, TO_FIRST, "DCD");
    model("blocks, D C D, to first", Bound::Complete, 28_000..=35_000, body);
}

#[test]
#[ignore = "takes 2 min; run: cargo test -p veriep-verify --test loom -- --ignored layouts:: --nocapture"]
fn dispatch_combine_dispatch_with_separate_flags_in_every_execution() {
    let group = Group::with(SEPARATE, TWO, &[TO_FIRST; 2], "DCD");
    model("separate, D C D, to first", Bound::Complete, 580_000..=710_000, group.body());
}

/// Clears as late as the contract allows.
#[test]
fn partitions_come_back_in_the_third_dispatch() {
    let late = |layout, traffic| Group::with(layout, TWO, &[traffic; 3], "DDD").bent(Defect::ClearsAtQuiet);
    for (name, layout, traffic, expected) in [
        ("separate, D D D, late clears, own", SEPARATE, OWN, 11_800..=14_400),
        ("separate, D D D, late clears, cross", SEPARATE, CROSS, 11_800..=14_400),
        ("separate, D D D, late clears, to first", SEPARATE, TO_FIRST, 11_800..=14_400),
        ("blocks, D D D, late clears, own", Layout::Blocks, OWN, 900..=1_100),
        ("blocks, D D D, late clears, cross", Layout::Blocks, CROSS, 15_000..=25_000),
        ("blocks, D D D, late clears, to first", Layout::Blocks, TO_FIRST, 6_000..=11_000),
    ] {
        model(name, Bound::Preemptions(3), expected, late(layout, traffic));
    }
}

/// Both kinds of partition, whole rounds.
#[test]
fn partitions_come_back_in_the_third_round() {
    for (name, layout, traffic, schedule, expected) in [
        ("separate, D C D C D, cross", SEPARATE, CROSS, "DCDCD", 7_000..=8_600),
        ("separate, D C D C D, to first", SEPARATE, TO_FIRST, "DCDCD", 1_740..=2_140),
        ("separate, C D C D C, cross", SEPARATE, CROSS, "CDCDC", 5_650..=6_910),
        ("blocks, D C D C D, cross", Layout::Blocks, CROSS, "DCDCD", 12_160..=14_870),
        ("blocks, D C D C D, to first", Layout::Blocks, TO_FIRST, "DCDCD", 1_510..=1_850),
        ("blocks, C D C D C, cross", Layout::Blocks, CROSS, "CDCDC", 8_240..=10_090),
    ] {
        let group = Group::with(layout, TWO, &[traffic; 3], schedule);
        model(name, Bound::Preemptions(2), expected, group.body());
    }
}

#[test]
fn two_cores() {
    let group = |layout| Group::with(layout, ALONE, &[SWAP], "D").body();
    model("separate, D, two cores", Bound::Complete, 510..=630, group(SEPARATE));
    model("blocks, D, two cores", Bound::Complete, 1_500..=1_900, group(Layout::Blocks));
}

/// Of a block it is the block's own flag that must be a release; of separate flags the token flag.
#[test]
fn catches_relaxed_orderings_and_flags_first() {
    for layout in [SEPARATE, Layout::Blocks] {
        let group = || Group::with(layout, TWO, &[CROSS], "D");
        let name = |defect: &str| format!("{layout:?}, D, {defect}");
        let body = group().bent(Defect::RelaxedPublish);
        let how = failure(&name("relaxed publish"), Bound::Complete, body);
        assert!(how.contains("Causality violation"), "{how}");
        let body = group().bent(Defect::RelaxedObserve);
        let how = failure(&name("relaxed observe"), Bound::Complete, body);
        assert!(how.contains("Causality violation"), "{how}");
        let body = group().bent(Defect::FlagFirst);
        let how = failure(&name("flag first"), Bound::Complete, body);
        assert!(how.contains("Causality violation") || how.contains("assist_info of row 0"), "{how}");
    }
}

/// Three dispatches, any memory: a partition must come round.
#[test]
fn catches_flags_that_are_never_cleared() {
    for layout in [SEPARATE, Layout::Blocks] {
        let group = Group::with(layout, TWO, &[CROSS; 3], "DDD");
        let name = format!("{layout:?}, D D D, no clear");
        failure(&name, Bound::Preemptions(3), group.bent(Defect::NoClear));
    }
}

/// Three dispatches, a memory that lands clears late. With separate flags clears that land when the next operator
/// ends are early enough: the counts of the one after it say so.
#[test]
fn catches_a_quiet_that_does_not_wait_for_clears() {
    let defect = |layout| {
        let group = Group::with(layout, TWO, &[OWN; 3], "DDD");
        group.bent(Defect::LateClear)
    };
    let how = failure("blocks, D D D, clears past quiet", Bound::Preemptions(3), defect(Layout::Blocks));
    assert!(how.contains("endless wait, missing: count"), "{how}");
    let body = defect(SEPARATE);
    model("separate, D D D, clears past quiet", Bound::Preemptions(3), 15_000..=18_500, body);
}
