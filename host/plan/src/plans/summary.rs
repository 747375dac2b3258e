//! The plan of all ranks, counted: what receivers get, how many send to one at a time, by which ports.

use super::lists::{Traffic, Writes, incasts};
use super::{Asked, ports};
use crate::mode::{order_name, split_name};
use serde::Serialize;
use veriep_core::plan::order::SendOrder;
use veriep_core::protocol::outstanding::{CoreRows, Outstanding};
use veriep_core::shape::Shape;
use veriep_core::units::RankId;
use veriep_spread::incast::Incast;
use veriep_spread::shared::SharedSplit;

/// The orders of dispatch: over destinations it goes as staggered.
const ORDERS: [SendOrder; 3] = [SendOrder::Plain, SendOrder::Staggered, SendOrder::Stride];
const ORDERS_OF_COMBINE: [SendOrder; 4] =
    [SendOrder::Plain, SendOrder::Staggered, SendOrder::Destinations, SendOrder::Stride];

/// What all ranks do, counted.
#[derive(Debug, Serialize)]
pub struct Summary {
    pub receive: &'static str,
    pub order: String,
    pub shared: String,
    pub port_offset: u64,
    pub dispatch: Vec<Receiver>,
    /// Null unless experts are known, the split is the one that runs, and rows are sent back.
    pub combine: Option<Vec<Receiver>>,
    pub incast: Vec<OfOrder>,
    pub shared_experts: Vec<SharedExperts>,
    /// Of the core that has most under way; null on A2, with a TP domain, and where experts are not known.
    pub outstanding: Option<CoreOutstanding>,
    pub ports: Option<ports::Ports>,
}

/// What a rank gets: of how many ranks, how many rows and bytes.
#[derive(Clone, Debug, Serialize)]
pub struct Receiver {
    pub rank: u32,
    pub sources: u32,
    pub rows: u64,
    pub bytes: u64,
}

/// The most ranks that send to one receiver at a step; the mean over the receivers that anybody sends to; those receivers.
#[derive(Debug, Serialize)]
pub struct Numbers {
    pub max: u32,
    pub mean: f64,
    pub receivers: f64,
}

/// The puts and publishes of a core that may not have landed, if every round is this one: the queue that it needs.
#[derive(Debug, Serialize)]
pub struct CoreOutstanding {
    pub rank: u32,
    pub core: u32,
    /// From the beginning of dispatch to its quiet.
    pub before_quiet: u64,
    /// From there to the end of combine.
    pub after_quiet: u64,
    pub most: u64,
}

/// The incast of an operator under an order.
#[derive(Debug, Serialize)]
pub struct OfOrder {
    pub operator: &'static str,
    pub order: String,
    pub steps: usize,
    pub per_step: Vec<Numbers>,
    #[serde(flatten)]
    pub all: Numbers,
}

/// What shared-expert ranks get under a split and an order.
#[derive(Debug, Serialize)]
pub struct SharedExperts {
    pub split: String,
    pub order: String,
    pub sources_max: u32,
    pub at_once_max: u32,
    pub ranks: Vec<SharedRank>,
}

/// Ranks that send to it over the operator, and the most that do at the same step.
#[derive(Debug, Serialize)]
pub struct SharedRank {
    pub rank: u32,
    pub sources: u32,
    pub at_once: u32,
}

pub fn of(traffic: &Traffic, asked: Asked) -> Summary {
    let shape = &traffic.shape;
    let (order, shared) = (asked.order, asked.shared);
    let dispatch = |order: SendOrder| traffic.all_dispatch(shape, order, shared);
    let mut incast: Vec<_> = ORDERS.map(|o| of_order("dispatch", o, &incasts(&dispatch(o)))).into();
    let mut combine = None;
    let receive = traffic.choices.receive;
    if traffic.known && shared == SharedSplit::AllIn && !receive.is_direct() {
        let received: Vec<_> = traffic.all_ranks().map(|rank| traffic.received(rank)).collect();
        let writes = |order: SendOrder| traffic.all_combine(&received, order);
        incast.extend(ORDERS_OF_COMBINE.map(|o| of_order("combine", o, &incasts(&writes(o)))));
        combine = Some(receivers(traffic, &writes(asked.order)));
    }
    let ports = || {
        ports::of(traffic, asked.step, traffic.all_ranks(), |layout: &Shape| {
            traffic.all_dispatch(layout, order, shared)
        })
    };
    Summary {
        receive: receive.name(),
        order: order_name(asked.order).to_owned(),
        shared: split_name(asked.shared).to_owned(),
        port_offset: shape.port_offset(),
        dispatch: receivers(traffic, &dispatch(asked.order)),
        combine,
        incast,
        shared_experts: if receive.is_direct() { vec![] } else { shared_experts(traffic) },
        outstanding: if traffic.known { outstanding(traffic) } else { None },
        ports: (!receive.is_direct()).then(ports),
    }
}

/// The core that has most under way.
fn outstanding(traffic: &Traffic) -> Option<CoreOutstanding> {
    let (shape, choices) = (&traffic.shape, traffic.choices);
    let of_rank = |rank: RankId| {
        let received = traffic.received(rank).len() as u32;
        let (ep, inputs) = (traffic.ep(rank), traffic.inputs(rank));
        traffic.cores().filter_map(move |core| {
            let rows = CoreRows::of(shape, ep, core, &inputs, received);
            let seen = Outstanding::of(shape, choices, ep, core, rows)?;
            let Outstanding { before, behind } = seen;
            let (before_quiet, after_quiet, most) = (before, behind, seen.most());
            Some(CoreOutstanding { rank: traffic.name(rank), core: core.0, before_quiet, after_quiet, most })
        })
    };
    // Of several that have the same, the first.
    traffic.all_ranks().flat_map(of_rank).reduce(|most, next| if next.most > most.most { next } else { most })
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

fn of_order(operator: &'static str, order: SendOrder, steps: &[Incast]) -> OfOrder {
    let sum = steps.iter().fold(Incast::default(), |sum, &step| sum.and(step));
    OfOrder {
        operator,
        order: order_name(order).to_owned(),
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
    let of = |(split, order): (SharedSplit, SendOrder)| {
        let mut writes = traffic.all_dispatch(shape, order, split);
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
            split: split_name(split).to_owned(),
            order: order_name(order).to_owned(),
            sources_max: ranks.iter().map(|rank| rank.sources).max().unwrap_or(0),
            at_once_max: ranks.iter().map(|rank| rank.at_once).max().unwrap_or(0),
            ranks,
        }
    };
    let splits = [SharedSplit::Even, SharedSplit::AllIn];
    let orders = [SendOrder::Plain, SendOrder::Staggered];
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
