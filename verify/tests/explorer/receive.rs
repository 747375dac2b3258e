//! The ways to receive beside copying: experts that read rows in the window, and direct placement with pull combine.
//! Each is safe with as many data areas as batches are in flight, and not with fewer.

use crate::verdict::{caught, safe, safe_in_reuse};
use veriep_verify::defects::Defect;
use veriep_verify::explorer::{Model, Violation};

fn direct(areas: u32, schedule: &str) -> Model {
    Model::new(2, schedule).direct(areas)
}

#[test]
fn in_place_two_partitions_are_enough_for_two_batches_in_flight() {
    safe_in_reuse(
        "in place, 2 ranks x 1 core, DC for any number of rounds, weak",
        &Model::new(2, "DC").in_place().weak(),
    );
    safe_in_reuse(
        "in place, 2 ranks x 1 core, DDCC for any number of rounds, weak",
        &Model::new(2, "DDCC").in_place().weak(),
    );
    let wide = Model::new(2, "DC").in_place().wide().units(1);
    safe("in place, wide, quantised, weak", &wide.clone().quantised().weak());
    safe("in place, wide, quantised, in runs, weak", &wide.quantised().in_runs().weak());
}

#[test]
fn in_place_on_two_cores() {
    let in_place = |schedule| Model::new(2, schedule).in_place().cores(2).weak();
    safe_in_reuse("in place, 2 ranks x 2 cores, DC for any number of rounds, weak", &in_place("DC"));
    safe_in_reuse("in place, 2 ranks x 2 cores, DDCC twice, weak", &in_place("DDCC").units(2));
}

#[test]
fn copying_out_in_runs_is_as_safe() {
    let runs = Model::new(2, "DC").wide().quantised().in_runs().units(1);
    safe("copy, wide, quantised, in runs, weak", &runs.weak());
}

#[test]
fn catches_in_place_with_three_batches_in_flight_on_two_partitions() {
    // Three combine partitions, so that nothing but the records is in danger: copied out, they are safe.
    let three = |model: Model| model.partitions(2, 3).units(1);
    safe("copy, DDDCCC once, 2 and 3 partitions, weak", &three(Model::new(2, "DDDCCC")).weak());
    let seen = caught("in place, DDDCCC once", &three(Model::new(2, "DDDCCC").in_place()));
    assert!(matches!(seen.violation, Violation::Overwritten { .. }), "{seen}");
    safe(
        "in place, DDDCCC once, 3 partitions",
        &Model::new(2, "DDDCCC").in_place().partitions(3, 3).units(1),
    );
}

#[test]
fn direct_placement_needs_an_area_for_each_batch_in_flight() {
    safe_in_reuse(
        "direct, 2 ranks x 1 core, one area, DC for any number of rounds, weak",
        &direct(1, "DC").weak(),
    );
    safe_in_reuse(
        "direct, 2 ranks x 1 core, two areas, DDCC for any number of rounds, weak",
        &direct(2, "DDCC").weak(),
    );
    let wide = direct(1, "DC").wide().units(1);
    safe("direct, wide, quantised, weak", &wide.clone().quantised().weak());
    safe("direct, wide, quantised, in runs, weak", &wide.quantised().in_runs().weak());
}

#[test]
fn direct_placement_on_two_cores() {
    safe_in_reuse(
        "direct, 2 ranks x 2 cores, one area, DC for any number of rounds, weak",
        &direct(1, "DC").cores(2).weak(),
    );
    let runs = direct(1, "DC").cores(2).weak().in_runs().units(3);
    safe_in_reuse("direct, 2 ranks x 2 cores, one area, in runs, DC three times, weak", &runs);
}

#[test]
#[ignore = "takes half a minute; run: cargo test -p veriep-verify --test explorer -- --ignored on_two_cores_with_two"]
fn direct_placement_on_two_cores_with_two_batches_in_flight() {
    let two = direct(2, "DDCC").cores(2).weak().units(2);
    safe_in_reuse("direct, 2 ranks x 2 cores, two areas, DDCC twice, weak", &two);
}

#[test]
fn catches_one_area_with_two_batches_in_flight() {
    let seen = caught("direct, one area, DDCC once", &direct(1, "DDCC").units(1));
    assert!(matches!(seen.violation, Violation::Overwritten { .. }), "{seen}");
    // Rows in two areas, results in one: in strict order that is safe.
    let one = |schedule| direct(2, schedule).defect(Defect::OneResultArea);
    safe("direct, one area of results, DC, weak", &one("DC").weak());
    let seen = caught("direct, one area of results, DDCC once", &one("DDCC").units(1));
    assert!(matches!(seen.violation, Violation::Overwritten { .. }), "{seen}");
}

#[test]
fn catches_three_batches_in_flight_on_two_areas() {
    caught("direct, two areas, DDDCCC once", &direct(2, "DDDCCC").units(1));
}

#[test]
fn catches_words_that_are_never_cleared() {
    for defect in [Defect::NoGrantClear, Defect::NoReadyClear, Defect::NoTokenClear, Defect::NoCountClear] {
        let model = |units| direct(1, "DC").defect(defect).units(units);
        safe(&format!("direct, {defect:?}, two rounds"), &model(2));
        let seen = caught(&format!("direct, {defect:?}, three rounds"), &model(3));
        assert!(matches!(seen.violation, Violation::LostFlag { .. }), "{seen}");
    }
}

