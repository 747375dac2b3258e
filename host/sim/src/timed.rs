//! A chooser ordered by virtual time: a step is taken when its core is ready, an effect lands when the network has carried it.

use super::costs::{Cluster, Costs, PortBy, Ps, mbs, ps, transfer};
use super::network::{Event, Flow, Load, Network};
use super::path::{ByActor, History};
use core::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use veriep_core::fabric::middleware::Middleware;
use veriep_core::fabric::nic::{Nic, Post, Transfer};
use veriep_core::fabric::{Awaited, Fabric, Fault, Wait};
use veriep_core::place::{Place, Region};
use veriep_core::plan::split::even_owner;
use veriep_core::protocol::Operator;
use veriep_core::shape::Shape;
use veriep_core::sim::chooser::{AGENT, Dice, Lands};
use veriep_core::sim::flight::FlightKind;
use veriep_core::sim::{Actor, Choice, Chooser, Flight, FlightId};
use veriep_core::units::RankId;
use veriep_group::interrupt;
use veriep_spread::port::{self, Bits20To9};
use veriep_spread::shared::SharedSplit;
use veriep_trace::events::log::Log;
use veriep_trace::queue::Queue;

/// Bytes from which on an effect carries rows: flags and pieces of lists are shorter.
const ROW_MIN: u64 = 513;

#[cfg(test)]
mod tests;

/// Events between two looks whether the caller has asked for the end.
const ASKED_EVERY: u64 = 1 << 14;

/// Bytes that a core has asked another rank for.
#[derive(Clone, Copy, Debug)]
struct Read {
    actor: Actor,
    from: RankId,
    place: Place,
    bytes: u64,
    at: Ps,
}

/// Virtual time, which the chooser and the fabrics share.
#[derive(Debug, Default)]
pub struct Clock {
    /// When the step began that is taken now, or the last one.
    now: Cell<Ps>,
    /// What the step has cost so far.
    inside: Cell<Ps>,
    /// What its costs are multiplied by, in thousandths.
    scale: Cell<u64>,
    /// What it waits for, if it has found nothing to do.
    pub awaits: Cell<Option<Wait>>,
    /// By rank, then operator: bytes that the machines have sent to other ranks, and that others have sent to it.
    pub sent: RefCell<Vec<[[u64; 2]; 2]>>,
    /// What the step has read in the memory of other ranks.
    reads: RefCell<Vec<Read>>,
    /// Words that cores and agents have looked at.
    pub words: Cell<u64>,
    /// Who is told what happens when.
    pub log: Option<Arc<Log>>,
    /// What each rank runs.
    pub operators: RefCell<Vec<Operator>>,
    /// Where ports are chosen by addresses, a second account of what goes by each.
    pub ports: Option<Ports>,
}

/// What machines have sent by each port, from their writes alone.
#[derive(Debug)]
pub struct Ports {
    pub by: PortBy,
    pub shape: Shape,
    /// Ranks of a server, whose links inside have no such ports; else 0.
    pub server: u32,
    /// By operator, then port.
    pub bytes: RefCell<[[u64; port::PORTS]; 2]>,
}

impl Ports {
    /// Bytes for a place of rank `to` leave another one.
    fn add(&self, operator: usize, to: RankId, at: Place, bytes: u64) {
        let mut loads = [port::Load::default(); port::PORTS];
        port::add(&Bits20To9, &self.shape, to, at, bytes, &mut loads);
        for (sum, load) in self.bytes.borrow_mut()[operator].iter_mut().zip(loads) {
            *sum += match self.by {
                PortBy::Packet => load.bytes,
                PortBy::Write => load.heads * bytes,
                PortBy::Even => 0,
            };
        }
    }

    const fn is_near(&self, a: RankId, b: RankId) -> bool {
        self.server > 0 && a.0 / self.server == b.0 / self.server
    }
}

impl Clock {
    /// Time 0 of so many ranks.
    pub fn new(ranks: u32, log: Option<Arc<Log>>, ports: Option<Ports>) -> Rc<Self> {
        let operators = RefCell::new(vec![Operator::Dispatch; ranks as usize]);
        let sent = RefCell::new(vec![[[0; 2]; 2]; ranks as usize]);
        Rc::new(Self { scale: Cell::new(WHOLE), sent, log, operators, ports, ..Self::default() })
    }

