//! Links between ranks in virtual time. A rank has ports, each with a link out and a link in; where they share its traffic evenly
//! they are one link at the rate of all. Between two ranks of a server there is a link for each direction, and groups of ranks
//! may share links to the others ([`Tier`]). A link carries one chunk at a time.

use super::costs::{Egress, Links, PortBy, Ps, Tier, mbs, ps, transfer};
use std::collections::{HashMap, VecDeque};
use veriep_core::place::Place;
use veriep_core::shape::Shape;
use veriep_core::sim::{Actor, FlightId};
use veriep_core::units::RankId;
use veriep_spread::port::{self, Bits20To9};
use veriep_trace::events::timeline::{Busy, Direction};

#[cfg(test)]
mod tests;

/// For whom something is carried, who is told when all of it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Load {
    /// An effect on its way.
    Flight(FlightId),
    /// What a core has read in another rank's memory.
    Read(Actor),
    /// A message of that number; the sender counts them.
    Message(u32),
}

/// What is sent from a rank to another by one port.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    pub load: Load,
    /// The ranks between which it goes.
    pub from: u32,
    /// To this one.
    pub to: u32,
    /// The port at both of them.
    pub port: u32,
    /// The bytes that have still to be sent.
    pub left: u64,
    /// Whether it carries rows.
    pub rows: bool,
    /// The operator, 0 for dispatch and 1 for combine.
    pub operator: u8,
}

/// A flow that has not ended, by its number.
type Number = u32;

/// A part of a flow that a link carries in one piece.
#[derive(Clone, Copy, Debug)]
pub struct Chunk {
    flow: Number,
    bytes: u32,
    /// Shared links that it has passed.
    passed: u8,
    /// Whether it is the end of the flow.
    last: bool,
}

/// What happens on the network.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// A flow is at the port of its sender.
    Enter(Number),
    /// A port, counted over all ranks, has sent a chunk, and something waits for it.
    Sent(u32),
    /// A chunk is at a link that it shares with others, or after the last of them.
    At(Chunk),
    /// A shared link has carried a chunk.
    Passed(u32),
    /// A port has received a chunk.
    Received(Chunk),
    /// A flow is there, by a link inside its server or on its own rank.
    Arrived(Number),
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

impl Carried {
    /// What two ports of a rank have carried: the time is that of the busier one.
    fn with(self, other: Self) -> Self {
        Self {
            bytes: self.bytes + other.bytes,
            busy: self.busy.max(other.busy),
            queue_max: self.queue_max.max(other.queue_max),
        }
    }
}

#[derive(Debug, Default)]
struct Out {
    /// Until when it is busy.
    until: Ps,
    /// Whether it will be told that it is free.
    told: bool,
    /// By destination, or all in one.
    queues: Vec<VecDeque<Number>>,
    /// Destinations that wait for their turn.
    turns: VecDeque<u32>,
    waiting: u64,
    carried: [Carried; 2],
}

#[derive(Debug, Default)]
struct In {
    /// When everything that is on its way has been received.
    until: Ps,
    /// Heads of chunks that come, and when.
    heads: VecDeque<(Ps, Chunk)>,
    waiting: u64,
    /// Bytes that are here or on their way.
    expected: u64,
    /// Ports that have something for this one and no room for it.
    stopped: Vec<u32>,
    /// Chunks of rows that are here, by sender, and of how many senders.
    senders: Vec<u32>,
    present: usize,
    /// The most senders with rows here at once.
    incast: [usize; 2],
    carried: [Carried; 2],
}

impl In {
    /// The head of a chunk is here.
    fn is_here(&mut self, flow: &Flow, chunk: Chunk) {
        let operator = usize::from(flow.operator);
        if flow.rows {
            if self.senders.len() <= flow.from as usize {
                self.senders.resize(flow.from as usize + 1, 0);
            }
            let chunks = &mut self.senders[flow.from as usize];
            self.present += usize::from(*chunks == 0);
            *chunks += 1;
            self.incast[operator] = self.incast[operator].max(self.present);
        }
        self.waiting += u64::from(chunk.bytes);
        self.carried[operator].queue_max = self.carried[operator].queue_max.max(self.waiting);
    }
}

/// A link that the ranks of a group share.
#[derive(Debug, Default)]
struct Shared {
    rate: u64,
    queue: VecDeque<Chunk>,
}

