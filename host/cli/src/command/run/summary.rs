//! The report of a run.

use super::{Job, Ran};
use crate::cli::{BackendArg, RowCopyArg, name_of};
use crate::command::quantiles::{Quantiles, millis};
use crate::report::{Cell, Report, columns, note, pairs};
use core::time::Duration;
use serde::Serialize;
use veriep_case::case::Case;
use veriep_case::error::Error;
use veriep_case::experts::Experts;
use veriep_case::global_rank;
use veriep_case::verdict::Judgement;
use veriep_core::protocol::Stage;
use veriep_core::shape::Op;
use veriep_group::group::Costs;
use veriep_group::roofline::Roofline;
use veriep_group::traffic;

pub(super) fn emit(report: &mut Report, job: &Job<'_>, ran: &Ran) -> Result<(), Error> {
    let (run, all) = (ran.costs.rounds, job.plan.rounds());
    if let Some((rank, at)) = job.faults.killed.filter(|_| run == all) {
        let rank = job.case.name(rank);
        note(&format!(
            "note: --inject killed={rank}:{at}: rank {rank} has made fewer writes: it was not killed"
        ));
    }
    // A batch that is another one has been refused.
    if let Some((rank, round)) = job.faults.wrong_batch.filter(|(_, round)| *round < run) {
        let rank = job.case.name(rank);
        note(&format!(
            "note: --inject wrong-batch={rank}:{round}: without effect: both batches have the same experts"
        ));
    }
    report.judge(&judgement(job, run, all), &summary(job, ran), table)
}

/// Whether all outputs of `run` rounds, of `all` that were asked for, are those of the reference: a run that saw another one has
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
        Some(_) => {
            Judgement::yes(format!("{run} round{plural} of {group}: outputs agree with the reference"))
        }
        None => {
            let bound =
                format!("{run} round{plural} of {group} ended and were not compared with the reference");
            Judgement::unknown(bound, ["a run without --no-check, or compare on the result".to_owned()])
        }
    }
}

/// What a run comes to.
#[derive(Debug, Serialize)]
struct Summary {
    ok: bool,
    source: String,
    set: Vec<String>,
    backend: String,
    /// Of each process; null where time is not real.
    threads: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    processes: Option<usize>,
    vector: &'static str,
    seed: u64,
    ranks: u32,
    /// Those that an elastic domain has lost.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    dead: Vec<u32>,
    cores: u32,
    tokens: u64,
    rows: u64,
    schedule: String,
    receive: &'static str,
    experts: &'static str,
    rounds: usize,
    interrupted: bool,
    checked: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    compared: Option<&'static str>,
    steps: u64,
    operators: [OfOperator; 2],
    waited_for: Vec<Waited>,
    /// Only where time is real.
    #[serde(skip_serializing_if = "Option::is_none")]
    row_copy: Option<String>,
    /// Of the first rounds; the others pay for the pages that they are the first to touch.
    #[serde(skip_serializing_if = "Option::is_none")]
    committed_rounds: Option<usize>,
    /// Tasks that the agent of each rank posted in each operator (A2): one for each peer.
    #[serde(skip_serializing_if = "Option::is_none")]
    tasks_per_operator: Option<f64>,
    /// Of the hierarchy: 2 if the agent sends to other servers, 3 if the cores do.
    #[serde(skip_serializing_if = "Option::is_none")]
    stage: Option<u32>,
}

#[derive(Debug, Serialize)]
struct OfOperator {
    operator: &'static str,
    /// Over the rounds; of each round the slowest worker.
    ms: Option<Quantiles>,
    payload_bytes: u64,
    moved_bytes: u64,
    memcpy_ms: Option<f64>,
    /// 1 is as fast as the bare copies.
    of_memcpy: Option<f64>,
}

/// For how long cores of other ranks waited for a flag of a rank, per round and summed over the cores.
#[derive(Debug, Serialize)]
struct Waited {
    rank: u32,
    ms: f64,
}

fn summary(job: &Job<'_>, ran: &Ran) -> Summary {
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
    let operator = |operator, times: &[Duration], bytes: (u64, u64), copies: Option<Duration>| {
        let ms = Quantiles::of(times);
        let memcpy_ms = copies.map(millis);
        let of_memcpy = memcpy_ms.zip(ms.as_ref()).map(|(copies, ms)| copies / ms.median);
        OfOperator { operator, ms, payload_bytes: bytes.0, moved_bytes: bytes.1, memcpy_ms, of_memcpy }
    };
    let copies = |of: fn(&Roofline) -> Duration| roofline.as_ref().map(of);
    let operators = [
        operator("dispatch", &costs.dispatch, (bytes.payload, moved.0), copies(|r| r.dispatch)),
        operator("combine", &costs.combine, (bytes.results, moved.1), copies(|r| r.combine)),
    ];
    let compared = match case.config.operator() {
        Op::Combine => "bit for bit on every round",
        Op::CombineAddRmsNorm => "bit for bit on every round; rstd by its range, y by that rstd",
    };
    let stage = if plan.options.choices.stage == Stage::Two { 2 } else { 3 };
    let several = matches!(args.backend, BackendArg::Processes | BackendArg::Mpi);
    Summary {
        ok: costs.rounds == plan.rounds() && plan.check.is_some(),
        source: source.clone(),
        set: args.config.set.clone(),
        backend: name_of(args.backend),
        threads: timed.then_some(job.workers.count),
        processes: several.then_some(job.processes),
        vector: plan.options.vector.name(),
        seed: args.seed,
        ranks: global_rank::count(shape),
        dead: case.dead(),
        cores: shape.aiv_num(),
        tokens,
        rows: bytes.rows,
        schedule: args.schedule.clone(),
        receive: receive.name(),
        experts: Experts::under(receive).name(),
        rounds: costs.rounds,
        interrupted: costs.rounds < plan.rounds(),
        checked: plan.check.is_some(),
        compared: plan.check.map(|_| compared),
        steps: costs.steps,
        operators,
        waited_for: if timed { waited_for(case, costs, costs.rounds) } else { Vec::new() },
        row_copy: job.row_copy.get().map(|&way| name_of(RowCopyArg::from(way))),
        committed_rounds: job.committed.get().copied(),
        tasks_per_operator: has_agents.then_some(tasks),
        stage: global_rank::servers(shape).map(|_| stage),
    }
}

