//! The plan of one core.

use super::lists::Traffic;
use super::ports::{self, Ports};
use super::{listed, name_of};
use crate::cli::PlanArgs;
use crate::report::pairs;
use core::ops::Range;
use kernel_core::layout::state::{Partition, combine_slot, combine_status, dispatch_slot, dispatch_status};
use kernel_core::plan::counts::expert_of_slot;
use kernel_core::plan::order::SendOrder;
use kernel_core::plan::route::{self, Pair};
use kernel_core::plan::shared::SharedSplit;
use kernel_core::plan::split::{self, Work};
use kernel_core::shape::Shape;
use kernel_core::units::{CoreId, RankId, Token};
use serde::Serialize;

#[derive(Serialize)]
pub(super) struct CorePlan {
    ok: bool,
    source: String,
    set: Vec<String>,
    rank: u32,
    core: u32,
    experts_known: bool,
    order: &'static str,
    shared: &'static str,
    port_offset: u64,
    /// The partition of all offsets.
    partition: u32,
    dispatch: Dispatch,
    combine: Combine,
    /// Of all cores of the rank.
    ports: Ports,
}

/// Ranges are `[start, end)`.
#[derive(Serialize)]
struct Dispatch {
    /// Of the flat `(token, k)` pairs.
    moe_pairs: [u32; 2],
    /// Of the flat `(token, j)` pairs.
    shared_pairs: [u32; 2],
    /// The pairs of both ranges in the order of sending, inactive ones included.
    moe_order: Vec<u32>,
    shared_order: Vec<u32>,
    /// What is known to be sent.
    sends: Vec<Send>,
    /// Shared-expert ranks, then MoE experts.
    destinations: [u32; 2],
    publishes: Vec<Publish>,
    /// `local_expert * ep_world_size + source_rank`.
    slots: [u32; 2],
    awaits: Vec<Await>,
}