/// The links of groups of ranks: out of each group, then into each.
#[derive(Debug)]
struct Groups {
    ranks: u32,
    latency: Ps,
    /// Of a port, for what leaves or enters a group.
    rate: u64,
    /// Where the links of its groups begin among the shared ones.
    first: u32,
    groups: u32,
}

impl Groups {
    const fn is_crossed_by(&self, flow: &Flow) -> bool {
        flow.from / self.ranks != flow.to / self.ranks
    }
}

/// How fast a port sends and receives a flow: as the slowest of the tiers that it crosses.
fn port_rate(tiers: &[Groups], own: u64, flow: &Flow) -> u64 {
    tiers.iter().filter(|tier| tier.is_crossed_by(flow)).map(|tier| tier.rate).fold(own, u64::min)
}

/// All links.
#[derive(Debug)]
pub struct Network {
    /// Of a port.
    rate: u64,
    latency: Ps,
    near_rate: u64,
    near_latency: Ps,
    egress: Egress,
    chunk: u64,
    /// Bytes that may be at a port of a receiver or on their way to it; 0 for any number.
    buffer: u64,
    /// Ports of a rank, 1 where they share its traffic evenly.
    ports: u32,
    by: Option<(PortBy, Shape)>,
    /// Ranks of a server; 0 where there are no servers.
    server: u32,
    out: Vec<Out>,
    into: Vec<In>,
    tiers: Vec<Groups>,
    shared: Vec<Shared>,
    /// Flows that have not ended, by number.
    flows: Vec<Flow>,
    /// Numbers of flows that have ended.
    unused: Vec<Number>,
    /// Flows in which a load has still to come, if it has more than one.
    parts: HashMap<Load, u32>,
    /// When a link inside a server is free again.
    near: HashMap<(u32, u32), Ps>,
    /// Bytes by links inside servers, by rank and operator: out, in.
    near_bytes: Vec<[[u64; 2]; 2]>,
    /// When ports were busy, if that is asked for.
    pub busy: Option<Vec<Busy>>,
    last_busy: HashMap<(u32, Direction), usize>,
}

impl Network {
    /// The links of `ranks` ranks, of which `server` each are a server.
    pub fn new(links: &Links, tiers: &[Tier], ranks: u32, server: u32) -> Self {
        let ports = if links.port_by == PortBy::Even { 1 } else { links.ports };
        let together = if links.port_by == PortBy::Even { links.ports } else { 1 };
        let of_rank = mbs(links.port_gbs * f64::from(links.ports));
        let port_rate = |gbs: f64| mbs(gbs * f64::from(together));
        let mut shared = Vec::new();
        let group = |tier: &Tier| {
            let groups = ranks.div_ceil(tier.ranks);
            let first = shared.len() as u32;
            let rate = (of_rank as f64 * f64::from(tier.ranks) / tier.oversubscription).max(1.0) as u64;
            shared.extend((0..2 * groups).map(|_| Shared { rate, queue: VecDeque::new() }));
            let port_gbs = if tier.port_gbs == 0.0 { links.port_gbs } else { tier.port_gbs };
            Groups { ranks: tier.ranks, latency: ps(tier.ns), rate: port_rate(port_gbs), first, groups }
        };
        let tiers = tiers.iter().map(group).collect();
        let all = ranks * ports;
        Self {
            rate: port_rate(links.port_gbs),
            latency: ps(links.port_ns),
            near_rate: mbs(links.near_gbs),
            near_latency: ps(links.near_ns),
            egress: links.egress,
            chunk: links.chunk.into(),
            buffer: links.buffer,
            ports,
            by: None,
            server,
            out: (0..all).map(|_| Out::default()).collect(),
            into: (0..all).map(|_| In::default()).collect(),
            tiers,
            shared,
            flows: Vec::new(),
            unused: Vec::new(),
            parts: HashMap::new(),
            near: HashMap::new(),
            near_bytes: vec![[[0; 2]; 2]; ranks as usize],
            busy: None,
            last_busy: HashMap::new(),
        }
    }

    /// The same with ports chosen by addresses, where ranks have those regions.
    #[must_use]
    pub fn with_addresses(mut self, by: PortBy, shape: &Shape) -> Self {
        self.by = (by != PortBy::Even).then(|| (by, shape.clone()));
        self
    }

