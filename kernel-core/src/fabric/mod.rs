//! The interface to shared memory: every access to memory that another core or rank can see goes through [`Fabric`].
//!
//! A **place** is a region and an offset; addresses never leave a backend. The trait is one core's view of
//! the memory of all ranks, in OpenSHMEM's sense of *put*, *quiet* and *signal*. Its methods take ids,
//! offsets and byte slices only, so that a C table of functions can carry it, and it is object safe.
//!
//! # The contract
//! The guarantees of a backend and, more important, their limits. `docs/embed/fabric.md` explains them with pictures; the host's
//! litmus suite tests them.
//!
//! 1. A [`put`](Fabric::put) may arrive late, in pieces and in any order, among puts and with everything else
//!    but rules 2 and 3.
//! 2. **A publish does not overtake the same core's earlier puts to that rank.** Publishes are not ordered
//!    among each other, not even on one word. A word is never torn.
//!    A publish lands some time, even if its core does nothing more.
//! 3. After [`quiet`](Fabric::quiet) has returned true, everything that the core put, published, stored, wrote or delivered
//!    before has landed, and is seen by every reader that is notified afterwards. If it is asked again and again, it returns
//!    true some time.
//! 4. Causality: what has landed stays landed. If a core observes a word, everything that rules 2 and 3 say of its publisher's
//!    effects, and everything that the publisher had itself observed, precedes the observer's next actions, over chains of any
//!    length. There is no order common to all readers.
//! 5. [`store`](Fabric::store) is like a publish to this rank that no put gates: it may land late, up to
//!    the next quiet. One core's stores to one word land in their order, and it observes them at once. It may observe its own
//!    publish before other cores can, as over a store buffer, if rules 2 and 4 hold for it as for any observer: it then reads its
//!    earlier puts to that rank, and what it publishes next comes after that publish.
//! 6. [`bytes`](Fabric::bytes) and [`deliver`](Fabric::deliver) are legal only for bytes that an observed flag covers, or that
//!    cores of this rank wrote, if quiet then returned true to each of them and they passed a core barrier.
//!
//! 8. **An effect lands once**, and changes the bytes that it names and no others. A second delivery, as after a retransmission,
//!    must be dropped. Bytes of several writers may be neighbours: no line, block or page is written back with what it was
//!    before. In the layouts words of two ranks are 8 bytes apart or more, and rows and tables begin at any multiple of 4, even
//!    where another one ends. Messages and transfers land once, too.
//!
//!    The exception is a memory that states a [line](Fabric::line): its publishes and stores may write back the other bytes of
//!    that line as they were at any moment since the call. [`Env::new`](crate::protocol::Env::new) refuses it if the layout does
//!    not keep words as far [apart](crate::protocol::Choices::keeps_apart). Its other effects change no other bytes.
//!
//! 9. **An effect may be refused for lack of room**, by [`Fault::busy`]: a put, publish, store, write, deliver or send, and no
//!    other call. Then nothing has happened. If the effect is asked for again and again, it is taken some time, even if no
//!    core does anything else.
//!
//! On A2 batched writes carry rows from rank to rank; [`nic`] is the interface of the agent that issues them.
//!
//! 7. **Near and far.** On A2 ranks of one server are near, and rules 1 to 6 apply to them. To a far rank, one of another
//!    server, a core can only [`send`](Fabric::send) **messages**: a put or a publish there is an error, and so is a
//!    message to a near rank. Messages of one core to one rank become visible one after the other, each whole before any
//!    part of the next: an observer of a word of one sees all earlier messages. Within a message there is no order, but
//!    aligned words are never torn. There is no order between cores, between ranks, or between messages and other effects;
//!    quiet does not cover messages. Everything that the core had observed, or was quiet about, before it sent precedes
//!    the next actions of an observer of the message.
//!
//! [`order`] contains rules 2 and 5 as a relation for backends that delay effects.
//!
//! A value from the fabric is untrusted: the machines check its range before they use it.

