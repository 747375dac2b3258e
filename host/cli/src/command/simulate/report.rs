//! The report of `veriep simulate`.

use super::Request;
use super::grid::Point;
use crate::cli::SimulateArgs;
use crate::report::{Cell, column, columns_of, pairs, table_of};
use serde::Serialize;
use std::collections::BTreeMap;
use veriep_core::shape::{Product, Protocol, Shape};
use veriep_sim::Outcome;
use veriep_sim::costs::{Cluster, Ps};
use veriep_sim::path::longest_first;
use veriep_trace::events::chrome;
use veriep_trace::events::page::About;

/// Ranks waited for that the table names; the JSON report has all.
const NAMED: usize = 4;

pub(super) const OPERATORS: [&str; 2] = ["dispatch", "combine"];

/// What all measurements of the table have in common.
const MEASURED_WITH: &str = "48 cores, h 7168 and int8 tokens";
/// How many times as long as predicted the operators took in public measurements on A3: least and most. A test holds it to the
/// table of docs/operate/simulate.md.
const MEASURED_OVER_PREDICTED: ByOperator<[f64; 2]> =
    ByOperator { dispatch: [0.73, 1.14], combine: [0.77, 1.06] };

/// What a simulation comes to. Times are microseconds.
#[derive(Debug, Serialize)]
pub(super) struct Simulated {
    ok: bool,
    source: String,
    cluster: String,
    operators: [OfOperator; 2],
    /// When the last rank has ended.
    end_us: f64,
    bias: Bias,
    /// Whether every output was compared with the reference.
    checked: bool,
    /// Else rows weigh, and no output is judged.
    rows_kept: bool,
    /// Whether the end was asked for: the rest is what there was.
    cut_off: bool,
    links_source: String,
    costs_source: String,
    /// By key of the cluster file: measured, derived, fitted, assumed, or given on the command line.
    marks: BTreeMap<String, &'static str>,
    links: Vec<Port>,
    ports: Vec<PortOfAll>,
    incast: ByOperator<Incast>,
    /// How long all cores and agents together have waited for a rank, the longest first.
    waits: Vec<WaitForRank>,
    /// The same for a kind of word.
    waits_by_kind: Vec<What>,
    /// From the end to the beginning.
    critical_path: Vec<PathPart>,
    root: Root,
    events: u64,
    /// Words that cores and agents looked at for each step that changed something.
    words_per_step: f64,
    seed: u64,
    /// How the run compares with another cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) against: Option<Against>,
    /// The points of a sweep, each by operator.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) grid: Vec<GridRow>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct ByOperator<T> {
    dispatch: T,
    combine: T,
}

/// What the ranks took for an operator.
#[derive(Debug, Serialize)]
struct OfOperator {
    operator: &'static str,
    slowest_us: f64,
    median_us: f64,
    first_us: f64,
    /// Bytes over bandwidth.
    formula_us: f64,
    /// Of a run in which only bandwidth costs time.
    free_us: Option<f64>,
    /// `calibrated` if a number of the cluster was found so that this time comes out, else `predicted`.
    mark: &'static str,
}

/// The known error of the times.
#[derive(Debug, Serialize)]
struct Bias {
    measured_on: &'static str,
    /// On A2 no measurement tells its number of ranks.
    applies: bool,
    measured_over_predicted: ByOperator<[f64; 2]>,
}

impl Bias {
    fn of(product: Product) -> Self {
        Self {
            measured_on: "a3",
            applies: product == Product::A3,
            measured_over_predicted: MEASURED_OVER_PREDICTED,
        }
    }

    fn line(&self) -> String {
        let range = |[least, most]: [f64; 2]| format!("{least:?} to {most:?}");
        let ByOperator { dispatch, combine } = self.measured_over_predicted;
        let (dispatch, combine) = (range(dispatch), range(combine));
        let known = format!(
            "on A3 real dispatch took {dispatch} times as long as predicted, combine {combine}, with {MEASURED_WITH}"
        );
        if self.applies { known } else { format!("not known on A2; {known}") }
    }
}

/// What the ports of a rank carried in one direction.
#[derive(Debug, Serialize)]
struct Port {
    name: String,
    dir: &'static str,
    operator: &'static str,
    bytes: u64,
    busy_us: f64,
    queue_max: u64,
}