    /// Whether both ranks are in one server.
    pub const fn is_near(&self, a: u32, b: u32) -> bool {
        self.server > 0 && a / self.server == b / self.server
    }

    fn numbered(&mut self, flow: Flow) -> Number {
        match self.unused.pop() {
            Some(number) => {
                self.flows[number as usize] = flow;
                number
            }
            None => {
                self.flows.push(flow);
                self.flows.len() as Number - 1
            }
        }
    }

    /// How long the way is, without what the bytes take.
    pub const fn way(&self, near: bool) -> Ps {
        if near { self.near_latency } else { self.latency }
    }

    /// Sends a flow by ports at time `at`, to a place in the receiver's memory. `later` is given what happens and when.
    pub fn send(&mut self, flow: Flow, to: Place, at: Ps, later: &mut impl FnMut(Ps, Event)) {
        let Some((by, shape)) = &self.by else { return later(at, Event::Enter(self.numbered(flow))) };
        let mut loads = [port::Load::default(); port::PORTS];
        port::add(&Bits20To9, shape, RankId(flow.to), to, flow.left, &mut loads);
        let by = *by;
        let ports = (0..).zip(&loads);
        match by {
            PortBy::Even => later(at, Event::Enter(self.numbered(flow))),
            PortBy::Write => {
                let port = ports.filter(|(_, load)| load.heads > 0).map(|(port, _)| port).next();
                later(at, Event::Enter(self.numbered(Flow { port: port.unwrap_or(0), ..flow })));
            }
            PortBy::Packet => {
                let mut count = 0;
                for (port, load) in ports.filter(|(_, load)| load.bytes > 0) {
                    count += 1;
                    later(at, Event::Enter(self.numbered(Flow { port, left: load.bytes, ..flow })));
                }
                self.parts.insert(flow.load, count);
            }
        }
    }

    /// Sends a flow by the link inside the server.
    pub fn send_near(&mut self, flow: Flow, at: Ps, later: &mut impl FnMut(Ps, Event)) {
        let free = self.near.entry((flow.from, flow.to)).or_default();
        *free = at.max(*free) + transfer(flow.left, self.near_rate);
        let at = *free + self.near_latency;
        let operator = usize::from(flow.operator);
        self.near_bytes[flow.from as usize][operator][0] += flow.left;
        self.near_bytes[flow.to as usize][operator][1] += flow.left;
        self.stay(flow, at, later);
    }

    /// A flow that takes no link is there at time `at`.
    pub fn stay(&mut self, flow: Flow, at: Ps, later: &mut impl FnMut(Ps, Event)) {
        later(at, Event::Arrived(self.numbered(flow)));
    }

    /// Something has happened at time `now`. Returns what is whole at its receiver now.
    pub fn happens(&mut self, event: Event, now: Ps, later: &mut impl FnMut(Ps, Event)) -> Option<Load> {
        match event {
            Event::Arrived(number) => return Some(self.ended(number)),
            Event::Enter(number) => {
                let flow = self.flows[number as usize];
                let queue_of = if self.egress == Egress::Fair { flow.to } else { 0 };
                let port = flow.from * self.ports + flow.port;
                let out = &mut self.out[port as usize];
                if out.queues.len() <= queue_of as usize {
                    out.queues.resize_with(queue_of as usize + 1, VecDeque::new);
                }
                let queue = &mut out.queues[queue_of as usize];
                if queue.is_empty() {
                    out.turns.push_back(queue_of);
                }
                queue.push_back(number);
                out.waiting += flow.left;
                let carried = &mut out.carried[usize::from(flow.operator)];
                carried.queue_max = carried.queue_max.max(out.waiting);
                self.send_next(port, now, later);
            }
            Event::Sent(port) => {
                self.out[port as usize].told = false;
                self.send_next(port, now, later);
            }
            Event::At(chunk) => self.arrives_at(chunk, now, later),
            Event::Passed(link) => {
                let shared = &mut self.shared[link as usize];
                let chunk = shared.queue.pop_front()?;
                if let Some(next) = shared.queue.front() {
                    later(now + transfer(next.bytes.into(), shared.rate), Event::Passed(link));
                }
                later(now, Event::At(Chunk { passed: chunk.passed + 1, ..chunk }));
            }
            Event::Received(chunk) => return self.received(chunk, now, later),
        }
        None
    }

