//! Every move of the machines is a step of the model for any number of ranks, and the model's state is a function of theirs.

use crate::verdict::{caught, safe, safe_in_reuse};
use veriep_verify::defects::Defect;
use veriep_verify::explorer::{Model, Traffic, Violation};

fn dc(ranks: u32, defect: Defect) -> Model {
    Model::new(ranks, "DC").refined().defect(defect)
}

#[test]
fn every_move_is_a_step_of_the_model() {
    let plain = || dc(2, Defect::None);
    safe_in_reuse("refinement, 2 ranks x 1 core, DC three times", &plain().units(3));
    safe_in_reuse("refinement, 2 ranks x 1 core, DC three times, weak", &plain().units(3).weak());
    safe_in_reuse(
        "refinement, 2 ranks x 1 core, DC three times, explicit",
        &plain().units(3).weak_explicit(),
    );
    safe("refinement, 2 ranks x 2 cores, DC twice, weak", &plain().cores(2).units(2).weak());
    safe("refinement, 3 ranks x 1 core, DC once, weak", &dc(3, Defect::None).units(1).weak());
    safe("refinement, wide, DC once, weak", &plain().wide().units(1).weak());
    let two = Model::new(2, "DDCC").refined().weak();
    safe("refinement, 2 ranks x 1 core, DDCC once, weak", &two.units(1));
}

#[test]
fn with_separate_flags_each_class_of_slots_has_its_own_quiet() {
    let separate = || dc(2, Defect::None).separate();
    safe_in_reuse("refinement, separate flags, DC three times, weak", &separate().units(3).weak());
    safe("refinement, separate flags, DC once, explicit", &separate().units(1).weak_explicit());
    safe(
        "refinement, separate flags, 2 ranks x 2 cores, DC once, weak",
        &separate().cores(2).units(1).weak(),
    );
}

#[test]
fn blocks_have_flags_that_are_behind_no_quiet() {
    let blocks = |blocks| dc(2, Defect::None).blocks(blocks);
    safe_in_reuse("refinement, one block, DC three times, weak", &blocks(1).units(3).weak());
    safe("refinement, two blocks, DC once, weak", &blocks(2).units(1).weak());
    safe("refinement, one block, 2 ranks x 2 cores, DC once, weak", &blocks(1).cores(2).units(1).weak());
}

#[test]
fn words_of_direct_placement_are_cleared_an_operator_later() {
    let direct = || dc(2, Defect::None).direct(1);
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

/// Every rank sends across, to another number.
const ACROSS: Traffic = Traffic::Given(&[&[3, 2, 1, 0]]);

#[test]
fn catches_a_hierarchy_that_goes_on_before_it_has_heard() {
    let is = |name: &str, model: &Model, guard: &str| {
        let seen = caught(&format!("refinement, hierarchy, {name}"), model);
        let Violation::Unrefined { why } = &seen.violation else { panic!("{seen}") };
        assert!(why.contains(guard), "{seen}");
    };
    let two = |defect| hierarchy(2, 1, "DC", 2).defect(defect);
    is("near rows ahead of entered", &hierarchy(2, 2, "D", 1).defect(Defect::NoEntered), "behind");
    is("counts ahead of the end flag", &two(Defect::NoStreams), "behind");
    is("an end flag ahead of rows done", &two(Defect::NoRowsDone), "behind");
    is("partial wait", &two(Defect::PartialWait), "waits");
    is("one partition", &two(Defect::None).partitions(1, 1), "still in use");
    let streams = |defect| Model { experts: 2, tokens: 2, ..hierarchy(2, 1, "D", 1).defect(defect) };
    is("own front flag", &streams(Defect::OwnFront), "covered");
}

#[test]
fn catches_a_guard_that_only_the_later_of_two_ways_breaks() {
    // Row and flag land in either order, and no core has looked: both ways meet in one state, first the one that is right.
    let defect = dc(2, Defect::RelaxedPublish).units(1).traffic(Traffic::NoSelf).weak_explicit();
    let seen = caught("refinement, relaxed publish, to others, explicit", &defect);
    let Violation::Unrefined { why } = &seen.violation else { panic!("{seen}") };
    assert!(why.contains("data before flag"), "{seen}");
    assert!(seen.story.last().is_some_and(|last| last.to_string().starts_with("lands: the row")), "{seen}");
}

#[test]
fn catches_a_model_whose_state_is_no_function_of_the_machines() {
    let plain = Model::new(2, "DC").units(1).defect(Defect::UntoldClear).weak_explicit();
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
    let explicit = |defect| dc(2, defect).units(2).weak_explicit();
    is("refinement, relaxed publish", &explicit(Defect::RelaxedPublish), "data before flag");
    is("refinement, no quiet", &explicit(Defect::NoQuiet), "clears");
    is("refinement, late clear", &explicit(Defect::LateClear), "clears");
    is("refinement, no join", &dc(2, Defect::NoJoin).cores(2).units(1), "join");
    let separate = explicit(Defect::RelaxedPublish).separate().traffic(Traffic::NoSelf);
    is("refinement, separate flags, relaxed publish", &separate, "data before flag");
    let a2 = |defect| dc(2, defect).a2().units(1).weak();
    is("refinement, A2, last word first", &a2(Defect::LastWordFirst), "data before flag");
    is("refinement, A2, partial wait", &a2(Defect::PartialWait), "waits");
}

#[test]
fn catches_a_word_of_any_class_that_is_never_cleared() {
    let is = |name: &str, model: Model| {
        let seen = caught(name, &model.weak());
        let Violation::Unrefined { why } = &seen.violation else { panic!("{seen}") };
        assert!(why.contains("clears"), "{seen}");
    };
    let twice = |defect| dc(2, defect).units(2);
    is("refinement, no clear of counts", twice(Defect::NoCountClear).separate());
    is("refinement, no clear of token flags", twice(Defect::NoTokenClear).separate());
    is("refinement, no clear of blocks", twice(Defect::NoBlockClear).blocks(1));
    is("refinement, no clear of grants", twice(Defect::NoGrantClear).direct(1));
    is("refinement, no clear of ready words", twice(Defect::NoReadyClear).direct(1));
    is("refinement, A2, no clears", twice(Defect::NoClear).a2());
    is("refinement, A2, the seed's clears", twice(Defect::SeedClears).a2());
}