    /// The time inside the step that is taken now.
    pub fn time(&self) -> Ps {
        self.now.get() + self.inside.get()
    }

    pub fn add(&self, cost: Ps) {
        self.inside.set(self.inside.get() + cost * self.scale.get() / WHOLE);
        if let Some(log) = &self.log {
            log.at(self.time());
        }
    }

    fn looks(&self, cost: Ps) {
        self.words.set(self.words.get() + 1);
        self.add(cost);
    }

    /// Bytes go from a rank to another one for what `of` runs.
    fn moves(&self, of: RankId, moved: &Moved) {
        let &Moved { from, to, at, bytes, by_ports } = moved;
        if from == to {
            return;
        }
        let operator = self.operators.borrow()[of.index()] as usize;
        let mut sent = self.sent.borrow_mut();
        sent[from.index()][operator][0] += bytes;
        sent[to.index()][operator][1] += bytes;
        if let Some(ports) = self.ports.as_ref().filter(|ports| by_ports || !ports.is_near(from, to)) {
            ports.add(operator, to, at, bytes);
        }
    }

    fn set(&self, now: Ps, scale: u64) {
        self.now.set(now);
        self.inside.set(0);
        self.scale.set(scale);
        if let Some(log) = &self.log {
            log.at(now);
            log.settle(now);
        }
    }
}

/// Bytes that go from a rank to another one.
struct Moved {
    from: RankId,
    to: RankId,
    at: Place,
    bytes: u64,
    /// Also inside a server, as tasks do.
    by_ports: bool,
}

/// A factor of 1, in thousandths.
pub const WHOLE: u64 = 1000;

/// How fast ranks are, and when they begin.
#[derive(Clone, Debug)]
pub struct Paces {
    /// When a rank begins, by rank.
    pub begins: Vec<Ps>,
    /// What all costs of a rank are multiplied by, in thousandths, by rank.
    pub slow: Vec<u64>,
    /// By how many thousandths at most a step takes longer than it does without jitter.
    pub jitter: u64,
    pub seed: u64,
}

/// Which replica's links carry rows to and from shared experts: with the split of before, each rank sends its rows evenly to
/// all replicas, in their order. Memory and results stay as they are.
#[derive(Clone, Debug, Default)]
pub struct OldSplit {
    /// Replicas of a shared expert; 0 for none, or where rows go where they are put.
    replicas: u32,
    /// Ranks with shared experts.
    shared: u32,
    /// Rows that a rank has for a shared expert.
    rows: u32,
    /// Rows so far, by operator, rank and expert.
    sent: HashMap<(u8, u32, u32), u32>,
}

impl OldSplit {
    /// Redirects rows if the split is the old one.
    pub fn new(split: SharedSplit, shape: &Shape) -> Self {
        let shared = shape.shared_expert_rank_num();
        let replicas = match split {
            SharedSplit::Even => shared / shape.shared_expert_num().max(1),
            SharedSplit::AllIn => 0,
        };
        let rows = (0..shape.ep_world_size()).map(|rank| shape.bs(RankId(rank))).max().unwrap_or(1);
        Self { replicas, shared, rows, sent: HashMap::new() }
    }

    /// Between which ranks a row goes that is sent from one to another.
    fn ends(&mut self, operator: u8, from: u32, to: u32) -> (u32, u32) {
        let (at, of) = if operator == 0 { (to, from) } else { (from, to) };
        if self.replicas == 0 || at >= self.shared {
            return (from, to);
        }
        let expert = at / self.replicas;
        let sent = self.sent.entry((operator, of, expert)).or_default();
        let replica = even_owner(self.rows, self.replicas, *sent % self.rows);
        *sent += 1;
        let at = expert * self.replicas + replica;
        if operator == 0 { (from, at) } else { (at, to) }
    }
}

#[derive(Clone, Copy, Debug)]
enum Due {
    Step(Actor),
    Land(FlightId),
    Network(Event),
}

