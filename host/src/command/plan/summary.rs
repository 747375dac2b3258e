//! The plan of all ranks, counted: what receivers get, how many send to one at a time, by which ports.

use super::lists::{Traffic, Writes, incasts};
use super::{Head, OfAll, experts, ports};
use crate::cli::{OrderArg, PlanArgs, SharedArg, name_of};
use crate::report::{columns, columns_of, list_of, pairs};
use serde::Serialize;
use veriep_core::plan::incast::Incast;
use veriep_core::plan::shared::SharedSplit;
use veriep_core::shape::Shape;
use veriep_core::units::RankId;

/// The orders of dispatch: over destinations it goes as staggered.
const ORDERS: [OrderArg; 3] = [OrderArg::Plain, OrderArg::Staggered, OrderArg::Stride];
const ORDERS_OF_COMBINE: [OrderArg; 4] =
    [OrderArg::Plain, OrderArg::Staggered, OrderArg::Destinations, OrderArg::Stride];

/// What all ranks do, counted.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    receive: &'static str,
    order: String,
    shared: String,
    port_offset: u64,
    dispatch: Vec<Receiver>,
    /// Null unless experts are known, the split is the one that runs, and rows are sent back.
    combine: Option<Vec<Receiver>>,
    incast: Vec<OfOrder>,
    shared_experts: Vec<SharedExperts>,
    ports: Option<ports::Ports>,
}

/// What a rank gets: of how many ranks, how many rows and bytes.
#[derive(Clone, Debug, Serialize)]
struct Receiver {
    rank: u32,
    sources: u32,
    rows: u64,
    bytes: u64,
}

/// The most ranks that send to one receiver at a step; the mean over the receivers that anybody sends to; those receivers.
#[derive(Debug, Serialize)]
struct Numbers {
    max: u32,
    mean: f64,
    receivers: f64,
}

/// The incast of an operator under an order.
#[derive(Debug, Serialize)]
struct OfOrder {
    operator: &'static str,
    order: String,
    steps: usize,
    per_step: Vec<Numbers>,
    #[serde(flatten)]
    all: Numbers,
}

/// What shared-expert ranks get under a split and an order.
#[derive(Debug, Serialize)]
struct SharedExperts {
    split: String,
    order: String,
    sources_max: u32,
    at_once_max: u32,
    ranks: Vec<SharedRank>,
}

/// Ranks that send to it over the operator, and the most that do at the same step.
#[derive(Debug, Serialize)]
struct SharedRank {
    rank: u32,
    sources: u32,
    at_once: u32,
}

pub(super) fn of(traffic: &Traffic, args: &PlanArgs) -> Summary {
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
    Summary {
        receive: receive.name(),
        order: name_of(args.order),
        shared: name_of(args.shared),
        port_offset: shape.port_offset(),
        dispatch: receivers(traffic, &dispatch(args.order)),
        combine,
        incast,
        shared_experts: if receive.is_direct() { vec![] } else { shared_experts(traffic) },
        ports: (!receive.is_direct()).then(ports),
    }
}

/// By rank: of how many ranks, how many rows and bytes.
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

fn receivers<T>(traffic: &Traffic, writes: &Writes<T>) -> Vec<Receiver> {
    let of = |(rank, (sources, rows, bytes))| Receiver { rank: traffic.name(rank), sources, rows, bytes };
    traffic.all_ranks().zip(tally(writes)).map(of).collect()
}

fn numbers(incast: Incast, steps: usize) -> Numbers {
    let receivers = incast.receivers as f64;
    Numbers {
        max: incast.max,
        mean: if incast.receivers == 0 { 0.0 } else { incast.links as f64 / receivers },
        receivers: if steps == 0 { 0.0 } else { receivers / steps as f64 },
    }
}

