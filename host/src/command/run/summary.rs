//! The report of a run.

use super::Job;
use crate::case::Case;
use crate::cli::BackendArg;
use crate::command::quantiles::{Quantiles, millis};
use crate::command::traffic;
use crate::error::Error;
use crate::group::Costs;
use crate::member;
use crate::report::{Report, columns, pairs};
use crate::roofline::Roofline;
use core::time::Duration;
use kernel_core::plan::relay;
use kernel_core::shape::{CommAlg, Op};
use serde::Serialize;

#[derive(Serialize)]
struct Summary {
    ok: bool,
    source: String,
    set: Vec<String>,
    backend: &'static str,
    threads: Option<usize>,
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
    /// Over the rounds; of each round the slowest worker.
    ms: Option<Quantiles>,
    payload_bytes: u64,
    moved_bytes: u64,
    memcpy_ms: Option<f64>,
    /// `memcpy_ms` by the median: 1 is as fast as the bare copies.
    of_memcpy: Option<f64>,
    /// Rows of other ranks, where servers differ from ranks (A2 hierarchy).
    #[serde(skip_serializing_if = "Option::is_none")]
    servers: Option<Servers>,
}

/// Bytes of rows that change ranks, without flags and ids.
#[derive(Clone, Copy, Serialize)]
struct Servers {
    across_bytes: u64,
    inside_bytes: u64,
    /// The same if every row went straight to its expert.
    fullmesh_across_bytes: u64,
    fullmesh_inside_bytes: u64,
}

/// Rows of a round by the way that they take.
#[derive(Clone, Copy, Default)]
struct Crossings {
    across: u64,
    inside: u64,
    straight_across: u64,
    straight_inside: u64,
}

impl Crossings {
    /// `None` where all ranks are near.
    fn of(case: &Case) -> Option<Self> {
        let shape = &case.shape;
        let mut all = Self::default();
        member::servers(shape)?;
        for rank in member::all(shape) {
            let ids = case.inputs(rank).expert_ids;
            let (across, inside) = relay::crossings(shape, rank, ids);
            (all.across, all.inside) = (all.across + across, all.inside + inside);
            let (own, _) = shape.server_of(rank);
            for server in 0..shape.servers() {
                for row in ids.chunks_exact(shape.k() as usize) {
                    let other = relay::pairs_on(shape, row, server).filter(|(_, home)| home.rank != rank);
                    let rows =
                        if server == own { &mut all.straight_inside } else { &mut all.straight_across };
                    *rows += other.count() as u64;
                }
            }
        }
        Some(all)
    }

    /// With so many bytes for each row between servers, and inside.
    const fn bytes(self, across: u64, inside: u64) -> Servers {
        Servers {
            across_bytes: self.across * across,
            inside_bytes: self.inside * inside,
            fullmesh_across_bytes: self.straight_across * inside,
            fullmesh_inside_bytes: self.straight_inside * inside,
        }
    }
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
    let bytes = traffic::Bytes::of(case);
    let moved = bytes.moved(args.receive);
    let timed = args.backend == BackendArg::Threads;
    let (has_agents, operators) = (shape.comm_alg() == CommAlg::Fullmesh, 2 * plan.rounds());
    let tasks = costs.tasks as f64 / (operators as f64 * f64::from(shape.ep_world_size()));
    let crossings = Crossings::of(case);
    let operator = |operator, times: &[Duration], payload_bytes, moved_bytes, copies: Option<Duration>| {
        let ms = Quantiles::of(times);
        let memcpy_ms = copies.map(millis);
        let of_memcpy = memcpy_ms.zip(ms.as_ref()).map(|(copies, ms)| copies / ms.median);
        let servers = crossings.map(|rows| match operator {
            "dispatch" => rows.bytes(shape.payload_bytes(), shape.payload_bytes()),
            _ => rows.bytes(shape.result_bytes(), shape.row_bytes()),
        });
        Operator { operator, ms, payload_bytes, moved_bytes, memcpy_ms, of_memcpy, servers }
    };
    Summary {
        ok: true,
        source: source.clone(),
        set: args.config.set.clone(),
        backend: args.backend.name(),
        threads: timed.then(|| super::workers(args).count),
        vector: plan.options.vector.name(),
        seed: args.seed,
        ranks: member::count(shape),
        dead: case.dead(),
        cores: shape.aiv_num(),
        tokens,
        rows: bytes.rows,
        schedule: args.schedule.clone(),
        receive: args.receive.name(),
        rounds: plan.rounds(),
        checked: plan.check.is_some(),
        compared: plan.check.map(|_| match shape.op() {
            Op::Combine => "bit for bit on every round",
            Op::CombineAddRmsNorm => "bit for bit on every round; rstd by its range, y by that rstd",
        }),
        steps: costs.steps,
        tasks_per_operator: has_agents.then_some(tasks),
        operators: vec![
            operator("dispatch", &costs.dispatch, bytes.payload, moved.0, roofline.map(|r| r.dispatch)),
            operator("combine", &costs.combine, bytes.results, moved.1, roofline.map(|r| r.combine)),
        ],
        waited_for: if timed { waited_for(case, costs, plan.rounds()) } else { Vec::new() },
    }
}

fn waited_for(case: &Case, costs: &Costs, rounds: usize) -> Vec<Waited> {
    let all = costs.waited_for().into_iter();
    all.map(|(rank, time)| Waited { rank: case.name(rank).0, ms: millis(time) / rounds as f64 }).collect()
}

fn table(summary: &Summary) -> String {
    let mut about = vec![
        ("source", summary.source.clone()),
        ("backend", with_threads(summary)),
        ("vectors", summary.vector.to_owned()),
        ("seed", summary.seed.to_string()),
        ("group", group(summary)),
        ("round", format!("{} tokens, {} rows", summary.tokens, summary.rows)),
        ("schedule", format!("{}, rounds on one live group: {}", summary.schedule, summary.rounds)),
        ("receive", summary.receive.to_owned()),
        ("steps", summary.steps.to_string()),
    ];
    about.extend(summary.tasks_per_operator.map(|n| ("tasks", format!("{n} per rank and operator"))));
    for operator in &summary.operators {
        about.extend(operator.servers.map(|servers| (operator.operator, crossed(servers))));
    }
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

fn crossed(servers: Servers) -> String {
    let Servers { across_bytes, inside_bytes, fullmesh_across_bytes, fullmesh_inside_bytes } = servers;
    format!(
        "{across_bytes} B across servers, {inside_bytes} B inside; full mesh: {fullmesh_across_bytes} B and {fullmesh_inside_bytes} B"
    )
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
