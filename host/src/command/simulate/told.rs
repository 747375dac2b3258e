//! The report of `veriep simulate`.

use super::Request;
use super::grid::Point;
use crate::cli::SimulateArgs;
use crate::events::chrome;
use crate::events::page::About;
use crate::report::{columns, pairs};
use crate::simulate::path::longest_first;
use crate::simulate::prices::{Cluster, Ps};
use crate::simulate::{Outcome, path};
use serde::Serialize;
use std::collections::BTreeMap;
use veriep_core::shape::{Product, Protocol, Shape};

/// Ranks waited for that the table names; the JSON report has all.
const NAMED: usize = 4;

pub(super) const OPERATORS: [&str; 2] = ["dispatch", "combine"];

#[derive(Serialize)]
pub(super) struct Told {
    ok: bool,
    source: String,
    cluster: String,
    links_source: String,
    costs_source: String,
    /// By key of the cluster file: measured, derived, assumed, or given on the command line.
    marks: BTreeMap<String, &'static str>,
    checked: bool,
    /// Whether somebody asked for the end: what follows is what there was.
    cut_off: bool,
    operators: Vec<Operator>,
    links: Vec<Link>,
    incast: Incasts,
    ports: Vec<Port>,
    waits: Vec<Waited>,
    waits_by_kind: Vec<Kind>,
    critical_path: Vec<Part>,
    root: Root,
    end_us: f64,
    events: u64,
    /// Words that cores and agents looked at for each step that changed something.
    words_per_step: f64,
    seed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) against: Option<Against>,
    /// By point and operator, if there are several points or seeds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) grid: Vec<OfPoint>,
}