pub mod coherent;
pub mod completions;
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
pub(crate) use error::Result;
pub use wait::{Detail, Flag, Progress, Wait};
pub use watch::Awaited;
pub(crate) use watch::Watch;

use crate::place::Place;
use crate::units::RankId;
use bitflags::bitflags;
use core::cell::Cell;
use core::fmt;

bitflags! {
    /// The optional calls that a fabric carries out. [`Env::new`](crate::protocol::Env::new) refuses a memory that lacks a
    /// call which one of the machines needs.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Capabilities: u32 {
        /// [`Fabric::peer_bytes`]: cores read their peers' windows.
        const PEER_BYTES = 1;
        /// [`Fabric::send`]: cores send messages to other servers.
        const SEND = 1 << 1;
        /// [`Fabric::lend`]: outputs can be written in place.
        const LEND = 1 << 2;
        /// [`Fabric::prefetch`]: the returned bytes are in cached memory of the processor.
        const PREFETCH = 1 << 3;
    }
}

/// The length in bytes of a word, which is the line of a memory that writes back nothing else.
pub const WORD: u64 = 8;

/// The terms on which a memory serves a group: what it states before the group begins. They stay the same over its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// The optional calls that it carries out.
    pub calls: Capabilities,
    /// Its [line](Fabric::line) in bytes.
    pub line: u64,
}

impl Terms {
    /// Creates the terms of a memory that carries out these optional calls, and whose publishes and stores write their words only.
    #[must_use]
    pub const fn new(calls: Capabilities) -> Self {
        Self { calls, line: WORD }
    }
}

/// A fabric has refused an access: its memory has no such bytes, or no room for the effect now ([`Fault::busy`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fault {
    /// The rank of the memory.
    pub rank: RankId,
    /// The place of the access.
    pub at: Place,
    /// The length of the access in bytes.
    pub len: u64,
    /// The backend's own code of the error, 0 if it has none.
    pub code: i32,
}

impl Fault {
    /// Creates the fault of a refused access to `len` bytes at `at` of `rank`.
    #[must_use]
    pub const fn new(rank: RankId, at: Place, len: u64) -> Self {
        Self { rank, at, len, code: 0 }
    }

    /// The code of an effect that was not taken for lack of room.
    pub const BUSY: i32 = -i32::MAX;

    /// Sets a backend's own code.
    #[must_use]
    pub const fn with_code(self, code: i32) -> Self {
        Self { code, ..self }
    }

    /// Creates the answer to an effect of `len` bytes for which there is no room now (rule 9). Nothing has happened.
    #[must_use]
    pub const fn busy(rank: RankId, at: Place, len: u64) -> Self {
        Self::new(rank, at, len).with_code(Self::BUSY)
    }

    /// Returns whether nothing is wrong but that there was no room for an effect.
    #[must_use]
    pub const fn is_busy(&self) -> bool {
        self.code == Self::BUSY
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no access to {} bytes at {} of rank {}", self.len, self.at, self.rank)?;
        match self.code {
            0 => Ok(()),
            Self::BUSY => f.write_str(": there is no room"),
            code => write!(f, ": the backend says {code}"),
        }
    }
}

impl core::error::Error for Fault {}

/// One core's view of the memory of all ranks. **The region chooses the domain**: `to` is an EP rank for
/// [`State`](crate::place::Region::State) and [`Window`](crate::place::Region::Window), and the number of a rank in
/// its own TP domain for [`TpState`](crate::place::Region::TpState) and
/// [`TpWindow`](crate::place::Region::TpWindow). See the [module](self) for the contract.
pub trait Fabric {
    /// Returns the optional calls that this fabric carries out: [`peer_bytes`](Self::peer_bytes), [`send`](Self::send),
    /// [`lend`](Self::lend), [`prefetch`](Self::prefetch). They stay the same over the fabric's life. A fabric that wraps
    /// another one reports only calls that both support.
    fn capabilities(&self) -> Capabilities;

