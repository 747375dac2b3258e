//! The machines of every protocol: one core's dispatch or combine, with a common interface.
//!
//! A [`Machine`] is a plain value of one core and one operator. A driver makes the core's constants once ([`Env::new`],
//! which refuses configurations that the shape, the build or the memory does not support), puts them [on](Env::on) the
//! shape, [begins](Machine::begin) a machine for each operator and calls [`step`](Machine::step) until it returns [`Done`](crate::fabric::Progress::Done).
//! Every call gets what the machine does not store: the [`Context`] of core, fabric, both kinds of inputs and scratch.
//! Beside the machines of its cores a rank may have an [`Agent`] ([`Choices::has_agents`]). Where one processor steps all cores
//! of a rank, a [`Rank`] keeps them.
//!
//! # Obligations of a driver
//!
//! - All ranks have equal shapes, or each has [its own](crate::shape::BatchSizes::Own) with one bound (compare their
//!   [`Fingerprints`]), and the same [`Choices`].
//! - State and window are zero when the group is created.
//! - Inputs have passed [`Inputs::check`](crate::inputs::Inputs::check) on their rank, or the check of the one operator that
//!   reads them: machines do not check them again.
//! - An [`Env`] lives as long as its core, an [`Agent`] as long as its rank. A machine lives for one operator; its scratch may
//!   be used for something else between operators.
//! - The **join**: a core begins an operator only after every core of its rank has ended the one before, and the outputs of
//!   that one have landed.
//! - Experts run between dispatch and combine. [`Receive::rows`] returns the places of their rows, and with direct
//!   placement [`Receive::results`] the place of their results. [`received_rows`](received::received_rows) and
//!   [`expert_rows`](received::expert_rows) say how many rows there are, and which of them are an expert's.
//! - Agents are stepped until all ranks are done: cores wait for them.
//! - After an error the group is given up.
//! - A driver that sleeps arms its monitor for everything that [`Machine::awaits`] has reported, calls it once more, and
//!   sleeps if the machine is still pending.
//!
//! Each protocol is a module with machines of its own, which a firmware that runs only that protocol can use without the
//! enum:
//! [`a3`] (joint and separate flags, rows copied or received in place), [`a3_v2`] (fullmesh_v2), [`direct`] (direct placement
//! and pull combine), [`a2`] (full mesh) and [`hierarchy`].

#[macro_use]
mod kit;

#[cfg(feature = "a2")]
pub mod a2;
pub mod a3;
#[cfg(feature = "a3-v2")]
pub mod a3_v2;
mod choices;
#[cfg(feature = "direct")]
pub mod direct;
mod env;
mod gates;
mod halves;
mod handshake;
#[cfg(feature = "hierarchy")]
pub mod hierarchy;
mod machine;
pub mod outstanding;
mod rank;
pub mod received;
mod run;

pub use crate::layout::state::Operator;
#[cfg(feature = "a2")]
pub use a2::{Agent, AgentEnv};
pub use choices::{Choices, Flags, Receive, Stage};
pub use env::{Env, Refused};
pub use gates::{Gates, Ticket};
pub use handshake::Fingerprints;
pub use kit::{Context, Core, Scratch};
use kit::{Outcome, entry, given};
pub use machine::Machine;
pub use rank::{Rank, Sent};
pub use run::{Ran, Run};

use crate::fabric::{ProtocolError, Result};
use crate::place::Tensor;
use crate::shape::{Protocol, Shape};
use crate::units::{RankId, nth_piece};

