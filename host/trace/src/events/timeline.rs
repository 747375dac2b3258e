//! The contents of a timeline: for each core and agent its operators, their phases and its waits; the flags and the cores that
//! saw them; and the bytes that a rank's window holds until the operator that they are for has ended.

use super::{Event, Kind, Unit};
use std::collections::{BTreeMap, HashMap};
use veriep_core::place::{Place, Region};
use veriep_core::sim::Actor;
use veriep_core::sim::cluster::Planned;
use veriep_core::units::RankId;

/// Something that a core did for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub from: u64,
    pub to: u64,
    /// An operator or a phase.
    pub name: &'static str,
    pub batch: usize,
}

/// A time in which a core or agent had nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub from: u64,
    pub to: u64,
    /// For which rank, if it was another one.
    pub whom: Option<RankId>,
    pub what: &'static str,
}

/// What one core or agent did, in order.
#[derive(Clone, Debug, Default)]
pub struct Lane {
    pub operators: Vec<Span>,
    /// Their phases: each is in an operator.
    pub phases: Vec<Span>,
    /// Waits: each is in a phase, but for an agent's.
    pub waits: Vec<Waiting>,
    awaits: bool,
    runs: bool,
}

/// A flag that was written by one core or agent and seen by another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// By whom, and when.
    pub from: (Actor, u64),
    /// Seen by whom, and when.
    pub to: (Actor, u64),
    /// Where it lies.
    pub at: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// What a rank sends.
    Out,
    In,
}

impl Direction {
    /// As reports name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Out => "out",
            Self::In => "in",
        }
    }
}

/// A time in which a port was busy without a break; where the ports of a rank share its traffic evenly they are one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy {
    pub rank: u32,
    pub port: u32,
    pub direction: Direction,
    pub from: u64,
    pub to: u64,
    pub bytes: u64,
    /// For which operator, 0 for dispatch and 1 for combine.
    pub operator: u8,
}

/// Bytes in a rank's window.
#[derive(Clone, Debug, Default)]
struct Window {
    /// By operator: bytes that have landed for it.
    of: HashMap<(u8, usize), u64>,
    /// Cores that have ended an operator.
    ended: HashMap<(u8, usize), u32>,
    whole: u64,
    /// The whole, whenever it has changed.
    over_time: Vec<(u64, u64)>,
}

impl Window {
    fn is_now(&mut self, time: u64) {
        match self.over_time.last_mut() {
            Some(last) if last.0 == time => last.1 = self.whole,
            _ => self.over_time.push((time, self.whole)),
        }
    }
}

/// All lanes of a group.
#[derive(Debug)]
pub struct Timeline {
    pub unit: Unit,
    /// By core and agent.
    pub lanes: BTreeMap<Actor, Lane>,
    /// Flags that another actor has seen.
    pub flows: Vec<Flow>,
    /// What was carried by ports, if there are any.
    pub links: Vec<Busy>,
    /// The time of the last event.
    pub end: u64,
    cores: u32,
    /// The last word at a place of a rank, by whom and when.
    flags: HashMap<(RankId, Place), (u64, Actor, u64)>,
    windows: HashMap<u32, Window>,
}

impl Timeline {
    /// Nothing, of ranks with so many cores each.
    pub fn new(unit: Unit, cores: u32) -> Self {
        Self {
            unit,
            lanes: BTreeMap::new(),
            flows: Vec::new(),
            links: Vec::new(),
            end: 0,
            cores,
            flags: HashMap::new(),
            windows: HashMap::new(),
        }
    }

    /// Bytes that are in the window of a rank for operators that have not ended there, whenever that has changed.
    pub fn window(&self, rank: u32) -> &[(u64, u64)] {
        self.windows.get(&rank).map_or(&[], |window| &window.over_time)
    }