/// What all ranks sent by their port of that number; one where ports share the traffic evenly.
#[derive(Debug, Serialize)]
struct PortOfAll {
    operator: &'static str,
    port: usize,
    bytes: u64,
    /// Of the rank that used it longest.
    busy_us: f64,
}

/// The most ranks with rows at the port of one rank at once; at ranks with shared experts, and at all.
#[derive(Clone, Copy, Debug, Serialize)]
struct Incast {
    shared: Option<usize>,
    all: usize,
}

#[derive(Debug, Serialize)]
struct WaitForRank {
    rank: u32,
    us: f64,
}

#[derive(Debug, Serialize)]
struct What {
    what: &'static str,
    us: f64,
}

/// A part of the critical path. `core` is null of an agent, and of what is on its way to the rank.
#[derive(Debug, Serialize)]
struct PathPart {
    rank: u32,
    core: Option<u32>,
    us: f64,
    what: &'static str,
}

/// Where the critical path begins.
#[derive(Debug, Serialize)]
struct Root {
    rank: u32,
    core: Option<u32>,
}

/// How another cluster compares, or the baseline.
#[derive(Debug, Serialize)]
pub(super) struct Against {
    cluster: String,
    operators: [AgainstOperator; 2],
}

#[derive(Debug, Serialize)]
struct AgainstOperator {
    operator: &'static str,
    slowest_us: f64,
    /// How many times as long it takes there.
    ratio: f64,
    /// What its slowest rank did, of the baseline.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parts: Vec<What>,
}

