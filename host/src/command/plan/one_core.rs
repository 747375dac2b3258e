//! The plan of one core.

mod table;

pub(super) use table::table;

use super::direct;
use super::lists::{Traffic, Write, puts};
use super::{Ends, ends, ports, tp};
use crate::cli::{PlanArgs, name_of};
use crate::dump;
use core::ops::Range;
use serde::Serialize;
use veriep_core::layout::block;
use veriep_core::layout::state::{
    Partition, combine_slot, combine_status, dispatch_slot, dispatch_status, token_flag,
};
use veriep_core::place::Place;
use veriep_core::plan::counts::expert_of_slot;
use veriep_core::plan::order::SendOrder;
use veriep_core::plan::returns::Received;
use veriep_core::plan::route;
use veriep_core::plan::shared::SharedSplit;
use veriep_core::plan::split::{self, Work};
use veriep_core::protocol::{Choices, Flags};
use veriep_core::shape::{Protocol, Shape};
use veriep_core::units::{CoreId, Pair, RankId, Token};

/// Between phases, where a rank has several cores.
pub(super) const BARRIER: &str = "core barrier";

/// The plan of a core of A3.
#[derive(Debug, Serialize)]
pub(super) struct Plan {
    receive: &'static str,
    experts: &'static str,
    order: String,
    shared: String,
    port_offset: u64,
    /// The partition of all offsets.
    partition: u32,
    dispatch: Dispatch,
    combine: Combine,
    /// Of all cores of the rank; null with direct placement, where there are no blocks of records.
    ports: Option<ports::Ports>,
}

/// What a core of A3 works on in dispatch.
#[derive(Debug, Serialize)]
pub(in crate::command) struct Ranges {
    /// Of the flat `(token, k)` pairs those that it sends.
    moe_pairs: Ends,
    /// Those whose `expand_idx` it writes.
    index_pairs: Ends,
    /// Of the flat `(token, j)` pairs.
    shared_pairs: Ends,
    /// MoE experts to which it sends all records of the rank; fullmesh_v2.
    experts: Ends,
    /// Shared-expert ranks, then MoE experts.
    destinations: Ends,
    slots: Ends,
}

#[derive(Debug, Serialize)]
struct Dispatch {
    #[serde(flatten)]
    ranges: Ranges,
    phases: Vec<&'static str>,
    flags: &'static str,
    /// What it goes through in the order of sending, inactive pairs included.
    moe_order: Vec<u32>,
    shared_order: Vec<u32>,
    expert_order: Vec<u32>,
    blocks: Option<Blocks>,
    /// What is known to be sent.
    sends: Vec<Send>,
    publishes: Vec<Publish>,
    awaits: Vec<Await>,
    words: Option<direct::Words>,
    tp: Option<tp::Exchange>,
}

/// How records are cut: block i of a record is put at i * stride from the record's offset, its flag published at
/// `flag_offset` from there.
#[derive(Debug, Serialize)]
struct Blocks {
    count: u32,
    stride: u64,
    bytes: u64,
    bytes_of_last: u64,
    flag_offset: u64,
}

