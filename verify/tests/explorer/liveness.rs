//! That operators end, and what each assumption is for: the driver, agents and the memory are fair. Where the memory or agents
//! matter, every landing is a move of its own.

use crate::verdict::{caught, safe};
use veriep_verify::defects::Defect;
use veriep_verify::explorer::{Model, Violation};

fn explicit(defect: Defect) -> Model {
    Model::new(2, "DC").weak_explicit().units(1).defect(defect)
}

fn a2(defect: Defect) -> Model {
    Model::new(2, "D").a2().weak_explicit().units(1).defect(defect)
}

fn circles(name: &str, model: &Model) {
    let seen = caught(name, model);
    assert_eq!(seen.violation, Violation::Circles, "{seen}");
}

#[test]
fn operators_end_where_everybody_is_fair() {
    // All other gates ask this, too. Here, as in `gates` on A3, every landing and every agent is an actor that must move.
    safe("liveness, A2, D once, explicit", &a2(Defect::None));
}

#[test]
fn catches_a_driver_that_need_not_step_a_core() {
    circles("liveness, unfair driver", &Model::new(2, "DC").defect(Defect::UnfairDriver));
}

#[test]
fn catches_a_memory_in_which_nothing_need_land() {
    // Over a memory in which all lands at once there is nothing to be fair about.
    safe("liveness, unfair memory, strong", &Model::new(2, "DC").defect(Defect::UnfairMemory));
    circles("liveness, unfair memory, explicit", &explicit(Defect::UnfairMemory));
}

#[test]
fn catches_an_agent_that_need_not_post() {
    // A3 has none.
    safe("liveness, unfair agent, A3, explicit", &explicit(Defect::UnfairAgent));
    circles("liveness, unfair agent, A2, explicit", &a2(Defect::UnfairAgent));
}

#[test]
fn catches_two_ranks_that_give_way_to_each_other() {
    // From every state there is a way to the end of an operator, and a group that is fair need not take it.
    let defect = Model::new(2, "DC").defect(Defect::TakesBack);
    circles("liveness, flags are taken back while their rank waits", &defect);
    circles("liveness, flags are taken back while their rank waits, weak", &defect.weak());
}
