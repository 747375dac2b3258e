//! Choosers that write choices down, and that take those that were written down.

use super::chooser::{Actor, Choice, Chooser, Lands, Quiet};
use super::flight::{Flight, FlightId, FlightKind};
use crate::fabric::Awaited;
use crate::place::Place;
use alloc::vec::Vec;

/// What a chooser has said, in order: replayed on the same group from its beginning, it makes the same run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    choices: Vec<Choice>,
    lands: Vec<Lands>,
    cuts: Vec<Vec<u64>>,
    quiets: Vec<Quiet>,
}

/// A chooser whose answers are written down.
#[derive(Clone, Debug)]
pub struct Recorded<C> {
    /// Who decides.
    pub inner: C,
    /// What it has said.
    pub recording: Recording,
}

impl<C> Recorded<C> {
    /// Nothing is written down yet.
    #[must_use]
    pub fn new(inner: C) -> Self {
        Self { inner, recording: Recording::default() }
    }
}

impl<C: Chooser> Chooser for Recorded<C> {
    fn next(&mut self) -> Option<Choice> {
        let choice = self.inner.next();
        self.recording.choices.extend(choice);
        choice
    }

    fn issued(&mut self, flight: FlightId, what: &Flight) -> Lands {
        let lands = self.inner.issued(flight, what);
        self.recording.lands.push(lands);
        lands
    }

    fn cut(&mut self, kind: FlightKind, len: u64, cuts: &mut Vec<u64>) {
        self.inner.cut(kind, len, cuts);
        self.recording.cuts.push(cuts.clone());
    }

    fn may_land(&mut self, flight: FlightId, what: &Flight) {
        self.inner.may_land(flight, what);
    }

    fn landed(&mut self, flight: FlightId, what: &Flight, at: Place, bytes: u64, end: bool) {
        self.inner.landed(flight, what, at, bytes, end);
    }

    fn quiet(&mut self, core: Actor, all: bool) -> Quiet {
        let quiet = self.inner.quiet(core, all);
        self.recording.quiets.push(quiet);
        quiet
    }

    fn may_step(&mut self, actor: Actor) {
        self.inner.may_step(actor);
    }

    fn sleeps(&mut self, actor: Actor, on: &[Awaited]) {
        self.inner.sleeps(actor, on);
    }
}

/// A chooser that takes the choices of a recording; at its end, none.
#[derive(Clone, Debug, Default)]
pub struct Replayed {
    recording: Recording,
    choices: usize,
    lands: usize,
    cuts: usize,
    quiets: usize,
}

impl From<Recording> for Replayed {
    fn from(recording: Recording) -> Self {
        Self { recording, ..Self::default() }
    }
}

/// The next answer of some that were written down.
fn next<T: Clone>(all: &[T], at: &mut usize) -> Option<T> {
    *at += 1;
    all.get(*at - 1).cloned()
}

impl Chooser for Replayed {
    fn next(&mut self) -> Option<Choice> {
        next(&self.recording.choices, &mut self.choices)
    }

    fn issued(&mut self, _: FlightId, _: &Flight) -> Lands {
        next(&self.recording.lands, &mut self.lands).unwrap_or(Lands::Later)
    }

    fn cut(&mut self, _: FlightKind, _: u64, cuts: &mut Vec<u64>) {
        *cuts = next(&self.recording.cuts, &mut self.cuts).unwrap_or_default();
    }

    fn quiet(&mut self, _: Actor, _: bool) -> Quiet {
        next(&self.recording.quiets, &mut self.quiets).unwrap_or(Quiet::Honest)
    }
}
