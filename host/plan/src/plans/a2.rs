//! The plan of a rank of the A2 full mesh: what its cores reorder, what its agent posts, what it awaits.

use super::Ends;
use super::lists::Traffic;
use crate::mode::order_name;
use core::ops::Range;
use serde::Serialize;
use veriep_core::layout::a2_message::{ELEMENT, Task, task_word};
use veriep_core::layout::a2_window::{FLAG1, record, row, sent_bytes, tail_flag, window};
use veriep_core::layout::state::{Operator, Partition};
use veriep_core::plan::order::SendOrder;
use veriep_core::plan::permute::{Cumsum, RecvCounts, add_gather_adds, cumulate};
use veriep_core::plan::route::{self, Send, Sends};
use veriep_core::plan::split::{self, DispatchShare};
use veriep_core::shape::Shape;
use veriep_core::units::{CoreId, Pair, RankId, Token};

/// The half of all offsets.
const HALF: Partition = Partition::P0;

/// The plan of a rank that is being made.
struct Maker<'t> {
    traffic: &'t Traffic,
    shape: &'t Shape,
    rank: RankId,
    order: SendOrder,
    /// The cores whose part is asked for.
    cores: Vec<CoreId>,
}

/// The plan of a rank, or of a core. Offsets are those of one half; operator N uses half N % 2. The operators are null when
/// experts are not known.
#[derive(Debug, Serialize)]
pub struct Plan {
    pub order: String,
    pub half: u32,
    pub rank_window: u64,
    pub tasks_per_operator: u32,
    pub cores: Vec<Share>,
    pub dispatch: Option<Dispatch>,
    pub combine: Option<Combine>,
}

/// The share of a core.
#[derive(Debug, Serialize)]
pub struct Share {
    pub core: u32,
    /// That it reorders in dispatch and sums in combine.
    pub tokens: Ends,
    /// Ranks whose windows it ends, sends and awaits.
    pub ranks: Ends,
    /// Received rows that it reorders in combine.
    pub rows: Option<Ends>,
}

#[derive(Debug, Serialize)]
pub struct Dispatch {
    pub expert_cumsum: Vec<u32>,
    /// -1 of a pair that has no slot.
    pub expand_idx: Vec<i32>,
    pub reorder: Vec<Reorder>,
    /// By rank: the head of its window.
    pub send_status: Vec<Vec<u32>>,
    pub tasks: Vec<TaskRecord>,
    pub awaits: Vec<Await>,
    pub ep_recv_counts: Vec<u32>,
}

#[derive(Debug, Serialize)]
pub struct Combine {
    pub reorder: Vec<ReorderRow>,
    pub tasks: Vec<TaskRecord>,
    pub awaits: Vec<Await>,
    /// The places of the rank's own tokens' rows when they have come back.
    pub token_addr: Vec<TokenRow>,
}

#[derive(Debug, Serialize)]
pub struct Reorder {
    pub core: u32,
    pub token: u32,
    pub k: u32,
    pub expert: u32,
    pub to: u32,
    pub slot: u32,
    /// Among the rows for `to`.
    pub position: u32,
    pub offset: u64,
    pub bytes: u64,
}

#[derive(Debug, Serialize)]
pub struct ReorderRow {
    pub core: u32,
    pub row: u32,
    pub to: u32,
    pub position: u32,
    pub offset: u64,
    pub bytes: u64,
}

#[derive(Debug, Serialize)]
pub struct TaskRecord {
    pub core: u32,
    pub rows: u32,
    pub offset: u64,
    pub local_buf: u64,
    pub remote_buf: u64,
    pub count: u64,
    pub data_type: u32,
    pub remote_rank_id: u32,
    pub bytes: u64,
}

/// A window that is awaited, in the rank's own WindowsIn.
#[derive(Debug, Serialize)]
pub struct Await {
    pub core: u32,
    pub from: u32,
    pub rows: u32,
    pub offset: u64,
    /// FLAG2 of dispatch, FLAG of combine.
    pub flag_offset: u64,
    /// Of dispatch alone, as is the next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counts: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flag1_offset: Option<u64>,
}

#[derive(Debug, Serialize)]
pub struct TokenRow {
    pub core: u32,
    pub token: u32,
    pub k: u32,
    pub from: u32,
    pub position: u32,
    pub offset: u64,
}

pub fn of(traffic: &Traffic, order: SendOrder, rank: RankId, cores: Vec<CoreId>) -> Plan {
    let shape = &traffic.shape;
    let maker = Maker { traffic, shape, rank, order, cores };
    let sums = traffic.known.then(|| (sent(traffic, rank), received(traffic, rank)));
    let rows = sums.as_ref().map(|(_, received)| received.last().copied().unwrap_or(0));
    Plan {
        order: order_name(order).to_owned(),
        half: HALF.index(),
        rank_window: shape.rank_window(),
        tasks_per_operator: shape.ep_world_size() - 1,
        cores: maker.cores.iter().map(|&core| maker.share(core, rows)).collect(),
        dispatch: sums.as_ref().map(|(sent, received)| maker.dispatch(sent, received)),
        combine: sums.as_ref().map(|(sent, received)| maker.combine(sent, received)),
    }
}

