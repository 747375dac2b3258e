//! Explorations that take seconds: the gate by which mutants of the protocol are judged (docs/doubt/fuzzing.md). What
//! they leave out, more rounds and more cores, is in `explorer gates`.

use crate::verdict::{caught, safe};
use veriep_core::plan::order::SendOrder;
use veriep_verify::defects::Defect;
use veriep_verify::explorer::Model;

/// A mutant may make the graph endless.
fn quick(name: &str, mut model: Model) {
    model.states_max = 600_000;
    safe(name, &model);
}

#[test]
fn two_ranks_for_ever() {
    quick("2 ranks x 1 core, DC for any number of rounds, weak", Model::new(2, "DC").weak());
}

#[test]
fn two_batches_in_flight() {
    quick("2 ranks x 1 core, DDCC for any number of rounds, weak", Model::new(2, "DDCC").weak());
}

#[test]
fn two_ranks_of_two_cores() {
    quick("2 ranks x 2 cores, DC twice, weak", Model::new(2, "DC").cores(2).weak().units(2));
    // Until every epoch has come round.
    quick("2 ranks x 2 cores, DC three times", Model::new(2, "DC").cores(2).units(3));
}

#[test]
fn two_ranks_of_three_cores() {
    quick("2 ranks x 3 cores, DC once", Model::new(2, "DC").cores(3).units(1));
}

#[test]
fn three_ranks() {
    quick("3 ranks x 1 core, DC once, weak", Model::new(3, "DC").weak().units(1));
}

/// The order in which cores send changes no verdict.
#[test]
fn every_send_order() {
    for order in SendOrder::ALL {
        let model = |model: Model| model.wide().weak().units(1).order(order);
        quick(&format!("2 ranks x 1 core, wide, {order:?}, weak"), model(Model::new(2, "DC")));
        let missing = model(Model::new(2, "DC").cores(2).defect(Defect::NoQuiet));
        caught(&format!("2 ranks x 2 cores, wide, {order:?}, no quiet, weak"), &missing);
    }
}

#[test]
fn several_pairs() {
    quick("2 ranks x 1 core, wide", Model::new(2, "DC").wide().units(1));
    quick("2 ranks x 1 core, wide, weak", Model::new(2, "DC").wide().weak().units(1));
    quick("2 ranks x 1 core, wide, weak, quantised", Model::new(2, "DC").wide().quantised().weak().units(1));
    quick("2 ranks x 2 cores, wide", Model::new(2, "DC").wide().cores(2).units(1));
}
