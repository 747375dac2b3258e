//! Links between ranks in virtual time. A rank's ports are one link out and one link in, at the rate of all of them; between
//! two ranks of a server there is a link for each direction. A link carries one chunk at a time.

use super::prices::{Egress, Links, Ps, mbs, ps, transfer};
use std::collections::{BTreeMap, HashMap, VecDeque};
use veriep_core::sim::FlightId;

/// What is sent from a rank to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flow {
    /// Its flight.
    pub flight: FlightId,
    /// The ranks between which it goes.
    pub from: u32,
    /// To this one.
    pub to: u32,
    /// The bytes that have still to be sent.
    pub left: u64,
    /// Whether it carries rows.
    pub rows: bool,
    /// The operator, 0 for dispatch and 1 for combine.
    pub operator: u8,
}

/// A part of a flow that a link carries in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Chunk {
    flow: Flow,
    bytes: u64,
}

/// What happens on the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// A flow is at the port of its sender.
    Enter(Flow),
    /// The port of a rank has sent a chunk.
    Sent(u32),
    /// The head of a chunk is at the port of its receiver.
    Head(Chunk),
    /// The port of a rank has received a chunk.
    Received(u32),
    /// A flow is there, by a link inside its server.
    Arrived(FlightId),
}

/// What a link has carried in one operator.
#[derive(Clone, Copy, Debug, Default)]
pub struct Carried {
    /// Bytes.
    pub bytes: u64,
    /// How long it was busy.
    pub busy: Ps,
    /// Bytes that have waited for it at once.
    pub queue_max: u64,
}

#[derive(Debug, Default)]
struct Out {
    busy: bool,
    /// By destination, or all in one.
    queues: BTreeMap<u32, VecDeque<Flow>>,
    /// Destinations that wait for their turn.
    turns: VecDeque<u32>,
    waiting: u64,
    carried: [Carried; 2],
}

#[derive(Debug, Default)]
struct In {
    queue: VecDeque<Chunk>,
    waiting: u64,
    /// Chunks of rows that are here, by sender.
    senders: HashMap<u32, u32>,
    /// The most senders with rows here at once.
    incast: [usize; 2],
    carried: [Carried; 2],
}

/// All links.
#[derive(Debug)]
pub struct Network {
    rate: u64,
    latency: Ps,
    near_rate: u64,
    near_latency: Ps,
    egress: Egress,
    chunk: u64,
    /// Ranks of a server; 0 where there are no servers.
    server: u32,
    out: Vec<Out>,
    into: Vec<In>,
    /// When a link inside a server is free again.
    near: HashMap<(u32, u32), Ps>,
    /// Bytes by links inside servers, by sending rank and operator.
    near_bytes: Vec<[u64; 2]>,
}

impl Network {
    /// The links of `ranks` ranks, of which `server` each are a server.
    #[must_use]
    pub fn new(links: &Links, ranks: u32, server: u32) -> Self {
        Self {
            rate: mbs(links.port_gbs * f64::from(links.ports)),
            latency: ps(links.port_ns),
            near_rate: mbs(links.near_gbs),
            near_latency: ps(links.near_ns),
            egress: links.egress,
            chunk: links.chunk.into(),
            server,
            out: (0..ranks).map(|_| Out::default()).collect(),
            into: (0..ranks).map(|_| In::default()).collect(),
            near: HashMap::new(),
            near_bytes: vec![[0; 2]; ranks as usize],
        }
    }

    /// Whether both ranks are in one server.
    #[must_use]
    pub const fn is_near(&self, a: u32, b: u32) -> bool {
        self.server > 0 && a / self.server == b / self.server
    }

    /// Sends a flow at time `at`, by ports or inside the server. `later` is given what happens and when.
    pub fn send(&mut self, flow: Flow, by_ports: bool, at: Ps, later: &mut impl FnMut(Ps, Event)) {
        if by_ports {
            return later(at, Event::Enter(flow));
        }
        let free = self.near.entry((flow.from, flow.to)).or_default();
        *free = at.max(*free) + transfer(flow.left, self.near_rate);
        self.near_bytes[flow.from as usize][usize::from(flow.operator)] += flow.left;
        later(*free + self.near_latency, Event::Arrived(flow.flight));
    }

