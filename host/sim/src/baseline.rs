//! The AllGather and AllToAllV baseline that the operators replace, simulated over the same links (the A2 design and the
//! stages article of docs/internals/sources.md): all ranks gather the routing of all (AllGather), the host waits for it and
//! then knows the counts, rows are packed by receiver, exchanged (AllToAllV) and packed by expert; combine goes back the
//! same way. The host launches each of these; an exchange has one task for each peer, and begins and ends with a word to and
//! from each peer. The simulation has times only and keeps no bytes.

use super::costs::{Cluster, Links, PortBy, Ps, mbs, ps, transfer};
use super::network::{Event, Flow, Load, Network};
use super::timed::{Paces, WHOLE};
use veriep_case::case::Case;
use veriep_core::place::Place;
use veriep_core::plan::route;
use veriep_core::shape::{Product, Shape};
use veriep_core::units::{Pair, RankId, Token};
use veriep_trace::queue::Queue;

#[cfg(test)]
mod tests;

/// Bytes of a word between ranks.
const WORD: u64 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    /// The host waits until all before has ended.
    Sync,
    /// Cores copy rows that the rank sends in dispatch, or receives.
    Copy { received: bool },
    /// Every rank sends something to every rank.
    Exchange(Sent),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    /// The experts of all tokens.
    Routing,
    Rows,
    /// The same rows back.
    Results,
}

/// What a rank does, by operator.
const TASKS: [&[(&str, Task)]; 2] = [
    &[
        ("gathers routing", Task::Exchange(Sent::Routing)),
        ("the host waits", Task::Sync),
        ("puts rows together by rank", Task::Copy { received: false }),
        ("exchanges rows", Task::Exchange(Sent::Rows)),
        ("puts rows together by expert", Task::Copy { received: true }),
    ],
    &[
        ("puts results together by rank", Task::Copy { received: true }),
        ("exchanges results", Task::Exchange(Sent::Results)),
        ("sums", Task::Copy { received: false }),
    ],
];

