//! A chooser ordered by virtual time: a step is taken when its core is ready, an effect lands when the network has carried it.

use super::network::{Event, Flow, Network};
use super::path::History;
use super::prices::{Cluster, Costs, Ps, mbs, ps, transfer};
use core::cell::{Cell, RefCell};
use core::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::rc::Rc;
use veriep_core::fabric::middleware::Middleware;
use veriep_core::fabric::nic::{Nic, Post, Transfer};
use veriep_core::fabric::{Awaited, Capabilities, Fabric, Fault};
use veriep_core::place::Place;
use veriep_core::sim::chooser::{AGENT, Lands};
use veriep_core::sim::flight::FlightKind;
use veriep_core::sim::{Actor, Choice, Chooser, Flight, FlightId};
use veriep_core::units::RankId;

/// Bytes from which on an effect carries rows: flags and pieces of lists are shorter.
const ROW_MIN: u64 = 513;

/// Virtual time, which the chooser and the fabrics share.
#[derive(Debug)]
pub struct Clock {
    /// When the step began that is taken now, or the last one.
    now: Cell<Ps>,
    /// What the step has cost so far.
    inside: Cell<Ps>,
    /// What each rank runs, 0 for dispatch and 1 for combine.
    pub operators: RefCell<Vec<u8>>,
}

impl Clock {
    /// Time 0 of so many ranks.
    #[must_use]
    pub fn new(ranks: u32) -> Rc<Self> {
        let operators = RefCell::new(vec![0; ranks as usize]);
        Rc::new(Self { now: Cell::new(0), inside: Cell::new(0), operators })
    }

    /// The time inside the step that is taken now.
    pub fn time(&self) -> Ps {
        self.now.get() + self.inside.get()
    }

    fn add(&self, cost: Ps) {
        self.inside.set(self.inside.get() + cost);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Step(Actor),
    Land(FlightId),
    Network(Event),
}

/// Flights and steps by the times at which they are due; the earlier offer first among those of one time.
#[derive(Debug)]
pub struct Timed {
    clock: Rc<Clock>,
    queue: Queue,
    /// Links.
    pub network: Network,
    /// What made each step possible.
    pub history: History,
    /// Flights that must follow others, and those that have not arrived.
    waits: HashMap<FlightId, Waits>,
    prices: Prices,
    /// When a rank begins.
    begins: Vec<Ps>,
    /// Choices and network events so far.
    pub events: u64,
}

#[derive(Debug, Default)]
struct Queue {
    numbered: u64,
    heap: BinaryHeap<Reverse<(Ps, u64, Due)>>,
}

impl Queue {
    fn add(&mut self, at: Ps, due: Due) {
        self.numbered += 1;
        self.heap.push(Reverse((at, self.numbered, due)));
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Waits {
    arrived: bool,
    free: bool,
}

/// The costs of a cluster in picoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Prices {
    step: Ps,
    word: Ps,
    effect: Ps,
    copy_mbs: u64,
    agent_word: Ps,
    agent_task: Ps,
    poll: Ps,
    agent_poll: Ps,
}

impl Prices {
    /// Those of a cluster.
    #[must_use]
    pub fn new(costs: &Costs) -> Self {
        Self {
            step: ps(costs.step_ns),
            word: ps(costs.word_ns),
            effect: ps(costs.effect_ns),
            copy_mbs: mbs(costs.copy_gbs),
            agent_word: ps(costs.agent_word_ns),
            agent_task: ps(costs.agent_task_ns),
            poll: ps(costs.poll_ns),
            agent_poll: ps(costs.agent_poll_ns),
        }
    }
}

impl Timed {
    /// Time 0 on a cluster, in whose servers there are `server` ranks each, 0 for none; rank r begins at `begins[r]`.
    #[must_use]
    pub fn new(clock: Rc<Clock>, cluster: &Cluster, server: u32, begins: Vec<Ps>) -> Self {
        Self {
            clock,
            queue: Queue::default(),
            network: Network::new(&cluster.links, begins.len() as u32, server),
            history: History::default(),
            waits: HashMap::new(),
            prices: Prices::new(&cluster.costs),
            begins,
            events: 0,
        }
    }