/// Flights and steps by the times at which they are due; the earlier offer first among those of one time.
#[derive(Debug)]
pub struct Timed {
    clock: Rc<Clock>,
    queue: Queue<Due>,
    /// Links.
    pub network: Network,
    /// What made each step possible.
    pub history: History,
    /// By slot of a flight.
    waits: Vec<Waits>,
    costs: Costs,
    paces: Paces,
    jitter: Dice,
    split: OldSplit,
    /// Whether the caller has asked for the end, after which nothing happens any more.
    pub cut: bool,
    /// Choices and network events so far.
    pub events: u64,
    /// How many there may be.
    pub events_max: u64,
    /// Of each core that has asked other ranks for something: what has still to come, and whether it can go on then.
    reading: ByActor<(u32, bool)>,
    /// How many events passed since the last look for the end.
    unasked: u64,
    /// The cores and agents that are ready and have not stepped yet; kept only for the check for lost wake-ups.
    pub offers: Option<BTreeSet<Actor>>,
    /// The number of a wake-up that is lost, for a twin.
    pub loses: Option<u64>,
}

/// What a flight that has not landed still waits for.
#[derive(Clone, Copy, Debug, Default)]
struct Waits {
    /// The network has carried it.
    arrived: bool,
    /// What it must follow has landed.
    free: bool,
}

impl Timed {
    /// Time 0 on a network.
    pub fn new(clock: Rc<Clock>, cluster: &Cluster, network: Network, paces: Paces, split: OldSplit) -> Self {
        Self {
            clock,
            queue: Queue::default(),
            network,
            history: History::default(),
            waits: Vec::new(),
            costs: cluster.costs.clone(),
            jitter: Dice(paces.seed),
            paces,
            split,
            cut: false,
            events: 0,
            events_max: u64::MAX,
            reading: ByActor::default(),
            unasked: 0,
            offers: None,
            loses: None,
        }
    }

    /// The network has carried something: a flight that may land, if it is one.
    fn has_arrived(&mut self, load: Load, now: Ps) -> Option<FlightId> {
        let flight = match load {
            Load::Flight(flight) => flight,
            Load::Read(actor) => {
                self.has_read(actor, now);
                return None;
            }
            Load::Message(_) => return None,
        };
        let waits = &mut self.waits[flight.slot()];
        waits.arrived = true;
        waits.free.then_some(flight)
    }

    /// What the last step of an actor has read in the memory of other ranks comes by their ports. Whether there is any.
    fn reads(&mut self, actor: Actor) -> bool {
        let Self { clock, network, queue, .. } = self;
        let mut reads = clock.reads.borrow_mut();
        let mut count = 0;
        let later = &mut |at, event| queue.add(at, Due::Network(event));
        for Read { from, place, bytes, at, .. } in reads.extract_if(.., |read| read.actor == actor) {
            let operator = clock.operators.borrow()[actor.member.index()] as u8;
            let (from, to, rows) = (from.0, actor.member.0, bytes >= ROW_MIN);
            let flow = Flow { load: Load::Read(actor), from, to, port: 0, left: bytes, rows, operator };
            // The request goes the same way.
            if network.is_near(from, to) {
                network.send_near(flow, at + network.way(true), later);
            } else {
                network.send(flow, place, at + network.way(false), later);
            }
            count += 1;
        }
        if count > 0 {
            self.reading.of(actor).get_or_insert((0, false)).0 += count;
        }
        self.reading.of(actor).is_some()
    }

    fn has_read(&mut self, actor: Actor, now: Ps) {
        let reading = self.reading.of(actor);
        let Some((left, goes_on)) = reading else { return };
        *left -= 1;
        if *left == 0 {
            if *goes_on {
                self.queue.add(now.max(self.clock.time()), Due::Step(actor));
            }
            *reading = None;
        }
    }

    fn lands(&mut self, flight: FlightId) -> Choice {
        self.history.lands(flight);
        Choice::Land(flight, u64::MAX)
    }
}

