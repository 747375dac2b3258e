//! A2's full mesh in the explorer: machines, agents and transfers, and what is broken on purpose.

use crate::verdict::{caught, safe, safe_in_reuse};
use veriep_verify::defects::Defect;
use veriep_verify::explorer::{Memory, Model, Traffic, Violation};

fn a2(schedule: &str) -> Model {
    Model::new(2, schedule).a2().weak()
}

#[test]
fn two_ranks_for_ever() {
    safe_in_reuse("A2, 2 ranks x 1 core, DC for any number of rounds, weak", &a2("DC"));
}

#[test]
fn two_batches_in_flight_for_ever() {
    // Each kind follows each kind in one half.
    safe_in_reuse("A2, 2 ranks x 1 core, DDCC for any number of rounds, weak", &a2("DDCC"));
}

#[test]
fn a_rank_without_tokens() {
    let idle = |schedule| a2(schedule).bs(&[1, 0]);
    safe_in_reuse("A2, no tokens, 2 ranks x 1 core, DC for any number of rounds, weak", &idle("DC"));
    safe_in_reuse("A2, no tokens, 2 ranks x 1 core, DDCC for any number of rounds, weak", &idle("DDCC"));
    safe_in_reuse("A2, no tokens, 2 ranks x 2 cores, DC three times, weak", &idle("DC").cores(2).units(3));
    let seen = caught("A2, no tokens, partial wait", &idle("DDCC").defect(Defect::PartialWait));
    assert!(matches!(seen.violation, Violation::SourceInUse { .. }), "{seen}");
}

#[test]
fn quantised_rows_for_ever() {
    safe_in_reuse("A2, 2 ranks x 1 core, int8, DC for any number of rounds, weak", &a2("DC").quantised());
}

#[test]
fn three_halves_are_safe_too() {
    safe("A2, three halves, DC twice, weak", &a2("DC").partitions(3, 3).units(2));
}

#[test]
fn two_ranks_of_two_cores_for_ever() {
    let across = a2("DC").cores(2).traffic(Traffic::NoSelf);
    safe_in_reuse("A2, 2 ranks x 2 cores, DC for any number of rounds, to others, weak", &across);
}

#[test]
#[ignore = "takes a minute; run: cargo test -p veriep-verify --test explorer -- --ignored two_cores_for_ever_with_all"]
fn two_ranks_of_two_cores_for_ever_with_all_traffic() {
    safe_in_reuse("A2, 2 ranks x 2 cores, DC for any number of rounds, weak", &a2("DC").cores(2));
}

#[test]
fn two_ranks_of_two_cores_with_two_batches_in_flight() {
    safe_in_reuse("A2, 2 ranks x 2 cores, DDCC once, weak", &a2("DDCC").cores(2).units(1));
}

#[test]
#[ignore = "takes minutes; run: cargo test -p veriep-verify --test explorer -- --ignored a2::three_ranks_once --nocapture"]
fn three_ranks_once() {
    safe("A2, 3 ranks x 1 core, D once, weak", &Model { ranks: 3, ..a2("D").units(1) });
}

#[test]
fn catches_one_half() {
    safe("A2, one half, one operator", &a2("D").partitions(1, 1).units(1));
    let seen = caught("A2, one half", &a2("DC").partitions(1, 1));
    assert!(matches!(seen.violation, Violation::SourceInUse { .. }), "{seen}");
}

#[test]
fn catches_one_message_slot() {
    safe("A2, one message slot, one operator", &a2("D").units(1).defect(Defect::OneMessageSlot));
    let seen = caught("A2, one message slot", &a2("DC").defect(Defect::OneMessageSlot));
    assert!(matches!(seen.violation, Violation::TaskInUse { .. }), "{seen}");
}

#[test]
fn catches_clears_of_what_was_waited_for_alone() {
    // A row of two operators ago ends combine; its rank goes on and writes what a transfer has still to read.
    // The half must come round.
    safe("A2, the seed's clears, once", &a2("DC").units(1).defect(Defect::SeedClears));
    let seen = caught("A2, the seed's clears", &a2("DC").defect(Defect::SeedClears));
    assert!(matches!(seen.violation, Violation::SourceInUse { .. }), "{seen}");
}

#[test]
fn catches_a_clear_that_never_happens() {
    safe("A2, no clears, once", &a2("DC").units(1).defect(Defect::NoClear));
    let seen = caught("A2, no clears", &a2("DC").defect(Defect::NoClear));
    assert!(matches!(seen.violation, Violation::Refused { .. }), "{seen}");
}

#[test]
fn catches_a_combine_that_waits_for_no_window_without_rows() {
    let seen = caught("A2, partial wait", &a2("DDCC").defect(Defect::PartialWait));
    assert!(matches!(seen.violation, Violation::SourceInUse { .. }), "{seen}");
}

#[test]
fn catches_a_doorbell_before_its_tasks() {
    let seen = caught("A2, no quiet", &a2("DC").defect(Defect::NoQuiet));
    assert!(matches!(seen.violation, Violation::NotLanded { .. }), "{seen}");
}

#[test]
fn catches_a_last_word_that_comes_first() {
    let seen = caught("A2, last word first", &a2("DC").defect(Defect::LastWordFirst));
    assert!(matches!(seen.violation, Violation::Diverged { .. }), "{seen}");
}

#[test]
fn catches_a_driver_without_the_join() {
    // Needs two cores, weak memory and a second operator: a core reads its own barrier word before it has landed.
    let no_join = |schedule| a2(schedule).cores(2).units(1).defect(Defect::NoJoin);
    safe("A2, no join, one operator", &no_join("D"));
    safe("A2, no join, strong", &Model { memory: Memory::Strong, ..no_join("DD").traffic(Traffic::NoSelf) });
    let seen = caught("A2, no join", &no_join("DD"));
    assert!(matches!(seen.violation, Violation::OwnNotLanded { .. }), "{seen}");
}

#[test]
fn catches_a_flip_before_the_others_have_read() {
    // Needs two cores; any memory, one operator.
    safe("A2, early flip, 1 core", &a2("DC").units(1).defect(Defect::EarlyFlip));
    for memory in [Memory::Weak, Memory::Strong] {
        let seen = caught(
            "A2, early flip",
            &Model { memory, ..a2("D").units(1).cores(2).defect(Defect::EarlyFlip) },
        );
        assert!(matches!(seen.violation, Violation::WrongPartition { .. }), "{seen}");
    }
}

#[test]
fn catches_core_barriers_that_do_not_hold() {
    // Need two cores.
    for defect in [Defect::NoBarrier, Defect::BarrierOfLowerCores, Defect::OneBarrierWord] {
        caught(&format!("A2, {defect:?}"), &a2("D").cores(2).units(1).defect(defect));
    }
}
