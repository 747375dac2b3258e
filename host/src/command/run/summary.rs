//! The report of a run.

use super::{Job, Ran};
use crate::case::Case;
use crate::cli::{BackendArg, ExpertsArg, RowCopyArg};
use crate::command::quantiles::{Quantiles, millis};
use crate::command::traffic;
use crate::error::Error;
use crate::global_rank;
use crate::group::Costs;
use crate::report::{Report, columns, note, pairs};
use crate::traffic_audit::Moved;
use core::time::Duration;
use serde::Serialize;
use veriep_core::plan::relay;
use veriep_core::protocol::Stage;
use veriep_core::shape::{Op, Protocol};

#[derive(Serialize)]
struct Summary {
    ok: bool,
    source: String,
    set: Vec<String>,
    backend: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    processes: Option<usize>,
    /// Of each process.
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
    experts: &'static str,
    /// Only where time is real.
    #[serde(skip_serializing_if = "Option::is_none")]
    row_copy: Option<&'static str>,
    rounds: usize,
    interrupted: bool,
    checked: bool,
    /// How outputs were; absent when unchecked.
    #[serde(skip_serializing_if = "Option::is_none")]
    compared: Option<&'static str>,
    steps: u64,
    /// Tasks that the agent of each rank posted in each operator (A2): one for each peer.
    #[serde(skip_serializing_if = "Option::is_none")]
    tasks_per_operator: Option<f64>,
    /// Of the hierarchy: who issues what goes to other servers.
    #[serde(skip_serializing_if = "Option::is_none")]
    stage: Option<u32>,
    /// How what went from rank to rank compares with the plan; where ranks have servers.
    #[serde(skip_serializing_if = "Option::is_none")]
    traffic: Option<&'static str>,
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
    /// What changed ranks, where they have servers (A2).
    #[serde(skip_serializing_if = "Option::is_none")]
    servers: Option<Servers>,
}

/// What changed ranks in the last round, counted where it was put and held against the plan. Bytes of rows are without
/// flags and lists.
#[derive(Clone, Copy, Serialize)]
struct Servers {
    across_rows: u64,
    across_bytes: u64,
    /// The same by rank: the mean, and who sends most.
    across_bytes_per_rank: f64,
    across_bytes_of_a_rank_max: u64,
    /// With flags and lists.
    across_written_bytes: u64,
    inside_rows: u64,
    inside_bytes: u64,
    inside_written_bytes: u64,
    /// By the plan: the bytes of rows if each went straight to its expert, as on the full mesh.
    #[serde(skip_serializing_if = "Option::is_none")]
    fullmesh_across_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fullmesh_inside_bytes: Option<u64>,
}

impl Servers {
    fn of(moved: Moved, ranks: u32, straight: Option<(u64, u64)>, row: u64) -> Self {
        let Moved { across, across_max, inside } = moved;
        Self {
            across_rows: across.rows,
            across_bytes: across.row_bytes,
            across_bytes_per_rank: across.row_bytes as f64 / f64::from(ranks),
            across_bytes_of_a_rank_max: across_max,
            across_written_bytes: across.bytes,
            inside_rows: inside.rows,
            inside_bytes: inside.row_bytes,
            inside_written_bytes: inside.bytes,
            fullmesh_across_bytes: straight.map(|(across, _)| across * row),
            fullmesh_inside_bytes: straight.map(|(_, inside)| inside * row),
        }
    }
}

/// Rows of a hierarchy's round that would go to other servers, and to other ranks of the own one, if each went straight
/// to its expert.
fn straight(case: &Case) -> Option<(u64, u64)> {
    let shape = &case.shape;
    global_rank::servers(shape)?;
    let (mut across, mut inside) = (0, 0);
    for rank in global_rank::all(shape) {
        let (own, _) = shape.server_of(rank);
        for (_, server, forward) in relay::inside(shape, case.inputs(rank).expert_ids) {
            if forward.home.rank != rank {
                *(if server == own { &mut inside } else { &mut across }) += 1;
            }
        }
    }
    Some((across, inside))
}

/// For how long cores of other ranks waited for a flag of this one, per round and summed over the cores.
#[derive(Serialize)]
struct Waited {
    rank: u32,
    ms: f64,
}

pub(super) fn emit(report: &mut Report, job: &Job<'_>, ran: &Ran) -> Result<(), Error> {
    let (run, all) = (ran.costs.rounds, job.plan.rounds());
    if let Some((rank, at)) = job.killed.filter(|_| run == all) {
        let rank = job.case.name(rank);
        note(&format!(
            "note: --inject killed={rank}:{at}: rank {rank} has made fewer writes: nobody was killed"
        ));
    }
    let verdict = match (run < all, &job.args.out) {
        (false, _) => Ok(()),
        (true, None) => Err(Error::Interrupted(format!("after {run} of {all} rounds"))),
        (true, Some(out)) => {
            let out = out.display();
            Err(Error::Interrupted(format!("after {run} of {all} rounds: {out} is not written")))
        }
    };
    report.judge(&summary(job, ran), table, verdict)
}

