//! The report of a run.

use super::{Job, Ran};
use crate::case::Case;
use crate::cli::{BackendArg, RowCopyArg, name_of};
use crate::command::quantiles::{Quantiles, millis};
use crate::command::traffic;
use crate::dump;
use crate::error::Error;
use crate::global_rank;
use crate::group::Costs;
use crate::report::{Report, cell, columns, items, note, pairs};
use crate::roofline::Roofline;
use crate::verdict::Judgement;
use core::time::Duration;
use serde_json::{Value, json};
use veriep_core::protocol::Stage;
use veriep_core::shape::Op;

pub(super) fn emit(report: &mut Report, job: &Job<'_>, ran: &Ran) -> Result<(), Error> {
    let (run, all) = (ran.costs.rounds, job.plan.rounds());
    if let Some((rank, at)) = job.faults.killed.filter(|_| run == all) {
        let rank = job.case.name(rank);
        note(&format!(
            "note: --inject killed={rank}:{at}: rank {rank} has made fewer writes: nobody was killed"
        ));
    }
    report.judge(&judgement(job, run, all), &summary(job, ran), table)
}

/// Whether all outputs of `run` rounds, of `all` that were asked for, are those of the oracle: a run that saw another one has
/// failed.
fn judgement(job: &Job<'_>, run: usize, all: usize) -> Judgement {
    let shape = &job.case.shape;
    let plural = if run == 1 { "" } else { "s" };
    let group = format!("{} ranks x {} cores", global_rank::count(shape), shape.aiv_num());
    if run < all {
        let written = match &job.args.out {
            Some(out) => format!(": {} is not written", out.display()),
            None => String::new(),
        };
        let bound = format!("interrupted after {run} of {all} rounds of {group}{written}");
        return Judgement::unknown(bound, ["a run to its end".to_owned()]);
    }
    match job.plan.check {
        Some(_) => Judgement::yes(format!("{run} round{plural} of {group}: outputs agree with the oracle")),
        None => {
            let bound = format!("{run} round{plural} of {group} ended and were not compared with the oracle");
            Judgement::unknown(bound, ["a run without --no-check, or compare on the result".to_owned()])
        }
    }
}

fn summary(job: &Job<'_>, ran: &Ran) -> Value {
    let Ran { costs, roofline } = ran;
    let Job { args, source, case, plan, .. } = job;
    let shape = &case.shape;
    let bs = |rank| shape.bs(global_rank::ep_rank(shape, rank));
    let tokens: u64 = global_rank::all(shape).map(|rank| u64::from(bs(rank))).sum();
    let bytes = traffic::Bytes::of(case);
    let receive = plan.options.choices.receive;
    let moved = bytes.moved(receive);
    let timed = args.backend.is_timed();
    let (has_agents, operators) = (plan.options.choices.has_agents(shape), 2 * costs.rounds);
    let tasks = costs.tasks as f64 / (operators as f64 * f64::from(shape.ep_world_size()));
    let operator = |operator: &str, times: &[Duration], bytes: (u64, u64), copies: Option<Duration>| {
        let ms = Quantiles::of(times);
        let memcpy_ms = copies.map(millis);
        json!({
            "operator": operator,
            // Over the rounds; of each round the slowest worker.
            "ms": ms,
            "payload_bytes": bytes.0,
            "moved_bytes": bytes.1,
            "memcpy_ms": memcpy_ms,
            // 1 is as fast as the bare copies.
            "of_memcpy": memcpy_ms.zip(ms).map(|(copies, ms)| copies / ms.median),
        })
    };
    let copies = |of: fn(&Roofline) -> Duration| roofline.as_ref().map(of);
    let operators = [
        operator("dispatch", &costs.dispatch, (bytes.payload, moved.0), copies(|r| r.dispatch)),
        operator("combine", &costs.combine, (bytes.results, moved.1), copies(|r| r.combine)),
    ];
    let mut summary = json!({
        "ok": costs.rounds == plan.rounds() && plan.check.is_some(),
        "source": source,
        "set": args.config.set,
        "backend": name_of(args.backend),
        // Of each process.
        "threads": timed.then_some(job.workers.count),
        "vector": plan.options.vector.name(),
        "seed": args.seed,
        "ranks": global_rank::count(shape),
        "cores": shape.aiv_num(),
        "tokens": tokens,
        "rows": bytes.rows,
        "schedule": args.schedule,
        "receive": receive.name(),
        "experts": dump::experts(receive),
        "rounds": costs.rounds,
        "interrupted": costs.rounds < plan.rounds(),
        "checked": plan.check.is_some(),
        "steps": costs.steps,
        "operators": operators,
        "waited_for": if timed { waited_for(case, costs, costs.rounds) } else { Vec::new() },
    });
    let mut has = |field: &str, value: Option<Value>| {
        value.into_iter().for_each(|value| summary[field] = value);
    };
    let several = matches!(args.backend, BackendArg::Processes | BackendArg::Mpi);
    has("processes", several.then(|| job.processes.into()));
    // Those that an elastic domain has lost.
    has("dead", Some(case.dead()).filter(|dead| !dead.is_empty()).map(Value::from));
    // Only where time is real.
    has("row_copy", job.row_copy.get().map(|&way| name_of(RowCopyArg::from(way)).into()));
    // Of the first rounds; the others pay for the pages that they are the first to touch.
    has("committed_rounds", job.committed.get().map(|&rounds| rounds.into()));
    let compared = match shape.op() {
        Op::Combine => "bit for bit on every round",
        Op::CombineAddRmsNorm => "bit for bit on every round; rstd by its range, y by that rstd",
    };
    has("compared", plan.check.map(|_| compared.into()));
    // Tasks that the agent of each rank posted in each operator (A2): one for each peer.
    has("tasks_per_operator", has_agents.then(|| tasks.into()));
    // Of the hierarchy: who issues what goes to other servers.
    let stage = if plan.options.choices.stage == Stage::Two { 2 } else { 3 };
    has("stage", global_rank::servers(shape).map(|_| stage.into()));
    summary
}