    fn lands(&mut self, event: &Event) {
        let (Some(peer), Some(planned)) = (event.what.peer, event.doing.planned) else { return };
        let in_window = event.what.at.is_some_and(|at| at.region == Region::Window);
        if !in_window || peer == event.actor.member {
            return;
        }
        let bytes = event.what.length.unwrap_or(0);
        let window = self.windows.entry(peer.0).or_default();
        *window.of.entry(key(planned)).or_default() += bytes;
        window.whole += bytes;
        window.is_now(event.time);
    }

    fn ends(&mut self, event: &Event) {
        let Some(planned) = event.doing.planned else { return };
        let window = self.windows.entry(event.actor.member.0).or_default();
        let ended = window.ended.entry(key(planned)).or_default();
        *ended += 1;
        if *ended == self.cores {
            window.whole -= window.of.remove(&key(planned)).unwrap_or(0);
            window.is_now(event.time);
        }
    }

    fn writes(&mut self, event: &Event) {
        if let (Some(word), Some(at)) = (event.what.word, event.what.at) {
            let rank = event.what.peer.unwrap_or(event.actor.member);
            self.flags.insert((rank, at), (word, event.actor, event.time));
        }
    }

    fn sees(&mut self, event: &Event) {
        let (Some(word), Some(at)) = (event.what.word, event.what.at) else { return };
        if let Some(&(written, by, when)) = self.flags.get(&(event.actor.member, at))
            && written == word
            && by != event.actor
            && word != 0
        {
            self.flows.push(Flow { from: (by, when), to: (event.actor, event.time), at });
        }
    }
}

const fn key(planned: Planned) -> (u8, usize) {
    (planned.operator as u8, planned.round)
}

impl Lane {
    fn event(&mut self, event: &Event) {
        let now = event.time;
        self.close_wait(now);
        match event.kind {
            Kind::Begin | Kind::Resume => {
                let Some(planned) = event.doing.planned else { return };
                if self.runs {
                    self.close_phase(now);
                } else {
                    let name = planned.operator.name();
                    self.operators.push(Span { from: now, to: now, name, batch: planned.round });
                    self.runs = true;
                }
                let (name, batch) = (event.doing.phase, planned.round);
                self.phases.push(Span { from: now, to: now, name, batch });
            }
            Kind::End | Kind::Sent => self.close_operator(now),
            Kind::Await => {
                let what = event.what.awaited.unwrap_or("");
                // Woken in vain, it goes on waiting.
                match self.waits.last_mut() {
                    Some(last) if last.to == now && last.what == what && last.whom == event.what.peer => {}
                    _ => self.waits.push(Waiting { from: now, to: now, whom: event.what.peer, what }),
                }
                self.awaits = true;
            }
            _ => {}
        }
    }

    fn close_wait(&mut self, now: u64) {
        if core::mem::take(&mut self.awaits)
            && let Some(wait) = self.waits.last_mut()
        {
            wait.to = now;
        }
    }

    fn close_phase(&mut self, now: u64) {
        if let Some(phase) = self.phases.last_mut() {
            phase.to = now;
        }
    }

    fn close_operator(&mut self, now: u64) {
        self.close_phase(now);
        if let Some(operator) = self.operators.last_mut() {
            operator.to = now;
        }
        self.runs = false;
    }
}

impl Timeline {
    /// The record has ended, and with it what is open still, if the run has been cut off.
    pub fn close(&mut self) {
        for lane in self.lanes.values_mut() {
            lane.close_wait(self.end);
            if lane.runs {
                lane.close_operator(self.end);
            }
        }
    }

    /// Draws an event, which is not before the last one.
    pub fn event(&mut self, event: &Event) {
        self.end = self.end.max(event.time);
        match event.kind {
            Kind::Land => return self.lands(event),
            Kind::End => self.ends(event),
            Kind::Publish | Kind::Store | Kind::Send => self.writes(event),
            Kind::Observe => self.sees(event),
            _ => {}
        }
        self.lanes.entry(event.actor).or_default().event(event);
    }
}
