//! The constants of a core of A3, and the context of its steps.

use super::{Choices, Flags, Types};
use crate::fabric::{Flag, Wait};
use crate::plan::split::{self, Work};
use crate::shape::{Protocol, Shape};
use crate::sync::barrier::CoreRef;
use crate::units::{CoreId, RankId};
use core::ops::Range;

/// The constants of a core over a group's life.
#[derive(Clone, Debug)]
pub struct Env<V> {
    pub(crate) fingerprint: u64,
    pub(crate) rank: RankId,
    pub(crate) tp_rank: RankId,
    pub(crate) core: CoreId,
    pub(crate) choices: Choices,
    pub(crate) vector: V,
    pub(crate) work: Work,
    pub(crate) run: u32,
}

/// The constants together with their shape.
pub(crate) type Bound<'s, V> = super::context::Bound<'s, Env<V>>;

/// The context of a step of these machines.
pub(crate) type Cx<'s, T> = super::context::Cx<'s, Env<<T as Types>::Vector>, T>;

/// The maximum number of effects of one kind (rows put or delivered, words published or cleared) in one `step`. The
/// overhead of a step is that of half a dozen words.
pub(crate) const RUN: u32 = 16;

impl<V> Env<V> {
    /// Creates the constants of `core` of `rank`, which makes these `choices` and uses `vector` for work on rows.
    #[must_use]
    pub fn new(shape: &Shape, rank: RankId, core: CoreId, choices: Choices, vector: V) -> Self {
        let tp_rank = RankId(0);
        let (fingerprint, work) = (shape.fingerprint(), split::work(shape, rank, core));
        Self { fingerprint, rank, tp_rank, core, choices, vector, work, run: RUN }
    }

    /// Sets the rank's number in its TP domain to `tp_rank`.
    #[must_use]
    pub fn with_tp_rank(self, tp_rank: RankId) -> Self {
        Self { tp_rank, ..self }
    }

    /// Limits each step to one effect, so that a model checker can explore every order of effects.
    #[must_use]
    pub fn one_by_one(self) -> Self {
        Self { run: 1, ..self }
    }

    /// Returns the part of `own` from `first` on that one step handles.
    pub(crate) fn run_of(&self, own: &Range<u32>, first: u32) -> Range<u32> {
        first..own.end.min(first + self.run)
    }

    /// Returns the work of this core.
    #[must_use]
    pub const fn work(&self) -> &Work {
        &self.work
    }
}

impl<V> Bound<'_, V> {
    pub(crate) fn core_ref(&self) -> CoreRef {
        CoreRef { rank: self.rank, core: self.core, cores: self.shape.aiv_num() }
    }

    /// Returns the wait of a core that lacks a count.
    pub(crate) fn waits_for_count(&self, source: RankId, local_expert: u32) -> Wait {
        let is_apart = self.choices.flags == Flags::Separate || self.shape.protocol() == Protocol::FullmeshV2;
        let flag = if is_apart { Flag::Count } else { Flag::Dispatch };
        Wait::new(flag, source, &[local_expert])
    }
}
