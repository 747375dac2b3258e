//! The plan of all ranks, counted: what receivers get, how many send to one at a time, by which ports.

use super::lists::{Traffic, Writes, incasts};
use super::ports::{self, Ports};
use super::{experts, listed, name_of};
use crate::cli::{OrderArg, PlanArgs, SharedArg};
use crate::report::{columns, pairs};
use serde::Serialize;
use veriep_core::plan::incast::Incast;
use veriep_core::plan::shared::SharedSplit;
use veriep_core::shape::Shape;
use veriep_core::units::RankId;

#[derive(Serialize)]
pub(super) struct Summary {
    ok: bool,
    source: String,
    set: Vec<String>,
    ranks: u32,
    cores: u32,
    /// Whether it is known which experts tokens go to; if not, only shared experts are counted.
    experts_known: bool,
    receive: &'static str,
    order: &'static str,
    shared: &'static str,
    port_offset: u64,
    dispatch: Vec<Receiver>,
    /// `null` unless experts are known, the split is the one that runs, and rows are sent back.
    combine: Option<Vec<Receiver>>,
    incast: Vec<OfOrder>,
    shared_experts: Vec<OfSplit>,
    /// `null` with direct placement.
    ports: Option<Ports>,
}

/// What one rank gets.
#[derive(Clone, Default, Serialize)]
struct Receiver {
    rank: u32,
    /// Ranks that send to it.
    sources: u32,
    rows: u64,
    bytes: u64,
}

/// The incast of an operator under an order.
#[derive(Serialize)]
struct OfOrder {
    operator: &'static str,
    order: &'static str,
    steps: usize,
    #[serde(flatten)]
    all: Numbers,
    per_step: Vec<Numbers>,
}

#[derive(Serialize)]
struct Numbers {
    /// The most ranks that send to one receiver at a step.
    max: u32,
    /// The mean over the receivers that anybody sends to at the step.
    mean: f64,
    /// Those receivers, mean over the steps.
    receivers: f64,
}

/// What shared-expert ranks get under a split and an order.
#[derive(Serialize)]
struct OfSplit {
    split: &'static str,
    order: &'static str,
    /// The most over all shared-expert ranks.
    sources_max: u32,
    at_once_max: u32,
    ranks: Vec<SharedRank>,
}

#[derive(Serialize)]
struct SharedRank {
    rank: u32,
    /// Ranks that send to it over the operator.
    sources: u32,
    /// The most ranks that send to it at the same step.
    at_once: u32,
}

/// The orders of dispatch: over destinations it goes as staggered.
const ORDERS: [OrderArg; 3] = [OrderArg::Plain, OrderArg::Staggered, OrderArg::Stride];
const ORDERS_OF_COMBINE: [OrderArg; 4] =
    [OrderArg::Plain, OrderArg::Staggered, OrderArg::Destinations, OrderArg::Stride];

pub(super) fn of(traffic: &Traffic, args: &PlanArgs, source: String) -> Summary {
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
    Summary {
        ok: true,
        source,
        set: args.config.set.clone(),
        ranks: traffic.ranks.len() as u32,
        cores: shape.aiv_num(),
        experts_known: traffic.known,
        receive: receive.name(),
        order: args.order.name(),
        shared: name_of(args.shared),
        port_offset: shape.port_offset(),
        dispatch: receivers(traffic, &dispatch(args.order)),
        combine,
        incast,
        shared_experts: if receive.is_direct() { vec![] } else { shared_experts(traffic) },
        ports: (!receive.is_direct()).then(|| {
            ports::of(traffic, args.step, traffic.all_ranks(), |layout: &Shape| {
                traffic.all_dispatch(layout, order, shared)
            })
        }),
    }
}

