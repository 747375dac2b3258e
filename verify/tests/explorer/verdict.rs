//! Verdicts on models, with what they cost.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use veriep_verify::defects::Defect;
use veriep_verify::explorer::{Model, Report, Timeline, Traffic, explore};
use veriep_verify::report;

/// Explores a model and reports what that took.
pub(crate) fn explored(name: &str, model: &Model) -> Report {
    let start = Instant::now();
    let found = explore(model);
    let verdict = match &found.counterexample {
        Some(timeline) => format!("UNSAFE after {} events: {}", timeline.story.len(), timeline.violation),
        None if found.complete => "safe".to_owned(),
        None => "not finished".to_owned(),
    };
    let (states, moves, traffic) = (found.states, found.moves, found.traffic_matrices);
    let seconds = start.elapsed().as_secs_f64();
    let size = format!("{states} states, {moves} moves, {traffic} traffic matrices");
    report::line("explorer", name, &format!("{size}, {seconds:.1} s: {verdict}"));
    let kind = found.counterexample.as_ref().map_or(verdict, |timeline| format!("{:?}", timeline.violation));
    if let Some(timeline) = found.counterexample.as_ref().filter(|_| model.defect == Defect::None) {
        println!("{timeline}\n");
    }
    let end = kind.split([' ', '{', '(']).next().unwrap();
    assert_listed(name, &format!("{size} | {} | {end}", model.cells()));
    if let (Some(row), Some(_)) = (model.defect.row(), &found.counterexample) {
        assert!(row.explorer.contains(&end), "{name}: ends in {end}, which the row of {} lacks", row.name());
    }
    found
}

/// A search that counts.txt lists is of the model that is written there, visits as many states, and ends in the same way: a
/// reduction that is wrong, or a bound that is gone, often changes nothing else. Only searches that run by command are not
/// listed. With `SNAPSHOTS=overwrite` the line is written anew.
#[track_caller]
fn assert_listed(name: &str, row: &str) {
    let prefix = format!("{name}: ");
    let by_command = std::env::args().any(|option| option.ends_with("ignored"));
    if std::env::var_os("SNAPSHOTS").is_some_and(|action| action == "overwrite") {
        static FILE: Mutex<()> = Mutex::new(());
        let _alone = FILE.lock().unwrap_or_else(PoisonError::into_inner);
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/explorer/counts.txt");
        let old = std::fs::read_to_string(path).unwrap();
        let (head, rows): (Vec<_>, Vec<_>) = old.lines().partition(|line| line.starts_with('#'));
        if !by_command {
            // Two searches may have one name, over two kinds of memory.
            let model = |row: &str| row.split(" | ").skip(1).take(7).map(str::to_owned).collect::<Vec<_>>();
            let is_this =
                |line: &&str| line.strip_prefix(&prefix).is_some_and(|old| model(old) == model(row));
            let mut rows: Vec<_> = rows.into_iter().filter(|line| !is_this(line)).collect();
            let row = format!("{prefix}{row}");
            rows.push(&row);
            rows.sort_unstable();
            std::fs::write(path, format!("{}\n{}\n", head.join("\n"), rows.join("\n"))).unwrap();
        }
        return;
    }
    let listed: Vec<_> =
        include_str!("counts.txt").lines().filter_map(|line| line.strip_prefix(&prefix)).collect();
    assert!(
        by_command && listed.is_empty() || listed.contains(&row),
        "{name}: {row}\nwas {listed:?}. If that is meant, say why in the commit; the head of counts.txt tells how it is made"
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
    // Stronger than fairness asks: without the end of an operator no search comes back to a state.
    assert!(report.circles == 0 || model.defect != Defect::None, "{name}: goes round in circles");
    if model.traffic == Traffic::All && (model.experts, model.tokens) == (1, 1) {
        // Each rank sends its token to any expert or to none.
        assert_eq!(report.traffic_matrices, model.traffic_max(), "{name}: not all traffic");
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
        None => panic!("{name}: the defect is not caught"),
    }
}
