//! Dispatch with separate flags: counts ahead of the records, a token flag behind them. The protocol, and what is
//! broken in it on purpose, each under the weakest conditions that show it.

use crate::verdict::{caught, safe, safe_in_reuse};
use veriep_verify::defects::Defect;
use veriep_verify::explorer::{Model, Violation};

fn dc(cores: u32, defect: Defect) -> Model {
    Model::new(2, "DC").separate().cores(cores).defect(defect)
}

#[test]
fn two_ranks_for_ever_over_weak_memory() {
    safe_in_reuse(
        "separate flags, 2 ranks x 1 core, DC for any number of rounds, weak",
        &dc(1, Defect::None).weak(),
    );
}

#[test]
fn two_ranks_of_two_cores_for_ever() {
    safe_in_reuse(
        "separate flags, 2 ranks x 2 cores, DC for any number of rounds, weak",
        &dc(2, Defect::None).weak(),
    );
}

#[test]
fn three_ranks_once_over_weak_memory() {
    safe("separate flags, 3 ranks x 1 core, DC once, weak", &Model::new(3, "DC").separate().weak().units(1));
}

#[test]
fn two_batches_in_flight() {
    safe_in_reuse(
        "separate flags, 2 ranks x 1 core, DDCC for any number of rounds, weak",
        &Model::new(2, "DDCC").separate().weak(),
    );
}

#[test]
fn several_pairs() {
    let wide = Model::new(2, "DC").separate().wide().units(1);
    safe("separate flags, 2 ranks x 1 core, wide, quantised, weak", &wide.quantised().weak());
}

#[test]
fn one_combine_partition_is_enough_in_strict_order() {
    let model = Model::new(2, "DC").separate().partitions(2, 1).weak();
    safe("separate flags, one combine partition, DC, weak", &model);
}

#[test]
fn catches_a_token_flag_ahead_of_its_records() {
    // Without quiet. Needs weak memory. With two cores another core's token flag overtakes the records.
    safe("separate flags, no quiet, two rounds", &dc(2, Defect::NoQuiet).units(2));
    let seen = caught("separate flags, no quiet, 2 cores, weak", &dc(2, Defect::NoQuiet).weak());
    assert!(matches!(seen.violation, Violation::NotLanded { .. }), "{seen}");
    // With one core a late clear wipes a flag.
    let seen = caught("separate flags, no quiet, 1 core, weak", &dc(1, Defect::NoQuiet).weak());
    assert!(matches!(seen.violation, Violation::LostFlag { .. }), "{seen}");
    // Needs two cores, any memory.
    caught("separate flags, no core barrier", &dc(2, Defect::NoBarrier));
}

#[test]
fn catches_counts_and_token_flags_that_are_never_cleared() {
    // Any memory, but three rounds, each by itself.
    for defect in [Defect::NoCountClear, Defect::NoTokenClear] {
        safe(&format!("separate flags, {defect:?}, two rounds"), &dc(1, defect).units(2));
        let seen = caught(&format!("separate flags, {defect:?}, three rounds"), &dc(1, defect).units(3));
        assert!(matches!(seen.violation, Violation::LostFlag { .. }), "{seen}");
    }
}

#[test]
fn catches_slots_without_rows_that_have_no_token_flag() {
    // A count says nothing about clears. Needs weak memory, and a combine whose only gate is a dispatch in which the
    // owner sends nothing there: three batches in flight with a dispatch between. Otherwise the exchange of counts
    // of one more dispatch hides it.
    let gated = |defect| Model::new(2, "DDDCCDCC").separate().defect(defect).units(1);
    safe("separate flags, DDDCCDCC once, weak", &gated(Defect::None).weak());
    safe("separate flags, no token flag for 0 rows, DDDCCDCC once", &gated(Defect::NoFlagOfNothing));
    let defect = dc(1, Defect::NoFlagOfNothing);
    safe("separate flags, no token flag for 0 rows, DC, weak", &defect.weak());
    let seen = caught(
        "separate flags, no token flag for 0 rows, DDDCCDCC, weak",
        &gated(Defect::NoFlagOfNothing).weak(),
    );
    assert!(matches!(seen.violation, Violation::LostFlag { .. }), "{seen}");
}

#[test]
fn catches_a_clear_behind_the_quiet() {
    // Needs weak memory and three rounds.
    safe("separate flags, late clear, two rounds, weak", &dc(1, Defect::LateClear).weak().units(2));
    let seen =
        caught("separate flags, late clear, three rounds, weak", &dc(1, Defect::LateClear).weak().units(3));
    assert!(matches!(seen.violation, Violation::LostFlag { .. }), "{seen}");
}

#[test]
fn catches_one_dispatch_partition() {
    // In strict order it needs weak memory: counts of all ranks come before any token flag, and only the clear of
    // the flag before may be late. With two batches in flight any memory shows it.
    let one = |schedule| Model::new(2, schedule).separate().partitions(1, 2);
    safe("separate flags, one dispatch partition, DC", &one("DC"));
    caught("separate flags, one dispatch partition, DC, weak", &one("DC").weak());
    caught("separate flags, one dispatch partition, DDCC", &one("DDCC"));
}
