//! The reduced weak memory and the one in which every landing is a move of its own give the same verdict on every protocol
//! and on the twins that are listed here: until partitions are used again, or as far as five million states reach.
//! With one core a rank there is no barrier and no join, so twins of these are compared with two.

use crate::verdict::explored;
use veriep_verify::defects::Defect;
use veriep_verify::explorer::{Memory, Model, Traffic};

/// Both memories must find the unbroken model and its `harmless` twins safe, and its `caught` twins bad.
fn agree(name: &str, model: &Model, harmless: &[Defect], caught: &[Defect]) {
    let model = Model { states_max: 5_000_000, ..model.clone() };
    let safe = [Defect::None].iter().chain(harmless).map(|&defect| (defect, true));
    for (defect, safe) in safe.chain(caught.iter().map(|&defect| (defect, false))) {
        agree_on(name, &model, defect, safe);
    }
}

/// Both memories must find a defect of a model `safe`, or bad.
fn agree_on(name: &str, model: &Model, defect: Defect, safe: bool) {
    for (memory, told) in [(Memory::Weak, "reduced"), (Memory::WeakExplicit, "explicit")] {
        let model = Model { memory, defect, ..model.clone() };
        let report = explored(&format!("{name}, {defect:?}, {told}"), &model);
        assert!(report.complete || report.counterexample.is_some(), "{name}, {defect:?}, {told}: gave up");
        assert_eq!(report.counterexample.is_none(), safe, "{name}, {defect:?}, {told}");
    }
}

fn dc(cores: u32, units: u32) -> Model {
    Model::new(2, "DC").cores(cores).units(units)
}

fn all(twins: &[&[Defect]]) -> Vec<Defect> {
    twins.concat()
}

const OF_DATA: &[Defect] = &[Defect::RelaxedPublish, Defect::NoQuiet];
const OF_JOINT: &[Defect] = &[Defect::QuietOnlyIfSent, Defect::NoClear];
const OF_CORES: &[Defect] = &[Defect::NoBarrier, Defect::OneBarrierWord];
const POLLS: &[Defect] = &[Defect::PollsByStepping];

#[test]
fn joint_flags() {
    let caught = all(&[OF_DATA, OF_JOINT, &[Defect::LateClear], POLLS]);
    agree("joint, 1 core, DC three times", &dc(1, 3), &[], &caught);
    let across = dc(2, 3).traffic(Traffic::NoSelf);
    let caught = all(&[OF_CORES, &[Defect::NoJoin]]);
    agree("joint, 2 cores, DC three times, to others", &across, &[], &caught);
}

#[test]
fn halves_with_another_operator_between() {
    let around = |cores| Model::new(2, "Ds0 D1 Dr0 C0 C1").cores(cores).units(1).traffic(Traffic::NoSelf);
    let stale = [Defect::StaleEpoch];
    agree("halves, 1 core, one dispatch around another, to others", &around(1), &stale, &[]);
    agree("halves, 2 cores, one dispatch around another, to others", &around(2), &[], &stale);
}

#[test]
fn rows_in_place() {
    let caught = all(&[OF_DATA, OF_JOINT, &[Defect::LateClear]]);
    agree("in place, 1 core, DC three times", &dc(1, 3).in_place(), &[], &caught);
    let across = dc(2, 3).in_place().traffic(Traffic::NoSelf);
    let caught = all(&[OF_CORES, &[Defect::NoJoin]]);
    agree("in place, 2 cores, DC three times, to others", &across, &[], &caught);
}

#[test]
#[ignore = "takes 4 min; run: cargo test -p veriep-verify --test explorer -- --ignored more_twins --nocapture"]
fn more_twins_on_two_cores() {
    let across = dc(2, 3).traffic(Traffic::NoSelf);
    let caught = all(&[OF_DATA, OF_JOINT, &[Defect::LateClear, Defect::BarrierOfLowerCores]]);
    agree("joint, 2 cores, DC three times, to others", &across, &[], &caught);
    agree("in place, 2 cores, DC three times, to others", &across.in_place(), &[], &caught);
    let separate = dc(2, 1).separate().traffic(Traffic::NoSelf);
    agree_on("separate, 2 cores, DC once, to others", &separate, Defect::NoQuiet, false);
    agree_on("separate, 2 cores, DC once, to others", &separate, Defect::BarrierOfLowerCores, true);
}