#[derive(Serialize)]
struct Send {
    step: usize,
    token: u32,
    k: u32,
    /// `null` for a shared expert.
    expert: Option<u32>,
    to: u32,
    local_expert: u32,
    slot: u32,
    /// In the window of `to`.
    offset: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct Publish {
    destination: u32,
    to: u32,
    local_expert: u32,
    /// In the state region of `to`.
    offset: u64,
    /// `null`: not known.
    count: Option<u32>,
}

#[derive(Serialize)]
struct Await {
    slot: u32,
    local_expert: u32,
    from: u32,
    /// In the own state region.
    offset: u64,
    count: Option<u32>,
}

#[derive(Serialize)]
struct Combine {
    /// `null`, as the lists, unless experts are known and the split is the one that runs.
    rows: Option<[u32; 2]>,
    sends: Option<Vec<Return>>,
    tokens: [u32; 2],
    awaits: Option<Vec<AwaitRow>>,
}

#[derive(Serialize)]
struct Return {
    step: usize,
    row: u32,
    to: u32,
    token: u32,
    k: u32,
    /// In the window of `to`.
    offset: u64,
    bytes: u64,
    /// Of the flag, in the state region of `to`.
    flag_offset: u64,
}

#[derive(Serialize)]
struct AwaitRow {
    token: u32,
    k: u32,
    from: u32,
    /// In the own state region.
    offset: u64,
}

pub(super) fn of(traffic: &Traffic, args: &PlanArgs, source: String, rank: RankId, core: CoreId) -> CorePlan {
    let (order, shared) = (args.order.into(), args.shared.into());
    CorePlan {
        ok: true,
        source,
        set: args.config.set.clone(),
        rank: rank.0,
        core: core.0,
        experts_known: traffic.known,
        order: args.order.name(),
        shared: name_of(args.shared),
        port_offset: traffic.shape.port_offset(),
        partition: Partition::P0.index(),
        dispatch: dispatch(traffic, order, shared, rank, core),
        combine: combine(traffic, order, shared, rank, core),
        ports: ports::of(traffic, args.step, core::iter::once(rank), |layout: &Shape| {
            let of = |core| traffic.dispatch(layout, rank, core, order, shared);
            vec![traffic.cores().map(of).collect()]
        }),
    }
}

fn dispatch(traffic: &Traffic, order: SendOrder, split: SharedSplit, rank: RankId, core: CoreId) -> Dispatch {
    let shape = &traffic.shape;
    let Work { sends: share, destinations, slots, .. } = split::work(shape, rank, core);
    let ids = |pair: Pair| {
        let id = traffic.inputs(rank).ids(shape, pair.token).get(pair.k as usize).copied();
        id.and_then(|id| u32::try_from(id).ok())
    };
    let writes = traffic.dispatch(shape, rank, core, order, split);
    let sends = writes.iter().enumerate().map(|(step, write)| Send {
        step,
        token: write.what.pair.token.0,
        k: write.what.pair.k,
        expert: ids(write.what.pair),
        to: write.to.0,
        local_expert: write.what.home.local_expert,
        slot: write.what.slot,
        offset: write.at.offset,
        bytes: write.bytes,
    });
    let counts = |source| move |destination| count(traffic, split, source, destination);
    let publish = |destination| {
        let home = route::destination_home(shape, destination);
        let slot = dispatch_slot(shape, home.local_expert, rank);
        Publish {
            destination,
            to: home.rank.0,
            local_expert: home.local_expert,
            offset: dispatch_status(Partition::P0, slot).offset,
            count: counts(rank)(destination),
        }
    };
    let wait = |slot| {
        let local_expert = expert_of_slot(shape, slot);
        let from = RankId(slot - local_expert * shape.ep_world_size());
        Await {
            slot,
            local_expert,
            from: from.0,
            offset: dispatch_status(Partition::P0, slot).offset,
            count: counts(from)(route::destination_of(shape, rank, local_expert)),
        }
    };
    Dispatch {
        moe_order: order.items(share.moe.clone(), rank).collect(),
        shared_order: order.items(share.shared.clone(), rank).collect(),
        moe_pairs: ends(&share.moe),
        shared_pairs: ends(&share.shared),
        sends: sends.collect(),
        publishes: destinations.clone().map(publish).collect(),
        destinations: ends(&destinations),
        awaits: slots.clone().map(wait).collect(),
        slots: ends(&slots),
    }
}

/// Rows that `source` sends to a destination, if that is known.
fn count(traffic: &Traffic, split: SharedSplit, source: RankId, destination: u32) -> Option<u32> {
    if destination < traffic.shape.shared_expert_rank_num() {
        let tokens = traffic.active_tokens(source);
        return Some(split.count(&traffic.shape, source, RankId(destination), tokens));
    }
    traffic.known.then(|| traffic.send_status(source)[destination as usize])
}

fn combine(traffic: &Traffic, order: SendOrder, split: SharedSplit, rank: RankId, core: CoreId) -> Combine {
    let shape = &traffic.shape;
    let tokens = split::tokens(shape, rank, core);
    if !traffic.known || split != SharedSplit::AllIn {
        return Combine { rows: None, sends: None, tokens: ends(&tokens), awaits: None };
    }
    let received = traffic.received(rank);
    let flag = |token, k| combine_status(Partition::P0, combine_slot(shape, token, k)).offset;
    let writes = traffic.combine(&received, rank, core, order);
    let sends = writes.iter().enumerate().map(|(step, write)| {
        let (row, what) = write.what;
        Return {
            step,
            row,
            to: write.to.0,
            token: what.pair.token.0,
            k: what.pair.k,
            offset: write.at.offset,
            bytes: write.bytes,
            flag_offset: flag(what.pair.token, what.pair.k),
        }
    });
    let inputs = traffic.inputs(rank);
    let columns = |token| (0..shape.combine_columns()).map(move |k| Pair { token, k });
    let awaits = tokens.clone().map(Token).flat_map(columns).filter_map(|pair| {
        let from = route::home(shape, rank, &inputs, pair)?.rank.0;
        Some(AwaitRow { token: pair.token.0, k: pair.k, from, offset: flag(pair.token, pair.k) })
    });
    Combine {
        rows: Some(ends(&split::rows(shape, received.len() as u32, core))),
        sends: Some(sends.collect()),
        awaits: Some(awaits.collect()),
        tokens: ends(&tokens),
    }
}

const fn ends(range: &Range<u32>) -> [u32; 2] {
    [range.start, range.end]
}

pub(super) fn table(plan: &CorePlan) -> String {
    let (dispatch, combine) = (&plan.dispatch, &plan.combine);
    let range =
        |[start, end]: [u32; 2]| if start == end { "none".to_owned() } else { format!("{start}..{end}") };
    let unknown = || "not known".to_owned();
    let about = pairs(&[
        ("source", plan.source.clone()),
        ("core", format!("{} of rank {}", plan.core, plan.rank)),
        ("experts", if plan.experts_known { "known" } else { "not known: shared experts only" }.to_owned()),
        ("order", plan.order.to_owned()),
        ("shared experts", plan.shared.to_owned()),
        ("port offset", plan.port_offset.to_string()),
        ("sends (token, k) pairs", range(dispatch.moe_pairs)),
        ("  in this order", rotated(&dispatch.moe_order)),
        ("sends (token, shared) pairs", range(dispatch.shared_pairs)),
        ("  in this order", rotated(&dispatch.shared_order)),
        ("publishes to destinations", range(dispatch.destinations)),
        ("awaits and copies out slots", range(dispatch.slots)),
        ("returns rows", combine.rows.map_or_else(unknown, range)),
        ("awaits and sums tokens", range(combine.tokens)),
    ]);
    let mut parts = vec![about];
    let mut list = |title: &str, header: &[&str], rows: Vec<Vec<String>>| {
        parts.push(format!("{title}\n{}", listed(header, &rows)));
    };
    let text = |numbers: &[u64]| numbers.iter().map(u64::to_string).collect::<Vec<_>>();
    let maybe = |number: Option<u32>| number.map_or_else(|| "-".to_owned(), |n| n.to_string());
    let sends = dispatch.sends.iter().map(|s| {
        let mut row = text(&[s.step as u64, s.token.into(), s.k.into()]);
        row.push(maybe(s.expert));
        row.extend(text(&[s.to.into(), s.slot.into(), s.offset, s.bytes]));
        row
    });
    let head = ["step", "token", "k", "expert", "to", "slot", "offset", "bytes"];
    list("dispatch sends", &head, sends.collect());
    let publishes = dispatch.publishes.iter().map(|p| {
        let mut row = text(&[p.destination.into(), p.to.into(), p.local_expert.into(), p.offset]);
        row.push(maybe(p.count));
        row
    });
    let head = ["destination", "rank", "local expert", "offset", "count"];
    list("dispatch publishes", &head, publishes.collect());
    let awaits = dispatch.awaits.iter().map(|a| {
        let mut row = text(&[a.slot.into(), a.local_expert.into(), a.from.into(), a.offset]);
        row.push(maybe(a.count));
        row
    });
    list("dispatch awaits", &["slot", "local expert", "from", "offset", "count"], awaits.collect());
    if let Some(sends) = &combine.sends {
        let rows = sends.iter().map(|r| {
            let [to, token, k] = [r.to, r.token, r.k].map(u64::from);
            text(&[r.step as u64, r.row.into(), to, token, k, r.offset, r.bytes, r.flag_offset])
        });
        let head = ["step", "row", "to", "token", "k", "offset", "bytes", "flag offset"];
        list("combine sends and publishes", &head, rows.collect());
    }
    if let Some(awaits) = &combine.awaits {
        let rows = awaits.iter().map(|a| text(&[a.token.into(), a.k.into(), a.from.into(), a.offset]));
        list("combine awaits", &["token", "k", "from", "offset"], rows.collect());
    }
    parts.push(format!("all cores of rank {}: {}", plan.rank, ports::table(&plan.ports, plan.port_offset)));
    parts.join("\n\n")
}

/// A rotated range, in short.
fn rotated(order: &[u32]) -> String {
    match (order.first(), order.last()) {
        (Some(first), Some(last)) if first > last => {
            let (low, high) = (order.iter().min(), order.iter().max());
            let [low, high] = [low, high].map(|n| n.copied().unwrap_or(0));
            format!("{first}..{}, {low}..{}", high + 1, last + 1)
        }
        (Some(first), Some(last)) => format!("{first}..{}", last + 1),
        _ => "-".to_owned(),
    }
}