    fn has_arrived(&mut self, flight: FlightId, now: Ps) {
        let waits = self.waits.entry(flight).or_default();
        waits.arrived = true;
        if waits.free {
            self.waits.remove(&flight);
            self.queue.add(now, Due::Land(flight));
        }
    }
}

impl Chooser for Timed {
    fn next(&mut self) -> Option<Choice> {
        loop {
            let Reverse((now, _, due)) = self.queue.heap.pop()?;
            self.events += 1;
            self.clock.now.set(now);
            self.clock.inside.set(0);
            match due {
                Due::Step(actor) => {
                    self.history.steps(actor, now);
                    if actor.core != AGENT {
                        self.clock.inside.set(self.prices.step);
                    }
                    return Some(Choice::Step(actor));
                }
                Due::Land(flight) => {
                    self.history.lands(flight);
                    return Some(Choice::Land(flight, u64::MAX));
                }
                Due::Network(event) => {
                    let queue = &mut self.queue;
                    let whole =
                        self.network.happens(event, now, &mut |at, event| queue.add(at, Due::Network(event)));
                    if let Some(flight) = whole {
                        self.has_arrived(flight, now);
                    }
                }
            }
        }
    }

    fn issued(&mut self, flight: FlightId, what: &Flight) -> Lands {
        let (from, to, at) = (what.from.member.0, what.to.0, self.clock.time());
        self.history.sends(flight, at);
        let operator = self.clock.operators.borrow()[from as usize];
        let flow = Flow { flight, from, to, left: what.weight, rows: what.weight >= ROW_MIN, operator };
        let queue = &mut self.queue;
        if from == to {
            // On the own rank it is there at once, behind what it must follow.
            queue.add(at, Due::Network(Event::Arrived(flight)));
        } else {
            // A task goes by the ports, wherever it goes.
            let by_ports = matches!(what.kind, FlightKind::Transfer(_)) || !self.network.is_near(from, to);
            self.network.send(flow, by_ports, at, &mut |at, event| queue.add(at, Due::Network(event)));
        }
        Lands::Later
    }

    fn may_land(&mut self, flight: FlightId, _: &Flight) {
        let waits = self.waits.entry(flight).or_default();
        waits.free = true;
        if waits.arrived {
            self.waits.remove(&flight);
            self.queue.add(self.clock.now.get(), Due::Land(flight));
        }
    }

    fn may_step(&mut self, actor: Actor) {
        let poll = if actor.core == AGENT { self.prices.agent_poll } else { self.prices.poll };
        let mut at = self.clock.time();
        if let Some(since) = self.history.wakes(actor, at) {
            // What has changed during the step that saw nothing is seen by the next one.
            at = at.max(since) + poll;
        }
        self.queue.add(at.max(self.begins[actor.member.index()]), Due::Step(actor));
    }

    fn sleeps(&mut self, actor: Actor, _: &[Awaited]) {
        self.history.sleeps(actor, self.clock.time());
    }
}

/// A fabric whose calls take time.
pub struct Priced<'f, F: ?Sized> {
    /// The fabric behind it.
    pub inner: &'f mut F,
    /// Where the time passes.
    pub clock: &'f Clock,
    /// What a call costs.
    pub prices: Prices,
}

impl<F: ?Sized> Priced<'_, F> {
    fn copies(&self, bytes: u64) {
        self.clock.add(transfer(bytes, self.prices.copy_mbs));
    }

    fn has_effect(&self, bytes: u64) {
        self.clock.add(self.prices.effect);
        self.copies(bytes);
    }
}

impl<F: Fabric + ?Sized> Middleware for Priced<'_, F> {
    type Inner = F;

    fn inner(&self) -> &F {
        self.inner
    }

    fn inner_mut(&mut self) -> &mut F {
        self.inner
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        self.has_effect((row.len() + tail.len()) as u64);
        self.inner.put(to, at, row, tail)
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        self.has_effect(0);
        self.inner.publish(to, at, word)
    }

    fn send(&mut self, to: RankId, at: Place, message: &[u8]) -> Result<(), Fault> {
        self.has_effect(0);
        self.inner.send(to, at, message)
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        self.clock.add(self.prices.word);
        self.inner.quiet()
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        self.clock.add(self.prices.word);
        self.inner.observe(at)
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        self.has_effect(0);
        self.inner.store(at, word)
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.copies(len);
        self.inner.bytes(at, len)
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        self.has_effect(bytes.len() as u64);
        self.inner.write(at, bytes)
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        self.has_effect(len);
        self.inner.deliver(output, from, len)
    }
}

/// An interface whose calls take time.
pub struct PricedNic<'n> {
    /// The interface behind it.
    pub inner: &'n mut dyn Nic,
    /// Where the time passes.
    pub clock: &'n Clock,
    /// What a call costs.
    pub prices: Prices,
}

impl Nic for PricedNic<'_> {
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        self.clock.add(self.prices.agent_word);
        self.inner.observe(at)
    }

    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault> {
        self.clock.add(self.prices.agent_task);
        self.inner.post(transfer)
    }
}
