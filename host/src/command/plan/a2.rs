//! The plan of a rank of the A2 full mesh: what its cores reorder, what its agent posts, what it awaits.

use super::lists::Traffic;
use super::{known, page};
use crate::cli::{OrderArg, name_of};
use crate::report::{cell, lists, pairs};
use core::ops::Range;
use serde_json::{Value, json};
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

pub(super) fn of(traffic: &Traffic, order: OrderArg, rank: RankId, cores: Vec<CoreId>) -> Value {
    let shape = &traffic.shape;
    let maker = Maker { traffic, shape, rank, order: order.into(), cores };
    let sums = traffic.known.then(|| (sent(traffic, rank), received(traffic, rank)));
    let rows = sums.as_ref().map(|(_, received)| received.last().copied().unwrap_or(0));
    // Offsets are those of one half; operator N uses half N % 2. Ranges are [start, end). Lists are null when experts are not
    // known.
    json!({
        "order": name_of(order),
        "half": HALF.index(),
        "rank_window": shape.rank_window(),
        "tasks_per_operator": shape.ep_world_size() - 1,
        "cores": maker.cores.iter().map(|&core| maker.share(core, rows)).collect::<Vec<_>>(),
        "dispatch": sums.as_ref().map(|(sent, received)| maker.dispatch(sent, received)),
        "combine": sums.as_ref().map(|(sent, received)| maker.combine(sent, received)),
    })
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
    fn share(&self, core: CoreId, rows: Option<u32>) -> Value {
        let (shape, ends) = (self.shape, super::ends);
        json!({
            "core": core.0,
            // That it reorders in dispatch and sums in combine.
            "tokens": ends(&split::tokens(shape, self.rank, core)),
            // Whose windows it ends, sends and awaits.
            "ranks": ends(&split::ranks(shape, core)),
            // Received rows that it reorders in combine.
            "rows": rows.map(|rows| ends(&split::rows(shape, rows, core))),
        })
    }

    /// The core asked for in whose share a rank is.
    fn core_of(&self, rank: RankId) -> Option<u32> {
        let holds = |core: &&CoreId| split::ranks(self.shape, **core).contains(&rank.0);
        self.cores.iter().find(holds).map(|core| core.0)
    }

    fn window(&self, peer: RankId) -> u64 {
        window(self.shape, HALF, peer)
    }

    fn dispatch(&self, sent: &[u32], received: &[u32]) -> Value {
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
        json!({
            "expert_cumsum": sent,
            "expand_idx": expand_idx,
            "reorder": reorder.collect::<Vec<_>>(),
            // By peer and by the own rank: the head of its window.
            "send_status": self.traffic.all_ranks().map(|rank| cumsum.status(rank).to_vec()).collect::<Vec<_>>(),
            "tasks": self.tasks(Operator::Dispatch, |peer| cumsum.rows_to(peer)),
            "awaits": self.awaits(Operator::Dispatch, |from| counts.rows_from(from), counts_of),
            "ep_recv_counts": received,
        })
    }

    /// The pairs of these tokens and their slots.
    fn slots(&self, tokens: Range<u32>) -> (DispatchShare, Vec<u32>) {
        let k = self.shape.k();
        let share = DispatchShare { moe: tokens.start * k..tokens.end * k, shared: 0..0 };
        let slots = self.traffic.walk(self.rank, &share).1;
        (share, slots)
    }

    fn reordered(&self, core: CoreId, cumsum: &Cumsum<'_>, Send { pair, home, slot }: Send) -> Value {
        let position = cumsum.position(home, slot);
        json!({
            "core": core.0,
            "token": pair.token.0,
            "k": pair.k,
            "expert": home.rank.0 * self.shape.local_expert_num() + home.local_expert,
            "to": home.rank.0,
            "slot": slot,
            // Among the rows for `to`.
            "position": position,
            "offset": self.window(home.rank) + record(self.shape, position),
            "bytes": self.shape.window_record(),
        })
    }

    fn combine(&self, sent: &[u32], received: &[u32]) -> Value {
        let shape = self.shape;
        let cumsum = Cumsum { shape, sums: sent };
        let counts = RecvCounts { shape, sums: received };
        let rows = received.last().copied().unwrap_or(0);
        let reorder = self.cores.iter().flat_map(|&core| {
            split::rows(shape, rows, core).map(move |number| {
                let (to, position) = counts.source_of(number);
                let offset = self.window(to) + row(shape, position);
                let bytes = shape.row_bytes();
                json!({"core": core.0, "row": number, "to": to.0, "position": position, "offset": offset, "bytes": bytes})
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
            Some(
                json!({"core": core.0, "token": token, "k": k, "from": from, "position": position, "offset": offset}),
            )
        };
        json!({
            "reorder": reorder.collect::<Vec<_>>(),
            "tasks": self.tasks(Operator::Combine, |peer| counts.rows_from(peer)),
            "awaits": self.awaits(Operator::Combine, |from| cumsum.rows_to(from), |_| Vec::new()),
            // Where the rows of the own tokens lie when they have come back.
            "token_addr": self.cores.iter().flat_map(pairs).filter_map(addr).collect::<Vec<_>>(),
        })
    }

    /// Task records, in the order of issue.
    fn tasks(&self, kind: Operator, rows_to: impl Fn(RankId) -> u32) -> Vec<Value> {
        let ranks = self.shape.ep_world_size();
        let peers: Vec<_> = (0..ranks).filter(|&peer| peer != self.rank.0).collect();
        let order = self.order.items(0..ranks - 1, self.rank);
        let issued = order.filter_map(|i| {
            let peer = RankId(*peers.get(i as usize)?);
            let (core, rows) = (self.core_of(peer)?, rows_to(peer));
            let task = Task::new(self.shape, HALF, kind, self.rank, peer, rows);
            Some(json!({
                "core": core,
                "rows": rows,
                "offset": task_word(HALF, peer, 0).offset,
                "local_buf": task.local_buf,
                "remote_buf": task.remote_buf,
                "count": task.count,
                "data_type": task.data_type,
                "remote_rank_id": task.remote_rank_id,
                "bytes": task.count * ELEMENT,
            }))
        });
        issued.collect()
    }

    /// Windows that are awaited, in the own WindowsIn.
    fn awaits(
        &self,
        kind: Operator,
        rows_from: impl Fn(RankId) -> u32,
        counts: impl Fn(RankId) -> Vec<u32>,
    ) -> Vec<Value> {
        let wait = |from: RankId| {
            let (start, rows) = (self.window(from), rows_from(from));
            let mut wait = json!({
                "core": self.core_of(from)?,
                "from": from.0,
                "rows": rows,
                "offset": start,
                // FLAG2 of dispatch, FLAG of combine.
                "flag_offset": start + tail_flag(self.shape, kind, rows),
            });
            if kind == Operator::Dispatch {
                wait["counts"] = json!(counts(from));
                wait["flag1_offset"] = json!(start + FLAG1);
            }
            Some(wait)
        };
        self.traffic.all_ranks().filter_map(wait).collect()
    }
}

pub(super) fn summary(traffic: &Traffic) -> Value {
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
        json!({
            "rank": rank.0,
            "rows_sent": sent.last().copied().unwrap_or(0),
            "rows_received": received.last().copied().unwrap_or(0),
            "rows_to_itself": cumsum.rows_to(rank),
            "dispatch_task_bytes": tasks(Operator::Dispatch),
            "combine_task_bytes": tasks(Operator::Combine),
            "window_bytes_max": both.map(|(_, bytes)| bytes).max().unwrap_or(0),
        })
    };
    // Tasks carry whole windows, heads and flags included; what a rank sends to itself is in no task.
    let of_ranks: Vec<_> = traffic.all_ranks().filter(|_| traffic.known).map(of_rank).collect();
    json!({
        "rank_window": shape.rank_window(),
        "tasks_per_operator": shape.ep_world_size() - 1,
        "traffic": of_ranks,
    })
}

const TASK: &[&str] =
    &["core", "to=remote_rank_id", "rows", "record at=offset", "local_buf", "remote_buf", "count", "bytes"];
const AWAIT: &[&str] =
    &["core", "from", "rows", "window at=offset", "FLAG1 at=flag1_offset", "last flag at=flag_offset"];
const LISTS: [(&str, &str, &[&str]); 8] = [
    ("shares", "cores", &["core", "tokens..", "ranks..", "received rows=rows.."]),
    (
        "dispatch reorders",
        "dispatch.reorder",
        &["core", "token", "k", "expert", "to", "slot", "position", "offset", "bytes"],
    ),
    ("dispatch tasks, in the order of issue", "dispatch.tasks", TASK),
    ("dispatch awaits", "dispatch.awaits", AWAIT),
    ("combine reorders", "combine.reorder", &["core", "row", "to", "position", "offset", "bytes"]),
    ("combine tasks, in the order of issue", "combine.tasks", TASK),
    ("combine awaits", "combine.awaits", AWAIT),
    ("combine sums", "combine.token_addr", &["core", "token", "k", "from", "position", "offset"]),
];

/// The same for people.
pub(super) fn table(plan: &Value) -> String {
    let of = |field| cell(plan, field);
    let more = [
        ("half of all offsets", of("half")),
        ("bytes of a window", of("rank_window")),
        ("tasks", format!("{} per operator, {}", of("tasks_per_operator"), of("order"))),
    ];
    page(plan, more, &LISTS)
}

pub(super) fn summary_table(summary: &Value) -> String {
    let of = |field| cell(summary, field);
    let about = pairs(&[
        ("source", of("source")),
        ("group", format!("{} ranks x {} cores", of("ranks"), of("cores"))),
        ("experts", known(summary)),
        ("bytes of a window", of("rank_window")),
        ("tasks", format!("{} per rank and operator", of("tasks_per_operator"))),
    ]);
    let columns: &[&str] = &[
        "rank",
        "rows sent=rows_sent",
        "received=rows_received",
        "to itself=rows_to_itself",
        "dispatch tasks B=dispatch_task_bytes",
        "combine tasks B=combine_task_bytes",
        "fullest window B=window_bytes_max",
    ];
    if summary["experts_known"] == true {
        format!("{about}\n{}", lists(summary, &[("", "traffic", columns)]).concat())
    } else {
        about
    }
}
