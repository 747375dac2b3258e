//! What a group that does not move waits for, and who is to blame.

use super::{Stop, Task};
use core::fmt;
use core::time::Duration;
use kernel_core::fabric::Wait;
use kernel_core::units::{CoreId, RankId};
use std::collections::BTreeMap;

/// One core's complaint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Whose.
    pub rank: RankId,
    /// Its core.
    pub core: CoreId,
    /// The operator's number in the unit.
    pub operator: usize,
    /// What is missing.
    pub wait: Wait,
}

/// A group without progress.
#[derive(Clone, Debug, Default)]
pub struct Hang {
    /// How long nobody moved.
    pub after: Duration,
    /// What each waiting core misses.
    pub missing: Vec<Missing>,
}

impl Missing {
    /// What a stopped task misses; nothing if it only waits for its own rank's other cores.
    pub(super) fn of(task: &Task, stop: Stop) -> Option<Self> {
        match stop {
            Stop::Wait(wait) => {
                Some(Self { rank: task.rank, core: task.core, operator: task.operator, wait })
            }
            Stop::Join | Stop::Ended | Stop::End => None,
        }
    }
}

impl Hang {
    /// The complaints in the earliest operator that anybody is stuck in: later ones follow from them.
    pub fn roots(&self) -> impl Iterator<Item = &Missing> {
        let first = self.missing.iter().map(|missing| missing.operator).min();
        let rooted = move |missing: &&Missing| Some(missing.operator) == first;
        // A core that waits for its own rank's cores waits for what they wait for.
        let foreign = self.missing.iter().filter(rooted).any(|missing| missing.wait.source().is_some());
        self.missing.iter().filter(rooted).filter(move |m| !foreign || m.wait.source().is_some())
    }

    /// The ranks that others wait for in that operator, most waited for first.
    #[must_use]
    pub fn suspects(&self) -> Vec<(RankId, usize)> {
        let mut waited = BTreeMap::new();
        for source in self.roots().filter_map(|missing| missing.wait.source()) {
            *waited.entry(source).or_insert(0) += 1;
        }
        let mut waited: Vec<_> = waited.into_iter().collect();
        waited.sort_by_key(|&(rank, cores)| (core::cmp::Reverse(cores), rank));
        waited
    }
}

impl fmt::Display for Hang {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no progress for {:.1} s", self.after.as_secs_f64())?;
        let suspects = self.suspects();
        if !suspects.is_empty() {
            f.write_str(": waiting for")?;
            for (i, (rank, cores)) in suspects.iter().take(4).enumerate() {
                write!(f, "{} rank {rank} ({cores} cores)", if i > 0 { "," } else { "" })?;
            }
            if suspects.len() > 4 {
                write!(f, " and {} more", suspects.len() - 4)?;
            }
        }
        for missing in self.roots().take(3) {
            write!(f, "; rank {} core {} {}", missing.rank, missing.core, missing.wait)?;
        }
        match self.roots().count() {
            0..=3 => Ok(()),
            n => write!(f, "; and {} more", n - 3),
        }
    }
}
