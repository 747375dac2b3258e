//! A2's full mesh: the same search over its machines, agents and transfers.
//!
//! A **move** is a step of a core that reads what others write, is quiet, or ends an operator; or a piece of a transfer
//! that arrives, up to a word at which its reader could look for a flag. What a core puts, writes and stores is *issued,
//! perhaps landed* until its quiet: whoever else meets it meanwhile, reading or writing, is an error at once. So is
//!
//! - a piece that comes to a half whose reader has not ended the operator before with that half. Hence a window that
//!   has come whole stays as it is until its reader ends the operator: its reads are nobody's business, the end is a move;
//! - a write to what a transfer has still to read;
//! - a write to a task whose transfer has not begun. Hence agents post as soon as they are rung: one that looks later,
//!   or whose interface is busy, is a transfer that begins later.
//!
//! # What is forgotten
//! A window in when its rank has ended the operator; a piece of a window out when it was delivered; a task when it was
//! posted. Forgotten bytes hold what is no count, no task and nobody's row, so to read one of them shows. **What stays are
//! flags**: a word of a window in at which anybody could look for a flag keeps being one or not being one. In a window out
//! every word becomes a flag at which this group could look for one, since what was sent there once may have been any row;
//! whatever is sent along between the named parts is as bad as it can be.
//!
//! Element 16 on of every row is half a flag. Payload tells the batches of a unit apart, or two rounds.
//!
//! [`Memory::WeakExplicit`](super::Memory::WeakExplicit) forgets nothing, lets every effect land by a move of its own,
//! has a piece for every word of either operator, and takes every read for a move. Then only what really goes wrong is an
//! error: one core a rank, and a few operators, are all that is within reach.

mod memory;
mod state;
mod step;
mod view;
mod words;

use super::model::{Memory as Landing, Model, Setup, Twin};
use super::search::{Found, Origin, Space, Told, retell, search};
use super::{Report, Timeline, Violation};
use kernel_core::shape::Shape;
use state::{Group, Move};
use step::Known;

/// Explores all states of a model of A2, breadth first.
pub(super) fn explore(model: &Model, shape: &Shape) -> Report {
    search(&mut Known::new(Setup::new(model, shape)), model.states_max)
}

impl Space for Known<'_> {
    type State = Group;
    type Move = Move;

    fn initial(&mut self, told: bool) -> Vec<Result<Group, Violation>> {
        Self::initial(self, told)
    }

    fn expand(&mut self, state: &Group) -> Vec<Found<Self>> {
        let moves = state.moves(&self.scene.setup);
        moves.into_iter().map(|what| (what, Self::after(self, state, what))).collect()
    }

    fn is_over(&self, state: &Group) -> bool {
        state.is_over(&self.scene.setup)
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

    fn retell(&mut self, way: &[Origin<Move>], violation: Violation) -> Timeline {
        retell(self, way, violation)
    }
}

impl Told for Known<'_> {
    fn after(&mut self, state: &Group, what: Move) -> Vec<Result<Group, Violation>> {
        Self::after(self, state, what)
    }

    fn tell(&self, state: &mut Group, what: Move) {
        Self::tell(self, state, what);
    }

    fn tell_last(&self, state: &mut Group, what: Move) {
        if let Move::Core(core) = what {
            Self::tell_last(self, state, core);
        }
    }

    fn tell_waits(&mut self, state: &mut Group) {
        let mut events = state.story.take().unwrap_or_default();
        Self::tell_waits(self, state, &mut events);
        state.story = Some(events);
    }

    fn traffic(&self, state: &Group, traffic: &mut Vec<Vec<Option<i32>>>) {
        state.tell_traffic(traffic);
    }

    fn story(&self, state: &mut Group) -> Vec<String> {
        state.story.take().unwrap_or_default()
    }
}
