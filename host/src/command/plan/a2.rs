//! The plan of a rank of the A2 full mesh: what its cores reorder, what its agent posts, what it awaits.

mod table;

pub(super) use table::{summary_table, table};

use super::Head;
use super::lists::Traffic;
use crate::cli::PlanArgs;
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

/// What a rank does, or one of its cores. Lists are `null` when experts are not known.
#[derive(Serialize)]
pub(super) struct RankPlan {
    #[serde(flatten)]
    head: Head,
    /// In which the agent issues the tasks of an operator.
    order: &'static str,
    /// Half of the windows and of the message area that all offsets are in. Operator N uses half N % 2.
    half: u32,
    /// Bytes of the window for one peer.
    rank_window: u64,
    /// One for each peer in each operator.
    tasks_per_operator: u32,
    cores: Vec<CoreShare>,
    dispatch: Option<Dispatch>,
    combine: Option<Combine>,
}

/// Ranges are `[start, end)`.
#[derive(Serialize)]
struct CoreShare {
    core: u32,
    /// That it reorders in dispatch and sums in combine.
    tokens: [u32; 2],
    /// Whose windows it ends, sends and awaits.
    ranks: [u32; 2],
    /// Received rows that it reorders in combine; `null`: not known.
    rows: Option<[u32; 2]>,
}

#[derive(Serialize)]
struct Dispatch {
    /// Rows of this rank before each expert, then all.
    expert_cumsum: Vec<u32>,
    /// By pair; -1 where nothing is sent.
    expand_idx: Vec<i32>,
    reorder: Vec<Reorder>,
    /// By peer and by the own rank: the head of its window.
    send_status: Vec<Vec<u32>>,
    tasks: Vec<Issued>,
    awaits: Vec<Await>,
    ep_recv_counts: Vec<u32>,
}

#[derive(Serialize)]
struct Combine {
    reorder: Vec<Return>,
    tasks: Vec<Issued>,
    awaits: Vec<Await>,
    /// Where the rows of the own tokens lie when they have come back.
    token_addr: Vec<Addr>,
}

/// A token that goes into a window: of WindowsOut, or of the own WindowsIn.
#[derive(Serialize)]
struct Reorder {
    core: u32,
    token: u32,
    k: u32,
    expert: u32,
    to: u32,
    slot: u32,
    /// Among the rows for `to`.
    position: u32,
    offset: u64,
    bytes: u64,
}

/// A result that does.
#[derive(Serialize)]
struct Return {
    core: u32,
    row: u32,
    to: u32,
    position: u32,
    offset: u64,
    bytes: u64,
}

/// A task record, in the order of issue.
#[derive(Serialize)]
struct Issued {
    /// Who writes it.
    core: u32,
    rows: u32,
    /// Of the record, in the state region.
    offset: u64,
    local_buf: u64,
    remote_buf: u64,
    count: u64,
    data_type: u32,
    remote_rank_id: u32,
    bytes: u64,
}

/// A window that is awaited, in the own WindowsIn.
#[derive(Serialize)]
struct Await {
    core: u32,
    from: u32,
    rows: u32,
    /// Dispatch: for each local expert.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    counts: Vec<u32>,
    offset: u64,
    /// Dispatch.
    #[serde(skip_serializing_if = "Option::is_none")]
    flag1_offset: Option<u64>,
    /// FLAG2 of dispatch, FLAG of combine.
    flag_offset: u64,
}

#[derive(Serialize)]
struct Addr {
    core: u32,
    token: u32,
    k: u32,
    from: u32,
    position: u32,
    /// In the own WindowsIn.
    offset: u64,
}

/// The plan of a rank that is being made.
struct Maker<'t> {
    traffic: &'t Traffic,
    shape: &'t Shape,
    rank: RankId,
    order: SendOrder,
    /// The cores whose part is asked for.
    cores: Vec<CoreId>,
}

