//! The plan of one core.

use super::direct;
use super::lists::{Traffic, Write, puts};
use super::{Asked, Ends, ends, ports, tp};
use crate::mode::{order_name, split_name};
use core::ops::Range;
use serde::Serialize;
use veriep_case::experts::Experts;
use veriep_core::layout::block;
use veriep_core::layout::state::{Partition, combine_slot, dispatch_slot};
use veriep_core::place::Place;
use veriep_core::plan::counts::expert_of_slot;
use veriep_core::plan::order::SendOrder;
use veriep_core::plan::returns::Received;
use veriep_core::plan::route;
use veriep_core::plan::split::{self, Work};
use veriep_core::protocol::{Choices, Flags};
use veriep_core::shape::{Protocol, Shape};
use veriep_core::units::{CoreId, Pair, RankId, Token};
use veriep_spread::shared::SharedSplit;

/// Between phases, where a rank has several cores.
pub(super) const BARRIER: &str = "core barrier";

/// The plan of a core of A3.
#[derive(Debug, Serialize)]
pub struct Plan {
    pub receive: &'static str,
    pub experts: &'static str,
    pub order: String,
    pub shared: String,
    pub port_offset: u64,
    /// The partition of all offsets.
    pub partition: u32,
    pub dispatch: Dispatch,
    pub combine: Combine,
    /// Of all cores of the rank; null with direct placement, where there are no blocks of records.
    pub ports: Option<ports::Ports>,
}

/// What a core of A3 works on in dispatch.
#[derive(Debug, Serialize)]
pub struct Ranges {
    /// Of the flat `(token, k)` pairs those that it sends.
    pub moe_pairs: Ends,
    /// Those whose `expand_idx` it writes.
    pub index_pairs: Ends,
    /// Of the flat `(token, j)` pairs.
    pub shared_pairs: Ends,
    /// MoE experts to which it sends all records of the rank; fullmesh_v2.
    pub experts: Ends,
    /// Shared-expert ranks, then MoE experts.
    pub destinations: Ends,
    pub slots: Ends,
}

#[derive(Debug, Serialize)]
pub struct Dispatch {
    #[serde(flatten)]
    pub ranges: Ranges,
    pub phases: Vec<&'static str>,
    pub flags: &'static str,
    /// What it goes through in the order of sending, inactive pairs included.
    pub moe_order: Vec<u32>,
    pub shared_order: Vec<u32>,
    pub expert_order: Vec<u32>,
    pub blocks: Option<Blocks>,
    /// What is known to be sent.
    pub sends: Vec<Send>,
    pub publishes: Vec<Publish>,
    pub awaits: Vec<Await>,
    pub words: Option<direct::Words>,
    pub tp: Option<tp::Exchange>,
}

/// How records are cut: block i of a record is put at i * stride from the record's offset, its flag published at
/// `flag_offset` from there.
#[derive(Debug, Serialize)]
pub struct Blocks {
    pub count: u32,
    pub stride: u64,
    pub bytes: u64,
    pub bytes_of_last: u64,
    pub flag_offset: u64,
}

#[derive(Debug, Serialize)]
pub struct Send {
    pub step: usize,
    pub token: u32,
    pub k: u32,
    /// Null for a shared expert.
    pub expert: Option<u32>,
    pub to: u32,
    pub local_expert: u32,
    pub slot: u32,
    pub row: Option<u32>,
    /// In the window of `to`.
    pub offset: u64,
    /// Without flags.
    pub bytes: u64,
    /// Of scale and triple there, with direct placement; else a record has them.
    pub info_offset: Option<u64>,
}

#[derive(Debug, Serialize)]
pub struct Publish {
    pub destination: u32,
    pub to: u32,
    pub local_expert: u32,
    /// Of the word with the count, in the state region of `to`.
    pub offset: u64,
    pub count: Option<u32>,
    /// Of the word after the records, there.
    pub token_flag_offset: Option<u64>,
}

#[derive(Debug, Serialize)]
pub struct Await {
    pub slot: u32,
    pub local_expert: u32,
    pub from: u32,
    /// In the rank's own state region.
    pub offset: u64,
    pub count: Option<u32>,
    pub token_flag_offset: Option<u64>,
}

/// What a core of A3 does in combine. Lists are null where experts are not known, where the split is not the one that runs, and
/// where rows are read in place of being sent.
#[derive(Debug, Serialize)]
pub struct Combine {
    pub tp: Option<tp::Exchange>,
    pub rows: Option<Ends>,
    pub sends: Option<Vec<Return>>,
    pub tokens: Ends,
    pub awaits: Option<Vec<AwaitRow>>,
    pub pull: Option<direct::Pull>,
}

#[derive(Debug, Serialize)]
pub struct Return {
    pub step: usize,
    pub row: u32,
    pub to: u32,
    pub token: u32,
    pub k: u32,
    /// In the window of `to`.
    pub offset: u64,
    pub bytes: u64,
    /// In the state region of `to`.
    pub flag_offset: u64,
}

#[derive(Debug, Serialize)]
pub struct AwaitRow {
    pub token: u32,
    pub k: u32,
    pub from: u32,
    pub offset: u64,
}

pub fn of(traffic: &Traffic, asked: Asked, rank: RankId, core: CoreId) -> Plan {
    let (order, shared) = (asked.order, asked.shared);
    // With the old split no rank has ever received anything.
    let known = traffic.known && shared == SharedSplit::AllIn;
    let received = known.then(|| traffic.received(rank));
    let receive = traffic.choices.receive;
    let ports = || {
        ports::of(traffic, asked.step, core::iter::once(rank), |layout: &Shape| {
            let of = |core| traffic.dispatch(layout, rank, core, order, shared);
            vec![traffic.cores().map(of).collect()]
        })
    };
    Plan {
        receive: receive.name(),
        experts: Experts::under(receive).name(),
        order: order_name(asked.order).to_owned(),
        shared: split_name(asked.shared).to_owned(),
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

pub fn ranges(shape: &Shape, work: &Work) -> Ranges {
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
    let Choices { flags, receive, slots, .. } = traffic.choices;
    let work = split::work(shape, ep, core);
    let Work { sends: share, experts, destinations, slots: own, .. } = &work;
    let in_blocks = shape.protocol() == Protocol::FullmeshV2;
    let writes = traffic.dispatch(shape, rank, core, order, split);
    let separate = |slot| (flags == Flags::Separate).then(|| slots.token_flag(Partition::P0, slot).offset);
    let counts = |source| move |destination| count(traffic, split, source, destination);
    let publish = |destination| {
        let home = route::destination_home(shape, destination);
        let slot = dispatch_slot(shape, home.local_expert, ep);
        Publish {
            destination,
            to: traffic.name(traffic.called(rank, home.rank)),
            local_expert: home.local_expert,
            offset: slots.dispatch_status(Partition::P0, slot).offset,
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
            offset: slots.dispatch_status(Partition::P0, slot).offset,
            count: counts(from)(route::destination_of(shape, ep, local_expert)),
            token_flag_offset: separate(slot),
        }
    };
    // With direct placement there are words of ranks in place of slots.
    let of_slots = if receive.is_direct() { (0..0, 0..0) } else { (destinations.clone(), own.clone()) };
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

/// What a core does in dispatch, in order: the names of the lists, and what is between them.
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
    let slots = traffic.choices.slots;
    let flag = |token, k| slots.combine_status(Partition::P0, combine_slot(shape, token, k)).offset;
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
