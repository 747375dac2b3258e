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
//! A rank that has ended an operator forgets what it was told there. Machines count from a number of the model's choosing,
//! so that for ever has an end.

mod memory;
mod state;
mod step;
mod view;

use super::model::{Model, Setup};
use super::search::{Found, Origin, Space, Told, retell, search};
use super::{Report, Timeline, Violation};
use kernel_core::shape::Shape;
use state::Group;
use step::Known;

/// Explores all states of a model of the hierarchy, breadth first.
pub(super) fn explore(model: &Model, shape: &Shape) -> Report {
    search(&mut Known::new(Setup::new(model, shape)), model.states_max)
}

impl Space for Known<'_> {
    type State = Group;
    /// A core that steps, by its number in the group.
    type Move = usize;

    fn initial(&mut self, told: bool) -> Vec<Result<Group, Violation>> {
        Self::initial(self, told)
    }

    fn expand(&mut self, state: &Group) -> Vec<Found<Self>> {
        Self::expand(self, state)
    }

    fn is_over(&self, state: &Group) -> bool {
        state.cores.iter().all(|core| self.scene.setup.ended(core.op))
    }

    fn ended(&self, state: &Group) -> u32 {
        state.cores.iter().map(|core| core.op).sum()
    }

    fn fingerprint(&self, state: &Group) -> u128 {
        state.fingerprint(&self.scene.setup)
    }

    fn matrices(&self) -> usize {
        self.oracle.matrices()
    }

    fn retell(&mut self, way: &[Origin<usize>], violation: Violation) -> Timeline {
        retell(self, way, violation)
    }
}

impl Told for Known<'_> {
    fn after(&mut self, state: &Group, core: usize) -> Vec<Result<Group, Violation>> {
        Self::after(self, state, core)
    }

    // Steps tell themselves.
    fn tell(&self, _: &mut Group, _: usize) {}

    fn tell_last(&self, state: &mut Group, core: usize) {
        let who = self.who(core, state.cores[core].op);
        state.tell(&who, &["goes on".to_owned()]);
    }

    fn tell_waits(&mut self, state: &mut Group) {
        Self::tell_waits(self, state);
    }

    fn traffic(&self, state: &Group, traffic: &mut Vec<Vec<Option<i32>>>) {
        state.tell_traffic(&self.matrices, traffic);
    }

    fn story(&self, state: &mut Group) -> Vec<String> {
        state.story.take().unwrap_or_default()
    }
}
