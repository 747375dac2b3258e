//! A2's full mesh in the explorer: machines, agents and transfers, and what is broken on purpose.

mod common;

use common::{caught, explored, safe};
use verify::explorer::{Memory, Model, Traffic, Twin, Violation};

fn a2(schedule: &str) -> Model {
    Model::new(2, schedule).a2().weak()
}

#[test]
fn two_ranks_once() {
    safe("A2, 2 ranks x 1 core, DC once, weak", &a2("DC").units(1));
}

#[test]
fn two_ranks_twice() {
    safe("A2, 2 ranks x 1 core, DC twice, weak", &a2("DC").units(2));
}

#[test]
fn two_ranks_for_ever() {
    let mut m = a2("DC");
    m.states_max = 3_000_000;
    safe("A2, 2 ranks x 1 core, DC for ever, weak", &m);
}

#[test]
fn two_batches_in_flight() {
    safe("A2, 2 ranks x 1 core, DDCC once, weak", &a2("DDCC").units(1));
}

#[test]
fn two_cores_once() {
    let mut m = a2("D").cores(2);
    m.states_max = 3_000_000;
    explored("A2, 2 ranks x 2 cores, D once, weak", &m.clone().units(1));
    m.schedule = "DC".into();
    m.traffic = Traffic::NoSelf;
    explored("A2, 2 ranks x 2 cores, DC once, weak, no self", &m.units(1));
}

#[test]
fn catches_one_half() {
    safe("A2, one half, one operator", &a2("D").partitions(1, 1).units(1));
    let seen = caught("A2, one half", &a2("DC").partitions(1, 1));
    println!("{seen}");
    assert!(matches!(seen.violation, Violation::SourceInUse { .. } | Violation::HalfInUse { .. }), "{seen}");
}

#[test]
fn catches_one_message_slot() {
    safe("A2, one message slot, one operator", &a2("D").units(1).twin(Twin::OneMessageSlot));
    let seen = caught("A2, one message slot", &a2("DC").twin(Twin::OneMessageSlot));
    assert!(matches!(seen.violation, Violation::NotLanded { .. }), "{seen}");
}

#[test]
fn catches_clears_of_what_was_waited_for_alone() {
    // A row of two operators ago ends combine; its rank goes on and writes what a transfer has still to read.
    // The half must come round.
    safe("A2, the seed's clears, once", &a2("DC").units(1).twin(Twin::SeedClears));
    let seen = caught("A2, the seed's clears", &a2("DC").twin(Twin::SeedClears));
    println!("{seen}");
}

#[test]
fn catches_a_clear_that_never_happens() {
    safe("A2, no clears, once", &a2("DC").units(1).twin(Twin::NoClear));
    let seen = caught("A2, no clears", &a2("DC").twin(Twin::NoClear));
    println!("{seen}");
}

#[test]
fn catches_a_combine_that_waits_for_no_window_without_rows() {
    let seen = caught("A2, partial wait", &a2("DDCC").twin(Twin::PartialWait));
    println!("{seen}");
}

#[test]
fn catches_a_doorbell_before_its_tasks() {
    let seen = caught("A2, no quiet", &a2("DC").twin(Twin::NoQuiet));
    assert!(matches!(seen.violation, Violation::NotLanded { .. }), "{seen}");
}

#[test]
fn catches_a_last_word_that_comes_first() {
    let seen = caught("A2, last word first", &a2("DC").twin(Twin::LastWordFirst));
    println!("{seen}");
}
