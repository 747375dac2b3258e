//! The plan of all ranks, counted: what receivers get, how many send to one at a time, by which ports.

use super::lists::{Traffic, Writes, incasts};
use super::{experts, ports};
use crate::cli::{OrderArg, PlanArgs, SharedArg, name_of};
use crate::report::{cell, columns, listed, lists, pairs, with};
use serde_json::{Value, json};
use veriep_core::plan::incast::Incast;
use veriep_core::plan::shared::SharedSplit;
use veriep_core::shape::Shape;
use veriep_core::units::RankId;

/// The orders of dispatch: over destinations it goes as staggered.
const ORDERS: [OrderArg; 3] = [OrderArg::Plain, OrderArg::Staggered, OrderArg::Stride];
const ORDERS_OF_COMBINE: [OrderArg; 4] =
    [OrderArg::Plain, OrderArg::Staggered, OrderArg::Destinations, OrderArg::Stride];

pub(super) fn of(traffic: &Traffic, args: &PlanArgs) -> Value {
    let shape = &traffic.shape;
    let (order, shared) = (args.order.into(), args.shared.into());
    let dispatch = |order: OrderArg| traffic.all_dispatch(shape, order.into(), shared);
    let mut incast: Vec<_> = ORDERS.map(|o| of_order("dispatch", o, &incasts(&dispatch(o)))).into();
    let mut combine = None;
    let receive = traffic.choices.receive;
    if traffic.known && shared == SharedSplit::AllIn && !receive.is_direct() {
        let received: Vec<_> = traffic.all_ranks().map(|rank| traffic.received(rank)).collect();
        let writes = |order: OrderArg| traffic.all_combine(&received, order.into());
        incast.extend(ORDERS_OF_COMBINE.map(|o| of_order("combine", o, &incasts(&writes(o)))));
        combine = Some(receivers(traffic, &writes(args.order)));
    }
    let ports = || {
        ports::of(traffic, args.step, traffic.all_ranks(), |layout: &Shape| {
            traffic.all_dispatch(layout, order, shared)
        })
    };
    json!({
        "receive": receive.name(),
        "order": name_of(args.order),
        "shared": name_of(args.shared),
        "port_offset": shape.port_offset(),
        "dispatch": receivers(traffic, &dispatch(args.order)),
        // Null unless experts are known, the split is the one that runs, and rows are sent back.
        "combine": combine,
        "incast": incast,
        "shared_experts": if receive.is_direct() { vec![] } else { shared_experts(traffic) },
        "ports": (!receive.is_direct()).then(ports),
    })
}

/// What each rank gets: of how many ranks, how many rows and bytes.
fn tally<T>(writes: &Writes<T>) -> Vec<(u32, u64, u64)> {
    let mut all = vec![(0, 0, 0); writes.len()];
    for cores in writes {
        let mut sends_to = vec![false; all.len()];
        for write in cores.iter().flatten() {
            let (sources, rows, bytes) = &mut all[write.to.index()];
            *sources += u32::from(!core::mem::replace(&mut sends_to[write.to.index()], true));
            *rows += 1;
            *bytes += write.bytes;
        }
    }
    all
}

fn receivers<T>(traffic: &Traffic, writes: &Writes<T>) -> Vec<Value> {
    let of = |(rank, (sources, rows, bytes))| json!({"rank": traffic.name(rank), "sources": sources, "rows": rows, "bytes": bytes});
    traffic.all_ranks().zip(tally(writes)).map(of).collect()
}

/// The most ranks that send to one receiver at a step; the mean over the receivers that anybody sends to; those receivers.
fn numbers(incast: Incast, steps: usize) -> Value {
    let receivers = incast.receivers as f64;
    json!({
        "max": incast.max,
        "mean": if incast.receivers == 0 { 0.0 } else { incast.links as f64 / receivers },
        "receivers": if steps == 0 { 0.0 } else { receivers / steps as f64 },
    })
}

/// The incast of an operator under an order.
fn of_order(operator: &str, order: OrderArg, steps: &[Incast]) -> Value {
    let sum = steps.iter().fold(Incast::default(), |sum, &step| sum.and(step));
    let per_step: Vec<_> = steps.iter().map(|&step| numbers(step, 1)).collect();
    let of =
        json!({"operator": operator, "order": name_of(order), "steps": steps.len(), "per_step": per_step});
    with(of, numbers(sum, steps.len()))
}

