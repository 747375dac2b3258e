//! `veriep simulate`

use super::source::open_case;
use crate::case::Case;
use crate::cli::{RowsArg, SimulateArgs};
use crate::error::Error;
use crate::report::{Report, columns, note, pairs};
use crate::simulate::prices::{Cluster, Ps};
use crate::simulate::{self, Outcome, Plan, path};
use serde::Serialize;
use veriep_core::fabric::Capabilities;
use veriep_core::protocol::{Choices, Receive};
use veriep_core::shape::{Product, Shape};
use veriep_core::sim::chooser::Dice;
use veriep_core::units::RankId;

/// Bytes of rows up to which they are kept unless the request says otherwise.
const REAL_MAX: u64 = 1 << 30;

/// Ranks waited for that the table names; the JSON report has all.
const NAMED: usize = 4;

const OPERATORS: [&str; 2] = ["dispatch", "combine"];

#[derive(Serialize)]
struct Simulated {
    ok: bool,
    source: String,
    cluster: String,
    links_source: String,
    costs_source: String,
    checked: bool,
    operators: Vec<Operator>,
    links: Vec<Link>,
    incast: Incasts,
    waits: Vec<Waited>,
    critical_path: Vec<Part>,
    root: Root,
    end_us: f64,
    events: u64,
    seed: u64,
}

#[derive(Serialize)]
struct Operator {
    operator: &'static str,
    slowest_us: f64,
    median_us: f64,
    first_us: f64,
    formula_us: f64,
    free_us: f64,
}

#[derive(Serialize)]
struct Link {
    name: String,
    dir: &'static str,
    operator: &'static str,
    bytes: u64,
    busy_us: f64,
    queue_max: u64,
}

/// The most ranks with rows at the port of one rank at once.
#[derive(Serialize)]
struct Incast {
    /// At ranks with shared experts.
    shared: Option<usize>,
    all: usize,
}

/// How long all cores and agents together have waited for a rank.
#[derive(Serialize)]
struct Waited {
    rank: u32,
    us: f64,
}

/// A part of the critical path; `core` is null of an agent, and of what is on its way to the rank.
#[derive(Serialize)]
struct Part {
    rank: u32,
    core: Option<u32>,
    us: f64,
    what: &'static str,
}

/// Where the critical path begins.
#[derive(Serialize)]
struct Root {
    rank: u32,
    core: Option<u32>,
}

#[derive(Serialize)]
struct Incasts {
    dispatch: Incast,
    combine: Incast,
}

fn us(time: Ps) -> f64 {
    time as f64 / 1e6
}

pub(super) fn run(args: &SimulateArgs, report: &mut Report) -> Result<(), Error> {
    let cluster = Cluster::read(&args.cluster, &args.link, &args.cost)?;
    let (case, source) = open_case(&args.config, &args.tensors, args.seed, 0)?;
    let shape = &case.shape;
    if let Some(line) = refused(&case, args) {
        return Err(Error::Request(line));
    }
    let choices = Choices {
        order: args.order.into(),
        flags: super::source::flags(shape, args.flags)?,
        receive: Receive::Copy,
        stage: super::run::stage(shape, args.stage)?,
    };
    choices.check(shape, Capabilities::all()).map_err(|refused| Error::Request(refused.to_string()))?;
    let rows = match args.rows {
        Some(rows) => rows == RowsArg::Real,
        None => bytes(shape) <= REAL_MAX,
    };
    if !rows {
        note("note: rows weigh but are not kept: no output was compared with the oracle");
    }
    let begins = begins(args, shape.ep_world_size())?;
    let simulate = |cluster: &Cluster, rows| {
        let rounds = args.rounds as usize;
        let (case, begins) = (&case, begins.clone());
        simulate::run(&Plan { case, cluster, choices, schedule: &args.schedule, rounds, rows, begins })
    };
    let free_cluster = cluster.free();
    let outcome = simulate(if args.free { &free_cluster } else { &cluster }, rows)?;
    let free = if args.free { None } else { Some(simulate(&free_cluster, false)?) };
    let simulated = Simulated {
        ok: true,
        source,
        cluster: args.cluster.clone(),
        links_source: cluster.links.source.clone(),
        costs_source: if args.free {
            "all costs and latencies are 0".to_owned()
        } else {
            cluster.costs.source
        },
        checked: rows,
        operators: (0..2)
            .map(|operator| told(operator, &outcome, free.as_ref().unwrap_or(&outcome)))
            .collect(),
        links: links(&outcome),
        incast: Incasts {
            dispatch: incast(shape, &outcome.incast[0]),
            combine: incast(shape, &outcome.incast[1]),
        },
        waits: outcome.waits.iter().map(|&(rank, waited)| Waited { rank, us: us(waited) }).collect(),
        critical_path: outcome.path.iter().map(part).collect(),
        root: outcome
            .path
            .last()
            .map_or(Root { rank: 0, core: None }, |part| Root { rank: part.rank, core: part.core }),
        end_us: us(outcome.end),
        events: outcome.events,
        seed: args.seed,
    };
    report.emit(&simulated, table)
}

/// What a simulation does not do, in one line.
fn refused(case: &Case, args: &SimulateArgs) -> Option<String> {
    if case.shape.tp_world_size() > 1 {
        return Some("tp_world_size = 2: links of a TP domain are not simulated: must be 0 or 1".to_owned());
    }
    if case.elastic.is_some() {
        return Some("an elastic domain is not simulated: must be whole".to_owned());
    }
    if args.cluster == "a2" && case.shape.product() == Product::A3
        || args.cluster == "a3" && case.shape.product() == Product::A2
    {
        return Some(format!("--cluster {}: the configuration is of the other product", args.cluster));
    }
    (!matches!(args.schedule.as_str(), "DC" | "DDCC"))
        .then(|| format!("--schedule {}: must be DC or DDCC", args.schedule))
}

