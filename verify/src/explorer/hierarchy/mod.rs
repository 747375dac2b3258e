//! A2's hierarchy: the same search over its machines, near words and far messages.
//!
//! An effect is kept as *issued, perhaps landed*. When its rank looks at its word, both is tried: it has landed, and with it
//! all that must land before, or it has not yet. Of a record the front flag is seen by itself: inside a message there is no
//! order, so to have seen it says only that the messages before are there. Reading what has perhaps not landed is an error.
//!
//! # What is wrong at once
//! Every core keeps what it has **heard**: of each rank the operator that it has begun. A word carries what its writer had
//! heard; who sees it has heard that too (rule 4). A write to a place that was used before is an error unless its core has
//! heard that the owner has ended that use: then there is an order of events in which the owner still reads. So is an effect
//! that its rank did not wait for before it ended the operator.
//!
//! # What need not be tried
//! None of this depends on the order of what different ranks do, but for what they see. So
//!
//! - a step that looks at nothing which can still change is done at once, also if it issues something: perhaps it lands
//!   later. The same of a step that looks at words of near ranks that count operators and have come, if it is seen to do
//!   the same where any of those words have gone on by one;
//! - if all that the cores of some ranks look at now has been issued, or is theirs to issue, the others can wait: nothing
//!   that they
//!   do changes what those may see. A quiet lands at other ranks, which could still miss it: these cannot wait;
//! - of two ways to come to the same state of a core, the one that saw more to have landed is left out: from the other one
//!   that can still
//!   be seen.
//!
//! [`Memory::WeakExplicit`](super::Memory::WeakExplicit) has the first of these alone. Over
//! [`Memory::Strong`](super::Memory::Strong) effects land when issued, and a step that issues something is never done at
//! once.
//!
//! # Stage 2
//! What cores gather in a window out, their tasks and their barrier words are effects on their own rank. A core that rings lets
//! its agent post at once: one that looks later is a transfer that is delivered later. The agent reads what the transfer
//! carries when it posts it; that this may still change until it is delivered is no other case, since a write there is an error
//! unless its core has heard that the rank to which it went has ended the operator. A transfer lands word by word, in order, and
//! there is no order between two of them.
//!
//! A rank that has ended an operator forgets what it was told there. Machines count from a number of the model's choosing,
//! so that a search for any number of rounds ends.

mod agent;
mod bent;
mod memory;
mod noted;
mod view;

use super::liveness::Mover;
use super::model::Memory as Landing;
use super::plan::Part;
use super::protocol::{Outcome, Protocol, Reduce, Run, Tell, VIRTUAL};
use super::setup::Setup;
use super::state::{Bytes, Core, StateOf};
use super::step::StepOf;
use super::story::Line;
use super::violation::Violation;
use bent::Bent;
use core::convert::Infallible;
use core::hash::Hash;
pub(super) use memory::Scene;
use memory::{Area, Effect, Heard, Memory};
use veriep_core::layout::relay;
use veriep_core::place::Place;
use veriep_core::protocol::Agent;
use veriep_core::units::RankId;
use view::{Query, View, own_epoch};

/// What the memory keeps of a core.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub(super) struct Own {
    /// Operators begun by its own count, the word in its window.
    epoch: u32,
    /// Of every rank: the operator that it has begun, as far as this core has heard; no later than its own.
    heard: Heard,
}

impl Protocol for Scene<'_> {
    type Memory = Memory;
    type Own = Own;
    type Event = Infallible;
    type Query = Query;
    type Effect = Effect;

    const CHOOSES_AT_ONCE: bool = true;

    fn memory(&self) -> Memory {
        let agents = vec![Agent::new(); self.setup.model.ranks as usize];
        Memory { agents, ..Memory::default() }
    }

    fn step(
        &mut self,
        memory: &mut Memory,
        own: &mut Own,
        step: StepOf<Self>,
        run: Run<'_>,
    ) -> (Outcome, StepOf<Self>) {
        let before = memory.flight.len();
        let mut bent = Bent::new(View::new(self, memory, own, step));
        let came = run(&mut bent);
        let view = bent.into_view();
        *own = view.own();
        let View { memory, step, .. } = view;
        if step.search.peek && step.search.touched.get() {
            memory.into_inner().flight.truncate(before);
        }
        (came, step)
    }

    fn events(&self, _: &StateOf<Self>) -> Vec<Infallible> {
        Vec::new()
    }

    fn apply(&mut self, _: &mut StateOf<Self>, event: Infallible) -> Result<bool, Violation> {
        match event {}
    }

    fn mover(&self, _: &StateOf<Self>, event: Infallible) -> (Mover, u64) {
        match event {}
    }

    fn setup(&self) -> &Setup<'_> {
        self.setup
    }

    fn ended(&self, state: &mut StateOf<Self>, rank: usize, op: u32) -> Option<Violation> {
        let all = self.setup.model.cores as usize;
        let cores = &mut state.cores[rank * all..][..all];
        // The join: each has heard what all have.
        let most = |heard: Heard, core: &Core<Own>| core::array::from_fn(|i| heard[i].max(core.own.heard[i]));
        let mut heard = cores.iter().fold([0; _], most);
        heard[rank] = op + 1;
        cores.iter_mut().for_each(|core| core.own.heard = heard);
        state.memory.end(self, RankId(rank as u32), op)
    }
}