/// An operator at a point of a grid, over its seeds.
#[derive(Debug, Serialize)]
pub(super) struct GridRow {
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

pub(super) fn simulated(
    args: &SimulateArgs,
    request: &Request,
    outcome: &Outcome,
    free: Option<&Outcome>,
) -> Simulated {
    let Request { plan, cluster, .. } = request;
    let shape = &plan.case.shape;
    let free = free.or_else(|| args.free.then_some(outcome));
    let is_fitted = cluster.links.fitted_to == communication(shape);
    let mark = if is_fitted && args.link.is_empty() { "calibrated" } else { "predicted" };
    let [dispatch, combine] = [0, 1].map(|operator| incast(shape, &outcome.incast[operator]));
    Simulated {
        ok: true,
        source: request.source.clone(),
        cluster: args.cluster.clone(),
        operators: [0, 1].map(|operator| of_operator(operator, outcome, free, mark)),
        end_us: us(outcome.end),
        bias: Bias::of(shape.product()),
        checked: request.rows && !outcome.cut,
        rows_kept: request.rows,
        cut_off: outcome.cut,
        links_source: cluster.links.source.clone(),
        costs_source: cluster.costs.source.clone(),
        marks: marks(args, cluster),
        links: links(outcome),
        ports: ports(outcome),
        incast: ByOperator { dispatch, combine },
        waits: waits(outcome),
        waits_by_kind: whats(&outcome.kinds),
        critical_path: outcome.path.iter().map(path_part).collect(),
        root: outcome
            .path
            .last()
            .map_or(Root { rank: 0, core: None }, |part| Root { rank: part.rank, core: part.core }),
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
    let is_given = |key: &str| {
        let assigned = |assignment: &String| assignment.split_once('=').is_some_and(|(name, _)| name == key);
        args.link.iter().chain(&args.cost).any(assigned)
    };
    let marks = cluster.marks().into_iter();
    marks.map(|(key, mark)| if is_given(&key) { (key, "given") } else { (key, mark) }).collect()
}

fn of_operator(operator: usize, outcome: &Outcome, free: Option<&Outcome>, mark: &'static str) -> OfOperator {
    let mut took = outcome.took[operator].clone();
    took.sort_unstable();
    OfOperator {
        operator: OPERATORS[operator],
        slowest_us: us(slowest(&outcome.took)[operator]),
        median_us: us(took[took.len() / 2]),
        first_us: us(took[0]),
        formula_us: us(outcome.formula[operator]),
        free_us: free.map(|free| us(slowest(&free.took)[operator])),
        mark,
    }
}

fn links(outcome: &Outcome) -> Vec<Port> {
    let of = |operator: usize| {
        let ports = (0..).zip(&outcome.ports[operator]);
        ports.flat_map(move |(rank, ports): (u32, _)| {
            ["out", "in"].into_iter().zip(ports).map(move |(dir, carried)| Port {
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

fn ports(outcome: &Outcome) -> Vec<PortOfAll> {
    let of = |operator: usize| {
        outcome.by_port[operator].iter().enumerate().map(move |(port, carried)| PortOfAll {
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

fn waits(outcome: &Outcome) -> Vec<WaitForRank> {
    let mut by_rank = BTreeMap::new();
    for (&(_, rank), waited) in &outcome.matrix {
        *by_rank.entry(rank).or_default() += waited;
    }
    let longest = longest_first(by_rank.into_iter()).into_iter();
    longest.map(|(rank, waited)| WaitForRank { rank, us: us(waited) }).collect()
}

fn whats(kinds: &[(&'static str, Ps)]) -> Vec<What> {
    kinds.iter().map(|&(what, took)| What { what, us: us(took) }).collect()
}

fn path_part(part: &chrome::Part) -> PathPart {
    PathPart { rank: part.rank, core: part.core, us: us(part.to - part.from), what: part.what }
}

/// Compares with the times of another cluster, or of the baseline, which also tells its parts.
pub(super) fn against(
    cluster: &str,
    here: &[Vec<Ps>; 2],
    there: &[Vec<Ps>; 2],
    parts: &[Vec<(&'static str, Ps)>; 2],
) -> Against {
    let operators = [0, 1].map(|operator| AgainstOperator {
        operator: OPERATORS[operator],
        slowest_us: us(slowest(there)[operator]),
        ratio: slowest(there)[operator] as f64 / slowest(here)[operator].max(1) as f64,
        parts: whats(&parts[operator]),
    });
    Against { cluster: cluster.to_owned(), operators }
}

/// The rows of a point of a grid, from the times of its seeds.
pub(super) fn grid_rows(point: &Point, outcomes: &[[Ps; 2]]) -> Vec<GridRow> {
    let of = |operator: usize| {
        let mut times: Vec<_> = outcomes.iter().map(|times| times[operator]).collect();
        times.sort_unstable();
        // The nearest of the times at hand.
        let at = |quarter: usize| us(times[(quarter * (times.len() - 1) + 2) / 4]);
        GridRow {
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

/// What is known of the outputs.
const fn reference(rows_kept: bool, cut: bool) -> &'static str {
    match (rows_kept, cut) {
        (true, false) => "agrees bit for bit",
        (true, true) => "not judged: the simulation was cut off",
        (false, _) => "not judged: timing only, rows are not kept",
    }
}

/// What is above a page.
pub(super) fn about(args: &SimulateArgs, request: &Request, outcome: &Outcome) -> About {
    let mut facts: Vec<(String, String)> = Vec::new();
    for (name, slowest) in OPERATORS.into_iter().zip(slowest(&outcome.took)) {
        facts.push((format!("{name}, slowest rank"), format!("{:.2} \u{b5}s", us(slowest))));
    }
    facts.push(("end".to_owned(), format!("{:.2} \u{b5}s", us(outcome.end))));
    if let Some(part) = outcome.path.last() {
        facts.push(("critical path begins at".to_owned(), format!("rank {}", part.rank)));
    }
    facts.push(("reference".to_owned(), reference(request.rows, outcome.cut).to_owned()));
    let title = format!("{} on cluster {}, seed {}", request.source, args.cluster, request.plan.paces.seed);
    About { title, facts, matrix: outcome.matrix.clone() }
}

pub(super) fn table(simulated: &Simulated) -> String {
    let mut parts = vec![head(simulated), of_operators(simulated)];
    if simulated.ports.len() > 2 {
        parts.push(of_ports(&simulated.ports));
    }
    parts.push(of_waits(simulated.waits.iter().take(NAMED)));
    parts.push(of_kinds(simulated.waits_by_kind.iter().take(NAMED)));
    let is_long = |part: &&PathPart| part.us >= 0.005 * simulated.end_us;
    parts.push(of_path(simulated.critical_path.iter().rev().filter(is_long)));
    if let Some(against) = &simulated.against {
        parts.extend(of_against(against));
    }
    if !simulated.grid.is_empty() {
        parts.push(of_grid(&simulated.grid));
    }
    parts.join("\n\n")
}

fn head(simulated: &Simulated) -> String {
    let marked = |mark: &str| {
        let of_mark = simulated.marks.iter().filter(|(_, of)| **of == mark);
        let keys: Vec<_> = of_mark.map(|(key, _)| key.as_str()).collect();
        if keys.is_empty() { "none".to_owned() } else { keys.join(", ") }
    };
    let cut = if simulated.cut_off { ", cut off" } else { "" };
    pairs(&[
        ("source", simulated.source.clone()),
        ("cluster", simulated.cluster.clone()),
        ("links", simulated.links_source.clone()),
        ("costs", simulated.costs_source.clone()),
        ("measured", marked("measured")),
        ("derived", marked("derived")),
        ("fitted", marked("fitted")),
        ("assumed", marked("assumed")),
        ("given", marked("given")),
        ("reference", reference(simulated.rows_kept, simulated.cut_off).to_owned()),
        ("end", format!("{} us, {} events{cut}", simulated.end_us.cell(), simulated.events)),
        ("bias", simulated.bias.line()),
    ])
}

fn of_operators(simulated: &Simulated) -> String {
    let busiest = |of: &OfOperator| {
        let links = simulated.links.iter().filter(|link| link.operator == of.operator);
        links.map(|link| link.busy_us).fold(0.0, f64::max).cell()
    };
    let incast = |of: &OfOperator| {
        let ByOperator { dispatch, combine } = simulated.incast;
        if of.operator == OPERATORS[0] { dispatch } else { combine }
    };
    table_of(
        &[
            column("operator", &|of: &OfOperator| of.operator.cell()),
            column("slowest us", &|of| of.slowest_us.cell()),
            column("median", &|of| of.median_us.cell()),
            column("first", &|of| of.first_us.cell()),
            column("formula", &|of| of.formula_us.cell()),
            column("free run", &|of| of.free_us.cell()),
            column("busiest port", &busiest),
            column("incast", &|of| incast(of).all.cell()),
            column("at shared experts", &|of| incast(of).shared.cell()),
            column("times are", &|of| of.mark.cell()),
        ],
        &simulated.operators,
    )
}

fn of_ports(ports: &[PortOfAll]) -> String {
    table_of(
        &columns_of![PortOfAll;
            "operator" => operator,
            "port" => port,
            "bytes sent by all ranks" => bytes,
            "busy at most us" => busy_us,
        ],
        ports,
    )
}

fn of_waits<'w>(waits: impl Iterator<Item = &'w WaitForRank>) -> String {
    table_of(
        &columns_of![WaitForRank;
            "waited for rank" => rank,
            "us, all cores together" => us,
        ],
        waits,
    )
}

fn of_kinds<'w>(kinds: impl Iterator<Item = &'w What>) -> String {
    table_of(
        &columns_of![What;
            "waited for" => what,
            "us, all cores together" => us,
        ],
        kinds,
    )
}

fn of_path<'p>(path: impl Iterator<Item = &'p PathPart>) -> String {
    table_of(
        &columns_of![PathPart;
            "critical path: rank" => rank,
            "core" => core,
            "us" => us,
            "" => what,
        ],
        path,
    )
}

fn of_against(against: &Against) -> Vec<String> {
    let on = format!("on {}", against.cluster);
    let mut parts = vec![table_of(
        &[
            column(&on, &|of: &AgainstOperator| of.operator.to_owned()),
            column("slowest us", &|of| of.slowest_us.cell()),
            column("times as long", &|of| format!("{:.3}", of.ratio)),
        ],
        &against.operators,
    )];
    let all = against.operators.iter();
    let all: Vec<_> = all.flat_map(|of| of.parts.iter().map(|part| (of.operator, part))).collect();
    if !all.is_empty() {
        parts.push(table_of(
            &[
                column("operator", &|(operator, _): &(&str, &What)| (*operator).to_owned()),
                column("its slowest rank there", &|(_, part)| part.what.to_owned()),
                column("us", &|(_, part)| part.us.cell()),
            ],
            &all,
        ));
    }
    parts
}

fn of_grid(grid: &[GridRow]) -> String {
    let values = |row: &GridRow| {
        let values = row.values.iter().map(|(key, value)| format!("{key}={value}"));
        values.collect::<Vec<_>>().join(" ")
    };
    table_of(
        &[
            column("with", &values),
            column("operator", &|row| row.operator.cell()),
            column("seeds", &|row| row.seeds.cell()),
            column("slowest rank: least us", &|row| row.least_us.cell()),
            column("1st quartile", &|row| row.first_quartile_us.cell()),
            column("median", &|row| row.median_us.cell()),
            column("3rd quartile", &|row| row.third_quartile_us.cell()),
            column("most", &|row| row.most_us.cell()),
        ],
        grid,
    )
}