/// `expertCumsum` of a rank.
fn sent(traffic: &Traffic, rank: RankId) -> Vec<u32> {
    let mut sums = traffic.send_status(rank);
    sums.push(0);
    cumulate(&mut sums);
    sums
}

/// `ep_recv_counts` of a rank.
fn received(traffic: &Traffic, rank: RankId) -> Vec<u32> {
    let shape = &traffic.shape;
    let experts = shape.local_expert_num() as usize;
    let of_source = |source| {
        let sums = sent(traffic, source);
        Cumsum { shape, sums: &sums }.status(rank).into_iter().take(experts)
    };
    let mut matrix: Vec<u32> = traffic.all_ranks().flat_map(of_source).collect();
    let mut sums = vec![0; matrix.len()];
    add_gather_adds(&mut matrix, experts, &mut sums);
    sums
}

impl Maker<'_> {
    fn share(&self, core: CoreId, rows: Option<u32>) -> Share {
        let (shape, ends) = (self.shape, super::ends);
        Share {
            core: core.0,
            tokens: ends(&split::tokens(shape, self.rank, core)),
            ranks: ends(&split::ranks(shape, core)),
            rows: rows.map(|rows| ends(&split::rows(shape, rows, core))),
        }
    }

    /// The core asked for in whose share a rank is.
    fn core_of(&self, rank: RankId) -> Option<u32> {
        let holds = |core: &&CoreId| split::ranks(self.shape, **core).contains(&rank.0);
        self.cores.iter().find(holds).map(|core| core.0)
    }

    fn window(&self, peer: RankId) -> u64 {
        window(self.shape, HALF, peer)
    }

    fn dispatch(&self, sent: &[u32], received: &[u32]) -> Dispatch {
        let shape = self.shape;
        let cumsum = Cumsum { shape, sums: sent };
        let counts = RecvCounts { shape, sums: received };
        // NO_SLOT is the bit pattern of -1.
        let of_core = |&core: &CoreId| self.slots(split::tokens(shape, self.rank, core)).1;
        let expand_idx: Vec<_> = self.cores.iter().flat_map(of_core).map(u32::cast_signed).collect();
        let reorder = self.cores.iter().flat_map(|&core| {
            let (share, slots) = self.slots(split::tokens(shape, self.rank, core));
            let inputs = self.traffic.inputs(self.rank);
            let sends = Sends::new(shape, self.rank, SendOrder::Plain, &share);
            let sends: Vec<_> = sends.iter(&inputs, &slots).collect();
            sends.into_iter().map(move |send| self.reordered(core, &cumsum, send))
        });
        let counts_of =
            |from| (0..shape.local_expert_num()).map(|e| counts.rows(e, from)).collect::<Vec<_>>();
        Dispatch {
            expert_cumsum: sent.to_vec(),
            expand_idx,
            reorder: reorder.collect(),
            send_status: self.traffic.all_ranks().map(|rank| cumsum.status(rank).to_vec()).collect(),
            tasks: self.tasks(Operator::Dispatch, |peer| cumsum.rows_to(peer)),
            awaits: self.awaits(Operator::Dispatch, |from| counts.rows_from(from), counts_of),
            ep_recv_counts: received.to_vec(),
        }
    }

    /// The pairs of these tokens and their slots.
    fn slots(&self, tokens: Range<u32>) -> (DispatchShare, Vec<u32>) {
        let k = self.shape.k();
        let share = DispatchShare { moe: tokens.start * k..tokens.end * k, shared: 0..0 };
        let slots = self.traffic.walk(self.rank, &share).1;
        (share, slots)
    }

    fn reordered(&self, core: CoreId, cumsum: &Cumsum<'_>, Send { pair, home, slot }: Send) -> Reorder {
        let position = cumsum.position(home, slot);
        Reorder {
            core: core.0,
            token: pair.token.0,
            k: pair.k,
            expert: home.rank.0 * self.shape.local_expert_num() + home.local_expert,
            to: home.rank.0,
            slot,
            position,
            offset: self.window(home.rank) + record(self.shape, position),
            bytes: self.shape.window_record(),
        }
    }

    fn combine(&self, sent: &[u32], received: &[u32]) -> Combine {
        let shape = self.shape;
        let cumsum = Cumsum { shape, sums: sent };
        let counts = RecvCounts { shape, sums: received };
        let rows = received.last().copied().unwrap_or(0);
        let reorder = self.cores.iter().flat_map(|&core| {
            split::rows(shape, rows, core).map(move |number| {
                let (to, position) = counts.source_of(number);
                let offset = self.window(to) + row(shape, position);
                let bytes = shape.row_bytes();
                ReorderRow { core: core.0, row: number, to: to.0, position, offset, bytes }
            })
        });
        let inputs = self.traffic.inputs(self.rank);
        let (_, slots) = self.slots(0..shape.bs(self.rank));
        let pairs = |&core: &CoreId| {
            let tokens = split::tokens(shape, self.rank, core).map(Token);
            tokens.flat_map(move |token| (0..shape.k()).map(move |k| (core, Pair { token, k })))
        };
        let addr = |(core, pair): (CoreId, Pair)| {
            let home = route::home(shape, self.rank, &inputs, pair)?;
            let slot = slots.get((pair.token.0 * shape.k() + pair.k) as usize)?;
            let position = cumsum.position(home, *slot);
            let offset = self.window(home.rank) + row(shape, position);
            let (token, k, from) = (pair.token.0, pair.k, home.rank.0);
            Some(TokenRow { core: core.0, token, k, from, position, offset })
        };
        Combine {
            reorder: reorder.collect(),
            tasks: self.tasks(Operator::Combine, |peer| counts.rows_from(peer)),
            awaits: self.awaits(Operator::Combine, |from| cumsum.rows_to(from), |_| Vec::new()),
            token_addr: self.cores.iter().flat_map(pairs).filter_map(addr).collect(),
        }
    }

    /// Task records, in the order of issue.
    fn tasks(&self, kind: Operator, rows_to: impl Fn(RankId) -> u32) -> Vec<TaskRecord> {
        let ranks = self.shape.ep_world_size();
        let peers: Vec<_> = (0..ranks).filter(|&peer| peer != self.rank.0).collect();
        let order = self.order.items(0..ranks - 1, self.rank);
        let issued = order.filter_map(|i| {
            let peer = RankId(*peers.get(i as usize)?);
            let (core, rows) = (self.core_of(peer)?, rows_to(peer));
            let task = Task::new(self.shape, HALF, kind, self.rank, peer, rows);
            Some(TaskRecord {
                core,
                rows,
                offset: task_word(HALF, peer, 0).offset,
                local_buf: task.local_buf,
                remote_buf: task.remote_buf,
                count: task.count,
                data_type: task.data_type,
                remote_rank_id: task.remote_rank_id,
                bytes: task.count * ELEMENT,
            })
        });
        issued.collect()
    }

    fn awaits(
        &self,
        kind: Operator,
        rows_from: impl Fn(RankId) -> u32,
        counts: impl Fn(RankId) -> Vec<u32>,
    ) -> Vec<Await> {
        let wait = |from: RankId| {
            let (start, rows) = (self.window(from), rows_from(from));
            let is_dispatch = kind == Operator::Dispatch;
            Some(Await {
                core: self.core_of(from)?,
                from: from.0,
                rows,
                offset: start,
                flag_offset: start + tail_flag(self.shape, kind, rows),
                counts: is_dispatch.then(|| counts(from)),
                flag1_offset: is_dispatch.then_some(start + FLAG1),
            })
        };
        self.traffic.all_ranks().filter_map(wait).collect()
    }
}