#[test]
#[ignore = "takes 2 min; run: cargo test -p veriep-verify --test explorer -- --ignored reused_memory --nocapture"]
fn reused_memory_in_full() {
    let caught = [Defect::RelaxedPublish, Defect::NoCountClear, Defect::NoTokenClear];
    agree("separate, 1 core, DC three times", &dc(1, 3).separate(), &[], &caught);
    agree("blocks, 1 core, DC three times", &dc(1, 3).blocks(1), &[], &[Defect::NoBlockClear]);
    let across = Model::new(2, "DCDC").a2().units(1).traffic(Traffic::NoSelf);
    agree("A2, 1 core, DC twice, to others", &across, &[Defect::SeedClears], &[]);
}

#[test]
fn separate_flags() {
    // Without quiet, or with late clears, one core has more than five million states before a flag is lost.
    let caught = [Defect::RelaxedPublish, Defect::NoCountClear, Defect::NoTokenClear];
    let one = dc(1, 3).separate().traffic(Traffic::NoSelf);
    agree("separate, 1 core, DC three times, to others", &one, &[], &caught);
    let across = dc(2, 1).separate().traffic(Traffic::NoSelf);
    let harmless = [Defect::NoFlagOfNothing];
    let caught = [Defect::RelaxedPublish, Defect::NoBarrier, Defect::OneBarrierWord];
    agree("separate, 2 cores, DC once, to others", &across, &harmless, &caught);
}

#[test]
fn records_in_blocks() {
    let of_kind = [Defect::NoCountClear, Defect::NoBlockClear];
    let one = dc(1, 3).blocks(1).traffic(Traffic::NoSelf);
    let caught = all(&[&[Defect::RelaxedPublish], &of_kind, POLLS]);
    agree("blocks, 1 core, DC three times, to others", &one, &[], &caught);
    for defect in [Defect::NoQuiet, Defect::LateClear] {
        agree_on("blocks, 1 core, DC three times", &dc(1, 3).blocks(1), defect, false);
    }
    let two = dc(1, 3).blocks(2).traffic(Traffic::NoSelf);
    // Without quiet, or with late clears, there are more than five million states.
    let caught = [Defect::RelaxedPublish, Defect::NoCountClear, Defect::NoBlockClear, Defect::RefusesGaps];
    agree("two blocks, 1 core, DC three times, to others", &two, &[], &caught);
    let across = dc(2, 1).blocks(1).traffic(Traffic::NoSelf);
    let caught = [Defect::NoBarrier, Defect::OneBarrierWord, Defect::RelaxedPublish];
    agree("blocks, 2 cores, DC once, to others", &across, &[], &caught);
}

#[test]
fn direct_placement() {
    // A second round is out of reach with every landing a move of its own: two tables and four words go from each rank to
    // each. So is what a barrier that waits for lower cores breaks.
    let across = dc(2, 1).traffic(Traffic::NoSelf);
    agree("direct, 1 core, DC once", &dc(1, 1).direct(1), &[], &[Defect::RelaxedPublish]);
    let caught = [Defect::NoBarrier, Defect::OneBarrierWord, Defect::NoQuiet];
    agree("direct, 2 cores, DC once, to others", &across.clone().direct(1), &[], &caught);
    let caught = [Defect::ResultAheadOfRead, Defect::ReadyAheadOfResults];
    agree("overwrite, 1 core, DC once", &dc(1, 1).overwrite(1), &[], &caught);
    agree("overwrite, 2 cores, DC once, to others", &across.overwrite(1), &[], &caught);
}

