//! Groups of several processes, which have [joined](join). On Linux alone: its processes have files that stand for them, and memory
//! without a name.

mod children;
mod cluster;
pub(super) mod eventcount;
mod how;
pub mod join;
mod memory;
mod network;
mod peers;
mod pidfd;
mod procfs;
#[cfg(test)]
mod tests;
mod transport;
mod watch;

pub use children::{Children, Invited, Task, is_child};
pub use cluster::Cluster;
pub use how::How;
pub use memory::{GroupMemory, GroupSize};
pub use network::{Hello, Introduced, introduce};
pub use peers::{PeerWatch, Peers};
pub use watch::{Departed, Outcome, Watched, watch};

use super::{At, Patience, Phase, World, board};
use board::{OfGroup, OfProcess};
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::sync::{Arc, OnceLock, Weak};
use transport::Transport;
use veriep_case::parallel;

/// What a process needs to reach the others.
#[derive(Debug)]
pub(super) struct Links {
    /// The longest wait for a notification.
    wait_max: Duration,
    /// The machines of all processes, where they are not all of this one.
    hosts: Vec<String>,
    /// Carries between this process and those whose memory it does not map, if there are any.
    transport: OnceLock<Weak<dyn Transport>>,
}

impl Default for Links {
    fn default() -> Self {
        Self { wait_max: eventcount::WAIT_MAX, hosts: Vec::new(), transport: OnceLock::new() }
    }
}

impl Links {
    /// Carries what is on its way. Whether something has come.
    #[inline]
    pub(super) fn carry(&self) -> bool {
        self.transport.get().and_then(Weak::upgrade).is_some_and(|transport| transport.carry())
    }
}

impl World {
    /// The view that a process has of the group that it has joined.
    pub(crate) fn member(memory: &GroupMemory, process: usize) -> Arc<Self> {
        let GroupSize { processes, workers, ranks } = memory.size();
        let crowded = processes > 1 && processes * workers > parallel::processors();
        Arc::new(Self { crowded, ..Self::of(memory.board(), process, ranks) })
    }

    /// The view of a process that watches the group and drives no rank of it.
    #[must_use]
    pub fn observer(memory: &GroupMemory) -> Arc<Self> {
        let GroupSize { processes, ranks, .. } = memory.size();
        Arc::new(Self::of(memory.board(), processes, ranks))
    }

    /// Ranks that have been compared with the reference.
    #[must_use]
    pub fn checked(&self) -> u64 {
        self.sum(OfProcess::Checked)
    }

    /// Ends the group now.
    pub fn stop(&self) {
        self.board.group(OfGroup::Stop).store(1, Ordering::Relaxed);
        self.notify();
    }

    /// Asks the group to end between two units.
    pub fn ask_for_the_end(&self) {
        self.board.group(OfGroup::Asked).store(1, Ordering::Relaxed);
    }
}
