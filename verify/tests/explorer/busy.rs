//! Memory that may answer busy to any effect: a run of effects stops there, and goes on where it stopped.

use crate::verdict::{caught, safe};
use veriep_verify::defects::Defect;
use veriep_verify::explorer::{Model, Violation};

/// Two ranks of one core that take runs of several effects, with several pairs.
fn wide(schedule: &str) -> Model {
    Model::new(2, schedule).wide().in_runs().busy().weak().units(1)
}

#[test]
fn a_run_goes_on_where_the_memory_was_busy() {
    safe("busy, 2 ranks x 1 core, wide, weak", &wide("DC"));
    safe("busy, quantised, 2 ranks x 1 core, wide, weak", &wide("DC").quantised());
    safe("busy, separate, 2 ranks x 1 core, wide, weak", &wide("DC").separate());
    safe("busy, in place, 2 ranks x 1 core, wide, weak", &wide("DC").in_place());
    safe("busy, direct, 2 ranks x 1 core, wide, weak", &wide("DC").direct(1));
    safe("busy, overwrite, 2 ranks x 1 core, wide, weak", &wide("DC").overwrite(1));
    safe(
        "busy, blocks, 2 ranks x 1 core, weak",
        &Model::new(2, "DC").blocks(2).in_runs().busy().weak().units(1),
    );
    safe(
        "busy, TP = 2, 1 EP rank x 1 core, weak",
        &Model::new(2, "DC").tp().in_runs().busy().weak().units(1),
    );
}

#[test]
fn rounds_over_memory_that_is_busy() {
    let of = |cores| Model::new(2, "DC").cores(cores).in_runs().busy().weak();
    safe("busy, 2 ranks x 1 core, DC three times, weak", &of(1).units(3));
    safe("busy, 2 ranks x 2 cores, DC once, weak", &of(2).units(1));
}

/// A memory that takes an effect and says busy gets it twice. The second one may land when its reader has read the first.
#[test]
fn catches_a_memory_that_is_busy_and_has_taken_a_row() {
    let seen = caught("busy after a put, weak", &wide("DC").defect(Defect::BusyAfterPut));
    assert!(matches!(seen.violation, Violation::Overwritten { .. }), "{seen}");
}
