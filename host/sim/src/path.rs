//! Why a run ended when it did: each step remembers what made it possible, and the critical path is walked backwards from the
//! last one.

use super::costs::Ps;
use core::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use veriep_core::sim::{Actor, FlightId};
use veriep_trace::events::chrome::Part;
use veriep_trace::events::core_of;

/// What made a step possible.
#[derive(Clone, Copy, Debug)]
enum Cause {
    /// Its rank began.
    Begin,
    /// The step of that number: the actor's own one before, or the last one of the operator before.
    Step(usize),
    /// Something that the step of that number sent at that time.
    Sent(usize, Ps),
}

#[derive(Clone, Copy, Debug)]
struct Step {
    actor: Actor,
    at: Ps,
    cause: Cause,
}

/// Something of each core and agent.
#[derive(Debug)]
pub struct ByActor<T>(Vec<Vec<Option<T>>>);

impl<T> Default for ByActor<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> ByActor<T> {
    pub fn of(&mut self, actor: Actor) -> &mut Option<T> {
        // The number of an agent is the largest there is.
        let (rank, place) = (actor.member.index(), actor.core.0.wrapping_add(1) as usize);
        if self.0.len() <= rank {
            self.0.resize_with(rank + 1, Vec::new);
        }
        let all = &mut self.0[rank];
        if all.len() <= place {
            all.resize_with(place + 1, || None);
        }
        &mut all[place]
    }
}

/// Everything that has happened.
#[derive(Debug, Default)]
pub struct History {
    steps: Vec<Step>,
    /// What makes an actor's next step possible.
    causes: ByActor<Cause>,
    /// By slot of a flight: the step that sent it, and when.
    sent: Vec<(usize, Ps)>,
    /// The flight that lands now, by what sent it.
    landing: Option<(usize, Ps)>,
    /// Since when an actor sleeps, and on which kind of word.
    asleep: ByActor<(Ps, &'static str)>,
    /// How long actors of a rank have slept until something came from another, or from their own.
    waited: HashMap<(u32, u32), Ps>,
    /// How long actors have slept on a kind of word.
    kinds: HashMap<&'static str, Ps>,
}

impl History {
    pub fn steps(&mut self, actor: Actor, at: Ps) {
        let cause = self.causes.of(actor).take().unwrap_or(Cause::Begin);
        self.steps.push(Step { actor, at, cause });
        self.landing = None;
    }

    /// The step that is taken now sends a flight.
    pub fn sends(&mut self, flight: FlightId, at: Ps) {
        if self.sent.len() <= flight.slot() {
            self.sent.resize(flight.slot() + 1, (0, 0));
        }
        self.sent[flight.slot()] = (self.now(), at);
    }

    pub fn lands(&mut self, flight: FlightId) {
        self.landing = self.sent.get(flight.slot()).copied();
    }

    pub fn sleeps(&mut self, actor: Actor, at: Ps, what: &'static str) {
        *self.asleep.of(actor) = Some((at, what));
    }

    /// An actor may take a step. Returns since when it has slept, if it has.
    pub fn wakes(&mut self, actor: Actor, at: Ps) -> Option<Ps> {
        let asleep = self.asleep.of(actor).take();
        let since = asleep.map(|(since, _)| since);
        if let Some((since, what)) = asleep {
            *self.kinds.entry(what).or_default() += at.saturating_sub(since);
        }
        let cause = match (since, self.landing) {
            (Some(since), Some((step, sent))) => {
                let pair = (actor.member.0, self.steps[step].actor.member.0);
                *self.waited.entry(pair).or_default() += at.saturating_sub(since);
                Cause::Sent(step, sent)
            }
            _ => self.steps.len().checked_sub(1).map_or(Cause::Begin, Cause::Step),
        };
        *self.causes.of(actor) = Some(cause);
        since
    }

    /// The number of the step that is taken now.
    pub const fn now(&self) -> usize {
        self.steps.len().saturating_sub(1)
    }

    /// The critical path of a run that the step `last` ended at `end`, from there back to time 0: its parts add up to `end`.
    pub fn path(&self, last: usize, end: Ps) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        let mut add = |rank, core, (from, to), what| match parts.last_mut() {
            Some(last) if (last.rank, last.core, last.what) == (rank, core, what) => last.from = from,
            _ => parts.push(Part { from, to, rank, core, what }),
        };
        let (mut until, mut next) = (end, Some(last));
        while let Some(step) = next.and_then(|step| self.steps.get(step)) {
            let rank = step.actor.member.0;
            let core = core_of(step.actor);
            add(rank, core, (step.at, until), "works");
            until = step.at;
            next = match step.cause {
                Cause::Begin => {
                    if until > 0 {
                        add(rank, core, (0, until), "begins late");
                    }
                    None
                }
                Cause::Step(before) => Some(before),
                Cause::Sent(before, sent) => {
                    add(rank, None, (sent, until), "waits for what is on its way");
                    until = sent;
                    Some(before)
                }
            };
        }
        parts
    }

    /// For how long a rank's cores and its agent have waited for a rank.
    pub fn matrix(&self) -> BTreeMap<(u32, u32), Ps> {
        self.waited.iter().map(|(&pair, &waited)| (pair, waited)).collect()
    }

    /// For how long cores and agents have waited for a kind of word, the longest first.
    pub fn kinds(&self) -> Vec<(&'static str, Ps)> {
        longest_first(self.kinds.iter().map(|(&what, &waited)| (what, waited)))
    }
}

/// Sums by whom or what was waited for, the longest first.
pub fn longest_first<K: Ord + Copy>(sums: impl Iterator<Item = (K, Ps)>) -> Vec<(K, Ps)> {
    let mut sums: Vec<_> = sums.collect();
    sums.sort_by_key(|&(what, waited)| (Reverse(waited), what));
    sums
}
