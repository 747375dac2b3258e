//! The protocol as it is, explored to the end. Each test prints its states; verify/CLAIMS.md has them.

use crate::verdict::{safe, safe_in_reuse};
use veriep_verify::explorer::Model;

#[test]
fn two_ranks_for_ever_over_weak_memory() {
    safe_in_reuse("2 ranks x 1 core, DC for any number of rounds, weak", &Model::new(2, "DC").weak());
}

#[test]
fn two_ranks_with_the_numbers_of_calls() {
    let numbered = || Model::new(2, "DC").weak().numbered(3);
    for (kind, model) in [
        ("joint flags", numbered()),
        ("separate flags", numbered().separate()),
        ("direct placement", numbered().direct(1)),
        ("blocks", numbered().blocks(1)),
        ("A2", numbered().a2()),
        ("TP = 2", numbered().tp()),
    ] {
        safe_in_reuse(&format!("{kind}, 2 ranks x 1 core, DC without end, calls modulo 3, weak"), &model);
    }
}

#[test]
fn two_ranks_for_ever_with_every_landing_a_move_of_its_own() {
    safe_in_reuse(
        "2 ranks x 1 core, DC for any number of rounds, weak, explicit",
        &Model::new(2, "DC").weak_explicit(),
    );
}

#[test]
fn two_ranks_of_two_cores_for_ever_over_weak_memory() {
    safe_in_reuse(
        "2 ranks x 2 cores, DC for any number of rounds, weak",
        &Model::new(2, "DC").cores(2).weak(),
    );
}

#[test]
fn two_ranks_of_two_cores_for_ever() {
    safe("2 ranks x 2 cores, DC for any number of rounds", &Model::new(2, "DC").cores(2));
}

#[test]
fn three_ranks_three_rounds() {
    safe_in_reuse("3 ranks x 1 core, DC three times", &Model::new(3, "DC").units(3));
}

#[test]
fn two_batches_in_flight_for_ever_over_weak_memory() {
    safe_in_reuse("2 ranks x 1 core, DDCC for any number of rounds, weak", &Model::new(2, "DDCC").weak());
}

#[test]
fn two_ranks_of_two_cores_with_two_batches_in_flight() {
    safe_in_reuse("2 ranks x 2 cores, DDCC twice, weak", &Model::new(2, "DDCC").cores(2).weak().units(2));
}

#[test]
fn two_ranks_of_two_cores_with_steps_of_several_effects() {
    let runs = |model: Model| model.cores(2).in_runs().weak();
    safe_in_reuse("2 ranks x 2 cores, in runs, DC three times, weak", &runs(Model::new(2, "DC")).units(3));
    // So that a core has several puts for one flag.
    safe("2 ranks x 2 cores, in runs, wide, DC once, weak", &runs(Model::new(2, "DC").wide()).units(1));
}

#[test]
#[ignore = "5 million states, 1 to 2 minutes: cargo test -p veriep-verify --release -- --ignored three_ranks_for_ever"]
fn three_ranks_for_ever_over_weak_memory() {
    safe("3 ranks x 1 core, DC for any number of rounds, weak", &Model::new(3, "DC").weak());
}