#[test]
fn catches_a_word_that_overtakes_its_table() {
    let model = |defect| direct(1, "D").defect(defect).weak().units(1);
    safe("direct, D once, weak", &model(Defect::None));
    let seen = caught("direct, RelaxedPublish, D once, weak", &model(Defect::RelaxedPublish));
    assert!(matches!(seen.violation, Violation::NotLanded { .. }), "{seen}");
}

#[test]
fn catches_a_missing_quiet_and_a_late_clear() {
    // With one core a late clear wipes a flag, over weak memory, in three rounds.
    for defect in [Defect::NoQuiet, Defect::LateClear] {
        let seen =
            caught(&format!("direct, {defect:?}, weak"), &direct(1, "DC").defect(defect).weak().units(3));
        assert!(matches!(seen.violation, Violation::LostFlag { .. }), "{seen}");
    }
}

#[test]
fn catches_a_pull_that_clears_before_other_cores_have_looked() {
    // Any memory, two cores, one round. A clear must be seen while it is in flight.
    let pull = |cores| direct(1, "DC").cores(cores).units(1).defect(Defect::NoPullBarrier);
    safe("direct, no barrier in pull, 1 core, weak", &pull(1).weak());
    for model in [pull(2), pull(2).weak()] {
        let seen = caught("direct, no barrier in pull, 2 cores", &model);
        assert_eq!(seen.violation, Violation::Deadlock, "{seen}");
    }
}

#[test]
fn catches_core_barriers_that_do_not_wait() {
    caught("direct, no core barrier, 2 cores", &direct(1, "DC").cores(2).defect(Defect::NoBarrier).units(1));
}

fn overwrite(areas: u32, schedule: &str) -> Model {
    Model::new(2, schedule).overwrite(areas)
}

#[test]
fn experts_that_overwrite_need_an_area_for_each_batch_in_flight() {
    safe_in_reuse(
        "overwrite, 2 ranks x 1 core, one area, DC for any number of rounds, weak",
        &overwrite(1, "DC").weak(),
    );
    safe_in_reuse(
        "overwrite, 2 ranks x 1 core, two areas, DDCC for any number of rounds, weak",
        &overwrite(2, "DDCC").weak(),
    );
    safe("overwrite, wide, weak", &overwrite(1, "DC").wide().units(1).weak());
    let seen = caught("overwrite, one area, DDCC once", &overwrite(1, "DDCC").units(1));
    assert!(matches!(seen.violation, Violation::Overwritten { .. }), "{seen}");
    caught("overwrite, two areas, DDDCCC once", &overwrite(2, "DDDCCC").units(1));
}

#[test]
fn experts_that_overwrite_on_two_cores() {
    safe_in_reuse(
        "overwrite, 2 ranks x 2 cores, one area, DC for any number of rounds, weak",
        &overwrite(1, "DC").cores(2).weak(),
    );
}

#[test]
#[ignore = "takes half a minute; run: cargo test -p veriep-verify --test explorer -- --ignored on_two_cores_with_two"]
fn experts_that_overwrite_on_two_cores_with_two_batches_in_flight() {
    let two = overwrite(2, "DDCC").cores(2).weak().units(2);
    safe_in_reuse("overwrite, 2 ranks x 2 cores, two areas, DDCC twice, weak", &two);
}

#[test]
fn catches_grants_that_do_not_wait_for_all_counts() {
    // A row comes over a result that another rank has still to read. Where results are apart only experts read rows of
    // the rank that grants them, which have run.
    safe(
        "direct, EarlyGrants, three rounds, weak",
        &direct(1, "DC").defect(Defect::EarlyGrants).units(3).weak(),
    );
    let model = |units| overwrite(1, "DC").defect(Defect::EarlyGrants).units(units);
    safe("overwrite, EarlyGrants, one round, weak", &model(1).weak());
    for model in [model(2), model(2).weak()] {
        let seen = caught("overwrite, EarlyGrants, two rounds", &model);
        assert!(matches!(seen.violation, Violation::Overwritten { .. }), "{seen}");
    }
}

#[test]
fn catches_results_that_come_too_early_or_too_late() {
    let model = |defect| overwrite(1, "DC").defect(defect).units(1);
    for model in [model(Defect::ResultAheadOfRead), model(Defect::ResultAheadOfRead).weak()] {
        let seen = caught("overwrite, ResultAheadOfRead, one round", &model);
        assert!(matches!(seen.violation, Violation::Overwritten { .. }), "{seen}");
    }
    let late = model(Defect::ReadyAheadOfResults);
    safe("overwrite, ReadyAheadOfResults, one round", &late);
    let seen = caught("overwrite, ReadyAheadOfResults, one round, weak", &late.weak());
    assert!(matches!(seen.violation, Violation::NotLanded { .. }), "{seen}");
}

#[test]
fn catches_a_driver_of_experts_that_overwrite_without_the_join() {
    let model = overwrite(1, "DC").cores(2).defect(Defect::NoJoin).units(3);
    let seen = caught("overwrite, NoJoin, 2 cores", &model);
    assert!(matches!(seen.violation, Violation::Diverged { .. }), "{seen}");
    let seen = caught("overwrite, NoJoin, 2 cores, weak", &model.weak());
    assert!(matches!(seen.violation, Violation::OwnNotLanded { .. }), "{seen}");
}
