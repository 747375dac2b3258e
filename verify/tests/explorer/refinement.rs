//! Every move of the machines is a step of the model for any number of ranks, and the model's state is a function of theirs.

use crate::verdict::{caught, safe, safe_in_reuse};
use veriep_verify::explorer::{Model, Traffic, Twin, Violation};

fn dc(ranks: u32, twin: Twin) -> Model {
    Model::new(ranks, "DC").refined().twin(twin)
}

#[test]
fn every_move_is_a_step_of_the_model() {
    let plain = || dc(2, Twin::None);
    safe_in_reuse("refinement, 2 ranks x 1 core, DC three times", &plain().units(3));
    safe_in_reuse("refinement, 2 ranks x 1 core, DC three times, weak", &plain().units(3).weak());
    safe_in_reuse(
        "refinement, 2 ranks x 1 core, DC three times, explicit",
        &plain().units(3).weak_explicit(),
    );
    safe("refinement, 2 ranks x 2 cores, DC twice, weak", &plain().cores(2).units(2).weak());
    safe("refinement, 3 ranks x 1 core, DC once, weak", &dc(3, Twin::None).units(1).weak());
    safe("refinement, wide, DC once, weak", &plain().wide().units(1).weak());
    let two = Model::new(2, "DDCC").refined().weak();
    safe("refinement, 2 ranks x 1 core, DDCC once, weak", &two.units(1));
}

#[test]
fn with_separate_flags_each_class_of_slots_has_its_own_quiet() {
    let separate = || dc(2, Twin::None).separate();
    safe_in_reuse("refinement, separate flags, DC three times, weak", &separate().units(3).weak());
    safe("refinement, separate flags, DC once, explicit", &separate().units(1).weak_explicit());
    safe(
        "refinement, separate flags, 2 ranks x 2 cores, DC once, weak",
        &separate().cores(2).units(1).weak(),
    );
}

#[test]
fn blocks_have_flags_that_are_behind_no_quiet() {
    let blocks = |blocks| dc(2, Twin::None).blocks(blocks);
    safe_in_reuse("refinement, one block, DC three times, weak", &blocks(1).units(3).weak());
    safe("refinement, two blocks, DC once, weak", &blocks(2).units(1).weak());
    safe("refinement, one block, 2 ranks x 2 cores, DC once, weak", &blocks(1).cores(2).units(1).weak());
}

#[test]
fn words_of_direct_placement_are_cleared_an_operator_later() {
    let direct = || dc(2, Twin::None).direct(1);
    safe_in_reuse("refinement, direct, DC three times, weak", &direct().units(3).weak());
    safe("refinement, direct, 2 ranks x 2 cores, DC once, weak", &direct().cores(2).units(1).weak());
}

#[test]
fn windows_of_a2_are_slots() {
    let a2 = |schedule| Model::new(2, schedule).a2().refined().weak();
    safe_in_reuse("refinement, A2, DC three times, weak", &a2("DC").units(3));
    safe_in_reuse("refinement, A2, DDCC once, weak", &a2("DDCC").units(1));
    safe("refinement, A2, 2 ranks x 2 cores, DC once, weak", &a2("DC").cores(2).units(1));
    let explicit = Model::new(2, "D").a2().refined().weak_explicit();
    safe("refinement, A2, D once, explicit", &explicit.units(1).traffic(Traffic::NoSelf));
}

/// In servers of that many ranks.
fn hierarchy(ranks: u32, server_ranks: u32, schedule: &str, units: u32) -> Model {
    Model::new(ranks, schedule).hierarchy(server_ranks).refined().weak().units(units)
}

#[test]
fn words_of_the_hierarchy_are_epochs() {
    let two = |schedule, units| hierarchy(2, 1, schedule, units);
    safe_in_reuse("refinement, hierarchy, 2 x 1, DC twice, weak", &two("DC", 2));
    safe_in_reuse("refinement, hierarchy, 2 x 1, DDCC once, weak", &two("DDCC", 1));
    safe_in_reuse("refinement, hierarchy, 1 x 2, DC twice, weak", &hierarchy(2, 2, "DC", 2));
    let stage_two = two("DC", 2).stage_two().traffic(EACH_OTHER);
    safe_in_reuse("refinement, hierarchy, stage 2, DC twice, weak", &stage_two);
    let streams = Model { experts: 2, tokens: 2, ..two("D", 1) };
    safe("refinement, hierarchy, two tokens, D once, weak", &streams);
    let across = hierarchy(4, 2, "D", 1).traffic(ACROSS);
    safe("refinement, hierarchy, 2 x 2, D once, weak", &across);
    safe("refinement, hierarchy, 1 x 2 of 2 cores, D once, weak", &hierarchy(2, 2, "D", 1).cores(2));
}

