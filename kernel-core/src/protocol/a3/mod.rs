//! The A3 protocol (seed 002): dispatch and combine over one-sided writes into shared memory.
//!
//! A machine is a plain value of one core and one operator. A driver calls `step` until it returns
//! [`Done`](crate::fabric::Progress::Done); each call has one effect that others can see, or a few of one kind, or a few
//! rows each with its flag ([`Env::one_by_one`]: at most one). Every call gets what the machine does not store: the
//! [`Env`], the fabric, the inputs and the [`Scratch`](super::Scratch), which must stay the same from the first step of an
//! operator to its last.
//!
//! The driver must provide the **join**: a core starts an operator only after every core of its rank has ended the one
//! before, and the outputs of that one have landed.

pub(crate) mod combine;
mod dispatch;
pub(crate) mod exchange;
pub(crate) mod part;
pub(crate) mod steps;
pub(crate) mod tp;

use crate::protocol::{Choices, Flags, Types};
pub use combine::Combine;
pub use dispatch::Dispatch;

use crate::fabric::{Flag, Wait};
use crate::plan::split::Work;
use crate::plan::{route, split};
use crate::shape::{Op, Protocol, Shape};
use crate::sync::barrier::CoreRef;
use crate::units::{CoreId, RankId, align_up};
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
pub(crate) type Bound<'s, V> = crate::protocol::context::Bound<'s, Env<V>>;

/// The context of a step of these machines.
pub(crate) type Cx<'s, T> = crate::protocol::context::Cx<'s, Env<<T as Types>::Vector>, T>;

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
    fn waits_for_count(&self, source: RankId, local_expert: u32) -> Wait {
        let is_apart = self.choices.flags == Flags::Separate || self.shape.protocol() == Protocol::FullmeshV2;
        let flag = if is_apart { Flag::Count } else { Flag::Dispatch };
        Wait::new(flag, source, &[local_expert])
    }
}

/// Returns the words of scratch that any core of the shape needs: slots of its own pairs, then one count per destination,
/// or one per awaited slot and one per local expert; with fullmesh_v2 three per awaited slot.
#[must_use]
pub fn scratch_words(shape: &Shape) -> usize {
    let ranks = shape.ep_world_size();
    let busiest = (0..ranks).map(RankId).max_by_key(|&rank| shape.bs(rank)).unwrap_or_default();
    let cores = (0..shape.aiv_num()).map(CoreId);
    let pairs = cores.map(|core| route::share_len(&split::dispatch(shape, busiest, core)));
    // Core 0 has the largest share; rank 0 holds a shared expert if any rank does, the last rank never.
    let slots = |rank| {
        let slots = split::slots(shape, rank, CoreId(0)).end;
        if shape.protocol() == Protocol::FullmeshV2 { 3 * slots } else { slots + shape.local_experts(rank) }
    };
    let table = route::destinations(shape).max(slots(RankId(0))).max(slots(RankId(ranks.saturating_sub(1))));
    (pairs.max().unwrap_or(0) + table) as usize
}

/// Returns the bytes of scratch that any core of the shape needs: one row as it is computed or as it travels, and for
/// AddRmsNorm the same row in f32.
#[must_use]
pub fn scratch_bytes(shape: &Shape) -> usize {
    let row = shape.row_bytes().max(shape.payload_bytes()).max(shape.result_bytes());
    let sums = match shape.op() {
        Op::Combine => 0,
        Op::CombineAddRmsNorm => 2 * shape.row_bytes(),
    };
    (align_up(row, 32) + sums) as usize
}

#[cfg(test)]
pub(crate) mod tests;