/// Bytes of all rows of a round, where they are sent, received and returned.
fn bytes(shape: &Shape) -> u64 {
    let rows: u64 = (0..shape.ep_world_size())
        .map(|rank| u64::from(shape.bs(RankId(rank)) * shape.combine_columns()))
        .sum();
    rows * 2 * (shape.record_pitch() + shape.combine_pitch())
}

/// When each rank begins.
fn begins(args: &SimulateArgs, ranks: u32) -> Result<Vec<Ps>, Error> {
    let mut dice = Dice(args.seed);
    let skew = (args.skew * 1e6) as usize;
    let mut begins: Vec<Ps> =
        (0..ranks).map(|_| if skew == 0 { 0 } else { dice.below(skew) as Ps }).collect();
    for straggler in &args.straggler {
        let fail = || {
            Error::Request(format!(
                "--straggler {straggler}: must be RANK:US with RANK in [0, {}] and US in [0, 1000000]",
                ranks - 1
            ))
        };
        let (rank, late) = straggler.split_once(':').ok_or_else(fail)?;
        let rank = rank.parse::<usize>().ok().and_then(|rank| begins.get_mut(rank)).ok_or_else(fail)?;
        let late: f64 = late.parse().ok().filter(|late| (0.0..=1e6).contains(late)).ok_or_else(fail)?;
        *rank += (late * 1e6) as Ps;
    }
    Ok(begins)
}

fn told(operator: usize, outcome: &Outcome, free: &Outcome) -> Operator {
    let mut took = outcome.took[operator].clone();
    took.sort_unstable();
    let last = |took: &[Ps]| took.iter().max().copied().unwrap_or(0);
    Operator {
        operator: OPERATORS[operator],
        slowest_us: us(last(&took)),
        median_us: us(took[took.len() / 2]),
        first_us: us(took[0]),
        formula_us: us(outcome.formula[operator]),
        free_us: us(last(&free.took[operator])),
    }
}

fn part(part: &path::Part) -> Part {
    Part { rank: part.rank, core: part.core, us: us(part.took), what: part.what }
}

fn links(outcome: &Outcome) -> Vec<Link> {
    let of = |operator: usize| {
        let ports = (0..).zip(&outcome.ports[operator]);
        ports.flat_map(move |(rank, ports): (u32, _)| {
            ["out", "in"].into_iter().zip(ports).map(move |(dir, carried)| Link {
                name: format!("ports of rank {rank}"),
                dir,
                operator: OPERATORS[operator],
                bytes: carried.bytes,
                busy_us: us(carried.busy),
                queue_max: carried.queue_max,
            })
        })
    };
    (0..2).flat_map(of).collect()
}

fn incast(shape: &Shape, by_rank: &[usize]) -> Incast {
    let shared = by_rank.iter().take(shape.shared_expert_rank_num() as usize).max().copied();
    Incast { shared, all: by_rank.iter().max().copied().unwrap_or(0) }
}

fn table(simulated: &Simulated) -> String {
    let about = pairs(&[
        ("source", simulated.source.clone()),
        ("cluster", simulated.cluster.clone()),
        ("links", simulated.links_source.clone()),
        ("costs", simulated.costs_source.clone()),
        ("oracle", if simulated.checked { "agrees bit for bit" } else { "not asked" }.to_owned()),
        ("end", format!("{:.2} us, {} events", simulated.end_us, simulated.events)),
    ]);
    let row = |operator: &Operator| {
        let of = |link: &&Link| link.operator == operator.operator;
        let busiest = simulated.links.iter().filter(of).map(|link| link.busy_us).fold(0.0, f64::max);
        let Incasts { dispatch, combine } = &simulated.incast;
        let incast = if operator.operator == "dispatch" { dispatch } else { combine };
        let times = [
            operator.slowest_us,
            operator.median_us,
            operator.first_us,
            operator.formula_us,
            operator.free_us,
            busiest,
        ];
        let mut row = vec![operator.operator.to_owned()];
        row.extend(times.map(|time| format!("{time:.2}")));
        row.push(incast.all.to_string());
        row.push(incast.shared.map_or_else(|| "-".to_owned(), |shared| shared.to_string()));
        row
    };
    let header = [
        "operator",
        "slowest us",
        "median",
        "first",
        "formula",
        "free run",
        "busiest port",
        "incast",
        "at shared experts",
    ];
    let rows: Vec<_> = simulated.operators.iter().map(row).collect();
    let waits = simulated
        .waits
        .iter()
        .take(NAMED)
        .map(|waited| vec![waited.rank.to_string(), format!("{:.2}", waited.us)]);
    let path =
        simulated.critical_path.iter().rev().filter(|part| part.us >= 0.005 * simulated.end_us).map(|part| {
            let core = part.core.map_or_else(|| "-".to_owned(), |core| core.to_string());
            vec![part.rank.to_string(), core, format!("{:.2}", part.us), part.what.to_owned()]
        });
    format!(
        "{about}\n\n{}\n\n{}\n\n{}",
        columns(&header, &rows),
        columns(&["waited for rank", "us, all cores together"], &waits.collect::<Vec<_>>()),
        columns(&["critical path: rank", "core", "us", ""], &path.collect::<Vec<_>>())
    )
}