fn of_order(operator: &'static str, order: OrderArg, steps: &[Incast]) -> OfOrder {
    let sum = steps.iter().fold(Incast::default(), |sum, &step| sum.and(step));
    OfOrder {
        operator,
        order: name_of(order),
        steps: steps.len(),
        per_step: steps.iter().map(|&step| numbers(step, 1)).collect(),
        all: numbers(sum, steps.len()),
    }
}

/// What shared-expert ranks get: both splits under both orders, since the old split went with the plain order.
fn shared_experts(traffic: &Traffic) -> Vec<SharedExperts> {
    let shape = &traffic.shape;
    if shape.shared_expert_rank_num() == 0 {
        return Vec::new();
    }
    let of = |(split, order): (SharedArg, OrderArg)| {
        let mut writes = traffic.all_dispatch(shape, order.into(), split.into());
        writes.iter_mut().flatten().for_each(|list| list.retain(|write| write.what.pair.k >= shape.k()));
        let tally = tally(&writes);
        let holds = |&rank: &RankId| traffic.ep(rank).0 < shape.shared_expert_rank_num();
        let of_rank = |rank: RankId| SharedRank {
            rank: traffic.name(rank),
            sources: tally[rank.index()].0,
            at_once: at_once(&writes, rank),
        };
        let ranks: Vec<_> = traffic.all_ranks().filter(holds).map(of_rank).collect();
        SharedExperts {
            split: name_of(split),
            order: name_of(order),
            sources_max: ranks.iter().map(|rank| rank.sources).max().unwrap_or(0),
            at_once_max: ranks.iter().map(|rank| rank.at_once).max().unwrap_or(0),
            ranks,
        }
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

pub(super) fn table(head: &Head, of: &OfAll, summary: &Summary) -> String {
    let about = pairs(&[
        ("source", head.source.clone()),
        ("group", format!("{} ranks x {} cores", of.ranks, of.cores)),
        ("experts", experts(head)),
        ("receive", summary.receive.to_owned()),
        ("order", summary.order.clone()),
        ("shared experts", summary.shared.clone()),
        ("port offset", summary.port_offset.to_string()),
    ]);
    let mut parts = vec![about];
    let both = [
        ("received in dispatch", Some(&summary.dispatch)),
        ("received in combine", summary.combine.as_ref()),
    ];
    for (title, receivers) in both {
        let Some(receivers) = receivers else { continue };
        let some: Vec<_> = receivers.iter().filter(|receiver| receiver.rows != 0).cloned().collect();
        let columns =
            columns_of![Receiver; "rank" => rank, "from ranks" => sources, "rows" => rows, "bytes" => bytes];
        parts.push(list_of(title, &columns, &some));
    }
    parts.push(incast_table(&summary.incast));
    if !summary.shared_experts.is_empty() {
        let columns = columns_of![SharedExperts;
            "split" => split,
            "order" => order,
            "ranks that send to one" => sources_max,
            "at the same step" => at_once_max,
        ];
        parts.push(list_of("shared-expert ranks", &columns, &summary.shared_experts));
    }
    parts.extend(summary.ports.as_ref().map(|ports| ports::table(ports, summary.port_offset)));
    parts.join("\n\n")
}

fn incast_table(all: &[OfOrder]) -> String {
    let row = |of: &OfOrder, step: String, Numbers { max, mean, receivers }: &Numbers| {
        let numbers = [max.to_string(), format!("{mean:.2}"), format!("{receivers:.1}")];
        [of.operator.to_owned(), of.order.clone(), step].into_iter().chain(numbers).collect::<Vec<_>>()
    };
    let rows = all.iter().flat_map(|of| {
        let first = of.per_step.iter().take(3).enumerate();
        let first = first.map(|(i, numbers)| row(of, i.to_string(), numbers));
        first.chain([row(of, format!("all {}", of.steps), &of.all)])
    });
    let head = ["operator", "order", "step", "max", "mean", "receivers"];
    let rows: Vec<_> = rows.collect();
    format!("incast: ranks that send to one receiver at the same step\n{}", columns(&head, &rows))
}