#[test]
fn masks_shared_experts_and_tp_peers() {
    let masked = dc(1, 1).pair_masks();
    agree("masks of pairs, 1 core, DC once", &masked, &[], &[Defect::RelaxedPublish, Defect::MaskedWait]);
    let shared = dc(1, 3).shared_ranks(1);
    let caught = [Defect::RelaxedPublish, Defect::NoSharedClear];
    agree("shared experts, 1 core, DC three times", &shared, &[], &caught);
    let caught = [Defect::RelaxedPublish, Defect::NoTpClear];
    agree("TP = 2, 1 core, DC three times", &dc(1, 3).tp(), &[], &caught);
}

#[test]
fn a2() {
    let across = |model: Model| model.a2().units(1).traffic(Traffic::NoSelf);
    agree(
        "A2, 1 core, DC, to others",
        &across(Model::new(2, "DC")),
        &[Defect::SeedClears],
        &[Defect::NoQuiet],
    );
    let twice = across(Model::new(2, "DCDC"));
    for defect in [Defect::LastWordFirst, Defect::NoClear, Defect::OneMessageSlot] {
        agree_on("A2, 1 core, DC twice, to others", &twice, defect, false);
    }
    for both in [Memory::Weak, Memory::WeakExplicit] {
        let one = Model { memory: both, ..across(Model::new(2, "DD")).partitions(1, 1) };
        let report = explored(&format!("A2, 1 core, one half, DD, to others, {both:?}"), &one);
        assert!(report.counterexample.is_some(), "{both:?}");
    }
    let of_a2 = [Defect::BarrierOfLowerCores, Defect::EarlyFlip, Defect::NoQuiet];
    let caught = all(&[OF_CORES, &of_a2]);
    agree("A2, 2 cores, D once, to others", &across(Model::new(2, "D").cores(2)), &[], &caught);
}

#[test]
fn hierarchy() {
    let waits = [Defect::PartialWait, Defect::NoRowsDone, Defect::NoStreams];
    let caught = all(&[&[Defect::UnorderedMessages, Defect::NoFlagOfNothing, Defect::NoQuiet], &waits]);
    agree("hierarchy, 2 servers x 1 rank, DC twice", &dc(1, 2).hierarchy(1), &[Defect::OwnFront], &caught);
    let harmless = [Defect::Equal, Defect::NoQuiet];
    let caught = [Defect::RelaxedPublish, Defect::NoEntered, Defect::NoFlagOfNothing];
    agree("hierarchy, 1 server x 2 ranks, DC twice", &dc(1, 2).hierarchy(2), &harmless, &caught);
    let streams = Model { experts: 2, tokens: 2, ..Model::new(2, "D").units(1).hierarchy(1) };
    let own = streams.traffic(Traffic::Given(&[&[3, 0]]));
    agree("hierarchy, two records in a stream, D once", &own, &[], &[Defect::OwnFront, Defect::FlagAtEnd]);
}

#[test]
fn agents_of_the_hierarchy() {
    // To each other, or to no other rank: a wait too few shows in the latter alone.
    let model = dc(1, 2).hierarchy(1).stage_two().traffic(Traffic::Given(&[&[1, 0], &[0, 1]]));
    let caught = [Defect::NoQuiet, Defect::LastWordFirst, Defect::OneMessageSlot, Defect::PartialWait];
    agree("hierarchy, stage 2, 2 servers x 1 rank, DC twice", &model, &[], &caught);
}

#[test]
fn hierarchy_on_two_cores() {
    let once = |server_ranks| Model::new(2, "D").units(1).cores(2).hierarchy(server_ranks);
    agree("hierarchy, 1 server x 2 ranks of 2 cores, D once", &once(2), &[], &[Defect::RelaxedPublish]);
    let twice = Model { schedule: "DD".to_owned(), ..once(2).traffic(Traffic::Given(&[&[1, 0]])) };
    agree(
        "hierarchy, 1 server x 2 ranks of 2 cores, DD once, across",
        &twice,
        &[],
        &[Defect::Equal, Defect::InStep],
    );
    let across = once(1).traffic(Traffic::Given(&[&[1, 0]]));
    agree(
        "hierarchy, 2 servers x 1 rank of 2 cores, D once, across",
        &across,
        &[],
        &[Defect::UnorderedMessages],
    );
}
