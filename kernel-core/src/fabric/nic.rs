//! The interface of A2's agent: the second kind of processor (A2 design, section 1.3: AICPU), which issues batched writes for
//! the cores of its rank.
//!
//! # The contract
//! A **transfer** carries whole aligned words of eight bytes from this rank's WindowsOut to a peer's WindowsIn.
//!
//! 1. [`post`](Nic::post) returns before anything has been written. Later the transfer is **delivered**, word by word.
//!    Every posted transfer is eventually delivered completely, without further action of any core or agent.
//! 2. The words of one transfer become visible in address order, the last one last: an observer of a word sees all words
//!    before it. A word is never torn.
//! 3. There is no order between transfers, not even to the same peer.
//! 4. The source is read when a word is delivered, not when the transfer is posted. An observer of the last word may
//!    conclude that the source may be written again.
//! 5. Causality, as in the contract of [`Fabric`](super::Fabric): everything that the agent has observed before it posts
//!    precedes the next actions of an observer of the transfer's words. So the transfer reads the values that the cores
//!    wrote and were quiet about before the doorbell.
//! 6. [`observe`](Nic::observe) reads an aligned word of its own state region, with acquire semantics.
//!
//! # Requirements on backends
//! A2's windows are payload in one operator and flags in another, and the deliverer of a transfer cannot distinguish them.
//! So WindowsIn must be written by a transfer as atomic words, each with release semantics (or all of them relaxed on
//! memory that keeps stores in order), and a core's `store` to a window must be atomic too. Rows are read by `bytes` and
//! `deliver` after a flag that covers them, when no write occurs: those reads may be plain, and so may a core's `put` to
//! its own window and its `write` to WindowsOut, which a barrier orders before any reader.

use super::Fault;
use crate::place::{Place, Region};
use crate::units::RankId;

/// A batched write, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Transfer {
    /// The rank whose memory is written.
    pub to: RankId,
    /// The source, in WindowsOut of this rank.
    pub from: Place,
    /// The destination, in WindowsIn of the peer.
    pub at: Place,
    /// The length in bytes, a multiple of 8 like both offsets, and not 0.
    pub len: u64,
}

impl Transfer {
    /// Refuses transfers that no memory allows: regions other than WindowsOut of `own` and WindowsIn, or partial or
    /// unaligned words. The backend checks that both ranges are inside their regions.
    ///
    /// # Errors
    /// One of the ranges is not legal for a transfer.
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

/// The outcome of posting a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Post {
    /// It will be delivered.
    Posted,
    /// There was no room, and nothing happened. Post it again later.
    Busy,
}

/// The agent's view of its rank. See the [module](self) for the contract.
pub trait Nic {
    /// Reads an aligned word of this rank's state region with acquire semantics.
    ///
    /// # Errors
    /// The place is outside the region or not a multiple of 8.
    fn observe(&self, at: Place) -> Result<u64, Fault>;

    /// Posts a transfer.
    ///
    /// # Errors
    /// A range is outside its region, or not legal for a transfer ([`Transfer::check`]). Nothing is written.
    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault>;
}