impl Reduce for Scene<'_> {
    fn in_flight(memory: &Memory) -> usize {
        memory.flight.len()
    }

    fn fingerprint(&self, state: &StateOf<Self>, first: u32, bytes: &mut Bytes) {
        let since = |op: u32| op.wrapping_sub(first);
        let ranks = state.written.len();
        let heard = |heard: &Heard| -> Heard {
            core::array::from_fn(|rank| if rank < ranks { since(heard[rank]) } else { 0 })
        };
        for core in &state.cores {
            (since(core.own.epoch), heard(&core.own.heard)).hash(bytes);
        }
        // An agent has served what was rung for, and its core knows whether that is so in this operator.
        let Memory { cells, flight, .. } = &state.memory;
        cells.iter().len().hash(bytes);
        for ((rank, spot), value) in cells.iter() {
            (rank, spot, since(value.op), value.number, value.body, heard(&value.heard)).hash(bytes);
        }
        flight.fingerprint(bytes, |effect, bytes| {
            let value = &effect.value;
            (effect.issued.from, effect.issued.to, effect.spot, effect.seen).hash(bytes);
            (since(value.op), value.number, value.body, heard(&value.heard)).hash(bytes);
        });
    }

    fn lets_ranks_wait(&self) -> bool {
        self.setup.model.memory == Landing::Weak
    }

    fn woken_by(&self, _: &Memory, _: &Memory, moved: Option<usize>) -> u32 {
        let by_rank = moved.filter(|_| self.setup.model.memory != Landing::Strong);
        by_rank.map_or(u32::MAX, |core| self.setup.cores_beside(core))
    }

    fn supposes(&self) -> bool {
        self.setup.model.memory != Landing::WeakExplicit
    }

    fn is_alike(a: &Own, b: &Own) -> bool {
        a.epoch == b.epoch
    }

    fn is_one_enough(&self, a: &[Effect], b: &[Effect]) -> bool {
        let explicit = self.setup.model.memory == Landing::WeakExplicit;
        !explicit && a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.is_like(b))
    }
}

impl Tell for Scene<'_> {
    fn describe(&self, _: &StateOf<Self>, event: Infallible) -> Line {
        match event {}
    }

    fn rename(&self, at: &mut Place, word: &mut Option<u64>, part: Part) {
        let op = part.number;
        // No word is cleared: here is what the model has forgotten, or nothing yet.
        *word = word.filter(|&word| word != 0);
        let found = self.spot(*at, op);
        let inside = found.map_or(0, |(_, inside)| inside);
        // Machines count operators from another number here.
        let counted = |epoch: u64| epoch.wrapping_sub(own_epoch(op)).wrapping_add(u64::from(op) + 1);
        match (found.map(|(spot, _)| spot.area), word.as_mut()) {
            // The last three are of stage 2, which no caller asks a record of.
            (Some(Area::Row | Area::Out | Area::Task | Area::Barrier), _) | (_, None) => {}
            (Some(Area::Record), _) if inside > 0 => {}
            (None | Some(Area::Entered | Area::RowsDone | Area::Record), Some(word)) => {
                *word = counted(*word);
            }
            (Some(Area::End | Area::Count | Area::Flag), Some(word)) => {
                let (epoch, number) = relay::unmark(*word);
                *word = relay::mark(counted(epoch), number);
            }
        }
        // They have two partitions.
        if let Some((spot, _)) = found.filter(|_| self.setup.model.partitions[0] != 2) {
            *at = self.first_place(*at, spot, op);
            at.offset += u64::from(spot.partition) * VIRTUAL;
        }
    }
}
