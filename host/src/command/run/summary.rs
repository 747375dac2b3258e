//! The report of a run.

use super::Job;
use crate::case::Case;
use crate::cli::BackendArg;
use crate::error::Error;
use crate::group::Costs;
use crate::member;
use crate::report::{Report, columns, pairs};
use crate::roofline::Roofline;
use core::time::Duration;
use hdrhistogram::Histogram;
use kernel_core::plan::route::{self, Pair};
use kernel_core::shape::{Op, Product, Shape};
use kernel_core::units::Token;
use serde::Serialize;

#[derive(Serialize)]
struct Summary {
    ok: bool,
    source: String,
    set: Vec<String>,
    backend: &'static str,
    threads: Option<usize>,
    seed: u64,
    ranks: u32,
    /// Those that an elastic domain has lost.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    dead: Vec<u32>,
    cores: u32,
    tokens: u64,
    rows: u64,
    schedule: String,
    rounds: usize,
    checked: bool,
    /// How outputs were; absent when unchecked.
    #[serde(skip_serializing_if = "Option::is_none")]
    compared: Option<&'static str>,
    steps: u64,
    /// Tasks that the agent of each rank posted in each operator (A2): one for each peer.
    #[serde(skip_serializing_if = "Option::is_none")]
    tasks_per_operator: Option<f64>,
    operators: Vec<Operator>,
    waited_for: Vec<Waited>,
}

#[derive(Serialize)]
struct Operator {
    operator: &'static str,
    ms: Option<Quantiles>,
    payload_bytes: u64,
    moved_bytes: u64,
    memcpy_ms: Option<f64>,
    /// `memcpy_ms` by the median: 1 is as fast as the bare copies.
    of_memcpy: Option<f64>,
}

/// Over the rounds; of each round the slowest worker.
#[derive(Serialize)]
struct Quantiles {
    median: f64,
    p90: f64,
    p99: f64,
}

/// For how long cores of other ranks waited for a flag of this one, per round and summed over the cores.
#[derive(Serialize)]
struct Waited {
    rank: u32,
    ms: f64,
}

pub(super) fn emit(
    report: &mut Report,
    job: &Job<'_>,
    costs: &Costs,
    roofline: Option<&Roofline>,
) -> Result<(), Error> {
    report.emit(&summary(job, costs, roofline), table)
}

fn summary(job: &Job<'_>, costs: &Costs, roofline: Option<&Roofline>) -> Summary {
    let Job { args, source, case, plan, .. } = job;
    let shape = &case.shape;
    let bs = |rank| shape.bs(member::ep_rank(shape, rank));
    let tokens: u64 = member::all(shape).map(|rank| u64::from(bs(rank))).sum();
    let rows = rows_sent(case);
    let (payload, row) = (rows * shape.payload_bytes(), rows * shape.result_bytes());
    let timed = args.backend == BackendArg::Threads;
    let (has_agents, operators) = (shape.product() == Product::A2, 2 * plan.rounds());
    let tasks = costs.tasks as f64 / (operators as f64 * f64::from(shape.ep_world_size()));
    // Into the window and out of it; with an agent by way of the window that it sends.
    let copies = if has_agents { 3 } else { 2 };
    let operator = |operator, times: &[Duration], payload_bytes, moved_bytes, copies: Option<Duration>| {
        let ms = quantiles(times);
        let memcpy_ms = copies.map(millis);
        let of_memcpy = memcpy_ms.zip(ms.as_ref()).map(|(copies, ms)| copies / ms.median);
        Operator { operator, ms, payload_bytes, moved_bytes, memcpy_ms, of_memcpy }
    };
    Summary {
        ok: true,
        source: source.clone(),
        set: args.config.set.clone(),
        backend: args.backend.name(),
        threads: timed.then(|| super::workers(args).count),
        seed: args.seed,
        ranks: member::count(shape),
        dead: case.dead(),
        cores: shape.aiv_num(),
        tokens,
        rows,
        schedule: args.schedule.clone(),
        rounds: plan.rounds(),
        checked: plan.check.is_some(),
        compared: plan.check.map(|_| match shape.op() {
            Op::Combine => "bit for bit on every round",
            Op::CombineAddRmsNorm => "bit for bit on every round; rstd by its range, y by that rstd",
        }),
        steps: costs.steps,
        tasks_per_operator: has_agents.then_some(tasks),
        operators: vec![
            operator("dispatch", &costs.dispatch, payload, copies * payload, roofline.map(|r| r.dispatch)),
            operator(
                "combine",
                &costs.combine,
                row,
                copies * row + tokens * written_per_token(shape),
                roofline.map(|r| r.combine),
            ),
        ],
        waited_for: if timed { waited_for(case, costs, plan.rounds()) } else { Vec::new() },
    }
}

