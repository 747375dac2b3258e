//! The seam: everything a core touches that another core or rank can see goes through [`Fabric`].
//!
//! A **place** is a region and an offset; addresses never leave a backend. The trait is one core's view of
//! the memory of all ranks, in OpenSHMEM's sense of *put*, *quiet* and *signal*. Its methods take ids,
//! offsets and byte slices only, so that a C table of functions can carry it, and it is object safe.
//!
//! # The contract
//! What a backend promises and, more important, what it does not. `docs/FABRIC.md` tells it with pictures;
//! the host's litmus suite examines it.
//!
//! 1. A [`put`](Fabric::put) may arrive late, in pieces and in any order, among puts and with everything else
//!    but rules 2 and 3.
//! 2. **A publish does not overtake the same core's earlier puts to that rank.** Publishes are not ordered
//!    among each other, not even on one word. A word is never torn.
//! 3. After [`quiet`](Fabric::quiet) has answered ready, all that the core put, published, stored, wrote
//!    or delivered before has landed, and whoever is told afterwards sees it.
//! 4. Causality: what has landed stays landed. If a core observes a word, all that had landed when the word
//!    landed, and all that the publisher had itself observed, is before what the observer does next.
//! 5. [`store`](Fabric::store) is like a publish to the own rank that no put gates: it may land late, up to
//!    the next quiet. One core's stores to one word land in their order, and it observes them at once; its own
//!    publishes on its own rank it observes like any other, when they have landed (rule 2 holds for it too).
//! 6. [`bytes`](Fabric::bytes) is legal only for what an observed flag covers, or what cores of this rank wrote,
//!    if each of them then got yes from quiet and passed a core barrier.
//!
//! On A2 batched writes carry rows from rank to rank; [`nic`] is the seam of the agent that issues them.
//!
//! 7. **Near and far.** On A2 ranks of one server are near: rules 1 to 6 are of them. To a rank of another server, a
//!    far one, a core [`send`](Fabric::send)s **messages**, and nothing else: a put or a publish there is an error,
//!    and so is a message to a near rank. Messages of one core to one rank become visible one after the other, each
//!    whole before anything of the next: who observes a word of one sees all of those before. Inside a message
//!    there is no order, but aligned words are never torn. Nothing is promised between cores or between
//!    ranks, nor between messages and other effects; quiet does not speak for messages. What the core had
//!    observed, or was quiet about, before it sent comes before what an observer of the message does next.
//!
//! Rules 2 and 5 stand in [`order`] as a relation for backends that delay effects.
//!
//! A value that comes back from the fabric is foreign: the machines check its range before they use it.

pub mod coherent;
mod error;
pub mod middleware;
pub mod nic;
pub mod order;
#[cfg_attr(not(target_has_atomic = "64"), expect(dead_code, reason = "rows are copied by `raw`"))]
pub(crate) mod prefetch;
pub mod rank_remap;
#[cfg(target_has_atomic = "64")]
pub mod raw;
mod wait;
mod watch;

pub use error::ProtocolError;
pub use wait::{Detail, Flag, Progress, Wait};
pub use watch::Awaited;
pub(crate) use watch::Watch;

use crate::place::Place;
use crate::units::RankId;
use bitflags::bitflags;
use core::cell::Cell;
use core::fmt;

bitflags! {
    /// The optional calls that a fabric carries out. A machine that needs one is refused by a fabric without it before its
    /// operator begins ([`Machine::begin`](crate::protocol::Machine::begin)).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Capabilities: u32 {
        /// [`Fabric::peer_bytes`]: cores read their peers' windows.
        const PEER_BYTES = 1;
        /// [`Fabric::send`]: cores send messages to other servers.
        const SEND = 1 << 1;
        /// [`Fabric::lend`]: outputs can be written where they lie.
        const LEND = 1 << 2;
        /// [`Fabric::prefetch`]: the bytes that the fabric returns lie in memory of the processor, behind its caches.
        const PREFETCH = 1 << 3;
    }
}

/// A fabric was asked for something that its memory does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fault {
    /// Whose memory.
    pub rank: RankId,
    /// Where.
    pub at: Place,
    /// How many bytes.
    pub len: u64,
    /// The backend's own code of the error, 0 if it has none.
    pub code: i32,
}

impl Fault {
    /// A refused access to `len` bytes at `at` of `rank`.
    #[must_use]
    pub const fn new(rank: RankId, at: Place, len: u64) -> Self {
        Self { rank, at, len, code: 0 }
    }

