//! Verdicts on models, with what they cost.

use std::time::Instant;
use verify::explorer::{Model, Report, Timeline, Traffic, explore};

/// Explores a model and prints what that took.
pub(crate) fn explored(name: &str, model: &Model) -> Report {
    let start = Instant::now();
    let report = explore(model);
    let verdict = match &report.counterexample {
        Some(timeline) => format!("UNSAFE after {} events: {}", timeline.events.len(), timeline.violation),
        None if report.complete => "safe".to_owned(),
        None => "not finished".to_owned(),
    };
    println!(
        "{name}: {} states, {} moves, {} traffic matrices, {:.1} s: {verdict}",
        report.states,
        report.moves,
        report.traffic_matrices,
        start.elapsed().as_secs_f64()
    );
    report
}

/// Every reachable state was visited and none is bad.
#[track_caller]
pub(crate) fn safe(name: &str, model: &Model) {
    let report = explored(name, model);
    if let Some(timeline) = report.counterexample {
        panic!("{name}\n{timeline}");
    }
    assert!(report.complete, "{name}: gave up after {} states", report.states);
    if model.traffic == Traffic::All && (model.experts, model.tokens) == (1, 1) {
        // Each rank sends its token to any expert or to nobody.
        let all = (model.ranks as usize + 1).pow(model.ranks);
        assert_eq!(report.traffic_matrices, all, "{name}: not all traffic");
    }
}

/// The same of a model in which partitions are used again: an operator N + 2 occurs.
#[track_caller]
pub(crate) fn safe_in_reuse(name: &str, model: &Model) {
    assert!(model.reuses_partitions(), "{name}: ends before a partition comes round");
    safe(name, model);
}

/// A bad state is reachable.
#[track_caller]
pub(crate) fn caught(name: &str, model: &Model) -> Timeline {
    match explored(name, model).counterexample {
        Some(timeline) => {
            println!("{timeline}\n");
            timeline
        }
        None => panic!("{name}: the twin is not caught"),
    }
}