#[derive(Serialize)]
struct Operator {
    operator: &'static str,
    slowest_us: f64,
    median_us: f64,
    first_us: f64,
    formula_us: f64,
    free_us: Option<f64>,
    /// `calibrated` if a number of the cluster was found so that this time comes out, else `predicted`.
    mark: &'static str,
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

/// What all ranks have sent by their port of a number; one where ports share the traffic evenly.
#[derive(Serialize)]
struct Port {
    operator: &'static str,
    port: usize,
    bytes: u64,
    /// Of the rank that used it longest.
    busy_us: f64,
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

/// How long all cores and agents together have waited for a kind of word, or how long a rank has done something.
#[derive(Serialize)]
struct Kind {
    what: &'static str,
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

/// The same run on another cluster, or the old way.
#[derive(Serialize)]
pub(super) struct Against {
    cluster: String,
    operators: Vec<Compared>,
}

#[derive(Serialize)]
struct Compared {
    operator: &'static str,
    slowest_us: f64,
    /// How many times as long it takes there.
    ratio: f64,
    /// What the slowest rank did there, if that is the old way.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parts: Vec<Kind>,
}

/// The slowest rank's time in an operator, over seeds.
#[derive(Serialize)]
pub(super) struct OfPoint {
    values: BTreeMap<String, String>,
    operator: &'static str,
    seeds: usize,
    least_us: f64,
    first_quartile_us: f64,
    median_us: f64,
    third_quartile_us: f64,
    most_us: f64,
}

fn us(time: Ps) -> f64 {
    time as f64 / 1e6
}

/// The slowest rank's time, by operator.
pub(super) fn slowest(took: &[Vec<Ps>; 2]) -> [Ps; 2] {
    [0, 1].map(|operator| took[operator].iter().max().copied().unwrap_or(0))
}

pub(super) fn tell(
    args: &SimulateArgs,
    request: &Request,
    outcome: &Outcome,
    free: Option<&Outcome>,
) -> Told {
    let Request { case, cluster, .. } = request;
    let shape = &case.shape;
    let is_fitted = cluster.links.fitted_to == communication(shape);
    let mark = if is_fitted && args.link.is_empty() { "calibrated" } else { "predicted" };
    let mut by_rank = BTreeMap::new();
    for (&(_, rank), waited) in &outcome.matrix {
        *by_rank.entry(rank).or_default() += waited;
    }
    let root = outcome
        .path
        .last()
        .map_or(Root { rank: 0, core: None }, |part| Root { rank: part.rank, core: part.core });
    Told {
        ok: true,
        source: request.source.clone(),
        cluster: args.cluster.clone(),
        links_source: cluster.links.source.clone(),
        costs_source: cluster.costs.source.clone(),
        marks: marks(args, cluster),
        checked: request.rows && !outcome.cut,
        cut_off: outcome.cut,
        operators: (0..2).map(|operator| told(operator, outcome, (free, args.free), mark)).collect(),
        links: links(outcome),
        incast: Incasts {
            dispatch: incast(shape, &outcome.incast[0]),
            combine: incast(shape, &outcome.incast[1]),
        },
        ports: ports(outcome),
        waits: longest_first(by_rank.into_iter())
            .into_iter()
            .map(|(rank, waited)| Waited { rank, us: us(waited) })
            .collect(),
        waits_by_kind: outcome.kinds.iter().map(|&(what, waited)| Kind { what, us: us(waited) }).collect(),
        critical_path: outcome.path.iter().map(part).collect(),
        root,
        end_us: us(outcome.end),
        events: outcome.events,
        words_per_step: outcome.words_per_step,
        seed: args.seed,
        against: None,
        grid: Vec::new(),
    }
}

/// What cluster files call the communication of a shape.
fn communication(shape: &Shape) -> &'static str {
    match (shape.product(), shape.protocol()) {
        (Product::A2, Protocol::Hierarchy) => "a2 hierarchy",
        (Product::A2, _) => "a2 fullmesh",
        (Product::A3, Protocol::FullmeshV2) => "a3 fullmesh_v2",
        (Product::A3, _) => "a3 fullmesh_v1",
    }
}

/// Where each number comes from.
fn marks(args: &SimulateArgs, cluster: &Cluster) -> BTreeMap<String, &'static str> {
    let given = |key: &str| {
        let assigned = |assignment: &String| assignment.split_once('=').is_some_and(|(name, _)| name == key);
        args.link.iter().chain(&args.cost).any(assigned)
    };
    let of = |(key, mark): (String, &'static str)| if given(&key) { (key, "given") } else { (key, mark) };
    cluster.marks().into_iter().map(of).collect()
}

/// How another cluster compares, or the old way with what its slowest rank did, by operator.
pub(super) fn compare(
    cluster: &str,
    here: &[Vec<Ps>; 2],
    there: &[Vec<Ps>; 2],
    parts: &[Vec<(&'static str, Ps)>; 2],
) -> Against {
    let compared = |operator: usize| Compared {
        operator: OPERATORS[operator],
        slowest_us: us(slowest(there)[operator]),
        ratio: slowest(there)[operator] as f64 / slowest(here)[operator].max(1) as f64,
        parts: parts[operator].iter().map(|&(what, took)| Kind { what, us: us(took) }).collect(),
    };
    Against { cluster: cluster.to_owned(), operators: (0..2).map(compared).collect() }
}

/// A point of a grid, over its seeds.
pub(super) fn point(point: &Point, outcomes: &[[Ps; 2]]) -> Vec<OfPoint> {
    let of = |operator: usize| {
        let mut times: Vec<_> = outcomes.iter().map(|times| times[operator]).collect();
        times.sort_unstable();
        // The nearest of the times at hand.
        let at = |quarter: usize| us(times[(quarter * (times.len() - 1) + 2) / 4]);
        OfPoint {
            values: point.values.iter().cloned().collect(),
            operator: OPERATORS[operator],
            seeds: times.len(),
            least_us: at(0),
            first_quartile_us: at(1),
            median_us: at(2),
            third_quartile_us: at(3),
            most_us: at(4),
        }
    };
    if outcomes.is_empty() { Vec::new() } else { (0..2).map(of).collect() }
}

/// The critical path, backwards, with the time at which each part stands.
pub(super) fn placed(outcome: &Outcome) -> Vec<chrome::Part> {
    let mut to = outcome.end;
    let place = |part: &path::Part| {
        let from = to - part.took;
        let placed = chrome::Part { from, to, rank: part.rank, core: part.core, what: part.what };
        to = from;
        placed
    };
    outcome.path.iter().map(place).collect()
}

/// What stands above a page.
pub(super) fn about(args: &SimulateArgs, request: &Request, outcome: &Outcome) -> About {
    let mut facts: Vec<(String, String)> = Vec::new();
    for (name, slowest) in OPERATORS.into_iter().zip(slowest(&outcome.took)) {
        facts.push((format!("{name}, slowest rank"), format!("{:.2} \u{b5}s", us(slowest))));
    }
    facts.push(("end".to_owned(), format!("{:.2} \u{b5}s", us(outcome.end))));
    if let Some(part) = outcome.path.last() {
        facts.push(("critical path begins at".to_owned(), format!("rank {}", part.rank)));
    }
    let oracle = if request.rows { "agrees bit for bit" } else { "not asked" };
    facts.push(("oracle".to_owned(), oracle.to_owned()));
    let title = format!("{} on cluster {}, seed {}", request.source, args.cluster, request.paces.seed);
    About { title, facts, matrix: outcome.matrix.clone() }
}

fn told(
    operator: usize,
    outcome: &Outcome,
    (free, is_free): (Option<&Outcome>, bool),
    mark: &'static str,
) -> Operator {
    let mut took = outcome.took[operator].clone();
    took.sort_unstable();
    let free = free.or_else(|| is_free.then_some(outcome));
    Operator {
        operator: OPERATORS[operator],
        slowest_us: us(slowest(&outcome.took)[operator]),
        median_us: us(took[took.len() / 2]),
        first_us: us(took[0]),
        formula_us: us(outcome.formula[operator]),
        free_us: free.map(|free| us(slowest(&free.took)[operator])),
        mark,
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

fn ports(outcome: &Outcome) -> Vec<Port> {
    let of = |operator: usize| {
        outcome.by_port[operator].iter().enumerate().map(move |(port, carried)| Port {
            operator: OPERATORS[operator],
            port,
            bytes: carried.bytes,
            busy_us: us(carried.busy),
        })
    };
    (0..2).flat_map(of).collect()
}

fn incast(shape: &Shape, by_rank: &[usize]) -> Incast {
    let shared = by_rank.iter().take(shape.shared_expert_rank_num() as usize).max().copied();
    Incast { shared, all: by_rank.iter().max().copied().unwrap_or(0) }
}

pub(super) fn table(told: &Told) -> String {
    let marked = |mark: &str| {
        let keys: Vec<_> =
            told.marks.iter().filter(|(_, of)| **of == mark).map(|(key, _)| key.as_str()).collect();
        if keys.is_empty() { "none".to_owned() } else { keys.join(", ") }
    };
    let about = pairs(&[
        ("source", told.source.clone()),
        ("cluster", told.cluster.clone()),
        ("links", told.links_source.clone()),
        ("costs", told.costs_source.clone()),
        ("measured", marked("measured")),
        ("derived", marked("derived")),
        ("assumed", marked("assumed")),
        ("given", marked("given")),
        ("oracle", if told.checked { "agrees bit for bit" } else { "not asked" }.to_owned()),
        (
            "end",
            format!(
                "{:.2} us, {} events{}",
                told.end_us,
                told.events,
                if told.cut_off { ", cut off" } else { "" }
            ),
        ),
    ]);
    let waits = told
        .waits
        .iter()
        .take(NAMED)
        .map(|waited| vec![waited.rank.to_string(), format!("{:.2}", waited.us)]);
    let kinds = told
        .waits_by_kind
        .iter()
        .take(NAMED)
        .map(|kind| vec![kind.what.to_owned(), format!("{:.2}", kind.us)]);
    let path = told.critical_path.iter().rev().filter(|part| part.us >= 0.005 * told.end_us).map(|part| {
        let core = part.core.map_or_else(|| "-".to_owned(), |core| core.to_string());
        vec![part.rank.to_string(), core, format!("{:.2}", part.us), part.what.to_owned()]
    });
    let mut parts = vec![about, of_operators(told)];
    if told.ports.len() > 2 {
        parts.push(of_ports(&told.ports));
    }
    parts.extend([
        columns(&["waited for rank", "us, all cores together"], &waits.collect::<Vec<_>>()),
        columns(&["waited for", "us, all cores together"], &kinds.collect::<Vec<_>>()),
        columns(&["critical path: rank", "core", "us", ""], &path.collect::<Vec<_>>()),
    ]);
    if let Some(Against { cluster, operators }) = &told.against {
        let row = |of: &Compared| {
            vec![of.operator.to_owned(), format!("{:.2}", of.slowest_us), format!("{:.3}", of.ratio)]
        };
        let rows: Vec<_> = operators.iter().map(row).collect();
        parts.push(columns(&[&format!("on {cluster}"), "slowest us", "times as long"], &rows));
        let of = |of: &Compared, part: &Kind| {
            vec![of.operator.to_owned(), part.what.to_owned(), format!("{:.2}", part.us)]
        };
        let rows: Vec<_> =
            operators.iter().flat_map(|all| all.parts.iter().map(move |part| of(all, part))).collect();
        if !rows.is_empty() {
            parts.push(columns(&["operator", "its slowest rank there", "us"], &rows));
        }
    }
    if !told.grid.is_empty() {
        parts.push(of_grid(&told.grid));
    }
    parts.join("\n\n")
}

fn of_operators(told: &Told) -> String {
    let row = |operator: &Operator| {
        let of = |link: &&Link| link.operator == operator.operator;
        let busiest = told.links.iter().filter(of).map(|link| link.busy_us).fold(0.0, f64::max);
        let Incasts { dispatch, combine } = &told.incast;
        let incast = if operator.operator == "dispatch" { dispatch } else { combine };
        let Operator { slowest_us, median_us, first_us, formula_us, free_us, .. } = operator;
        let time = |time: f64| format!("{time:.2}");
        vec![
            operator.operator.to_owned(),
            time(*slowest_us),
            time(*median_us),
            time(*first_us),
            time(*formula_us),
            free_us.map_or_else(|| "-".to_owned(), time),
            time(busiest),
            incast.all.to_string(),
            incast.shared.map_or_else(|| "-".to_owned(), |shared| shared.to_string()),
            operator.mark.to_owned(),
        ]
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
        "times are",
    ];
    columns(&header, &told.operators.iter().map(row).collect::<Vec<_>>())
}

fn of_ports(ports: &[Port]) -> String {
    let row = |port: &Port| {
        vec![
            port.operator.to_owned(),
            port.port.to_string(),
            port.bytes.to_string(),
            format!("{:.2}", port.busy_us),
        ]
    };
    let header = ["operator", "port", "bytes sent by all ranks", "busy at most us"];
    columns(&header, &ports.iter().map(row).collect::<Vec<_>>())
}

fn of_grid(grid: &[OfPoint]) -> String {
    let row = |of: &OfPoint| {
        let values: Vec<_> = of.values.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let times = [of.least_us, of.first_quartile_us, of.median_us, of.third_quartile_us, of.most_us];
        let mut row = vec![values.join(" "), of.operator.to_owned(), of.seeds.to_string()];
        row.extend(times.map(|time| format!("{time:.2}")));
        row
    };
    let header = [
        "with",
        "operator",
        "seeds",
        "slowest rank: least us",
        "1st quartile",
        "median",
        "3rd quartile",
        "most",
    ];
    columns(&header, &grid.iter().map(row).collect::<Vec<_>>())
}