fn summary(job: &Job<'_>, ran: &Ran) -> Summary {
    let Ran { costs, roofline, moved: between } = ran;
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
    let straight = straight(case);
    let operator = |operator, times: &[Duration], payload_bytes, moved_bytes, copies: Option<Duration>| {
        let ms = Quantiles::of(times);
        let memcpy_ms = copies.map(millis);
        let of_memcpy = memcpy_ms.zip(ms.as_ref()).map(|(copies, ms)| copies / ms.median);
        let (nth, row) = match operator {
            "dispatch" => (0, shape.payload_bytes()),
            _ => (1, shape.row_bytes()),
        };
        let servers = between.map(|moved| Servers::of(moved[nth], shape.ep_world_size(), straight, row));
        Operator { operator, ms, payload_bytes, moved_bytes, memcpy_ms, of_memcpy, servers }
    };
    Summary {
        ok: true,
        source: source.clone(),
        set: args.config.set.clone(),
        backend: args.backend.name(),
        processes: matches!(args.backend, BackendArg::Processes | BackendArg::Mpi).then_some(job.processes),
        threads: timed.then_some(job.workers.count),
        vector: plan.options.vector.name(),
        seed: args.seed,
        ranks: global_rank::count(shape),
        dead: case.dead(),
        cores: shape.aiv_num(),
        tokens,
        rows: bytes.rows,
        schedule: args.schedule.clone(),
        receive: receive.name(),
        experts: ExpertsArg::name(receive),
        row_copy: job.row_copy.get().map(|&way| RowCopyArg::from(way).name()),
        rounds: costs.rounds,
        interrupted: costs.rounds < plan.rounds(),
        checked: plan.check.is_some(),
        compared: plan.check.map(|_| match shape.op() {
            Op::Combine => "bit for bit on every round",
            Op::CombineAddRmsNorm => "bit for bit on every round; rstd by its range, y by that rstd",
        }),
        steps: costs.steps,
        tasks_per_operator: has_agents.then_some(tasks),
        stage: global_rank::servers(shape).map(|_| match plan.options.choices.stage {
            Stage::Two => 2,
            Stage::Three => 3,
        }),
        // Else the run has failed.
        traffic: between.map(|_| match shape.protocol() {
            Protocol::Hierarchy => "as planned: a token once to a server, no row to who needs none",
            _ => "as planned: each window has the rows of its receiver",
        }),
        operators: vec![
            operator(
                "dispatch",
                &costs.dispatch,
                bytes.payload,
                moved.0,
                roofline.as_ref().map(|r| r.dispatch),
            ),
            operator("combine", &costs.combine, bytes.results, moved.1, roofline.as_ref().map(|r| r.combine)),
        ],
        waited_for: if timed { waited_for(case, costs, costs.rounds) } else { Vec::new() },
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
        ("experts", summary.experts.to_owned()),
        ("steps", summary.steps.to_string()),
    ];
    about.extend(summary.row_copy.map(|way| ("row copy", way.to_owned())));
    about.extend(summary.tasks_per_operator.map(|n| ("tasks", format!("{n} per rank and operator"))));
    about.extend(summary.stage.map(|stage| ("stage", stage.to_string())));
    for Operator { operator, servers, .. } in &summary.operators {
        about.extend(servers.iter().flat_map(|servers| crossed(operator, servers)));
    }
    about.extend(summary.traffic.map(|how| ("traffic", how.to_owned())));
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

fn crossed(operator: &'static str, servers: &Servers) -> [(&'static str, String); 4] {
    let written = |bytes| format!("with flags and lists {bytes} B");
    let against = |mesh: Option<u64>| {
        mesh.map(|bytes| format!("; rows each straight to its expert: {bytes} B")).unwrap_or_default()
    };
    let Servers { across_rows, across_bytes, across_bytes_per_rank, inside_rows, inside_bytes, .. } = servers;
    let across =
        format!("{across_rows} rows, {across_bytes} B across servers ({across_bytes_per_rank:.0} B a rank)")
            + &against(servers.fullmesh_across_bytes);
    [
        (operator, across),
        ("", written(servers.across_written_bytes)),
        (
            "",
            format!("{inside_rows} rows, {inside_bytes} B inside servers")
                + &against(servers.fullmesh_inside_bytes),
        ),
        ("", written(servers.inside_written_bytes)),
    ]
}

fn with_threads(summary: &Summary) -> String {
    match (summary.processes, summary.threads) {
        (Some(processes), None | Some(1)) => format!("{} ({processes})", summary.backend),
        (Some(processes), Some(threads)) => {
            format!("{} ({processes}, {threads} workers each)", summary.backend)
        }
        (None, Some(threads)) => format!("{} ({threads} workers)", summary.backend),
        (None, None) => summary.backend.to_owned(),
    }
}

fn verdict(summary: &Summary) -> String {
    summary.compared.map_or_else(|| "not asked".to_owned(), |how| format!("agrees {how}"))
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.2}", bytes as f64 / f64::from(1 << 20))
}