    /// Something has happened at time `now`. Returns the flight that is whole at its receiver now.
    pub fn happens(&mut self, event: Event, now: Ps, later: &mut impl FnMut(Ps, Event)) -> Option<FlightId> {
        match event {
            Event::Arrived(flight) => return Some(flight),
            Event::Enter(flow) => {
                let queue_of = if self.egress == Egress::Fair { flow.to } else { 0 };
                let out = &mut self.out[flow.from as usize];
                let queue = out.queues.entry(queue_of).or_default();
                if queue.is_empty() {
                    out.turns.push_back(queue_of);
                }
                queue.push_back(flow);
                out.waiting += flow.left;
                let carried = &mut out.carried[usize::from(flow.operator)];
                carried.queue_max = carried.queue_max.max(out.waiting);
                if !out.busy {
                    self.send_next(flow.from, now, later);
                }
            }
            Event::Sent(rank) => {
                self.out[rank as usize].busy = false;
                self.send_next(rank, now, later);
            }
            Event::Head(chunk) => {
                let into = &mut self.into[chunk.flow.to as usize];
                if chunk.flow.rows {
                    *into.senders.entry(chunk.flow.from).or_default() += 1;
                    let incast = &mut into.incast[usize::from(chunk.flow.operator)];
                    *incast = (*incast).max(into.senders.len());
                }
                into.queue.push_back(chunk);
                into.waiting += chunk.bytes;
                let carried = &mut into.carried[usize::from(chunk.flow.operator)];
                carried.queue_max = carried.queue_max.max(into.waiting);
                if into.queue.len() == 1 {
                    later(now + transfer(chunk.bytes, self.rate), Event::Received(chunk.flow.to));
                }
            }
            Event::Received(rank) => {
                let into = &mut self.into[rank as usize];
                let chunk = into.queue.pop_front()?;
                into.waiting -= chunk.bytes;
                let carried = &mut into.carried[usize::from(chunk.flow.operator)];
                carried.bytes += chunk.bytes;
                carried.busy += transfer(chunk.bytes, self.rate);
                if let Some(next) = into.queue.front() {
                    later(now + transfer(next.bytes, self.rate), Event::Received(rank));
                }
                if chunk.flow.rows
                    && let Some(chunks) = into.senders.get_mut(&chunk.flow.from)
                {
                    *chunks -= 1;
                    if *chunks == 0 {
                        into.senders.remove(&chunk.flow.from);
                    }
                }
                return (chunk.flow.left == 0).then_some(chunk.flow.flight);
            }
        }
        None
    }

    fn send_next(&mut self, rank: u32, now: Ps, later: &mut impl FnMut(Ps, Event)) {
        let out = &mut self.out[rank as usize];
        let Some(turn) = out.turns.pop_front() else { return };
        let Some(queue) = out.queues.get_mut(&turn) else { return };
        let Some(flow) = queue.front_mut() else { return };
        let bytes = flow.left.min(self.chunk);
        flow.left -= bytes;
        let chunk = Chunk { flow: *flow, bytes };
        if flow.left == 0 {
            queue.pop_front();
        }
        match (queue.is_empty(), self.egress) {
            (true, _) => {}
            (false, Egress::Fair) => out.turns.push_back(turn),
            (false, Egress::Fifo) => out.turns.push_front(turn),
        }
        let takes = transfer(bytes, self.rate);
        (out.busy, out.waiting) = (true, out.waiting - bytes);
        let carried = &mut out.carried[usize::from(chunk.flow.operator)];
        carried.bytes += bytes;
        carried.busy += takes;
        later(now + takes, Event::Sent(rank));
        later(now + self.latency, Event::Head(chunk));
    }

    /// What the port of a rank has sent and received in an operator.
    #[must_use]
    pub fn carried(&self, rank: u32, operator: usize) -> [Carried; 2] {
        [self.out[rank as usize].carried[operator], self.into[rank as usize].carried[operator]]
    }

    /// The most senders that had rows at the port of a rank at once.
    #[must_use]
    pub fn incast(&self, rank: u32, operator: usize) -> usize {
        self.into[rank as usize].incast[operator]
    }