/// Bytes that combine puts out for a token.
fn written_per_token(shape: &Shape) -> u64 {
    match shape.op() {
        Op::Combine => shape.row_bytes(),
        Op::CombineAddRmsNorm => 3 * shape.row_bytes() + 4,
    }
}

/// Rows that a round sends: every active pair but those of special experts, and every active token once for each
/// shared expert.
fn rows_sent(case: &Case) -> u64 {
    let shape = &case.shape;
    let of_token = |rank, token| {
        let inputs = case.inputs(rank);
        let sent = |&k: &u32| route::home(shape, rank, &inputs, Pair { token, k }).is_some();
        (0..shape.combine_columns()).filter(sent).count() as u64
    };
    let bs = |rank| shape.bs(member::ep_rank(shape, rank));
    member::all(shape).map(|rank| (0..bs(rank)).map(|token| of_token(rank, Token(token))).sum::<u64>()).sum()
}

fn waited_for(case: &Case, costs: &Costs, rounds: usize) -> Vec<Waited> {
    let all = costs.waited_for().into_iter();
    all.map(|(rank, time)| Waited { rank: case.name(rank).0, ms: millis(time) / rounds as f64 }).collect()
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn quantiles(times: &[Duration]) -> Option<Quantiles> {
    let mut histogram = Histogram::<u64>::new(4).ok()?;
    for time in times {
        histogram.record(time.as_nanos() as u64).ok()?;
    }
    let at = |q| histogram.value_at_quantile(q) as f64 / 1e6;
    (!times.is_empty()).then(|| Quantiles { median: at(0.5), p90: at(0.9), p99: at(0.99) })
}

fn table(summary: &Summary) -> String {
    let mut about = vec![
        ("source", summary.source.clone()),
        ("backend", with_threads(summary)),
        ("seed", summary.seed.to_string()),
        ("group", group(summary)),
        ("round", format!("{} tokens, {} rows", summary.tokens, summary.rows)),
        ("schedule", format!("{}, rounds on one live group: {}", summary.schedule, summary.rounds)),
        ("steps", summary.steps.to_string()),
    ];
    about.extend(summary.tasks_per_operator.map(|n| ("tasks", format!("{n} per rank and operator"))));
    about.push(("oracle", verdict(summary)));
    let about = pairs(&about);
    if summary.threads.is_none() {
        return about;
    }
    let ms = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |v| format!("{v:.3}"));
    let rows: Vec<_> = summary
        .operators
        .iter()
        .map(|o| {
            let q = o.ms.as_ref();
            let mut row = vec![
                o.operator.to_owned(),
                ms(q.map(|q| q.median)),
                // A quantile of too few rounds is only their maximum.
                ms(q.map(|q| q.p90).filter(|_| summary.rounds >= 10)),
                ms(q.map(|q| q.p99).filter(|_| summary.rounds >= 100)),
                mebibytes(o.payload_bytes),
                mebibytes(o.moved_bytes),
            ];
            let copies = o.memcpy_ms.zip(o.of_memcpy);
            row.extend(copies.into_iter().flat_map(|(ms, of)| [format!("{ms:.3}"), format!("{of:.2}")]));
            row
        })
        .collect();
    let head = ["operator", "median ms", "p90", "p99", "payload MiB", "moved MiB", "memcpy ms", "of memcpy"];
    // A2 has no bare copies to compare with, so no columns for them.
    let width = rows.first().map_or(head.len(), Vec::len);
    let operators = columns(&head[..width], &rows);
    let most: Vec<_> = summary.waited_for.iter().filter(|w| w.ms > 0.0).take(8).collect();
    let waited: Vec<_> = most.iter().map(|w| vec![w.rank.to_string(), format!("{:.3}", w.ms)]).collect();
    let waited = if waited.is_empty() {
        "nobody waited".to_owned()
    } else {
        let all = summary.waited_for.iter().filter(|w| w.ms > 0.0).count();
        let rest =
            if all > most.len() { format!("\nand {} more ranks", all - most.len()) } else { String::new() };
        columns(&["waited for rank", "ms per round, summed over waiting cores"], &waited) + &rest
    };
    format!("{about}\n\n{operators}\n\n{waited}")
}

fn group(summary: &Summary) -> String {
    let Summary { ranks, cores, dead, .. } = summary;
    match dead.len() {
        0 => format!("{ranks} ranks x {cores} cores"),
        gone => format!("{ranks} of {} ranks left x {cores} cores", *ranks as usize + gone),
    }
}

fn with_threads(summary: &Summary) -> String {
    match summary.threads {
        Some(threads) => format!("{} ({threads} workers)", summary.backend),
        None => summary.backend.to_owned(),
    }
}

fn verdict(summary: &Summary) -> String {
    summary.compared.map_or_else(|| "not asked".to_owned(), |how| format!("agrees {how}"))
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.2}", bytes as f64 / f64::from(1 << 20))
}
