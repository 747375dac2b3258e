//! The report of `veriep simulate`.

use super::Request;
use super::grid::Point;
use crate::cli::SimulateArgs;
use crate::events::chrome::Part;
use crate::events::page::About;
use crate::report::{cell, items, objects, pairs, with};
use crate::simulate::Outcome;
use crate::simulate::path::longest_first;
use crate::simulate::prices::{Cluster, Ps};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use veriep_core::shape::{Product, Protocol, Shape};

/// Ranks waited for that the table names; the JSON report has all.
const NAMED: usize = 4;

pub(super) const OPERATORS: [&str; 2] = ["dispatch", "combine"];

/// How many times as long as predicted the operators took in public measurements on A3, by operator: least and most
/// (docs/operate/simulate.md).
const MEASURED_OVER_PREDICTED: [[f64; 2]; 2] = [[1.8, 2.3], [1.2, 1.5]];

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
) -> Value {
    let Request { plan, cluster, .. } = request;
    let shape = &plan.case.shape;
    let is_fitted = cluster.links.fitted_to == communication(shape);
    let mark = if is_fitted && args.link.is_empty() { "calibrated" } else { "predicted" };
    let mut by_rank = BTreeMap::new();
    for (&(_, rank), waited) in &outcome.matrix {
        *by_rank.entry(rank).or_default() += waited;
    }
    let root = outcome.path.last().map_or((0, None), |part| (part.rank, part.core));
    let waited = |(rank, waited)| json!({"rank": rank, "us": us(waited)});
    let operators = [0, 1].map(|operator| told(operator, outcome, (free, args.free), mark));
    json!({
        "ok": true,
        "source": request.source,
        "cluster": args.cluster,
        "links_source": cluster.links.source,
        "costs_source": cluster.costs.source,
        // By key of the cluster file: measured, derived, assumed, or given on the command line.
        "marks": marks(args, cluster),
        "checked": request.rows && !outcome.cut,
        // Else rows weigh, and no output is judged.
        "rows_kept": request.rows,
        // Whether somebody asked for the end: what follows is what there was.
        "cut_off": outcome.cut,
        "operators": operators,
        "bias": bias(shape.product()),
        "links": links(outcome),
        "incast": {"dispatch": incast(shape, &outcome.incast[0]), "combine": incast(shape, &outcome.incast[1])},
        "ports": ports(outcome),
        // How long all cores and agents together have waited for a rank, and for a kind of word.
        "waits": longest_first(by_rank.into_iter()).into_iter().map(waited).collect::<Vec<_>>(),
        "waits_by_kind": kinds(&outcome.kinds),
        // `core` is null of an agent, and of what is on its way to the rank.
        "critical_path": outcome.path.iter().map(part).collect::<Vec<_>>(),
        "root": {"rank": root.0, "core": root.1},
        "end_us": us(outcome.end),
        "events": outcome.events,
        // Words that cores and agents looked at for each step that changed something.
        "words_per_step": outcome.words_per_step,
        "seed": args.seed,
    })
}

/// The known error of the times. Nothing was measured on A2.
fn bias(product: Product) -> Value {
    let [dispatch, combine] = MEASURED_OVER_PREDICTED;
    json!({
        "measured_on": "a3",
        "applies": product == Product::A3,
        "measured_over_predicted": {"dispatch": dispatch, "combine": combine},
    })
}

/// The same in a line.
fn bias_line(bias: &Value) -> String {
    let range = |operator: &str| {
        let range = &bias["measured_over_predicted"][operator];
        format!("{} to {}", range[0], range[1])
    };
    let (dispatch, combine) = (range("dispatch"), range("combine"));
    let known = format!("on A3 real dispatch took {dispatch} times as long as predicted, combine {combine}");
    if bias["applies"] == true { format!("optimistic: {known}") } else { format!("not known on A2; {known}") }
}