#[derive(Debug, Serialize)]
struct Send {
    step: usize,
    token: u32,
    k: u32,
    /// Null for a shared expert.
    expert: Option<u32>,
    to: u32,
    local_expert: u32,
    slot: u32,
    row: Option<u32>,
    /// In the window of `to`.
    offset: u64,
    /// Without flags.
    bytes: u64,
    /// Of scale and triple there, with direct placement; else a record has them.
    info_offset: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Publish {
    destination: u32,
    to: u32,
    local_expert: u32,
    /// Of the word with the count, in the state region of `to`.
    offset: u64,
    count: Option<u32>,
    /// Of the word behind the records, there.
    token_flag_offset: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Await {
    slot: u32,
    local_expert: u32,
    from: u32,
    /// In the rank's own state region.
    offset: u64,
    count: Option<u32>,
    token_flag_offset: Option<u64>,
}

/// What a core of A3 does in combine. Lists are null where experts are not known, where the split is not the one that runs, and
/// where rows are read in place of being sent.
#[derive(Debug, Serialize)]
struct Combine {
    tp: Option<tp::Exchange>,
    rows: Option<Ends>,
    sends: Option<Vec<Return>>,
    tokens: Ends,
    awaits: Option<Vec<AwaitRow>>,
    pull: Option<direct::Pull>,
}

#[derive(Debug, Serialize)]
struct Return {
    step: usize,
    row: u32,
    to: u32,
    token: u32,
    k: u32,
    /// In the window of `to`.
    offset: u64,
    bytes: u64,
    /// In the state region of `to`.
    flag_offset: u64,
}

#[derive(Debug, Serialize)]
struct AwaitRow {
    token: u32,
    k: u32,
    from: u32,
    offset: u64,
}

pub(super) fn of(traffic: &Traffic, args: &PlanArgs, rank: RankId, core: CoreId) -> Plan {
    let (order, shared) = (args.order.into(), args.shared.into());
    // With the old split no rank has ever received anything.
    let known = traffic.known && shared == SharedSplit::AllIn;
    let received = known.then(|| traffic.received(rank));
    let receive = traffic.choices.receive;
    let ports = || {
        ports::of(traffic, args.step, core::iter::once(rank), |layout: &Shape| {
            let of = |core| traffic.dispatch(layout, rank, core, order, shared);
            vec![traffic.cores().map(of).collect()]
        })
    };
    Plan {
        receive: receive.name(),
        experts: dump::experts(receive),
        order: name_of(args.order),
        shared: name_of(args.shared),
        port_offset: traffic.shape.port_offset(),
        partition: Partition::P0.index(),
        dispatch: dispatch(traffic, (order, shared), rank, core, received.as_deref()),
        combine: combine(traffic, order, rank, core, received.as_deref()),
        ports: (!receive.is_direct()).then(ports),
    }
}

/// None with fullmesh_v2, where a core sends to whole experts.
fn moe_pairs(shape: &Shape, work: &Work) -> Range<u32> {
    if shape.protocol() == Protocol::FullmeshV2 { 0..0 } else { work.sends.moe.clone() }
}

pub(in crate::command) fn ranges(shape: &Shape, work: &Work) -> Ranges {
    Ranges {
        moe_pairs: ends(&moe_pairs(shape, work)),
        index_pairs: ends(&work.sends.moe),
        shared_pairs: ends(&work.sends.shared),
        experts: ends(&work.experts),
        destinations: ends(&work.destinations),
        slots: ends(&work.slots),
    }
}

fn dispatch(
    traffic: &Traffic,
    (order, split): (SendOrder, SharedSplit),
    rank: RankId,
    core: CoreId,
    received: Option<&[Received]>,
) -> Dispatch {
    let (shape, ep) = (&traffic.shape, traffic.ep(rank));
    let Choices { flags, receive, .. } = traffic.choices;
    let work = split::work(shape, ep, core);
    let Work { sends: share, experts, destinations, slots, .. } = &work;
    let in_blocks = shape.protocol() == Protocol::FullmeshV2;
    let writes = traffic.dispatch(shape, rank, core, order, split);
    let separate = |slot| (flags == Flags::Separate).then(|| token_flag(Partition::P0, slot).offset);
    let counts = |source| move |destination| count(traffic, split, source, destination);
    let publish = |destination| {
        let home = route::destination_home(shape, destination);
        let slot = dispatch_slot(shape, home.local_expert, ep);
        Publish {
            destination,
            to: traffic.name(traffic.called(rank, home.rank)),
            local_expert: home.local_expert,
            offset: dispatch_status(Partition::P0, slot).offset,
            count: counts(rank)(destination),
            token_flag_offset: separate(slot),
        }
    };
    let wait = |slot| {
        let local_expert = expert_of_slot(shape, slot);
        let from = traffic.called(rank, RankId(slot - local_expert * shape.ep_world_size()));
        Await {
            slot,
            local_expert,
            from: traffic.name(from),
            offset: dispatch_status(Partition::P0, slot).offset,
            count: counts(from)(route::destination_of(shape, ep, local_expert)),
            token_flag_offset: separate(slot),
        }
    };
    // With direct placement there are words of ranks in place of slots.
    let of_slots = if receive.is_direct() { (0..0, 0..0) } else { (destinations.clone(), slots.clone()) };
    Dispatch {
        ranges: ranges(shape, &work),
        phases: phases(shape, traffic.choices, &work),
        flags: match flags {
            _ if in_blocks => "blocks",
            _ if receive.is_direct() => "ranks",
            flags => flags.name(),
        },
        moe_order: order.items(moe_pairs(shape, &work), ep).collect(),
        shared_order: order.items(share.shared.clone(), ep).collect(),
        expert_order: order.items(experts.clone(), ep).collect(),
        blocks: in_blocks.then(|| blocks(shape)),
        sends: sends(traffic, rank, &writes),
        publishes: of_slots.0.map(publish).collect(),
        awaits: of_slots.1.map(wait).collect(),
        words: direct::words(traffic, rank, core),
        tp: tp::dispatch(traffic, rank, core, received),
    }
}

fn sends(traffic: &Traffic, rank: RankId, writes: &[Write<route::Send>]) -> Vec<Send> {
    let inputs = traffic.inputs(rank);
    let expert = |pair: Pair| {
        let id = inputs.ids(&traffic.shape, pair.token).get(pair.k as usize).copied();
        id.and_then(|id| u32::try_from(id).ok())
    };
    let is_direct = traffic.choices.receive.is_direct();
    let row =
        |what: route::Send| traffic.row(what.home.rank, traffic.ep(rank), what.pair).filter(|_| is_direct);
    let info = |what: route::Send| Some(traffic.parts(what.home.rank).info(row(what)?).offset);
    let send = |(step, write): (usize, &Write<route::Send>)| Send {
        step,
        token: write.what.pair.token.0,
        k: write.what.pair.k,
        expert: expert(write.what.pair),
        to: traffic.name(write.to),
        local_expert: write.what.home.local_expert,
        slot: write.what.slot,
        row: row(write.what),
        offset: write.at.offset,
        bytes: write.bytes,
        info_offset: info(write.what),
    };
    writes.iter().enumerate().map(send).collect()
}

fn blocks(shape: &Shape) -> Blocks {
    let record = Place::window(0);
    Blocks {
        count: block::count(shape),
        stride: block::block(record, 1).offset,
        bytes: block::PAYLOAD,
        bytes_of_last: puts(shape, record).last().map_or(0, |(_, bytes)| bytes),
        flag_offset: block::flag(record, 0).offset,
    }
}

/// What a core does in dispatch, in order: the names of the lists, and what stands between them.
fn phases(shape: &Shape, choices: Choices, work: &Work) -> Vec<&'static str> {
    let Choices { flags, receive, .. } = choices;
    let barrier = BARRIER;
    if receive.is_direct() {
        return of_cores(shape, direct::PHASES.to_vec());
    }
    let mut phases = match (shape.protocol(), flags) {
        (Protocol::FullmeshV2, _) if work.destinations.is_empty() => {
            vec!["quiet", "sends, each block with its flag", barrier, "awaits", barrier]
        }
        (Protocol::FullmeshV2, _) => {
            vec!["quiet", barrier, "publishes", "sends, each block with its flag", "awaits", barrier]
        }
        (_, Flags::Joint) => vec!["sends", "quiet", barrier, "publishes", "awaits", barrier],
        (_, Flags::Separate) => {
            vec!["publishes", "sends", "awaits", barrier, "quiet", barrier, "publishes token flags"]
        }
    };
    phases.push(match (shape.protocol(), flags, receive.keeps_rows()) {
        (Protocol::FullmeshV2, ..) => "copies out each record when its blocks are there",
        (_, Flags::Joint, false) => "copies out",
        (_, Flags::Separate, false) => "awaits token flags and copies out, slot by slot",
        (_, Flags::Joint, true) => "writes the row table",
        (_, Flags::Separate, true) => "awaits token flags and writes the row table, slot by slot",
    });
    if shape.tp_world_size() == 2 {
        phases.push("tp");
    }
    of_cores(shape, phases)
}

/// A core alone has no barriers.
fn of_cores(shape: &Shape, mut phases: Vec<&'static str>) -> Vec<&'static str> {
    if shape.aiv_num() == 1 {
        phases.retain(|&phase| phase != BARRIER);
    }
    phases
}

/// Rows that `source` sends to a destination, if that is known.
fn count(traffic: &Traffic, split: SharedSplit, source: RankId, destination: u32) -> Option<u32> {
    if destination < traffic.shape.shared_expert_rank_num() {
        let tokens = traffic.active_tokens(source);
        return Some(split.count(&traffic.shape, source, RankId(destination), tokens));
    }
    traffic.known.then(|| traffic.send_status(source)[destination as usize])
}

fn combine(
    traffic: &Traffic,
    order: SendOrder,
    rank: RankId,
    core: CoreId,
    received: Option<&[Received]>,
) -> Combine {
    let (shape, ep) = (&traffic.shape, traffic.ep(rank));
    let tokens = split::tokens(shape, ep, core);
    let exchange = tp::combine(traffic, rank, core, received);
    let pull = direct::pull(traffic, rank, core);
    let nothing =
        Combine { tp: exchange, rows: None, sends: None, tokens: ends(&tokens), awaits: None, pull };
    let Some(received) = received.filter(|_| nothing.pull.is_none()) else {
        return nothing;
    };
    let flag = |token, k| combine_status(Partition::P0, combine_slot(shape, token, k)).offset;
    let writes = traffic.combine(received, rank, core, order);
    let sends = writes.iter().enumerate().map(|(step, write)| {
        let (row, what) = write.what;
        Return {
            step,
            row,
            to: traffic.name(write.to),
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
        let from = traffic.called(rank, route::home(shape, ep, &inputs, pair)?.rank);
        Some(AwaitRow {
            token: pair.token.0,
            k: pair.k,
            from: traffic.name(from),
            offset: flag(pair.token, pair.k),
        })
    });
    Combine {
        rows: Some(ends(&split::rows(shape, received.len() as u32, core))),
        sends: Some(sends.collect()),
        awaits: Some(awaits.collect()),
        ..nothing
    }
}