    /// The same with a backend's own code.
    #[must_use]
    pub const fn with_code(self, code: i32) -> Self {
        Self { code, ..self }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no access to {} bytes at {} of rank {}", self.len, self.at, self.rank)?;
        if self.code == 0 { Ok(()) } else { write!(f, ": the backend says {}", self.code) }
    }
}

impl core::error::Error for Fault {}

/// One core's view of the memory of all ranks. **The region chooses the domain**: `to` is an EP rank for
/// [`State`](crate::place::Region::State) and [`Window`](crate::place::Region::Window), and the number of a rank in
/// the own TP domain for [`TpState`](crate::place::Region::TpState) and
/// [`TpWindow`](crate::place::Region::TpWindow). See the [module](self) for the contract.
pub trait Fabric {
    /// Which of the optional calls this fabric carries out: [`peer_bytes`](Self::peer_bytes), [`send`](Self::send),
    /// [`lend`](Self::lend), [`prefetch`](Self::prefetch). The same over the fabric's life. A fabric that wraps another
    /// reports only what both support.
    fn capabilities(&self) -> Capabilities;

    /// Writes `row` and then `tail`, as one effect, to rank `to`. Both are reusable on return.
    ///
    /// # Errors
    /// The place is outside the peer's region.
    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault>;

    /// Publishes an aligned word on any rank, the own one too: whoever observes it sees all earlier puts of
    /// this core to that rank.
    ///
    /// # Errors
    /// The place is outside the peer's region or not a multiple of 8.
    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault>;

    /// Sends a message to rank `to` of another server: whole aligned words, reusable on return (rule 7).
    ///
    /// # Errors
    /// The place is outside the peer's region, the rank is near, or a place or length is no multiple of 8. Without
    /// [`Capabilities::SEND`], and by default, always.
    fn send(&mut self, to: RankId, at: Place, message: &[u8]) -> Result<(), Fault> {
        Err(Fault::new(to, at, message.len() as u64))
    }

    /// Whether everything this core did before, but for messages, has landed. Ask again until it has.
    ///
    /// # Errors
    /// The backend lost something it had accepted.
    fn quiet(&mut self) -> Result<bool, Fault>;

    /// Reads an aligned word of the own rank with acquire semantics.
    ///
    /// # Errors
    /// The place is outside the region or not a multiple of 8.
    fn observe(&self, at: Place) -> Result<u64, Fault>;

    /// Writes an aligned word of the own rank: clears a flag, flips a selector.
    ///
    /// # Errors
    /// The place is outside the region or not a multiple of 8.
    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault>;

    /// Bytes of the own rank's window.
    ///
    /// # Errors
    /// The range is outside the region.
    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault>;

    /// Writes bytes into an output or into WindowsOut of the own rank. May land late, up to the next quiet. (With direct
    /// placement experts, which are no machines, write their results into the own window so.)
    ///
    /// # Errors
    /// The range is outside the region.
    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault>;

    /// `len` bytes of an output of the own rank, to be written where they lie instead of by one [`write`](Self::write): all
    /// of them, by this core, before its next effect. Cells, because rows that are read for it are borrowed of the
    /// same fabric. `None` for what is no output; without [`Capabilities::LEND`], and by default, always, as from a memory
    /// where writes may land late.
    fn lend(&self, _output: Place, _len: u64) -> Option<&[Cell<u8>]> {
        None
    }

    /// Copies `len` bytes of the own rank's window straight into an output. May land late, like a [`write`](Self::write).
    ///
    /// # Errors
    /// One of the ranges is outside its region.
    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault>;

    /// Bytes of the window of rank `rank`, the own one too; of several ranks at once, so that a sum of rows stays in
    /// registers. Pull combine needs it: processors have it whose memory is mapped by each other.
    ///
    /// Rule 6 holds for it as for [`bytes`](Self::bytes): legal only for what a flag of that rank covers, which this
    /// core has observed, or another core of its rank before a core barrier. And like them they stay as they are for as
    /// long as the reader has not told that rank, by a flag of its own, that it is done.
    ///
    /// # Errors
    /// The range is outside the region. Without [`Capabilities::PEER_BYTES`], and by default, always.
    fn peer_bytes(&self, rank: RankId, at: Place, len: u64) -> Result<&[u8], Fault> {
        Err(Fault::new(rank, at, len))
    }

    /// Announces that `bytes`, which this fabric has returned, are read soon. A hint: without
    /// [`Capabilities::PREFETCH`], and by default, nothing happens.
    fn prefetch(&self, _bytes: &[u8]) {}
}

/// Whether rows of `fabric` are in memory that can be prefetched.
pub(crate) fn prefetches<F: Fabric + ?Sized>(fabric: &F) -> bool {
    fabric.capabilities().contains(Capabilities::PREFETCH)
}
