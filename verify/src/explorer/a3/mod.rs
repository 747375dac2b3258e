//! A3 in the search: sparse memory, a flight of effects, and rows that are forgotten when they have been read.

mod bent;
mod experts;
mod memory;
mod noted;
mod view;

use super::liveness::Mover;
use super::model::Memory as Landing;
use super::plan::Part;
use super::protocol::{Outcome, Protocol, Reduce, Run, Tell, VIRTUAL};
use super::setup::Setup;
use super::state::{Bytes, StateOf};
use super::step::StepOf;
use super::story::{Line, Told, Who};
use super::violation::Violation;
use bent::Bent;
use core::hash::{BuildHasher, Hash};
use foldhash::fast::FixedState;
pub(super) use memory::Scene;
use memory::{Effect, Memory};
use veriep_core::fabric::Progress;
use veriep_core::place::Place;
use view::View;

impl Protocol for Scene<'_> {
    type Memory = Memory;
    /// Whether the core has put something since its last quiet. Only the defect that asks looks at it.
    type Own = bool;
    /// An effect lands, by its place in the flight.
    type Event = usize;
    type Query = ();
    type Effect = ();

    fn memory(&self) -> Memory {
        Memory::default()
    }

    fn step(
        &mut self,
        memory: &mut Memory,
        own: &mut bool,
        step: StepOf<Self>,
        run: Run<'_>,
    ) -> (Outcome, StepOf<Self>) {
        let mut bent = Bent::new(View::new(self, memory, step), *own);
        let came = run(&mut bent);
        let (View { memory, step, read_rows, .. }, sent) = bent.into_parts();
        *own = sent;
        let memory = memory.into_inner();
        // They have been read for the last time.
        read_rows.take().into_iter().for_each(|place| memory.set_row(place, None));
        if step.search.touched.get() && !matches!(came, Ok(Progress::Pending(_))) {
            let is_silent = step.account.is_silent();
            is_silent.then(|| step.account.say(|| "sees what it waited for".to_owned()));
        }
        (came, step)
    }

    fn events(&self, state: &StateOf<Self>) -> Vec<usize> {
        let explicit = self.setup.model.memory == Landing::WeakExplicit;
        if !explicit {
            return Vec::new();
        }
        state.memory.flight.may_land(|effect, earlier| self.follows(effect, earlier))
    }

    fn apply(&mut self, state: &mut StateOf<Self>, i: usize) -> Result<bool, Violation> {
        let effect = state.memory.flight.remove(i);
        let violation = self.land(&mut state.memory, &effect);
        let is_ahead = state.memory.flight[..i].iter().any(|e| e.issued.from == effect.issued.from);
        if self.setup.model.defect.tells(&effect.issued, is_ahead) {
            state.note(self.setup, vec![effect.landing()]);
        }
        violation.map_or(Ok(true), Err)
    }

    fn mover(&self, state: &StateOf<Self>, i: usize) -> (Mover, u64) {
        (Mover::Memory, FixedState::default().hash_one(state.memory.flight[i]))
    }

    fn setup(&self) -> &Setup<'_> {
        self.setup
    }
}

impl Reduce for Scene<'_> {
    fn in_flight(memory: &Memory) -> usize {
        memory.flight.len()
    }

    /// Of what others do, a step that no other core can see depends on one thing alone: whether what its core issued has landed.
    fn woken_by(&self, before: &Memory, after: &Memory, moved: Option<usize>) -> u32 {
        let mut left = after.flight.iter().peekable();
        let landed = before.flight.iter().filter(|effect| left.next_if_eq(effect).is_none());
        let cores = landed
            .map(|effect| effect.issued.from)
            .map(|(rank, core)| rank.index() * self.setup.model.cores as usize + core.0 as usize);
        cores.chain(moved).fold(0, |cores, core| cores | 1 << core)
    }

    fn fingerprint(&self, state: &StateOf<Self>, _: u32, bytes: &mut Bytes) {
        state.cores.iter().for_each(|core| core.own.hash(bytes));
        let Memory { words, rows, flight } = &state.memory;
        (words, rows).hash(bytes);
        flight.fingerprint(bytes, Effect::hash);
    }
}

impl Tell for Scene<'_> {
    fn describe(&self, state: &StateOf<Self>, i: usize) -> Line {
        let effect = &state.memory.flight[i];
        let (rank, core) = effect.issued.from;
        let named = if self.setup.model.cores > 1 { format!(" core {core}") } else { String::new() };
        let who = Who { words: "lands: ".to_owned(), rank: Some(rank.0), core: Some(core.0) };
        let text = format!("the {effect}, issued by rank {rank}{named}");
        Line { who, did: vec![Told { text, memory: Some(effect.issued.to.0), is_read: false }] }
    }

    fn rename(&self, at: &mut Place, _: &mut Option<u64>, part: Part) {
        let partitions = self.setup.model.partitions[part.operator() as usize];
        // The machines have two.
        if let Some(size) = self.partition_bytes(*at).filter(|_| partitions != 2) {
            at.offset = at.offset % size + u64::from(part.nth % partitions) * VIRTUAL;
        }
    }
}
