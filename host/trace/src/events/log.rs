//! The log of a group's events: it gives each its time, sorts them by it and passes them on.
//!
//! Several threads may record. Then a call with an effect has the time before it was made, and what a core comes to know has the
//! time after: so no core knows of an effect before it is recorded. What has happened since a call began waits until the call is
//! over.

use super::recorder::Book;
use super::{Doing, Event, Kind, Sinks, Unit, What};
use crate::queue::Queue;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;
use veriep_case::global_rank;
use veriep_case::parallel::lock;
use veriep_core::fabric::{Progress, Wait};
use veriep_core::place::Place;
use veriep_core::sim::chooser::AGENT;
use veriep_core::sim::cluster::{Answer, Planned};
use veriep_core::sim::{Actor, Flight, FlightId};
use veriep_core::units::RankId;
use veriep_group::backend::Told;

#[derive(Debug)]
struct Inner {
    unit: Unit,
    /// The time; without a clock, events so far.
    now: u64,
    /// When a record with the machine's clock began.
    began: Instant,
    /// When calls began that are not over.
    calls: BTreeSet<u64>,
    /// The round of batch 0.
    first_round: usize,
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
    /// The time of what happens now. No two events of several threads have the same.
    fn tick(&mut self) -> u64 {
        self.now = match self.unit {
            Unit::Ps => self.now,
            Unit::Events => self.now + 1,
            Unit::Ns => (self.now + 1).max(self.began.elapsed().as_nanos() as u64),
        };
        self.now
    }

    fn add(&mut self, event: Event) {
        self.pending.add(event.time, event);
        if self.unit == Unit::Ns {
            self.pass_on(self.calls.first().map_or(u64::MAX, |&first| first - 1));
        }
    }

    fn record(&mut self, actor: Actor, kind: Kind, what: What) {
        let time = self.tick();
        self.record_at(time, actor, kind, what);
    }

    fn record_at(&mut self, time: u64, actor: Actor, kind: Kind, mut what: What) {
        let doing = self.doing.get(&actor).copied().unwrap_or_default();
        // Between two operators of a core nothing is its own: the experts of threads read and write through its fabric.
        if doing.planned.is_none() && actor.core != AGENT {
            return;
        }
        if let (Some(peer), Some(at)) = (what.peer, what.at) {
            what.peer = Some(global_rank::reached(self.tp_world_size, actor.member, peer, at));
        }
        if let (Kind::Store, Some(at)) = (kind, what.at) {
            self.seen.insert((actor.member, at), vec![(actor, what.word.unwrap_or(0))]);
        }
        self.add(Event { time, actor, doing, kind, what });
    }