    /// Returns the line of this memory in bytes, a power of two: a publish or a store may write back the other bytes of the
    /// aligned line around its word, as they were at any moment since the call. By default it is [`WORD`], so no other byte is
    /// written. It stays the same over the fabric's life, and a fabric that wraps another one passes it on. (It is a method, not
    /// an associated constant, so that the trait is object safe, and a table of C functions has its own.)
    fn line(&self) -> u64 {
        WORD
    }

    /// Returns what the memory states for the check of [`Env::new`](crate::protocol::Env::new).
    fn terms(&self) -> Terms {
        Terms { calls: self.capabilities(), line: self.line() }
    }

    /// Writes `row` and then `tail`, as one effect, to rank `to`. Both are reusable on return.
    ///
    /// # Errors
    /// The place is outside the peer's region.
    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault>;

    /// Publishes an aligned word on any rank, including its own: an observer of the word sees all earlier puts of this
    /// core to that rank.
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

    /// Returns whether everything that this core did before, except messages, has landed. Call it again until it has.
    ///
    /// # Errors
    /// The backend lost something it had accepted.
    fn quiet(&mut self) -> Result<bool, Fault>;

    /// Reads an aligned word of this rank with acquire semantics.
    ///
    /// # Errors
    /// The place is outside the region or not a multiple of 8.
    fn observe(&self, at: Place) -> Result<u64, Fault>;

    /// Writes an aligned word of this rank: clears a flag, flips a selector.
    ///
    /// # Errors
    /// The place is outside the region or not a multiple of 8.
    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault>;

    /// Returns bytes of this rank's window.
    ///
    /// # Errors
    /// The range is outside the region.
    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault>;

    /// Writes bytes into an output or into WindowsOut of this rank. They may land late, up to the next quiet. (With
    /// direct placement experts, which are not machines, write their results into this rank's window by this call.)
    ///
    /// # Errors
    /// The range is outside the region.
    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault>;

    /// Returns `len` bytes of an output of this rank, to be written in place instead of by one [`write`](Self::write):
    /// all of them, by this core, before its next effect. They are cells, because the rows read meanwhile are borrowed from
    /// the same fabric. Returns `None` for any other place; without [`Capabilities::LEND`], and by default, always, as on a
    /// memory where writes may land late.
    fn lend(&self, _output: Place, _len: u64) -> Option<&[Cell<u8>]> {
        None
    }

    /// Copies `len` bytes of this rank's window straight into an output. They may land late, as after a
    /// [`write`](Self::write).
    ///
    /// # Errors
    /// One of the ranges is outside its region.
    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault>;

    /// Returns bytes of the window of rank `rank`, including its own; of several ranks at once, so that a sum of rows
    /// stays in registers. Pull combine needs this call, which processors support that map each other's memory.
    ///
    /// Rule 6 applies as for [`bytes`](Self::bytes): only bytes are legal that a flag of that rank covers, which this core
    /// has observed, or another core of its rank before a core barrier. They also stay unchanged until the reader announces
    /// to that rank, by a flag of its own, that it is done.
    ///
    /// # Errors
    /// The range is outside the region. Without [`Capabilities::PEER_BYTES`], and by default, always.
    fn peer_bytes(&self, rank: RankId, at: Place, len: u64) -> Result<&[u8], Fault> {
        Err(Fault::new(rank, at, len))
    }

    /// Announces that `bytes`, which this fabric has returned, will be read soon. It is a hint: without
    /// [`Capabilities::PREFETCH`], and by default, it does nothing.
    fn prefetch(&self, _bytes: &[u8]) {}
}

/// Returns whether rows of `fabric` are in memory that can be prefetched.
pub(crate) fn prefetches<F: Fabric + ?Sized>(fabric: &F) -> bool {
    fabric.capabilities().contains(Capabilities::PREFETCH)
}
