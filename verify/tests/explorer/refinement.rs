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
fn catches_a_guard_that_only_the_later_of_two_ways_breaks() {
    // Row and flag land in either order, and nobody has looked: both ways meet in one state, first the one that is right.
    let twin = dc(2, Twin::RelaxedPublish).units(1).traffic(Traffic::NoSelf).weak_explicit();
    let seen = caught("refinement, relaxed publish, to others, explicit", &twin);
    let Violation::Unrefined { why } = &seen.violation else { panic!("{seen}") };
    assert!(why.contains("data before flag"), "{seen}");
    assert!(seen.events.last().is_some_and(|last| last.starts_with("lands: the row")), "{seen}");
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
}