fn receivers<T>(traffic: &Traffic, writes: &Writes<T>) -> Vec<Receiver> {
    let named = |rank| Receiver { rank: traffic.name(rank), ..Receiver::default() };
    let mut all: Vec<_> = traffic.all_ranks().map(named).collect();
    for cores in writes {
        let mut sends_to = vec![false; all.len()];
        for write in cores.iter().flatten() {
            let receiver = &mut all[write.to.index()];
            receiver.rows += 1;
            receiver.bytes += write.bytes;
            if !core::mem::replace(&mut sends_to[write.to.index()], true) {
                receiver.sources += 1;
            }
        }
    }
    all
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
        order: order.name(),
        steps: steps.len(),
        all: numbers(sum, steps.len()),
        per_step: steps.iter().map(|&step| numbers(step, 1)).collect(),
    }
}

/// Both splits under both orders: the old one went with the plain order.
fn shared_experts(traffic: &Traffic) -> Vec<OfSplit> {
    let shape = &traffic.shape;
    if shape.shared_expert_rank_num() == 0 {
        return Vec::new();
    }
    let of = |(split, order): (SharedArg, OrderArg)| {
        let mut writes = traffic.all_dispatch(shape, order.into(), split.into());
        writes.iter_mut().flatten().for_each(|list| list.retain(|write| write.what.pair.k >= shape.k()));
        let sources: Vec<_> = receivers(traffic, &writes).iter().map(|receiver| receiver.sources).collect();
        let holds = |&rank: &RankId| traffic.ep(rank).0 < shape.shared_expert_rank_num();
        let ranks: Vec<_> = traffic
            .all_ranks()
            .filter(holds)
            .map(|rank| SharedRank {
                rank: traffic.name(rank),
                sources: sources[rank.index()],
                at_once: at_once(&writes, rank),
            })
            .collect();
        OfSplit {
            split: name_of(split),
            order: order.name(),
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

pub(super) fn table(summary: &Summary) -> String {
    let about = pairs(&[
        ("source", summary.source.clone()),
        ("group", format!("{} ranks x {} cores", summary.ranks, summary.cores)),
        ("experts", experts(summary.experts_known)),
        ("receive", summary.receive.to_owned()),
        ("order", summary.order.to_owned()),
        ("shared experts", summary.shared.to_owned()),
        ("port offset", summary.port_offset.to_string()),
    ]);
    let mut parts = vec![about];
    let receivers = |title: &str, all: &[Receiver]| {
        let all: Vec<_> = all.iter().filter(|receiver| receiver.rows > 0).collect();
        listed(title, &["rank", "from ranks=sources", "rows", "bytes"], &all)
    };
    parts.push(receivers("received in dispatch", &summary.dispatch));
    parts.extend(summary.combine.iter().map(|all| receivers("received in combine", all)));
    parts.push(incast_table(&summary.incast));
    if !summary.shared_experts.is_empty() {
        let most = ["ranks that send to one=sources_max", "at the same step=at_once_max"];
        let columns = [&["split", "order"], &most[..]].concat();
        parts.push(listed("shared-expert ranks", &columns, &summary.shared_experts));
    }
    parts.extend(summary.ports.iter().map(|ports| ports::table(ports, summary.port_offset)));
    parts.join("\n\n")
}

fn incast_table(all: &[OfOrder]) -> String {
    let row = |o: &OfOrder, step: String, n: &Numbers| {
        let numbers = [n.max.to_string(), format!("{:.2}", n.mean), format!("{:.1}", n.receivers)];
        [o.operator.to_owned(), o.order.to_owned(), step].into_iter().chain(numbers).collect::<Vec<_>>()
    };
    let rows: Vec<_> = all
        .iter()
        .flat_map(|o| {
            let first = o.per_step.iter().take(3).enumerate().map(|(i, n)| row(o, i.to_string(), n));
            first.chain([row(o, format!("all {}", o.steps), &o.all)]).collect::<Vec<_>>()
        })
        .collect();
    let head = ["operator", "order", "step", "max", "mean", "receivers"];
    format!("incast: ranks that send to one receiver at the same step\n{}", columns(&head, &rows))
}