/// Two ranks send to each other.
const EACH_OTHER: Traffic = Traffic::Given(&[&[1, 0]]);

/// Everybody sends across, to another number.
const ACROSS: Traffic = Traffic::Given(&[&[3, 2, 1, 0]]);

#[test]
fn catches_a_hierarchy_that_goes_on_before_it_has_heard() {
    let is = |name: &str, model: &Model, guard: &str| {
        let seen = caught(&format!("refinement, hierarchy, {name}"), model);
        let Violation::Unrefined { why } = &seen.violation else { panic!("{seen}") };
        assert!(why.contains(guard), "{seen}");
    };
    let two = |twin| hierarchy(2, 1, "DC", 2).twin(twin);
    is("near rows ahead of entered", &hierarchy(2, 2, "D", 1).twin(Twin::NoEntered), "behind");
    is("counts ahead of the end flag", &two(Twin::NoStreams), "behind");
    is("an end flag ahead of rows done", &two(Twin::NoRowsDone), "behind");
    is("partial wait", &two(Twin::PartialWait), "waits");
    is("one partition", &two(Twin::None).partitions(1, 1), "still in use");
    let streams = |twin| Model { experts: 2, tokens: 2, ..hierarchy(2, 1, "D", 1).twin(twin) };
    is("own front flag", &streams(Twin::OwnFront), "covered");
}

#[test]
fn catches_a_guard_that_only_the_later_of_two_ways_breaks() {
    // Row and flag land in either order, and nobody has looked: both ways meet in one state, first the one that is right.
    let twin = dc(2, Twin::RelaxedPublish).units(1).traffic(Traffic::NoSelf).weak_explicit();
    let seen = caught("refinement, relaxed publish, to others, explicit", &twin);
    let Violation::Unrefined { why } = &seen.violation else { panic!("{seen}") };
    assert!(why.contains("data before flag"), "{seen}");
    assert!(seen.story.last().is_some_and(|last| last.to_string().starts_with("lands: the row")), "{seen}");
}

#[test]
fn catches_a_model_whose_state_is_no_function_of_the_machines() {
    let plain = Model::new(2, "DC").units(1).twin(Twin::UntoldClear).weak_explicit();
    safe("untold clears, explicit", &plain);
    let seen = caught("refinement, untold clears, explicit", &plain.refined());
    assert_eq!(seen.violation, Violation::TwoAbstractions, "{seen}");
}

#[test]
fn catches_broken_machines_by_the_guard_that_they_break() {
    let is = |name: &str, model: &Model, guard: &str| {
        let seen = caught(name, model);
        let Violation::Unrefined { why } = &seen.violation else { panic!("{seen}") };
        assert!(why.contains(guard), "{seen}");
    };
    let explicit = |twin| dc(2, twin).units(2).weak_explicit();
    is("refinement, relaxed publish", &explicit(Twin::RelaxedPublish), "data before flag");
    is("refinement, no quiet", &explicit(Twin::NoQuiet), "clears");
    is("refinement, late clear", &explicit(Twin::LateClear), "clears");
    is("refinement, no join", &dc(2, Twin::NoJoin).cores(2).units(1), "join");
    let separate = explicit(Twin::RelaxedPublish).separate().traffic(Traffic::NoSelf);
    is("refinement, separate flags, relaxed publish", &separate, "data before flag");
    let a2 = |twin| dc(2, twin).a2().units(1).weak();
    is("refinement, A2, last word first", &a2(Twin::LastWordFirst), "data before flag");
    is("refinement, A2, partial wait", &a2(Twin::PartialWait), "waits");
}

#[test]
fn catches_a_word_of_any_class_that_is_never_cleared() {
    let is = |name: &str, model: Model| {
        let seen = caught(name, &model.weak());
        let Violation::Unrefined { why } = &seen.violation else { panic!("{seen}") };
        assert!(why.contains("clears"), "{seen}");
    };
    let twice = |twin| dc(2, twin).units(2);
    is("refinement, no clear of counts", twice(Twin::NoCountClear).separate());
    is("refinement, no clear of token flags", twice(Twin::NoTokenClear).separate());
    is("refinement, no clear of blocks", twice(Twin::NoBlockClear).blocks(1));
    is("refinement, no clear of grants", twice(Twin::NoGrantClear).direct(1));
    is("refinement, no clear of ready words", twice(Twin::NoReadyClear).direct(1));
    is("refinement, A2, no clears", twice(Twin::NoClear).a2());
    is("refinement, A2, the seed's clears", twice(Twin::SeedClears).a2());
}