/// For how long cores of other ranks waited for a flag of each rank, per round and summed over the cores.
fn waited_for(case: &Case, costs: &Costs, rounds: usize) -> Vec<Value> {
    let all = costs.waited_for().into_iter();
    all.map(|(rank, time)| json!({"rank": case.name(rank).0, "ms": millis(time) / rounds as f64})).collect()
}

fn table(summary: &Value) -> String {
    let of = |field| cell(summary, field);
    let has = |title, field: &str| summary.get(field).map(|_| (title, cell(summary, field)));
    let operators = items(summary, "operators");
    let oracle =
        summary["compared"].as_str().map_or_else(|| "not judged".to_owned(), |how| format!("agrees {how}"));
    let about = pairs(&[
        ("oracle", oracle),
        ("group", group(summary)),
        ("backend", with_threads(summary)),
        ("round", format!("{} tokens, {} rows", of("tokens"), of("rows"))),
        ("schedule", format!("{}, rounds on one live group: {}", of("schedule"), of("rounds"))),
    ]);
    let mut rest = vec![
        ("source", of("source")),
        ("seed", of("seed")),
        ("vectors", of("vector")),
        ("receive", of("receive")),
        ("experts", of("experts")),
        ("steps", of("steps")),
    ];
    rest.extend(has("row copy", "row_copy"));
    rest.extend(summary["committed_rounds"].as_u64().map(|rounds| ("memory", memory(rounds, summary))));
    rest.extend(
        summary["tasks_per_operator"].as_f64().map(|n| ("tasks", format!("{n} per rank and operator"))),
    );
    rest.extend(has("stage", "stage"));
    let rest = pairs(&rest);
    if summary["threads"].is_null() {
        return format!("{about}\n\n{rest}");
    }
    let ms = |value: &Value| value.as_f64().map_or_else(|| "-".to_owned(), |ms| format!("{ms:.3}"));
    let rounds = summary["rounds"].as_u64().unwrap_or(0);
    let row = |operator: &Value| {
        let quantiles = &operator["ms"];
        // A quantile of too few rounds is only their maximum.
        let of_many =
            |quantile: &str, least| if rounds >= least { ms(&quantiles[quantile]) } else { "-".to_owned() };
        let mut row = vec![
            cell(operator, "operator"),
            ms(&quantiles["median"]),
            of_many("p90", 10),
            of_many("p99", 100),
            mebibytes(&operator["payload_bytes"]),
            mebibytes(&operator["moved_bytes"]),
        ];
        if !operator["of_memcpy"].is_null() {
            row.extend([ms(&operator["memcpy_ms"]), cell(operator, "of_memcpy")]);
        }
        row
    };
    let rows: Vec<_> = operators.iter().map(row).collect();
    let head = ["operator", "median ms", "p90", "p99", "payload MiB", "moved MiB", "memcpy ms", "of memcpy"];
    // A2 has no bare copies to compare with, so no columns for them.
    let width = rows.first().map_or(head.len(), Vec::len);
    let operators = columns(&head[..width], &rows);
    let waits: Vec<_> =
        items(summary, "waited_for").iter().filter(|wait| wait["ms"].as_f64() > Some(0.0)).collect();
    let waited: Vec<_> = waits.iter().take(8).map(|wait| vec![cell(wait, "rank"), ms(&wait["ms"])]).collect();
    let waited = match waits.len() {
        0 => "nobody waited".to_owned(),
        all => {
            let more = all - waited.len();
            let rest = if more > 0 { format!("\nand {more} more ranks") } else { String::new() };
            columns(&["waited for rank", "ms per round, summed over waiting cores"], &waited) + &rest
        }
    };
    format!("{about}\n\n{operators}\n\n{waited}\n\n{rest}")
}

/// Whose page faults the times are without.
fn memory(committed: u64, summary: &Value) -> String {
    match (committed, summary["rounds"].as_u64().unwrap_or(0)) {
        (0, _) => "not committed before the clock starts: times include page faults".to_owned(),
        (some, all) if some < all => {
            format!("committed for {some} of {all} rounds: later times include page faults")
        }
        _ => "committed before the clock starts: times are without page faults".to_owned(),
    }
}

fn group(summary: &Value) -> String {
    let (ranks, cores) = (cell(summary, "ranks"), cell(summary, "cores"));
    match summary["dead"].as_array() {
        None => format!("{ranks} ranks x {cores} cores"),
        Some(gone) => {
            let all = summary["ranks"].as_u64().unwrap_or(0) + gone.len() as u64;
            format!("{ranks} of {all} ranks left x {cores} cores")
        }
    }
}

fn with_threads(summary: &Value) -> String {
    let of = |field| cell(summary, field);
    match (summary["processes"].as_u64(), summary["threads"].as_u64()) {
        (Some(processes), None | Some(1)) => format!("{} ({processes})", of("backend")),
        (Some(processes), Some(threads)) => {
            format!("{} ({processes}, {threads} workers each)", of("backend"))
        }
        (None, Some(threads)) => format!("{} ({threads} workers)", of("backend")),
        (None, None) => of("backend"),
    }
}

fn mebibytes(bytes: &Value) -> String {
    format!("{:.2}", bytes.as_f64().unwrap_or(0.0) / f64::from(1 << 20))
}
