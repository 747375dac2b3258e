//! The seats of a group that joins, and who sits there.

use crate::world::World;
use crate::world::board::{Board, OfProcess};
use crate::world::procfs::state;
use core::sync::atomic::Ordering;
use rustix::process::getpid;
use serde::{Deserialize, Serialize};

/// A process of the system, which no later one of the same number is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::world) struct Identity {
    pub(in crate::world) pid: u64,
    began: u64,
}

impl Identity {
    pub(super) fn own() -> Self {
        let pid = u64::from(getpid().as_raw_nonzero().get().unsigned_abs());
        Self { pid, began: state(pid).map_or(0, |state| state.began) }
    }

    pub(in crate::world) fn of(world: &World, process: usize) -> Self {
        Seats(&world.board).of(process).unwrap_or(Self { pid: 0, began: 0 })
    }

    /// Whether it still runs.
    pub(in crate::world) fn runs(self) -> bool {
        state(self.pid).is_some_and(|state| state.began == self.began && !state.is_dead)
    }

    /// How it has ended, as long as its parent has not asked for that.
    pub(in crate::world) fn exit_code(self) -> Option<i32> {
        let state = state(self.pid).filter(|state| state.began == self.began && state.is_dead)?;
        state.exit_code
    }
}

/// Who has come.
#[derive(Clone, Copy)]
pub(in crate::world) struct Seats<'a>(pub(in crate::world) &'a Board);

impl Seats<'_> {
    pub(super) fn of(self, process: usize) -> Option<Identity> {
        let word = |word| self.0.of(process, word).load(Ordering::Acquire);
        let pid = word(OfProcess::Pid);
        (pid != 0).then(|| Identity { pid, began: word(OfProcess::Began) })
    }

    /// Sits down, unless somebody sits there who `keeps` the seat.
    pub(in crate::world) fn take(
        self,
        process: usize,
        keeps: impl Fn(Identity) -> bool,
    ) -> Result<(), Identity> {
        if let Some(other) = self.of(process).filter(|&other| keeps(other)) {
            return Err(other);
        }
        let own = Identity::own();
        self.0.of(process, OfProcess::Began).store(own.began, Ordering::Relaxed);
        self.0.of(process, OfProcess::Pid).store(own.pid, Ordering::Release);
        Ok(())
    }

    pub(super) fn leave(self, process: usize) {
        self.0.of(process, OfProcess::Pid).store(0, Ordering::Release);
    }

    pub(super) fn are_taken(self) -> bool {
        (0..self.0.processes()).all(|process| self.of(process).is_some())
    }

    /// Who has not come, or has died since.
    pub(super) fn empty(self) -> Vec<usize> {
        let is_empty = |&process: &usize| !self.of(process).is_some_and(Identity::runs);
        (0..self.0.processes()).filter(is_empty).collect()
    }
}
