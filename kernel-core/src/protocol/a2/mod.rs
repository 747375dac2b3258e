//! The A2 full mesh (A2 design): dispatch and combine over batched writes, which an agent issues for the cores.
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
use crate::plan::split::{self};
use crate::protocol::kit::{Core, take};
use crate::shape::Shape;
use crate::units::{RankId, align_up};

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
fn split_words<'u>(core: Core<'u>, mut words: &'u mut [u32]) -> Result<Words<'u>> {
    let shape = core.shape;
    let slots = take(&mut words, route::share_len(&core.work.sends) as usize)?;
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