    /// A core ends an operator or its sending half.
    fn ends(&mut self, actor: Actor) {
        let planned = self.doing.get(&actor).and_then(|doing| doing.planned);
        let has_ended = planned.is_none_or(|planned| planned.ends());
        self.record(actor, if has_ended { Kind::End } else { Kind::Sent }, What::default());
        self.doing.remove(&actor);
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
            began: Instant::now(),
            calls: BTreeSet::new(),
            first_round: 0,
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

    /// Batches are from now on counted from that round. Nothing is recorded meanwhile.
    pub fn begins_unit(&self, first_round: usize) {
        self.lock().first_round = first_round;
    }

    /// A core is about to take a step: with its first one in an operator or a phase, it begins that, or goes on with the operator.
    pub fn steps(&self, actor: Actor, planned: Planned, phase: &'static str) {
        let mut inner = self.lock();
        let planned = Planned { round: inner.first_round + planned.round, ..planned };
        let doing = Doing { planned: Some(planned), phase };
        let before = inner.doing.insert(actor, doing);
        if before != Some(doing) {
            let resumes = before.is_none() && !planned.begins();
            inner.record(actor, if resumes { Kind::Resume } else { Kind::Begin }, What::default());
        }
    }

    /// A core's or an agent's step has come to this.
    pub fn stepped(&self, actor: Actor, answer: &Answer) {
        match answer {
            Ok(Progress::Done) => self.lock().ends(actor),
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
        let time = inner.tick();
        inner.add(Event { time, actor: what.from, doing, kind: Kind::Land, what: landed });
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
        // A core that prepares to go on reads its own words again, and must be able to see them later.
        if actor.core != AGENT && !inner.doing.contains_key(&actor) {
            return;
        }
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

    fn effect_begins(&self) -> u64 {
        let mut inner = self.lock();
        if inner.unit != Unit::Ns {
            return 0;
        }
        let begun = inner.tick();
        inner.calls.insert(begun);
        begun
    }

    fn effect_ends(&self, begun: u64, actor: Actor, effect: Option<(Kind, What)>) {
        let mut inner = self.lock();
        let is_timed = inner.calls.remove(&begun);
        let Some((kind, what)) = effect else { return };
        let time = if is_timed { begun } else { inner.tick() };
        inner.record_at(time, actor, kind, what);
    }

    fn hears(&self, actor: Actor, told: Told) {
        match told {
            Told::Steps(planned, phase) => self.steps(actor, planned, phase),
            Told::Waits(wait) => self.record(actor, Kind::Await, awaited(wait)),
            Told::Ends => self.lock().ends(actor),
            Told::Begins(_) | Told::Experts => {}
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::lines::Lines;
    use veriep_core::protocol::Operator;
    use veriep_core::sim::cluster::Half;
    use veriep_core::units::CoreId;

    #[test]
    fn an_effect_comes_before_what_was_seen_of_it_while_its_call_went_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        let sinks = Sinks { lines: Some(Lines::begin(&path).unwrap()), timeline: None };
        let log = Log::new(Unit::Ns, 1, sinks);
        let [writes, sees] = [0, 1].map(|rank| Actor { member: RankId(rank), core: CoreId(0) });
        let planned = Planned::whole(Operator::Dispatch, 0);
        log.begins_unit(7);
        [writes, sees].into_iter().for_each(|actor| log.steps(actor, planned, "Send"));
        let begun = log.effect_begins();
        // What fails or finds no room has no effect, and holds up nothing.
        let busy = log.effect_begins();
        log.effect_ends(busy, sees, None);
        log.observes(sees, Place::state(64), 1);
        let what =
            What { peer: Some(RankId(1)), at: Some(Place::state(64)), word: Some(1), ..What::default() };
        log.effect_ends(begun, writes, Some((Kind::Publish, what)));
        log.hears(sees, Told::Ends);
        // Experts that go through a core's fabric are not the core.
        log.record(sees, Kind::Deliver, What { at: Some(Place::window(0)), ..What::default() });
        log.finish().lines.unwrap().finish().unwrap();
        let lines = std::fs::read_to_string(path).unwrap();
        let lines: Vec<serde_json::Value> =
            lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let kinds: Vec<_> = lines.iter().map(|line| line["kind"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["begin", "begin", "publish", "observe", "end"]);
        assert!(lines.windows(2).all(|two| two[0]["time"].as_u64() < two[1]["time"].as_u64()), "{lines:?}");
        assert!(lines.iter().all(|line| line["batch"] == 7), "{lines:?}");
    }

    /// Between two halves a core does nothing, but reads its own words again before it goes on.
    #[test]
    fn halves_of_an_operator_are_set_aside_and_taken_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        let sinks = Sinks { lines: Some(Lines::begin(&path).unwrap()), timeline: None };
        let log = Log::new(Unit::Events, 1, sinks);
        let core = Actor { member: RankId(0), core: CoreId(0) };
        let half = |operator, half| Planned { operator, round: 0, half };
        let does = |planned: Planned, phases: &[&'static str]| {
            phases.iter().for_each(|phase| log.steps(core, planned, phase));
            log.stepped(core, &Ok(Progress::Done));
        };
        does(half(Operator::Dispatch, Half::Send), &["Send", "Publish"]);
        log.observes(core, Place::state(64), 1);
        log.steps(core, half(Operator::Dispatch, Half::Receive), "Await");
        log.observes(core, Place::state(64), 1);
        does(half(Operator::Dispatch, Half::Receive), &["Await", "Copy"]);
        does(half(Operator::Combine, Half::Whole), &["Send"]);
        log.finish().lines.unwrap().finish().unwrap();
        let lines = std::fs::read_to_string(path).unwrap();
        let kinds = lines.lines().map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            format!("{} {}", line["kind"].as_str().unwrap(), line["phase"].as_str().unwrap())
        });
        let right = [
            "begin Send",
            "begin Publish",
            "sent Publish",
            "resume Await",
            "observe Await",
            "begin Copy",
            "end Copy",
            "begin Send",
            "end Send",
        ];
        assert_eq!(kinds.collect::<Vec<_>>(), right);
    }
}
