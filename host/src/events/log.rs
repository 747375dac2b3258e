//! Where events are gathered, put in the order of their times and passed on.

use super::recorder::Book;
use super::{Doing, Event, Kind, Sinks, Unit, What};
use crate::backend::Told;
use crate::global_rank;
use crate::parallel::lock;
use crate::queue::Queue;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use veriep_core::fabric::{Progress, Wait};
use veriep_core::place::Place;
use veriep_core::sim::cluster::{Answer, Planned};
use veriep_core::sim::{Actor, Flight, FlightId};
use veriep_core::units::RankId;

#[derive(Debug)]
struct Inner {
    unit: Unit,
    /// The time; without a clock, events so far.
    now: u64,
    /// Events that may still be overtaken.
    pending: Queue<Event>,
    doing: HashMap<Actor, Doing>,
    /// What cores and the agent of a rank have seen last at a place, since one of them stored there, if it was not 0.
    seen: HashMap<(RankId, Place), Vec<(Actor, u64)>>,
    /// Ranks of a TP domain.
    tp_world_size: u32,
    /// Of flights that have not landed, in what they were issued.
    in_flight: HashMap<FlightId, Doing>,
    sinks: Sinks,
}

impl Inner {
    fn add(&mut self, actor: Actor, doing: Doing, kind: Kind, what: What) {
        if self.unit == Unit::Events {
            self.now += 1;
        }
        self.pending.add(self.now, Event { time: self.now, actor, doing, kind, what });
    }

    fn record(&mut self, actor: Actor, kind: Kind, mut what: What) {
        if let (Some(peer), Some(at)) = (what.peer, what.at) {
            what.peer = Some(global_rank::reached(self.tp_world_size, actor.member, peer, at));
        }
        if let (Kind::Store, Some(at)) = (kind, what.at) {
            self.seen.insert((actor.member, at), vec![(actor, what.word.unwrap_or(0))]);
        }
        let doing = self.doing.get(&actor).copied().unwrap_or_default();
        self.add(actor, doing, kind, what);
    }

    fn pass_on(&mut self, until: u64) {
        while self.pending.next_time().is_some_and(|next| next <= until) {
            let Some((_, event)) = self.pending.pop() else { return };
            self.sinks.event(&event);
        }
    }
}

/// The events of a run.
#[derive(Debug)]
pub struct Log(Mutex<Inner>);

impl Log {
    /// A record that is written as lines, or drawn, or both.
    pub fn new(unit: Unit, tp_world_size: u32, sinks: Sinks) -> Self {
        Self(Mutex::new(Inner {
            unit,
            now: 0,
            pending: Queue::default(),
            doing: HashMap::new(),
            seen: HashMap::new(),
            tp_world_size,
            in_flight: HashMap::new(),
            sinks,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.0)
    }

    /// What comes next happens at that time.
    pub fn at(&self, time: u64) {
        self.lock().now = time;
    }

    /// Nothing will happen before that time any more.
    pub fn settle(&self, time: u64) {
        self.lock().pass_on(time);
    }

    /// A core is about to take a step: with its first one in an operator or a phase, it begins that.
    pub fn steps(&self, actor: Actor, planned: Planned, phase: &'static str) {
        let doing = Doing { planned: Some(planned), phase };
        let mut inner = self.lock();
        if inner.doing.insert(actor, doing) != Some(doing) {
            inner.record(actor, Kind::Begin, What::default());
        }
    }

    /// A core's or an agent's step has come to this.
    pub fn stepped(&self, actor: Actor, answer: &Answer) {
        match answer {
            Ok(Progress::Done) => self.record(actor, Kind::End, What::default()),
            Ok(Progress::Pending(wait)) => self.record(actor, Kind::Await, awaited(*wait)),
            _ => {}
        }
    }

    pub fn issued(&self, flight: FlightId, what: &Flight) {
        let mut inner = self.lock();
        let doing = inner.doing.get(&what.from).copied().unwrap_or_default();
        inner.in_flight.insert(flight, doing);
    }

    pub fn landed(&self, flight: FlightId, what: &Flight, at: Place) {
        let mut inner = self.lock();
        let doing = inner.in_flight.remove(&flight).unwrap_or_default();
        let landed = What { peer: Some(what.to), at: Some(at), length: Some(what.weight), ..What::default() };
        inner.add(what.from, doing, Kind::Land, landed);
    }

    /// Passes on everything and returns who was told.
    pub fn finish(&self) -> Sinks {
        let mut inner = self.lock();
        inner.pass_on(u64::MAX);
        core::mem::take(&mut inner.sinks)
    }
}

impl Book for Log {
    fn record(&self, actor: Actor, kind: Kind, what: What) {
        self.lock().record(actor, kind, what);
    }

    /// It counts if it is not what this actor has seen there before.
    fn observes(&self, actor: Actor, at: Place, word: u64) {
        let mut inner = self.lock();
        let all = inner.seen.entry((actor.member, at)).or_default();
        let before = match all.iter_mut().find(|(who, _)| *who == actor) {
            Some((_, seen)) => core::mem::replace(seen, word),
            None => {
                all.push((actor, word));
                0
            }
        };
        if before != word {
            let what = What { at: Some(at), word: Some(word), ..What::default() };
            inner.record(actor, Kind::Observe, what);
        }
    }

    fn hears(&self, actor: Actor, told: Told) {
        if let Told::Steps(planned, phase) = told {
            self.steps(actor, planned, phase);
        }
    }

    fn stepped(&self, actor: Actor, answer: &Answer) {
        Self::stepped(self, actor, answer);
        // Its time is the order in which things happen.
        self.settle(u64::MAX);
    }
}

fn awaited(wait: Wait) -> What {
    What { peer: wait.source(), awaited: Some(wait.flag.name()), ..What::default() }
}
