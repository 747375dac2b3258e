//! The table of a group's members: which process of the system is which process of the group.

use crate::world::board::{Board, OfProcess};
use crate::world::joined::procfs::{State, is_known, state};
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
    pub(in crate::world) fn own() -> Self {
        Self::of_pid(getpid().as_raw_nonzero().get().unsigned_abs().into())
    }

    /// The process that has that number now.
    pub(in crate::world) fn of_pid(pid: u64) -> Self {
        Self { pid, began: state(pid).map_or(0, |state| state.began) }
    }

    /// Whether it still runs.
    pub(in crate::world) fn runs(self) -> bool {
        self.runs_by(state(self.pid), || is_known(self.pid))
    }

    /// The same by what the system says, if it says something, else by whether it knows such a process.
    fn runs_by(self, state: Option<State>, is_known: impl FnOnce() -> bool) -> bool {
        state.map_or_else(is_known, |state| self.is(&state) && !state.is_dead)
    }

    /// Whether a state is that of this process. What the system did not say when it began is 0.
    const fn is(self, state: &State) -> bool {
        self.began == 0 || state.began == self.began
    }

    /// How it has ended, as long as its parent has not asked for that.
    pub(in crate::world) fn exit_code(self) -> Option<i32> {
        let state = state(self.pid).filter(|state| self.is(state) && state.is_dead)?;
        state.exit_code
    }
}

/// The members that have joined a group.
#[derive(Clone, Copy)]
pub(in crate::world) struct MemberTable<'a>(pub(in crate::world) &'a Board);

impl MemberTable<'_> {
    pub(in crate::world) fn of(self, process: usize) -> Option<Identity> {
        let word = |word| self.0.of(process, word).load(Ordering::Acquire);
        let pid = word(OfProcess::Pid);
        (pid != 0).then(|| Identity { pid, began: word(OfProcess::Began) })
    }

    /// All members that have joined, with their numbers.
    pub(in crate::world) fn members(self) -> impl Iterator<Item = (usize, Identity)> {
        (0..self.0.processes()).filter_map(move |process| Some((process, self.of(process)?)))
    }

    /// Enters this process, unless another one has that number and `keeps` it.
    pub(super) fn take(self, process: usize, keeps: impl Fn(Identity) -> bool) -> Result<(), Identity> {
        if let Some(other) = self.of(process).filter(|&other| keeps(other)) {
            return Err(other);
        }
        self.enter(process, Identity::own());
        Ok(())
    }

    /// Enters a process.
    pub(in crate::world) fn enter(self, process: usize, who: Identity) {
        self.0.of(process, OfProcess::Began).store(who.began, Ordering::Relaxed);
        self.0.of(process, OfProcess::Pid).store(who.pid, Ordering::Release);
    }

    pub(super) fn leave(self, process: usize) {
        self.0.of(process, OfProcess::Pid).store(0, Ordering::Release);
    }

    pub(super) fn is_full(self) -> bool {
        (0..self.0.processes()).all(|process| self.of(process).is_some())
    }

    /// The processes that have not joined, or have died since.
    pub(super) fn missing(self) -> Vec<usize> {
        let is_missing = |&process: &usize| !self.of(process).is_some_and(Identity::runs);
        (0..self.0.processes()).filter(is_missing).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_of_which_the_system_tells_nothing_runs_as_long_as_it_is_known() {
        let state = |began, is_dead| Some(State { is_dead, began, exit_code: None });
        let (this, unread) = (Identity { pid: 7, began: 5 }, Identity { pid: 7, began: 0 });
        let asked = || panic!("the state says all");
        assert!(this.runs_by(state(5, false), asked) && unread.runs_by(state(5, false), asked));
        assert!(!this.runs_by(state(5, true), asked), "it has ended");
        assert!(!this.runs_by(state(6, false), asked), "another one has its number");
        assert!(this.runs_by(None, || true) && !this.runs_by(None, || false));
        let own = Identity::own();
        assert!(own.runs() && is_known(own.pid) && !is_known(i32::MAX as u64));
    }
}
