//! The plan of one core.

mod table;

pub(super) use table::table;

use super::direct::{self, Pull, Words};
use super::lists::{Traffic, Write, puts};
use super::ports::{self, Ports};
use super::tp::{self, Exchange};
use super::{Head, ends, name_of};
use crate::cli::{ExpertsArg, PlanArgs};
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

#[derive(Serialize)]
pub(super) struct CorePlan {
    #[serde(flatten)]
    head: Head,
    receive: &'static str,
    experts: &'static str,
    order: &'static str,
    shared: &'static str,
    port_offset: u64,
    /// The partition of all offsets.
    partition: u32,
    dispatch: Dispatch,
    combine: Combine,
    /// Of all cores of the rank; `null` with direct placement, where there are no blocks of records.
    ports: Option<Ports>,
}

/// Ranges are `[start, end)`.
#[derive(Serialize)]
struct Dispatch {
    /// What the core does, in this order.
    phases: Vec<&'static str>,
    /// `joint`, `separate`, or with fullmesh_v2 `blocks`.
    flags: &'static str,
    /// Of the flat `(token, k)` pairs those that it sends; none with fullmesh_v2.
    moe_pairs: [u32; 2],
    /// Those whose `expand_idx` it writes.
    index_pairs: [u32; 2],
    /// Of the flat `(token, j)` pairs.
    shared_pairs: [u32; 2],
    /// MoE experts to which it sends all records of the rank; fullmesh_v2.
    experts: [u32; 2],
    /// What it goes through in the order of sending, inactive pairs included.
    moe_order: Vec<u32>,
    shared_order: Vec<u32>,
    expert_order: Vec<u32>,
    /// How records are cut; `null` but for fullmesh_v2.
    blocks: Option<Blocks>,
    /// What is known to be sent.
    sends: Vec<Send>,
    /// Shared-expert ranks, then MoE experts.
    destinations: [u32; 2],
    publishes: Vec<Publish>,
    /// `local_expert * ep_world_size + source_rank`.
    slots: [u32; 2],
    awaits: Vec<Await>,
    /// With direct placement, where there are no slots to publish and await.
    words: Option<Words>,
    /// `null` without a TP domain.
    tp: Option<Exchange>,
}

/// Block `i` of a record is put at `i * stride` from the record's offset, its flag published at `flag_offset` from
/// there.
#[derive(Serialize)]
struct Blocks {
    count: u32,
    stride: u64,
    /// Bytes of each block that are put, but for the last.
    bytes: u64,
    bytes_of_last: u64,
    flag_offset: u64,
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
    /// With direct placement, else `null`.
    row: Option<u32>,
    /// In the window of `to`.
    offset: u64,
    /// Without flags.
    bytes: u64,
    /// Of scale and triple there, with direct placement; else a record has them.
    info_offset: Option<u64>,
}

#[derive(Serialize)]
struct Publish {
    destination: u32,
    to: u32,
    local_expert: u32,
    /// Of the word with the count, in the state region of `to`.
    offset: u64,
    /// `null`: not known.
    count: Option<u32>,
    /// Of the word behind the records, there; `null` unless flags are separate.
    token_flag_offset: Option<u64>,
}

#[derive(Serialize)]
struct Await {
    slot: u32,
    local_expert: u32,
    from: u32,
    /// In the own state region.
    offset: u64,
    count: Option<u32>,
    token_flag_offset: Option<u64>,
}

#[derive(Serialize)]
struct Combine {
    /// `null` without a TP domain: before rows are returned, peers add each other's results.
    tp: Option<Exchange>,
    /// `null`, as the lists, unless experts are known and the split is the one that runs.
    rows: Option<[u32; 2]>,
    sends: Option<Vec<Return>>,
    tokens: [u32; 2],
    awaits: Option<Vec<AwaitRow>>,
    /// With direct placement, in place of rows that are sent.
    pull: Option<Pull>,
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
    // With the old split nobody has ever received anything.
    let known = traffic.known && shared == SharedSplit::AllIn;
    let received = known.then(|| traffic.received(rank));
    let receive = traffic.choices.receive;
    CorePlan {
        head: Head::new(traffic, args, source, rank, Some(core)),
        receive: receive.name(),
        experts: ExpertsArg::name(receive),
        order: args.order.name(),
        shared: name_of(args.shared),
        port_offset: traffic.shape.port_offset(),
        partition: Partition::P0.index(),
        dispatch: dispatch(traffic, (order, shared), rank, core, received.as_deref()),
        combine: combine(traffic, order, rank, core, received.as_deref()),
        ports: (!receive.is_direct()).then(|| {
            ports::of(traffic, args.step, core::iter::once(rank), |layout: &Shape| {
                let of = |core| traffic.dispatch(layout, rank, core, order, shared);
                vec![traffic.cores().map(of).collect()]
            })
        }),
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
    let moe = if in_blocks { &(0..0) } else { &share.moe };
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
    Dispatch {
        phases: phases(shape, traffic.choices, &work),
        flags: match flags {
            _ if in_blocks => "blocks",
            _ if receive.is_direct() => "ranks",
            flags => name_of_flags(flags),
        },
        moe_order: order.items(moe.clone(), ep).collect(),
        shared_order: order.items(share.shared.clone(), ep).collect(),
        expert_order: order.items(experts.clone(), ep).collect(),
        moe_pairs: ends(moe),
        index_pairs: ends(&share.moe),
        shared_pairs: ends(&share.shared),
        experts: ends(experts),
        blocks: in_blocks.then(|| blocks(shape)),
        sends: sends(traffic, rank, &writes),
        publishes: if receive.is_direct() { vec![] } else { destinations.clone().map(publish).collect() },
        destinations: ends(destinations),
        awaits: if receive.is_direct() { vec![] } else { slots.clone().map(wait).collect() },
        slots: ends(slots),
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

const fn name_of_flags(flags: Flags) -> &'static str {
    match flags {
        Flags::Joint => "joint",
        Flags::Separate => "separate",
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
    let Some(received) = received.filter(|_| pull.is_none()) else {
        return Combine { tp: exchange, rows: None, sends: None, tokens: ends(&tokens), awaits: None, pull };
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
        let (token, k, from) = (pair.token.0, pair.k, traffic.name(from));
        Some(AwaitRow { token, k, from, offset: flag(pair.token, pair.k) })
    });
    Combine {
        tp: exchange,
        rows: Some(ends(&split::rows(shape, received.len() as u32, core))),
        sends: Some(sends.collect()),
        awaits: Some(awaits.collect()),
        tokens: ends(&tokens),
        pull,
    }
}