fn waited_for(case: &Case, costs: &Costs, rounds: usize) -> Vec<Waited> {
    let all = costs.waited_for().into_iter();
    all.map(|(rank, time)| Waited { rank: case.name(rank).0, ms: millis(time) / rounds as f64 }).collect()
}

fn table(summary: &Summary) -> String {
    let Summary { tokens, rows, schedule, rounds, .. } = summary;
    let reference = summary.compared.map_or_else(|| "not judged".to_owned(), |how| format!("agrees {how}"));
    let about = pairs(&[
        ("reference", reference),
        ("group", group(summary)),
        ("backend", with_threads(summary)),
        ("round", format!("{tokens} tokens, {rows} rows")),
        ("schedule", format!("{schedule}, rounds on one live group: {rounds}")),
    ]);
    let rest = pairs(&rest(summary));
    if summary.threads.is_none() {
        return format!("{about}\n\n{rest}");
    }
    format!("{about}\n\n{}\n\n{}\n\n{rest}", of_operators(summary), of_waits(&summary.waited_for))
}

fn rest(summary: &Summary) -> Vec<(&'static str, String)> {
    let mut rest = vec![
        ("source", summary.source.clone()),
        ("seed", summary.seed.to_string()),
        ("vectors", summary.vector.to_owned()),
        ("receive", summary.receive.to_owned()),
        ("experts", summary.experts.to_owned()),
        ("steps", summary.steps.to_string()),
    ];
    rest.extend(summary.row_copy.clone().map(|way| ("row copy", way)));
    rest.extend(summary.committed_rounds.map(|rounds| ("memory", memory(rounds, summary.rounds))));
    rest.extend(
        summary.tasks_per_operator.map(|tasks| ("tasks", format!("{tasks:?} per rank and operator"))),
    );
    rest.extend(summary.stage.map(|stage| ("stage", stage.to_string())));
    rest
}

fn of_operators(summary: &Summary) -> String {
    let ms = |ms: Option<f64>| ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.3}"));
    let row = |of: &OfOperator| {
        // A quantile of too few rounds is only their maximum.
        let of_many = |quantile: fn(&Quantiles) -> f64, least| {
            ms(of.ms.as_ref().filter(|_| summary.rounds >= least).map(quantile))
        };
        let mut row = vec![
            of.operator.to_owned(),
            of_many(|ms| ms.median, 0),
            of_many(|ms| ms.p90, 10),
            of_many(|ms| ms.p99, 100),
            mebibytes(of.payload_bytes),
            mebibytes(of.moved_bytes),
        ];
        row.extend(of.of_memcpy.into_iter().flat_map(|share| [ms(of.memcpy_ms), share.cell()]));
        row
    };
    let rows = summary.operators.each_ref().map(row);
    let head = ["operator", "median ms", "p90", "p99", "payload MiB", "moved MiB", "memcpy ms", "of memcpy"];
    // A2 has no bare copies to compare with, so no columns for them.
    columns(&head[..rows[0].len()], &rows)
}

fn of_waits(waited_for: &[Waited]) -> String {
    let waits: Vec<_> = waited_for.iter().filter(|wait| wait.ms > 0.0).collect();
    if waits.is_empty() {
        return "no rank was waited for".to_owned();
    }
    let shown: Vec<_> = waits.iter().take(8).collect();
    let rows: Vec<_> =
        shown.iter().map(|wait| vec![wait.rank.to_string(), format!("{:.3}", wait.ms)]).collect();
    let more = waits.len() - shown.len();
    let rest = if more > 0 { format!("\nand {more} more ranks") } else { String::new() };
    columns(&["waited for rank", "ms per round, summed over waiting cores"], &rows) + &rest
}

/// Of which rounds page faults are in the times.
fn memory(committed: usize, rounds: usize) -> String {
    match committed {
        0 => "not committed before the clock starts: times include page faults".to_owned(),
        some if some < rounds => {
            format!("committed for {some} of {rounds} rounds: later times include page faults")
        }
        _ => "committed before the clock starts: times are without page faults".to_owned(),
    }
}

fn group(summary: &Summary) -> String {
    let Summary { ranks, cores, dead, .. } = summary;
    if dead.is_empty() {
        return format!("{ranks} ranks x {cores} cores");
    }
    let all = *ranks as usize + dead.len();
    format!("{ranks} of {all} ranks left x {cores} cores")
}

fn with_threads(summary: &Summary) -> String {
    let backend = &summary.backend;
    match (summary.processes, summary.threads) {
        (Some(processes), None | Some(1)) => format!("{backend} ({processes})"),
        (Some(processes), Some(threads)) => format!("{backend} ({processes}, {threads} workers each)"),
        (None, Some(threads)) => format!("{backend} ({threads} workers)"),
        (None, None) => backend.clone(),
    }
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.2}", bytes as f64 / f64::from(1 << 20))
}