/// All ranks, counted. Tasks carry whole windows, heads and flags included; what a rank sends to itself is in no task.
#[derive(Debug, Serialize)]
pub struct Summary {
    pub rank_window: u64,
    pub tasks_per_operator: u32,
    pub traffic: Vec<OfOne>,
}

/// One rank in one round.
#[derive(Debug, Serialize)]
pub struct OfOne {
    pub rank: u32,
    pub rows_sent: u32,
    pub rows_received: u32,
    pub rows_to_itself: u32,
    pub dispatch_task_bytes: u64,
    pub combine_task_bytes: u64,
    pub window_bytes_max: u64,
}

pub fn summary(traffic: &Traffic) -> Summary {
    let shape = &traffic.shape;
    let of_rank = |rank: RankId| {
        let (sent, received) = (sent(traffic, rank), received(traffic, rank));
        let (cumsum, counts) = (Cumsum { shape, sums: &sent }, RecvCounts { shape, sums: &received });
        let windows = |kind: Operator| {
            let rows = move |peer| match kind {
                Operator::Dispatch => cumsum.rows_to(peer),
                Operator::Combine => counts.rows_from(peer),
            };
            traffic.all_ranks().map(move |peer| (peer, sent_bytes(shape, kind, rows(peer))))
        };
        let tasks =
            |kind| windows(kind).filter(|&(peer, _)| peer != rank).map(|(_, bytes)| bytes).sum::<u64>();
        let both = [Operator::Dispatch, Operator::Combine].into_iter().flat_map(windows);
        OfOne {
            rank: rank.0,
            rows_sent: sent.last().copied().unwrap_or(0),
            rows_received: received.last().copied().unwrap_or(0),
            rows_to_itself: cumsum.rows_to(rank),
            dispatch_task_bytes: tasks(Operator::Dispatch),
            combine_task_bytes: tasks(Operator::Combine),
            window_bytes_max: both.map(|(_, bytes)| bytes).max().unwrap_or(0),
        }
    };
    Summary {
        rank_window: shape.rank_window(),
        tasks_per_operator: shape.ep_world_size() - 1,
        traffic: traffic.all_ranks().filter(|_| traffic.known).map(of_rank).collect(),
    }
}