/// What shared-expert ranks get: both splits under both orders, since the old split went with the plain order.
fn shared_experts(traffic: &Traffic) -> Vec<Value> {
    let shape = &traffic.shape;
    if shape.shared_expert_rank_num() == 0 {
        return Vec::new();
    }
    let of = |(split, order): (SharedArg, OrderArg)| {
        let mut writes = traffic.all_dispatch(shape, order.into(), split.into());
        writes.iter_mut().flatten().for_each(|list| list.retain(|write| write.what.pair.k >= shape.k()));
        let tally = tally(&writes);
        let holds = |&rank: &RankId| traffic.ep(rank).0 < shape.shared_expert_rank_num();
        // Ranks that send to it over the operator, and the most that do at the same step.
        let of_rank = |rank: RankId| (traffic.name(rank), tally[rank.index()].0, at_once(&writes, rank));
        let ranks: Vec<_> = traffic.all_ranks().filter(holds).map(of_rank).collect();
        let named = |&(rank, sources, at_once): &(u32, u32, u32)| json!({"rank": rank, "sources": sources, "at_once": at_once});
        json!({
            "split": name_of(split),
            "order": name_of(order),
            "sources_max": ranks.iter().map(|&(_, sources, _)| sources).max().unwrap_or(0),
            "at_once_max": ranks.iter().map(|&(.., at_once)| at_once).max().unwrap_or(0),
            "ranks": ranks.iter().map(named).collect::<Vec<_>>(),
        })
    };
    let splits = [SharedArg::Even, SharedArg::AllIn];
    let orders = [OrderArg::Plain, OrderArg::Staggered];
    splits.into_iter().flat_map(|split| orders.map(|order| (split, order))).map(of).collect()
}

/// The most ranks that send to `to` at one step.
fn at_once<T>(writes: &Writes<T>, to: RankId) -> u32 {
    let steps = writes.iter().flatten().map(Vec::len).max().unwrap_or(0);
    let sends = |cores: &Vec<Vec<super::lists::Write<T>>>, step: usize| {
        cores.iter().any(|list| list.get(step).is_some_and(|write| write.to == to))
    };
    let at = |step| writes.iter().filter(|cores| sends(cores, step)).count() as u32;
    (0..steps).map(at).max().unwrap_or(0)
}

pub(super) fn table(summary: &Value) -> String {
    let of = |field| cell(summary, field);
    let about = pairs(&[
        ("source", of("source")),
        ("group", format!("{} ranks x {} cores", of("ranks"), of("cores"))),
        ("experts", experts(summary)),
        ("receive", of("receive")),
        ("order", of("order")),
        ("shared experts", of("shared")),
        ("port offset", of("port_offset")),
    ]);
    let mut parts = vec![about];
    for (title, field) in [("received in dispatch", "dispatch"), ("received in combine", "combine")] {
        let Some(all) = summary[field].as_array() else { continue };
        let all: Vec<_> = all.iter().filter(|receiver| receiver["rows"] != 0).cloned().collect();
        parts.push(listed(title, &["rank", "from ranks=sources", "rows", "bytes"], &all));
    }
    parts.push(incast_table(summary["incast"].as_array().map_or(&[], Vec::as_slice)));
    if summary["shared_experts"] != json!([]) {
        let columns: &[&str] =
            &["split", "order", "ranks that send to one=sources_max", "at the same step=at_once_max"];
        parts.extend(lists(summary, &[("shared-expert ranks", "shared_experts", columns)]));
    }
    if !summary["ports"].is_null() {
        parts.push(ports::table(&summary["ports"], &of("port_offset")));
    }
    parts.join("\n\n")
}

fn incast_table(all: &[Value]) -> String {
    let row = |of: &Value, step: String, numbers: &Value| {
        let [mean, receivers] = ["mean", "receivers"].map(|field| numbers[field].as_f64().unwrap_or(0.0));
        let numbers = [cell(numbers, "max"), format!("{mean:.2}"), format!("{receivers:.1}")];
        [cell(of, "operator"), cell(of, "order"), step].into_iter().chain(numbers).collect::<Vec<_>>()
    };
    let rows = all.iter().flat_map(|of| {
        let steps = of["per_step"].as_array().into_iter().flatten().take(3).enumerate();
        let first = steps.map(|(i, numbers)| row(of, i.to_string(), numbers));
        first.chain([row(of, format!("all {}", cell(of, "steps")), of)])
    });
    let head = ["operator", "order", "step", "max", "mean", "receivers"];
    let rows: Vec<_> = rows.collect();
    format!("incast: ranks that send to one receiver at the same step\n{}", columns(&head, &rows))
}