/// How long it takes.
#[derive(Debug)]
pub struct Baseline {
    /// From its begin to its end on each rank, by operator (dispatch, combine), then rank.
    pub took: [Vec<Ps>; 2],
    /// What the slowest rank did, by operator, and for how long.
    pub parts: [Vec<(&'static str, Ps)>; 2],
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// I wait for what you send.
    Ready,
    Bytes,
    /// All that you have sent is here.
    Thanks,
}

#[derive(Clone, Copy, Debug)]
struct Message {
    what: What,
    from: usize,
    to: usize,
    task: usize,
}

#[derive(Debug)]
enum Due {
    /// A rank begins an exchange.
    Begin(usize),
    /// It has ended a task.
    End(usize),
    Network(Event),
}

#[derive(Debug, Default)]
struct Rank {
    /// Tasks that have ended, and when.
    ended: Vec<Ps>,
    /// When the host has issued what it has come to.
    issued: Ps,
    /// Messages that an exchange still waits for; none between exchanges.
    awaits: Option<usize>,
    /// By task, who waits for what this one sends.
    ready: Vec<Vec<usize>>,
}

struct Run<'r> {
    shape: &'r Shape,
    cluster: &'r Cluster,
    network: Network,
    queue: Queue<Due>,
    tasks: Vec<(&'static str, Task)>,
    /// Rows from each rank to each.
    rows: Vec<Vec<u64>>,
    paces: &'r Paces,
    ranks: Vec<Rank>,
    messages: Vec<Message>,
}

/// Runs a dispatch and a combine of a case.
pub fn run(case: &Case, cluster: &Cluster, paces: &Paces) -> Baseline {
    let shape = &case.shape;
    let ranks = shape.ep_world_size();
    let server = if shape.product() == Product::A2 { shape.server_ranks() } else { 0 };
    // These are long messages, which all ports share.
    let links = Links { port_by: PortBy::Even, ..cluster.links.clone() };
    let tasks = TASKS.concat();
    let mut run = Run {
        shape,
        cluster,
        network: Network::new(&links, &cluster.tier, ranks, server),
        queue: Queue::default(),
        rows: rows(case),
        paces,
        ranks: (0..ranks).map(|_| Rank { ready: vec![Vec::new(); tasks.len()], ..Rank::default() }).collect(),
        tasks,
        messages: Vec::new(),
    };
    run.drive();
    run.told()
}

/// Rows that each rank sends to each.
fn rows(case: &Case) -> Vec<Vec<u64>> {
    let shape = &case.shape;
    let of = |rank: u32| {
        let (rank, mut rows) = (RankId(rank), vec![0; shape.ep_world_size() as usize]);
        let inputs = case.inputs(rank);
        for token in (0..shape.bs(rank)).map(Token) {
            let pairs = (0..shape.combine_columns()).map(|k| Pair { token, k });
            for home in pairs.filter_map(|pair| route::home(shape, rank, &inputs, pair)) {
                rows[home.rank.index()] += 1;
            }
        }
        rows
    };
    (0..shape.ep_world_size()).map(of).collect()
}

impl Run<'_> {
    fn drive(&mut self) {
        for rank in 0..self.ranks.len() {
            let begins = self.paces.begins[rank];
            self.ranks[rank].issued = begins;
            self.next(rank, begins);
        }
        while let Some((now, due)) = self.queue.pop() {
            match due {
                Due::Begin(rank) => self.begin(rank, now),
                Due::End(rank) => {
                    self.ranks[rank].ended.push(now);
                    self.next(rank, now);
                }
                Due::Network(event) => {
                    let queue = &mut self.queue;
                    let later = &mut |at, event| queue.add(at, Due::Network(event));
                    if let Some(Load::Message(number)) = self.network.happens(event, now, later) {
                        self.arrived(self.messages[number as usize], now);
                    }
                }
            }
        }
    }

    /// The host issues the next task of a rank, whose last one has ended now: it runs ahead of the cores.
    fn next(&mut self, rank: usize, now: Ps) {
        let Some(&(_, task)) = self.tasks.get(self.ranks[rank].ended.len()) else { return };
        let costs = &self.cluster.costs;
        let slow = |cost: Ps| cost * self.paces.slow[rank] / WHOLE;
        let peers = (self.ranks.len() - 1) as f64;
        let Rank { issued, .. } = &mut self.ranks[rank];
        *issued = match task {
            Task::Sync => (*issued).max(now) + slow(ps(costs.sync_ns)),
            Task::Copy { .. } => *issued + slow(ps(costs.launch_ns)),
            Task::Exchange(_) => *issued + slow(ps(costs.launch_ns + costs.peer_ns * peers)),
        };
        let at = now.max(*issued);
        match task {
            Task::Sync => self.queue.add(at, Due::End(rank)),
            Task::Copy { received } => {
                let rows: u64 = match received {
                    true => self.rows.iter().map(|rows| rows[rank]).sum(),
                    false => self.rows[rank].iter().sum(),
                };
                let mbs = mbs(costs.copy_gbs) * u64::from(self.shape.aiv_num());
                let takes = slow(costs.copies.passes() * transfer(rows * self.shape.row_bytes(), mbs));
                self.queue.add(at + takes, Due::End(rank));
            }
            Task::Exchange(_) => self.queue.add(at, Due::Begin(rank)),
        }
    }

    /// A rank begins an exchange: it says so to every rank, and sends what a rank waits for.
    fn begin(&mut self, rank: usize, now: Ps) {
        let task = self.ranks[rank].ended.len();
        let ranks = self.ranks.len();
        // From each peer bytes, and thanks for those sent to it.
        self.ranks[rank].awaits = Some(2 * (ranks - 1));
        for to in (1..ranks).map(|distance| (rank + distance) % ranks) {
            self.send(Message { what: What::Ready, from: rank, to, task }, now);
        }
        for to in core::mem::take(&mut self.ranks[rank].ready[task]) {
            self.send(Message { what: What::Bytes, from: rank, to, task }, now);
        }
    }

    fn send(&mut self, message: Message, now: Ps) {
        let Message { what, from, to, task } = message;
        let bytes = match (what, self.tasks[task].1) {
            (What::Bytes, Task::Exchange(Sent::Routing)) => {
                4 * u64::from(self.shape.bs(RankId(from as u32)) * self.shape.k())
            }
            (What::Bytes, Task::Exchange(Sent::Rows)) => self.rows[from][to] * self.shape.payload_bytes(),
            (What::Bytes, Task::Exchange(Sent::Results)) => self.rows[to][from] * self.shape.result_bytes(),
            _ => WORD,
        };
        let load = Load::Message(self.messages.len() as u32);
        self.messages.push(message);
        let (from, to, operator) = (from as u32, to as u32, u8::from(task >= TASKS[0].len()));
        let flow = Flow { load, from, to, port: 0, left: bytes, rows: false, operator };
        let queue = &mut self.queue;
        let later = &mut |at, event| queue.add(at, Due::Network(event));
        if self.network.is_near(from, to) {
            self.network.send_near(flow, now, later);
        } else {
            self.network.send(flow, Place::window(0), now, later);
        }
    }

    fn arrived(&mut self, Message { what, from, to, task }: Message, now: Ps) {
        let is_there = self.ranks[to].ended.len() == task && self.ranks[to].awaits.is_some();
        match what {
            What::Ready if is_there => {
                self.send(Message { what: What::Bytes, from: to, to: from, task }, now);
            }
            What::Ready => self.ranks[to].ready[task].push(from),
            What::Bytes => {
                self.send(Message { what: What::Thanks, from: to, to: from, task }, now);
                self.has_come(to, now);
            }
            What::Thanks => self.has_come(to, now),
        }
    }

    /// Something has come that an exchange of a rank waits for.
    fn has_come(&mut self, rank: usize, now: Ps) {
        let awaits = &mut self.ranks[rank].awaits;
        *awaits = awaits.map(|left| left - 1).filter(|&left| left > 0);
        if awaits.is_none() {
            self.queue.add(now, Due::End(rank));
        }
    }

    fn told(self) -> Baseline {
        let first = [0, TASKS[0].len()];
        // When a rank began the operator.
        let begin = |rank: usize, operator: usize| match operator {
            0 => self.paces.begins[rank],
            _ => self.ranks[rank].ended[first[1] - 1],
        };
        let end = |rank: usize, operator: usize| {
            self.ranks[rank].ended[first[operator] + TASKS[operator].len() - 1]
        };
        let all = 0..self.ranks.len();
        let took = [0, 1].map(|operator| -> Vec<Ps> {
            all.clone().map(|rank| end(rank, operator) - begin(rank, operator)).collect()
        });
        let parts = [0, 1].map(|operator| {
            let slowest = all.clone().max_by_key(|&rank| took[operator][rank]).unwrap_or(0);
            let mut since = begin(slowest, operator);
            let ends = &self.ranks[slowest].ended[first[operator]..];
            let part = |(&(what, _), &end): (&(&'static str, Task), &Ps)| {
                (what, end - core::mem::replace(&mut since, end))
            };
            TASKS[operator].iter().zip(ends).map(part).collect()
        });
        Baseline { took, parts }
    }
}