fn kinds(kinds: &[(&'static str, Ps)]) -> Vec<Value> {
    kinds.iter().map(|&(what, took)| json!({"what": what, "us": us(took)})).collect()
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
) -> Value {
    let compared = |operator: usize| {
        let mut compared = json!({
            "operator": OPERATORS[operator],
            "slowest_us": us(slowest(there)[operator]),
            // How many times as long it takes there.
            "ratio": slowest(there)[operator] as f64 / slowest(here)[operator].max(1) as f64,
        });
        if !parts[operator].is_empty() {
            compared["parts"] = kinds(&parts[operator]).into();
        }
        compared
    };
    let operators = [0, 1].map(compared);
    json!({"cluster": cluster, "operators": operators})
}

/// A point of a grid, over its seeds.
pub(super) fn point(point: &Point, outcomes: &[[Ps; 2]]) -> Vec<Value> {
    let of = |operator: usize| {
        let mut times: Vec<_> = outcomes.iter().map(|times| times[operator]).collect();
        times.sort_unstable();
        // The nearest of the times at hand.
        let at = |quarter: usize| us(times[(quarter * (times.len() - 1) + 2) / 4]);
        json!({
            "values": point.values.iter().cloned().collect::<BTreeMap<_, _>>(),
            "operator": OPERATORS[operator],
            "seeds": times.len(),
            "least_us": at(0),
            "first_quartile_us": at(1),
            "median_us": at(2),
            "third_quartile_us": at(3),
            "most_us": at(4),
        })
    };
    if outcomes.is_empty() { Vec::new() } else { (0..2).map(of).collect() }
}

/// What is known of the outputs.
const fn oracle(rows_kept: bool, cut: bool) -> &'static str {
    match (rows_kept, cut) {
        (true, false) => "agrees bit for bit",
        (true, true) => "not judged: the simulation was cut off",
        (false, _) => "not judged: rows weigh but are not kept",
    }
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
    facts.push(("oracle".to_owned(), oracle(request.rows, outcome.cut).to_owned()));
    let title = format!("{} on cluster {}, seed {}", request.source, args.cluster, request.plan.paces.seed);
    About { title, facts, matrix: outcome.matrix.clone() }
}

fn told(
    operator: usize,
    outcome: &Outcome,
    (free, is_free): (Option<&Outcome>, bool),
    mark: &'static str,
) -> Value {
    let mut took = outcome.took[operator].clone();
    took.sort_unstable();
    let free = free.or_else(|| is_free.then_some(outcome));
    json!({
        "operator": OPERATORS[operator],
        "slowest_us": us(slowest(&outcome.took)[operator]),
        "median_us": us(took[took.len() / 2]),
        "first_us": us(took[0]),
        "formula_us": us(outcome.formula[operator]),
        "free_us": free.map(|free| us(slowest(&free.took)[operator])),
        // `calibrated` if a number of the cluster was found so that this time comes out, else `predicted`.
        "mark": mark,
    })
}

fn part(part: &Part) -> Value {
    json!({"rank": part.rank, "core": part.core, "us": us(part.to - part.from), "what": part.what})
}

fn links(outcome: &Outcome) -> Vec<Value> {
    let of = |operator: usize| {
        let ports = (0..).zip(&outcome.ports[operator]);
        ports.flat_map(move |(rank, ports): (u32, _)| {
            ["out", "in"].into_iter().zip(ports).map(move |(dir, carried)| {
                json!({
                    "name": format!("ports of rank {rank}"),
                    "dir": dir,
                    "operator": OPERATORS[operator],
                    "bytes": carried.bytes,
                    "busy_us": us(carried.busy),
                    "queue_max": carried.queue_max,
                })
            })
        })
    };
    (0..2).flat_map(of).collect()
}

/// What all ranks have sent by their port of a number; one where ports share the traffic evenly. Busy is the rank that used it
/// longest.
fn ports(outcome: &Outcome) -> Vec<Value> {
    let of = |operator: usize| {
        outcome.by_port[operator].iter().enumerate().map(move |(port, carried)| {
            let (name, busy) = (OPERATORS[operator], us(carried.busy));
            json!({"operator": name, "port": port, "bytes": carried.bytes, "busy_us": busy})
        })
    };
    (0..2).flat_map(of).collect()
}

/// The most ranks with rows at the port of one rank at once; at ranks with shared experts, and at all.
fn incast(shape: &Shape, by_rank: &[usize]) -> Value {
    let shared = by_rank.iter().take(shape.shared_expert_rank_num() as usize).max().copied();
    json!({"shared": shared, "all": by_rank.iter().max().copied().unwrap_or(0)})
}

pub(super) fn table(told: &Value) -> String {
    let of = |field| cell(told, field);
    let marks = told["marks"].as_object();
    let marked = |mark: &str| {
        let of_mark = marks.into_iter().flatten().filter(|(_, of)| **of == *mark);
        let keys: Vec<_> = of_mark.map(|(key, _)| key.as_str()).collect();
        if keys.is_empty() { "none".to_owned() } else { keys.join(", ") }
    };
    let cut = if told["cut_off"] == true { ", cut off" } else { "" };
    let oracle = oracle(told["rows_kept"] == true, told["cut_off"] == true);
    let about = pairs(&[
        ("source", of("source")),
        ("cluster", of("cluster")),
        ("links", of("links_source")),
        ("costs", of("costs_source")),
        ("measured", marked("measured")),
        ("derived", marked("derived")),
        ("assumed", marked("assumed")),
        ("given", marked("given")),
        ("oracle", oracle.to_owned()),
        ("end", format!("{} us, {} events{cut}", of("end_us"), of("events"))),
        ("bias", bias_line(&told["bias"])),
    ]);
    let number = |item: &Value, field: &str| item[field].as_f64().unwrap_or(0.0);
    let end = number(told, "end_us");
    let mut parts = vec![about, of_operators(told)];
    if items(told, "ports").len() > 2 {
        let columns = ["operator", "port", "bytes sent by all ranks=bytes", "busy at most us=busy_us"];
        parts.push(objects(&columns, items(told, "ports")));
    }
    let waits = ["waited for rank=rank", "us, all cores together=us"];
    let kinds = ["waited for=what", "us, all cores together=us"];
    let path = items(told, "critical_path").iter().rev().filter(|part| number(part, "us") >= 0.005 * end);
    parts.extend([
        objects(&waits, items(told, "waits").iter().take(NAMED)),
        objects(&kinds, items(told, "waits_by_kind").iter().take(NAMED)),
        objects(&["critical path: rank=rank", "core", "us", "=what"], path),
    ]);
    if let Some(against) = told.get("against") {
        let first = format!("on {}=operator", cell(against, "cluster"));
        let operators = items(against, "operators");
        let exact = |of: &Value| with(of.clone(), json!({"ratio": format!("{:.3}", number(of, "ratio"))}));
        let exact: Vec<_> = operators.iter().map(exact).collect();
        parts.push(objects(&[&first, "slowest us=slowest_us", "times as long=ratio"], &exact));
        let of_operator = |of: &Value| {
            let named = |part: &Value| with(part.clone(), json!({"operator": of["operator"]}));
            items(of, "parts").iter().map(named).collect::<Vec<_>>()
        };
        let all: Vec<_> = operators.iter().flat_map(of_operator).collect();
        if !all.is_empty() {
            parts.push(objects(&["operator", "its slowest rank there=what", "us"], &all));
        }
    }
    if !items(told, "grid").is_empty() {
        parts.push(of_grid(items(told, "grid")));
    }
    parts.join("\n\n")
}

fn of_operators(told: &Value) -> String {
    let whole = |operator: &Value| {
        let links = items(told, "links").iter().filter(|link| link["operator"] == operator["operator"]);
        let busiest = links.filter_map(|link| link["busy_us"].as_f64()).fold(0.0, f64::max);
        let incast = &told["incast"][operator["operator"].as_str().unwrap_or_default()];
        with(operator.clone(), json!({"busiest": busiest, "incast": incast}))
    };
    let columns = [
        "operator",
        "slowest us=slowest_us",
        "median=median_us",
        "first=first_us",
        "formula=formula_us",
        "free run=free_us",
        "busiest port=busiest",
        "incast=incast.all",
        "at shared experts=incast.shared",
        "times are=mark",
    ];
    objects(&columns, &items(told, "operators").iter().map(whole).collect::<Vec<_>>())
}

fn of_grid(grid: &[Value]) -> String {
    let named = |of: &Value| {
        let values = of["values"].as_object().into_iter().flatten();
        let values: Vec<_> =
            values.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
        with(of.clone(), json!({"with": values.join(" ")}))
    };
    let columns = [
        "with",
        "operator",
        "seeds",
        "slowest rank: least us=least_us",
        "1st quartile=first_quartile_us",
        "median=median_us",
        "3rd quartile=third_quartile_us",
        "most=most_us",
    ];
    objects(&columns, &grid.iter().map(named).collect::<Vec<_>>())
}