    fn ended(&mut self, number: Number) -> Load {
        self.unused.push(number);
        self.flows[number as usize].load
    }

    /// A port sends the next chunk that it can, if it is free; who waits for it is told when it will be.
    fn send_next(&mut self, port: u32, now: Ps, later: &mut impl FnMut(Ps, Event)) {
        let mut begun = None;
        let out = &mut self.out[port as usize];
        let turns = if out.until > now { 0 } else { out.turns.len() };
        for _ in 0..turns {
            let Some(turn) = out.turns.pop_front() else { break };
            let queue = &mut out.queues[turn as usize];
            let Some(&number) = queue.front() else { continue };
            let flow = &mut self.flows[number as usize];
            let bytes = flow.left.min(self.chunk);
            let into = &mut self.into[(flow.to * self.ports + flow.port) as usize];
            if self.buffer > 0 && into.expected + bytes > self.buffer {
                if !into.stopped.contains(&port) {
                    into.stopped.push(port);
                }
                match self.egress {
                    Egress::Fair => out.turns.push_back(turn),
                    // What is behind the head of the line waits with it.
                    Egress::Fifo => return out.turns.push_front(turn),
                }
                continue;
            }
            into.expected += bytes;
            flow.left -= bytes;
            if flow.left == 0 {
                queue.pop_front();
            }
            match (queue.is_empty(), self.egress) {
                (true, _) => {}
                (false, Egress::Fair) => out.turns.push_back(turn),
                (false, Egress::Fifo) => out.turns.push_front(turn),
            }
            let takes = transfer(bytes, port_rate(&self.tiers, self.rate, flow));
            (out.until, out.waiting) = (now + takes, out.waiting - bytes);
            let carried = &mut out.carried[usize::from(flow.operator)];
            carried.bytes += bytes;
            carried.busy += takes;
            begun = Some(Chunk { flow: number, bytes: bytes as u32, passed: 0, last: flow.left == 0 });
            break;
        }
        let is_busy = begun.is_some() || out.until > now;
        if is_busy && !out.turns.is_empty() && !core::mem::replace(&mut out.told, true) {
            later(out.until, Event::Sent(port));
        }
        let Some(chunk) = begun else { return };
        self.was_busy(chunk, Direction::Out, (now, self.out[port as usize].until));
        if self.tiers.is_empty() {
            self.comes(chunk, now + self.latency, later);
        } else {
            later(now + self.latency, Event::At(chunk));
        }
    }

    /// A chunk goes on to the next link that it shares with others: out of its groups from the smallest on, then into those of
    /// its receiver.
    fn arrives_at(&mut self, chunk: Chunk, now: Ps, later: &mut impl FnMut(Ps, Event)) {
        let flow = self.flows[chunk.flow as usize];
        let Flow { from, to, .. } = flow;
        let crossed = || self.tiers.iter().filter(|tier| tier.is_crossed_by(&flow));
        let out = crossed().map(|tier| (tier.first + from / tier.ranks, tier.latency));
        let into = crossed().map(|tier| (tier.first + tier.groups + to / tier.ranks, tier.latency));
        // The filters are of slices, so they can be walked from behind.
        let Some((link, latency)) = out.chain(into.rev()).nth(chunk.passed.into()) else {
            return self.comes(chunk, now, later);
        };
        let shared = &mut self.shared[link as usize];
        shared.queue.push_back(chunk);
        if shared.queue.len() == 1 {
            later(now + latency + transfer(chunk.bytes.into(), shared.rate), Event::Passed(link));
        }
    }

    /// The head of a chunk will be at the port of its receiver at time `at`, no earlier than that of any before it.
    fn comes(&mut self, chunk: Chunk, at: Ps, later: &mut impl FnMut(Ps, Event)) {
        let flow = &self.flows[chunk.flow as usize];
        let into = &mut self.into[(flow.to * self.ports + flow.port) as usize];
        into.heads.push_back((at, chunk));
        let takes = transfer(chunk.bytes.into(), port_rate(&self.tiers, self.rate, flow));
        into.until = into.until.max(at) + takes;
        later(into.until, Event::Received(chunk));
    }

