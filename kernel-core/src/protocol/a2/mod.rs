//! The A2 full mesh (seed 000): dispatch and combine over batched writes, which an agent issues for the cores.
//!
//! The machines of the cores, [`Dispatch`] and [`Combine`], are driven like those of [`a3`](crate::protocol::a3), over the
//! same fabric. Rows for one peer are put side by side into WindowsOut with their counts and flags, a task record
//! for each peer goes into the message area, and core 0 rings the doorbell. The [`Agent`] of the rank serves
//! doorbells over its own interface, [`Nic`](crate::fabric::nic::Nic). A [hierarchy](crate::protocol::hierarchy) of stage 2
//! uses the same agent and the same steps to its doorbell.
//!
//! Both operators wait for all ranks: every rank gets a window of every rank, even one without rows. They share one
//! sequence; operator N uses half `N % 2` of both windows and of the message area.
//!
//! The driver must provide the **join**, as on A3, and must step the agent until all ranks are done: cores wait for it.
//!
//! # Stale flags
//! FLAG2 and combine's FLAG follow the rows, so their places move with the counts, and a word that is read as a flag now
//! may have been payload two operators ago: with the seed's scheme a row of -1 ends a wait early. Here a receiver leaves no
//! flag. **Outside a running operator no word of a window that either operator could read as a flag holds one.** Before it
//! ends, a core reads all such words of the windows it has awaited
//! ([`next_flag_place`](crate::layout::a2_window::next_flag_place)), up to the end of what was sent, and clears those that
//! hold the flag. After that end nothing has changed, and a word that differs from the flag cannot end a wait, so it may
//! stay. The clears must land before the rank's next flags leave: every core waits for quiet before the barrier that
//! precedes core 0's ring.
//!
//! The cost is one read per sent record and one per sent row, `n + n` for `n` unquantised rows, `3n` for a combine window
//! when rows are quantised, and a store for each word that holds the flag: two per dispatch window, one per combine window,
//! and any that the payload contains.

mod agent;
mod combine;
mod dispatch;
mod part;

pub use agent::{Agent, AgentEnv};
pub use combine::Combine;
pub use dispatch::Dispatch;

use crate::fabric::Result;
use crate::layout::state::Operator;
use crate::plan::permute::{Cumsum, RecvCounts};
use crate::plan::route;
use crate::plan::split::{self, DispatchShare};
use crate::protocol::kit::{Types, take};
use crate::shape::Shape;
use crate::sync::barrier::CoreRef;
use crate::units::{CoreId, RankId, align_up};
use core::ops::Range;

/// The constants of a core over a group's life.
#[derive(Clone, Debug)]
pub struct Env<V> {
    pub(crate) fingerprint: u64,
    rank: RankId,
    core: CoreId,
    pub(crate) vector: V,
    work: Work,
}

/// The constants together with their shape.
type Bound<'s, V> = crate::protocol::kit::context::Bound<'s, Env<V>>;

/// The context of a step of these machines.
type Cx<'s, T> = crate::protocol::kit::context::Cx<'s, Env<<T as Types>::Vector>, T>;

/// The work of one core in both operators, except for the rows it returns, which only dispatch determines.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Work {
    /// The tokens that it reorders in dispatch and sums in combine.
    tokens: Range<u32>,
    /// Their pairs.
    pairs: DispatchShare,
    /// The ranks to which it sends, and whose windows it awaits.
    ranks: Range<u32>,
    /// The entries of `ep_recv_counts` that it writes.
    slots: Range<u32>,
    /// The entries of `expert_token_nums` that it writes.
    experts: Range<u32>,
}

impl<V> Env<V> {
    /// Creates the constants of `core` of `rank`, which uses `vector` for work on rows.
    #[must_use]
    pub fn new(shape: &Shape, rank: RankId, core: CoreId, vector: V) -> Self {
        let tokens = split::tokens(shape, rank, core);
        let work = Work {
            pairs: DispatchShare { moe: tokens.start * shape.k()..tokens.end * shape.k(), shared: 0..0 },
            tokens,
            ranks: split::ranks(shape, core),
            slots: split::slots(shape, rank, core),
            experts: split::even(shape.local_expert_num(), shape.aiv_num(), core.0),
        };
        Self { fingerprint: shape.fingerprint(), rank, core, vector, work }
    }
}

impl<V> Bound<'_, V> {
    fn core_ref(&self) -> CoreRef {
        CoreRef { rank: self.rank, core: self.core, cores: self.shape.aiv_num() }
    }
}

/// Returns the words of scratch that any core of the shape needs: slots of its own pairs, rows before each expert, the
/// counts of all sources and their prefix sums.
#[must_use]
pub fn scratch_words(shape: &Shape) -> usize {
    let pairs = split::even(shape.bs_max(), shape.aiv_num(), 0).end * shape.k();
    pairs as usize + shape.moe_expert_num() as usize + 1 + 2 * matrix_len(shape)
}

/// Returns the bytes of scratch that any core of the shape needs: one record or row.
#[must_use]
pub fn scratch_bytes(shape: &Shape) -> usize {
    align_up(shape.row_bytes().max(shape.window_record()), 32) as usize
}

fn matrix_len(shape: &Shape) -> usize {
    shape.local_expert_num() as usize * shape.ep_world_size() as usize
}

/// The scratch words by purpose.
struct Words<'u> {
    shape: &'u Shape,
    /// The slot of each pair of the core's own tokens.
    slots: &'u mut [u32],
    /// The number of this rank's rows before each expert, then of all.
    sent: &'u mut [u32],
    /// Counts by source, then local expert.
    matrix: &'u mut [u32],
    /// `ep_recv_counts`.
    sums: &'u mut [u32],
}

// Inlined, so that a step splits off only what it uses.
#[inline(always)]
fn split_words<'u, V>(env: Bound<'u, V>, mut words: &'u mut [u32]) -> Result<Words<'u>> {
    let shape = env.shape;
    let slots = take(&mut words, route::share_len(&env.work.pairs) as usize)?;
    let sent = take(&mut words, shape.moe_expert_num() as usize + 1)?;
    let matrix = take(&mut words, matrix_len(shape))?;
    Ok(Words { shape, slots, sent, matrix, sums: take(&mut words, matrix_len(shape))? })
}

impl Words<'_> {
    fn cumsum(&self) -> Cumsum<'_> {
        Cumsum { shape: self.shape, sums: self.sent }
    }

    fn recv_counts(&self) -> RecvCounts<'_> {
        RecvCounts { shape: self.shape, sums: self.sums }
    }

    /// Returns the number of rows in the window to `peer`.
    fn rows_to(&self, kind: Operator, peer: RankId) -> u32 {
        match kind {
            Operator::Dispatch => self.cumsum().rows_to(peer),
            Operator::Combine => self.recv_counts().rows_from(peer),
        }
    }

    /// Returns the number of rows in the window from `peer`.
    fn rows_from(&self, kind: Operator, peer: RankId) -> u32 {
        match kind {
            Operator::Dispatch => self.recv_counts().rows_from(peer),
            Operator::Combine => self.cumsum().rows_to(peer),
        }
    }
}

#[cfg(test)]
mod tests;