/// The inputs of combine on one rank besides the inputs of dispatch: the results of the experts, and outputs of the same
/// batch's dispatch, little-endian. Each machine reads some of them; the others may be empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct CombineInputs<'a> {
    /// `[rows, h]` of dtype: a result for each row of `expand_x`, with a TP domain also for each of the peer's rows. Unused
    /// with direct placement, where experts write results into the window.
    pub y: &'a [u8],
    /// `assist_info_for_combine`, three i32 per row (A3, hierarchy).
    pub assist_info: &'a [u8],
    /// `expand_scales`, one f32 per row (hierarchy).
    pub expand_scales: &'a [u8],
    /// `ep_recv_counts` (V2 reference: `epSendCounts`), i32; the last count is the number of rows. On A2 the bytes after the
    /// counts are not read, and may be omitted.
    pub ep_recv_counts: &'a [u8],
    /// `expand_idx`, i32: the row, among those of its expert, of each pair of this rank (A2 full mesh).
    pub expand_idx: &'a [u8],
    /// `sent_rows`, i32 (direct placement).
    pub sent_rows: &'a [u8],
    /// `row_table` (direct placement). Combine reads only its second entry, the start of the results, to determine the area
    /// that the batch uses, which is the same on all ranks.
    pub row_table: &'a [u8],
}

impl<'a> CombineInputs<'a> {
    /// The inputs of a core that does not combine.
    pub const NONE: Self = Self {
        y: &[],
        assist_info: &[],
        expand_scales: &[],
        ep_recv_counts: &[],
        expand_idx: &[],
        sent_rows: &[],
        row_table: &[],
    };

    /// Returns the inputs of any protocol: the results `y`, and the rank's outputs of dispatch, as `output` returns them.
    #[must_use]
    pub fn of(y: &'a [u8], output: impl Fn(Tensor) -> &'a [u8]) -> Self {
        Self {
            y,
            assist_info: output(Tensor::AssistInfo),
            expand_scales: output(Tensor::ExpandScales),
            ep_recv_counts: output(Tensor::EpRecvCounts),
            expand_idx: output(Tensor::ExpandIdx),
            sent_rows: output(Tensor::SentRows),
            row_table: output(Tensor::RowTable),
        }
    }

    /// Returns a row of `y`.
    fn result(&self, shape: &Shape, row: u32) -> Result<&'a [u8]> {
        let y = nth_piece(self.y, row as usize, shape.row_bytes() as usize);
        y.ok_or(given("y is shorter than its rows"))
    }

    /// Returns the last entry of the `nth` rank's half of `ep_recv_counts`, given that the inputs hold at most `held` rows.
    fn total(&self, shape: &Shape, rank: RankId, nth: usize, held: u64) -> Result<u32> {
        let entries = nth * shape.local_experts(rank) as usize * shape.ep_world_size() as usize;
        let seen = entry(self.ep_recv_counts, entries.saturating_sub(1));
        let max = held.min(shape.rows_max(rank));
        match u32::try_from(seen) {
            Ok(rows) if u64::from(rows) <= max => Ok(rows),
            _ => Err(ProtocolError::RecvCounts { seen: seen.into(), max }),
        }
    }
}

/// Returns the number of words of scratch that suffices for any core of the shape.
#[must_use]
pub fn scratch_words(shape: &Shape) -> usize {
    match shape.protocol() {
        Protocol::FullmeshV1 | Protocol::FullmeshV2 => a3::scratch_words(shape),
        #[cfg(feature = "a2")]
        Protocol::Fullmesh => a2::scratch_words(shape),
        #[cfg(feature = "hierarchy")]
        Protocol::Hierarchy => hierarchy::scratch_words(shape),
        // This build has no machine for it.
        #[cfg(not(all(feature = "a2", feature = "hierarchy")))]
        _ => 0,
    }
}

/// Returns the number of bytes of scratch that suffices for any core of the shape.
#[must_use]
pub fn scratch_bytes(shape: &Shape) -> usize {
    match shape.protocol() {
        Protocol::FullmeshV1 | Protocol::FullmeshV2 => a3::scratch_bytes(shape),
        #[cfg(feature = "a2")]
        Protocol::Fullmesh => a2::scratch_bytes(shape),
        #[cfg(feature = "hierarchy")]
        Protocol::Hierarchy => hierarchy::scratch_bytes(shape),
        // This build has no machine for it.
        #[cfg(not(all(feature = "a2", feature = "hierarchy")))]
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