pub(super) fn of(
    traffic: &Traffic,
    args: &PlanArgs,
    source: String,
    rank: RankId,
    core: Option<CoreId>,
) -> RankPlan {
    let shape = &traffic.shape;
    let cores = core.map_or_else(|| traffic.cores().collect(), |core| vec![core]);
    let maker = Maker { traffic, shape, rank, order: args.order.into(), cores };
    let sums = traffic.known.then(|| (sent(traffic, rank), received(traffic, rank)));
    let rows = sums.as_ref().map(|(_, received)| received.last().copied().unwrap_or(0));
    RankPlan {
        head: Head::new(traffic, args, source, rank, core),
        order: args.order.name(),
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
    fn share(&self, core: CoreId, rows: Option<u32>) -> CoreShare {
        let (shape, ends) = (self.shape, super::ends);
        CoreShare {
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
        let expand_idx = self.cores.iter().flat_map(of_core).map(u32::cast_signed).collect();
        let reorder = self.cores.iter().flat_map(|&core| {
            let (share, slots) = self.slots(split::tokens(shape, self.rank, core));
            let inputs = self.traffic.inputs(self.rank);
            let sends = Sends::new(shape, self.rank, SendOrder::Plain, &share);
            let sends: Vec<_> = sends.iter(&inputs, &slots).collect();
            sends.into_iter().map(move |send| self.reordered(core, &cumsum, send))
        });
        Dispatch {
            expert_cumsum: sent.to_vec(),
            expand_idx,
            reorder: reorder.collect(),
            send_status: self.traffic.all_ranks().map(|rank| cumsum.status(rank).to_vec()).collect(),
            tasks: self.tasks(Operator::Dispatch, |peer| cumsum.rows_to(peer)),
            awaits: self.awaits(
                Operator::Dispatch,
                |from| counts.rows_from(from),
                |from| (0..shape.local_expert_num()).map(|e| counts.rows(e, from)).collect(),
            ),
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
                Return { core: core.0, row: number, to: to.0, position, offset, bytes: shape.row_bytes() }
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
            Some(Addr { core: core.0, token, k, from, position, offset })
        };
        Combine {
            reorder: reorder.collect(),
            tasks: self.tasks(Operator::Combine, |peer| counts.rows_from(peer)),
            awaits: self.awaits(Operator::Combine, |from| cumsum.rows_to(from), |_| Vec::new()),
            token_addr: self.cores.iter().flat_map(pairs).filter_map(addr).collect(),
        }
    }

    fn tasks(&self, kind: Operator, rows_to: impl Fn(RankId) -> u32) -> Vec<Issued> {
        let ranks = self.shape.ep_world_size();
        let peers: Vec<_> = (0..ranks).filter(|&peer| peer != self.rank.0).collect();
        let order = self.order.items(0..ranks - 1, self.rank);
        let issued = order.filter_map(|i| {
            let peer = RankId(*peers.get(i as usize)?);
            let (core, rows) = (self.core_of(peer)?, rows_to(peer));
            let task = Task::new(self.shape, HALF, kind, self.rank, peer, rows);
            Some(Issued {
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
            Some(Await {
                core: self.core_of(from)?,
                from: from.0,
                rows,
                counts: counts(from),
                offset: start,
                flag1_offset: (kind == Operator::Dispatch).then_some(start + FLAG1),
                flag_offset: start + tail_flag(self.shape, kind, rows),
            })
        };
        self.traffic.all_ranks().filter_map(wait).collect()
    }
}

/// What all ranks come to.
#[derive(Serialize)]
pub(super) struct Summary {
    ok: bool,
    source: String,
    set: Vec<String>,
    ranks: u32,
    cores: u32,
    experts_known: bool,
    /// Bytes of the window for one peer.
    rank_window: u64,
    tasks_per_operator: u32,
    /// Empty unless experts are known.
    traffic: Vec<OfRank>,
}

/// One rank in one round. Tasks carry whole windows, heads and flags included; what a rank sends to itself is in no
/// task.
#[derive(Serialize)]
struct OfRank {
    rank: u32,
    rows_sent: u32,
    rows_received: u32,
    /// Of them those that stay on the rank.
    rows_to_itself: u32,
    dispatch_task_bytes: u64,
    combine_task_bytes: u64,
    /// Of its fullest window, in either operator: at most `rank_window`.
    window_bytes_max: u64,
}

pub(super) fn summary(traffic: &Traffic, args: &PlanArgs, source: String) -> Summary {
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
        let tasks = |kind| windows(kind).filter(|&(peer, _)| peer != rank).map(|(_, bytes)| bytes).sum();
        let both = [Operator::Dispatch, Operator::Combine].into_iter().flat_map(windows);
        OfRank {
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
        ok: true,
        source,
        set: args.config.set.clone(),
        ranks: shape.ep_world_size(),
        cores: shape.aiv_num(),
        experts_known: traffic.known,
        rank_window: shape.rank_window(),
        tasks_per_operator: shape.ep_world_size() - 1,
        traffic: if traffic.known { traffic.all_ranks().map(of_rank).collect() } else { Vec::new() },
    }
}