impl Chooser for Timed {
    fn next(&mut self) -> Option<Choice> {
        loop {
            if self.events >= self.events_max {
                return None;
            }
            let (now, due) = self.queue.pop()?;
            self.events += 1;
            self.unasked += 1;
            if self.unasked.is_multiple_of(ASKED_EVERY) && interrupt::is_asked() {
                self.cut = true;
                return None;
            }
            self.clock.set(now, WHOLE);
            match due {
                Due::Step(actor) => {
                    self.history.steps(actor, now);
                    if let Some(offers) = &mut self.offers {
                        offers.remove(&actor);
                    }
                    let slow = self.paces.slow[actor.member.index()];
                    let jitter = match self.paces.jitter {
                        0 => 0,
                        most => self.jitter.below(most as usize + 1) as u64,
                    };
                    self.clock.set(now, slow * (WHOLE + jitter) / WHOLE);
                    if actor.core != AGENT {
                        self.clock.add(ps(self.costs.step_ns));
                    }
                    return Some(Choice::Step(actor));
                }
                Due::Land(flight) => return Some(self.lands(flight)),
                Due::Network(event) => {
                    let queue = &mut self.queue;
                    let later = &mut |at, event| queue.add(at, Due::Network(event));
                    let whole = self.network.happens(event, now, later);
                    if let Some(flight) = whole.and_then(|load| self.has_arrived(load, now)) {
                        self.events += 1;
                        return Some(self.lands(flight));
                    }
                }
            }
        }
    }

    fn issued(&mut self, flight: FlightId, what: &Flight) -> Lands {
        let (from, to, at) = (what.from.member.0, what.to.0, self.clock.time());
        self.history.sends(flight, at);
        if self.waits.len() <= flight.slot() {
            self.waits.resize(flight.slot() + 1, Waits::default());
        }
        self.waits[flight.slot()] = Waits::default();
        if let Some(log) = &self.clock.log {
            log.issued(flight, what);
        }
        let operator = self.clock.operators.borrow()[from as usize] as u8;
        let rows = what.weight >= ROW_MIN;
        let (from, to) = if rows { self.split.ends(operator, from, to) } else { (from, to) };
        let flow = Flow { load: Load::Flight(flight), from, to, port: 0, left: what.weight, rows, operator };
        let queue = &mut self.queue;
        let later = &mut |at, event| queue.add(at, Due::Network(event));
        // A task goes by the ports, wherever it goes.
        let is_task = matches!(what.kind, FlightKind::Transfer(_));
        if from == to {
            // On this rank it is there at once, after what it must follow.
            self.network.stay(flow, at, later);
        } else if self.network.is_near(from, to) && !is_task {
            self.network.send_near(flow, at, later);
        } else {
            self.network.send(flow, what.begins(), at, later);
        }
        Lands::Later
    }

    fn may_land(&mut self, flight: FlightId, _: &Flight) {
        let waits = &mut self.waits[flight.slot()];
        waits.free = true;
        if waits.arrived {
            self.queue.add(self.clock.now.get(), Due::Land(flight));
        }
    }

    fn landed(&mut self, flight: FlightId, what: &Flight, at: Place, _: u64, end: bool) {
        if let (Some(log), true) = (&self.clock.log, end) {
            log.landed(flight, what, at);
        }
    }

    fn may_step(&mut self, actor: Actor) {
        let poll = if actor.core == AGENT { self.costs.agent_poll_ns } else { self.costs.poll_ns };
        let mut at = self.clock.time();
        if let Some(since) = self.history.wakes(actor, at) {
            // What has changed during the step that saw nothing is seen by the next one.
            at = at.max(since) + ps(poll);
            self.loses = self.loses.map(|left| left.wrapping_sub(1));
            if self.loses == Some(0) {
                return;
            }
        }
        if let Some(offers) = &mut self.offers {
            offers.insert(actor);
        }
        if self.reads(actor)
            && let Some((_, goes_on)) = self.reading.of(actor)
        {
            *goes_on = true;
            return;
        }
        self.queue.add(at.max(self.paces.begins[actor.member.index()]), Due::Step(actor));
    }

    fn sleeps(&mut self, actor: Actor, _: &[Awaited]) {
        let what = self.clock.awaits.take().map_or("", |wait| wait.flag.name());
        self.history.sleeps(actor, self.clock.time(), what);
    }
}

