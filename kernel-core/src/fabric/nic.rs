//! The seam of A2's agent: the second kind of processor (seed 000 section 1.3: AICPU), which issues batched writes
//! for the cores of its rank.
//!
//! # The contract
//! A **transfer** carries whole aligned words of eight bytes from the own rank's WindowsOut to a peer's WindowsIn.
//!
//! 1. [`post`](Nic::post) returns before anything has been written. Some time later the transfer is **delivered**,
//!    word by word. Every posted transfer is delivered completely some time, also if nobody acts again.
//! 2. The words of one transfer become visible in address order, the last one last: who observes a word of it sees
//!    all words before it. A word is never torn.
//! 3. There is no order between transfers, not even to the same peer.
//! 4. The source is read when a word is delivered, not when the transfer is posted. Who sees the last word knows
//!    that the source may be written again.
//! 5. Causality, as in the contract of [`Fabric`](super::Fabric): what the agent has observed before it posts comes
//!    before what an observer of the transfer's words does next. What the cores wrote and were quiet about before
//!    the doorbell is therefore what the transfer reads.
//! 6. [`observe`](Nic::observe) reads an aligned word of the own state region, with acquire semantics.
//!
//! # What it asks of backends
//! A2's windows are payload in one operator and flags in another, and who delivers a transfer does not know which.
//! So whoever writes WindowsIn for a transfer writes it as atomic words, each with release semantics (or all of them
//! relaxed on memory that keeps stores in order), and a core's `store` to a window is atomic too. Rows are
//! read by `bytes` and `deliver` behind a flag that covers them, when nobody writes: those reads may be plain, and so
//! may a core's `put` to its own window and its `write` to WindowsOut, which a barrier orders before any
//! reader.

use super::Fault;
use crate::place::{Place, Region};
use crate::units::RankId;

/// A batched write, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Transfer {
    /// Into whose memory.
    pub to: RankId,
    /// Where it is read: in WindowsOut of the own rank.
    pub from: Place,
    /// Where it is written: in WindowsIn of the peer.
    pub at: Place,
    /// Bytes, a multiple of 8 like both offsets, and not 0.
    pub len: u64,
}

impl Transfer {
    /// Refuses what no memory has: another region than WindowsOut of `own` and WindowsIn, or not whole aligned words.
    /// Whether both ranges are inside is left to the backend.
    ///
    /// # Errors
    /// One of the ranges is none that a transfer may have.
    pub const fn check(&self, own: RankId) -> Result<(), Fault> {
        let Self { to, from, at, len } = *self;
        let whole = len.is_multiple_of(8) && len > 0;
        if !(whole && from.offset.is_multiple_of(8) && matches!(from.region, Region::WindowOut)) {
            return Err(Fault::new(own, from, len));
        }
        if !(at.offset.is_multiple_of(8) && matches!(at.region, Region::Window)) {
            return Err(Fault::new(to, at, len));
        }
        Ok(())
    }
}

/// What became of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Post {
    /// It will be delivered.
    Posted,
    /// Nothing happened: no room. Ask again.
    Busy,
}

/// The agent's view of its rank. See the [module](self) for the contract.
pub trait Nic {
    /// Reads an aligned word of the own rank's state region with acquire semantics.
    ///
    /// # Errors
    /// The place is outside the region or not a multiple of 8.
    fn observe(&self, at: Place) -> Result<u64, Fault>;

    /// Posts a transfer.
    ///
    /// # Errors
    /// A range is outside its region, or none that a transfer may have ([`Transfer::check`]). Nothing is written.
    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault>;
}
