//! The join of a rank's cores, which is the driver's: the orderings are those of `veriep_core::fabric::coherent`, as the driver
//! of the host has them.

use ::loom::sync::atomic::{AtomicU32, Ordering};
use ::loom::thread;
use veriep_core::fabric::coherent::{ARRIVE, JOINED, OPEN};
use veriep_core::units::CoreId;

/// How cores join.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Join {
    /// As the driver must.
    #[default]
    Kept,
    /// Twin: nobody waits for the others. Core 0 runs the experts.
    Missing,
    /// Twin: an arrival says nothing of what its core did before.
    RelaxedArrival,
    /// Twin: the word that opens the join says nothing of what was done before.
    RelaxedOpen,
}

/// The joins of a rank, one after each of its operators. To be made inside a model.
#[derive(Debug)]
pub(super) struct Joins {
    how: Join,
    cores: u32,
    /// By operator: the cores that have ended it, and whether the next one may begin.
    words: Vec<(AtomicU32, AtomicU32)>,
}

impl Joins {
    pub(super) fn new(how: Join, cores: u32, operators: usize) -> Self {
        let words = (0..operators).map(|_| (AtomicU32::new(0), AtomicU32::new(0))).collect();
        Self { how, cores, words }
    }

    /// `core` has ended operator number `n`. The last one runs the `experts`, who read what all cores have put out; the others
    /// wait for that.
    pub(super) fn after(&self, n: usize, core: CoreId, experts: impl FnOnce()) {
        let relaxed = |twin, ordering| if self.how == twin { Ordering::Relaxed } else { ordering };
        if self.how == Join::Missing {
            if core.0 == 0 {
                experts();
            }
            return;
        }
        let (ended, open) = &self.words[n];
        if ended.fetch_add(1, relaxed(Join::RelaxedArrival, ARRIVE)) + 1 == self.cores {
            experts();
            open.store(1, relaxed(Join::RelaxedOpen, OPEN));
            return;
        }
        while open.load(JOINED) == 0 {
            thread::yield_now();
        }
    }
}