    fn received(&mut self, chunk: Chunk, now: Ps, later: &mut impl FnMut(Ps, Event)) -> Option<Load> {
        let flow = self.flows[chunk.flow as usize];
        let port = flow.to * self.ports + flow.port;
        let into = &mut self.into[port as usize];
        while let Some(&(_, head)) = into.heads.front().filter(|head| head.0 <= now) {
            into.heads.pop_front();
            into.is_here(&self.flows[head.flow as usize], head);
        }
        let bytes = u64::from(chunk.bytes);
        let takes = transfer(bytes, port_rate(&self.tiers, self.rate, &flow));
        into.waiting -= bytes;
        into.expected -= bytes;
        let carried = &mut into.carried[usize::from(flow.operator)];
        carried.bytes += bytes;
        carried.busy += takes;
        if flow.rows {
            let chunks = &mut into.senders[flow.from as usize];
            *chunks -= 1;
            into.present -= usize::from(*chunks == 0);
        }
        for stopped in core::mem::take(&mut into.stopped) {
            self.send_next(stopped, now, later);
        }
        self.was_busy(chunk, Direction::In, (now - takes, now));
        if !chunk.last {
            return None;
        }
        let load = self.ended(chunk.flow);
        // Empty unless ports are chosen by packet.
        if let Some(parts) = self.parts.get_mut(&load) {
            *parts -= 1;
            if *parts > 0 {
                return None;
            }
            self.parts.remove(&load);
        }
        Some(load)
    }

    fn was_busy(&mut self, chunk: Chunk, direction: Direction, (from, to): (Ps, Ps)) {
        let Some(busy) = &mut self.busy else { return };
        let Flow { operator, port, from: sender, to: receiver, .. } = self.flows[chunk.flow as usize];
        let rank = if direction == Direction::Out { sender } else { receiver };
        let last = self.last_busy.get(&(rank * self.ports + port, direction)).and_then(|&i| busy.get_mut(i));
        match last.filter(|last| last.to == from && last.operator == operator) {
            Some(last) => {
                last.to = to;
                last.bytes += u64::from(chunk.bytes);
            }
            None => {
                self.last_busy.insert((rank * self.ports + port, direction), busy.len());
                busy.push(Busy { rank, port, direction, from, to, bytes: chunk.bytes.into(), operator });
            }
        }
    }

    fn of_rank(&self, rank: u32) -> core::ops::Range<usize> {
        (rank * self.ports) as usize..((rank + 1) * self.ports) as usize
    }

    /// What the ports of a rank have sent and received in an operator.
    pub fn carried(&self, rank: u32, operator: usize) -> [Carried; 2] {
        let ports = self
            .of_rank(rank)
            .map(|port| [self.out[port].carried[operator], self.into[port].carried[operator]]);
        ports.fold([Carried::default(); 2], |[out, into], [more_out, more_in]| {
            [out.with(more_out), into.with(more_in)]
        })
    }

    /// What all ranks have sent by their port of that number in an operator.
    pub fn by_port(&self, operator: usize) -> Vec<Carried> {
        let of = |port: u32| {
            let ports = self.out.iter().skip(port as usize).step_by(self.ports as usize);
            ports.map(|out| out.carried[operator]).fold(Carried::default(), Carried::with)
        };
        (0..self.ports).map(of).collect()
    }

    /// The most senders that had rows at one port of a rank at once.
    pub fn incast(&self, rank: u32, operator: usize) -> usize {
        self.of_rank(rank).map(|port| self.into[port].incast[operator]).max().unwrap_or(0)
    }

    /// Bytes that all links of a rank have carried in an operator, out and in.
    pub fn bytes(&self, rank: u32, operator: usize) -> [u64; 2] {
        let [out, into] = self.carried(rank, operator).map(|carried| carried.bytes);
        let near = self.near_bytes[rank as usize][operator];
        [out + near[0], into + near[1]]
    }

    /// How long an operator takes if nothing but bytes counts: those of the busiest rank, then those inside the server, which
    /// go to all other ranks of it at once.
    pub fn formula(&self, operator: usize) -> Ps {
        let ranks = || 0..self.near_bytes.len() as u32;
        let across = ranks().flat_map(|rank| self.carried(rank, operator)).map(|carried| carried.bytes).max();
        let inside = self.near_bytes.iter().map(|bytes| bytes[operator][0]).max();
        let links = u64::from(self.server.saturating_sub(1));
        let all_ports = self.rate * u64::from(self.ports);
        transfer(across.unwrap_or(0), all_ports) + transfer(inside.unwrap_or(0), self.near_rate * links)
    }
}