    /// How long an operator takes if nothing but bytes counts: those of the busiest port, then those inside the server, which
    /// go to all other ranks of it at once.
    #[must_use]
    pub fn formula(&self, operator: usize) -> Ps {
        let ranks = || 0..self.out.len() as u32;
        let across = ranks().flat_map(|rank| self.carried(rank, operator)).map(|carried| carried.bytes).max();
        let inside = self.near_bytes.iter().map(|bytes| bytes[operator]).max();
        let links = u64::from(self.server.saturating_sub(1));
        transfer(across.unwrap_or(0), self.rate) + transfer(inside.unwrap_or(0), self.near_rate * links)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cmp::Reverse;
    use std::collections::BinaryHeap;
    use veriep_core::fabric::Fabric;
    use veriep_core::place::Place;
    use veriep_core::shape::{Config, Limits, Shape};
    use veriep_core::sim::storage::group_sizes;
    use veriep_core::sim::{Choice, Chooser, Dense, Flight, Memory};
    use veriep_core::units::{CoreId, RankId};

    /// Ten gigabytes a second: a thousand bytes take 100 ns.
    fn links(egress: Egress) -> Links {
        Links {
            source: String::new(),
            ports: 2,
            port_gbs: 5.0,
            port_ns: 700.0,
            near_gbs: 1.0,
            near_ns: 30.0,
            egress,
            chunk: 500,
        }
    }

    /// Names of flights, which a memory alone can give.
    fn names(number: usize) -> Vec<FlightId> {
        #[derive(Debug, Default)]
        struct Names(Vec<FlightId>);
        impl Chooser for Names {
            fn next(&mut self) -> Option<Choice> {
                None
            }
            fn may_land(&mut self, flight: FlightId, _: &Flight) {
                self.0.push(flight);
            }
        }
        let config = Config { ep_world_size: 2, moe_expert_num: 2, k: 1, h: 1024, ..Config::default() };
        let shape = Shape::new(&config, Limits::None).unwrap();
        let mut memory = Memory::new(&shape, Dense::new(group_sizes(&shape)), Names::default());
        for i in 0..number as u64 {
            memory
                .fabric(RankId(0), CoreId(0), 0)
                .put(RankId(1), Place::window(512 * i), &[1; 8], &[])
                .unwrap();
        }
        memory.chooser.0
    }

    /// When each of some flows arrives, which are sent at these times in nanoseconds.
    fn arrivals(egress: Egress, server: u32, sent: &[(u64, u32, u32, u64)]) -> Vec<Ps> {
        let mut network = Network::new(&links(egress), 4, server);
        let mut queue = BinaryHeap::new();
        let mut numbered = 0;
        let names = names(sent.len());
        for (&(at, from, to, left), &flight) in sent.iter().zip(&names) {
            let flow = Flow { flight, from, to, left, rows: true, operator: 0 };
            let by_ports = !network.is_near(from, to);
            network.send(flow, by_ports, 1000 * at, &mut |at, event| {
                numbered += 1;
                queue.push(Reverse((at, numbered, event)));
            });
        }
        let mut arrived = vec![0; sent.len()];
        while let Some(Reverse((now, _, event))) = queue.pop() {
            let flight = network.happens(event, now, &mut |at, event| {
                numbered += 1;
                queue.push(Reverse((at, numbered, event)));
            });
            if let Some(number) = flight.and_then(|flight| names.iter().position(|&name| name == flight)) {
                arrived[number] = now / 1000;
            }
        }
        arrived
    }

    #[test]
    fn one_flow_takes_its_bytes_and_the_way() {
        assert_eq!(arrivals(Egress::Fifo, 0, &[(5, 0, 1, 3000)]), [5 + 300 + 700]);
        assert_eq!(arrivals(Egress::Fifo, 2, &[(5, 0, 1, 3000)]), [5 + 3000 + 30]);
    }

    #[test]
    fn a_port_sends_in_order_or_by_turns() {
        let sent = [(0, 0, 1, 3000), (0, 0, 2, 1000)];
        assert_eq!(arrivals(Egress::Fifo, 0, &sent), [1000, 1100]);
        // The second comes when the first has had one turn of 500 bytes, and has the next one: 1, 1, 2, 1, 2, 1, 1, 1.
        assert_eq!(arrivals(Egress::Fair, 0, &sent), [1100, 950]);
    }

    #[test]
    fn many_senders_share_the_port_of_a_receiver() {
        let sent = [(0, 0, 3, 1000), (0, 1, 3, 1000), (0, 2, 3, 1000)];
        let mut times = arrivals(Egress::Fifo, 0, &sent);
        times.sort_unstable();
        // By turns of chunks: the last of each is the 4th, 5th and 6th.
        assert_eq!(times, [700 + 200, 700 + 250, 700 + 300]);
    }
}
