//! Verdicts on models, with what they cost.

use std::time::Instant;
use veriep_verify::explorer::{Model, Report, Timeline, Traffic, explore};
use veriep_verify::report;

/// Explores a model and reports what that took.
pub(crate) fn explored(name: &str, model: &Model) -> Report {
    let start = Instant::now();
    let found = explore(model);
    let verdict = match &found.counterexample {
        Some(timeline) => format!("UNSAFE after {} events: {}", timeline.events.len(), timeline.violation),
        None if found.complete => "safe".to_owned(),
        None => "not finished".to_owned(),
    };
    let (states, moves, traffic) = (found.states, found.moves, found.traffic_matrices);
    let seconds = start.elapsed().as_secs_f64();
    let size = format!("{states} states, {moves} moves, {traffic} traffic matrices");
    report::line("explorer", name, &format!("{size}, {seconds:.1} s: {verdict}"));
    assert_size(name, &size);
    found
}

/// A search that counts.txt lists visits what is written there: a reduction that is wrong, or a bound that is gone, often
/// changes nothing else. Those that run by command only are not listed.
#[track_caller]
fn assert_size(name: &str, size: &str) {
    let of_name = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(": "));
    let listed: Vec<_> = include_str!("counts.txt").lines().filter(of_name).collect();
    let line = format!("{name}: {size}");
    assert!(
        listed.is_empty() || listed.contains(&line.as_str()),
        "{line}\nwas {listed:?}. If that is meant, say why in the commit; the head of counts.txt tells how it is made"
    );
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