/// A fabric or an agent's interface whose calls take time.
pub struct Priced<'f, F: ?Sized> {
    /// The fabric or interface that takes the calls.
    pub inner: &'f mut F,
    /// The core or the agent that calls.
    pub actor: Actor,
    /// Where the time passes.
    pub clock: &'f Clock,
    /// Which rows are work for a vector unit: those that are sent, and those that are read.
    pub vector: [bool; 2],
    /// What a call costs.
    pub costs: &'f Costs,
    /// What is read in place of a row that is not kept.
    pub zeros: &'f [u8],
}

impl<F: ?Sized> Priced<'_, F> {
    /// A machine sends bytes to a rank.
    fn sends(&self, to: RankId, at: Place, bytes: u64) {
        let from = self.actor.member;
        self.clock.moves(from, &Moved { from, to, at, bytes, by_ports: false });
    }

    fn copies(&self, bytes: u64) {
        self.clock.add(transfer(bytes, mbs(self.costs.copy_gbs)));
    }

    fn has_effect(&self, bytes: u64) {
        self.clock.add(ps(self.costs.effect_ns));
        self.copies(bytes);
    }

    /// A core copies bytes from one place to another.
    fn carries(&self, bytes: u64) {
        self.has_effect(bytes);
        (1..self.costs.copies.passes()).for_each(|_| self.copies(bytes));
    }

    /// A vector unit quantises bytes that are sent (0) or sums those that are read (1), if they are a row of that kind.
    fn works(&self, way: usize, bytes: u64) {
        let gbs = [self.costs.quant_gbs, self.costs.vector_gbs][way];
        if self.vector[way] && bytes >= ROW_MIN {
            self.clock.add(transfer(bytes, mbs(gbs)));
        }
    }
}

impl<F: Fabric + ?Sized> Middleware for Priced<'_, F> {
    veriep_core::around! { inner: F, its capabilities }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        self.carries((row.len() + tail.len()) as u64);
        self.works(0, (row.len() + tail.len()) as u64);
        self.sends(to, at, (row.len() + tail.len()) as u64);
        self.inner.put(to, at, row, tail)
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        self.has_effect(0);
        self.sends(to, at, 8);
        self.inner.publish(to, at, word)
    }

    fn send(&mut self, to: RankId, at: Place, message: &[u8]) -> Result<(), Fault> {
        self.has_effect(0);
        self.sends(to, at, message.len() as u64);
        self.inner.send(to, at, message)
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        self.clock.add(ps(self.costs.word_ns));
        self.inner.quiet()
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        self.clock.looks(ps(self.costs.word_ns));
        self.inner.observe(at)
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        self.has_effect(0);
        self.inner.store(at, word)
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.copies(len);
        self.works(1, len);
        let read = self.inner.bytes(at, len)?;
        Ok(if self.zeros.len() as u64 == len { self.zeros } else { read })
    }

    fn reached(&self, rank: RankId, at: Place, len: u64) -> Result<RankId, Fault> {
        let own = self.actor.member;
        self.works(1, len);
        if rank == own {
            self.copies(len);
        } else {
            self.clock.add(ps(self.costs.effect_ns));
            self.clock.moves(own, &Moved { from: rank, to: own, at, bytes: len, by_ports: false });
            let read = Read { actor: self.actor, from: rank, place: at, bytes: len, at: self.clock.time() };
            self.clock.reads.borrow_mut().push(read);
        }
        Ok(rank)
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        self.has_effect(bytes.len() as u64);
        // An agent sends what is written there.
        if at.region == Region::WindowOut {
            self.works(0, bytes.len() as u64);
        }
        self.inner.write(at, bytes)
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        self.carries(len);
        self.inner.deliver(output, from, len)
    }
}

impl<N: Nic + ?Sized> Nic for Priced<'_, N> {
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        self.clock.looks(ps(self.costs.agent_word_ns));
        self.inner.observe(at)
    }

    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault> {
        self.clock.add(ps(self.costs.agent_task_ns));
        let post = self.inner.post(transfer)?;
        if post == Post::Posted {
            let Transfer { to, at, len, .. } = *transfer;
            let from = self.actor.member;
            self.clock.moves(from, &Moved { from, to, at, bytes: len, by_ports: true });
        }
        Ok(post)
    }
}
