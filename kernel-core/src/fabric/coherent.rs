//! The fabric over memory with coherent caches: the orderings of its word accesses, and the fences of rows that bypass the
//! caches. They are here once.
//!
//! [`CoherentFabric`] says in which order words and rows are accessed; where they lie is up to its [`Cells`]. Those of
//! [`raw`](super::raw) are addresses. Those of loom's models are objects that loom watches, so the models run this very code,
//! and fail if an ordering is weaker than required or a fence is missing.
//!
//! A publish is a release store, an observe an acquire load. On such a memory a release store follows all earlier stores of
//! its thread, to any rank, so quiet need not wait: the publishes of the following barrier order it. Rows that bypass the
//! caches are not in that order: a fence precedes each publish, message and quiet, and the end of the fabric.

use super::nic::{Nic, Post, Transfer};
use super::{Capabilities, Fabric, Fault};
use crate::place::Place;
use crate::units::RankId;
use core::cell::Cell;
use core::mem;
use core::sync::atomic::Ordering;

/// The ordering of a publish, and of each word of a message: it comes after everything that its core did before.
pub const PUBLISH: Ordering = Ordering::Release;

/// The ordering of an observe, also an agent's: the core's next actions come after everything that the seen word covers.
pub const OBSERVE: Ordering = Ordering::Acquire;

/// The ordering of a store, which covers nothing: the next publisher to its word is released by a later publish.
pub const STORE: Ordering = Ordering::Relaxed;

/// The ordering of each word that a transfer writes: it comes after the words before it.
pub const TRANSFER: Ordering = Ordering::Release;

/// The ordering of each word that a transfer reads: the doorbell covers it.
pub const SOURCE: Ordering = Ordering::Relaxed;

/// The ordering of a core's arrival at the join of its rank, which counts: the last one comes after all that the others did.
pub const ARRIVE: Ordering = Ordering::AcqRel;

/// The ordering of the store by which the last core opens the join: it comes after what all cores, and the experts, did.
pub const OPEN: Ordering = Ordering::Release;

/// The ordering of the load by which a core sees that the join is open: its next operator comes after that.
pub const JOINED: Ordering = Ordering::Acquire;

/// How a row has been copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Copied {
    /// Through the caches.
    Cached,
    /// Past the caches. Such stores are unordered with all others, even release stores, up to the next fence.
    Streamed,
}

/// Memory with coherent caches, as one core or agent reaches it. It carries out single accesses and decides on no order: that
/// is [`CoherentFabric`]'s.
pub trait Cells {
    /// Returns the optional calls of [`Fabric`] that it can carry out.
    fn capabilities(&self) -> Capabilities;

    /// Returns this rank in the domain that the region of `at` belongs to.
    fn own(&self, at: Place) -> RankId;

    /// Returns whether `rank` belongs to another server, so that it gets messages alone.
    fn is_far(&self, rank: RankId) -> bool;

    /// Refuses a range that is not wholly in a region of `rank` which this core reaches.
    ///
    /// # Errors
    /// It is not.
    fn check(&self, rank: RankId, at: Place, len: u64) -> Result<(), Fault>;

    /// Loads an aligned word.
    ///
    /// # Errors
    /// There is none at that place.
    fn load(&self, rank: RankId, at: Place, ordering: Ordering) -> Result<u64, Fault>;

    /// Stores an aligned word.
    ///
    /// # Errors
    /// There is none at that place.
    fn store(&self, rank: RankId, at: Place, word: u64, ordering: Ordering) -> Result<(), Fault>;

    /// Stores words one after the other, from an aligned place on.
    ///
    /// # Errors
    /// There is no such place for one of them.
    fn store_words(
        &self,
        rank: RankId,
        at: Place,
        words: &[[u8; 8]],
        ordering: Ordering,
    ) -> Result<(), Fault> {
        words.iter().zip((0..).step_by(8)).try_for_each(|(word, offset)| {
            let at = Place { offset: at.offset.saturating_add(offset), ..at };
            self.store(rank, at, u64::from_le_bytes(*word), ordering)
        })
    }

    /// Loads this rank's words of a transfer one after the other, and stores each to the other rank.
    ///
    /// # Errors
    /// One of the places is outside its region.
    fn transfer_words(&self, transfer: &Transfer, load: Ordering, store: Ordering) -> Result<(), Fault> {
        let Transfer { to, from, at, len } = *transfer;
        (0..len).step_by(8).try_for_each(|offset| {
            let word = |at: Place| Place { offset: at.offset.saturating_add(offset), ..at };
            self.store(to, word(at), self.load(self.own(from), word(from), load)?, store)
        })
    }

    /// Writes `row`, and `tail` after it, to rank `to`.
    ///
    /// # Errors
    /// They are not in one region.
    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<Copied, Fault>;

    /// Copies a row of this rank into one of its outputs.
    ///
    /// # Errors
    /// One of them is outside its region.
    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<Copied, Fault>;

    /// Writes into this rank's memory.
    ///
    /// # Errors
    /// The place is outside its region.
    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault>;

    /// Returns bytes of `rank`.
    ///
    /// # Errors
    /// They are not in one region.
    fn bytes(&self, rank: RankId, at: Place, len: u64) -> Result<&[u8], Fault>;

    /// As [`Fabric::lend`].
    fn lend(&self, output: Place, len: u64) -> Option<&[Cell<u8>]>;

    /// As [`Fabric::prefetch`].
    fn prefetch(&self, bytes: &[u8]);

    /// Orders all earlier stores that bypassed the caches before all later stores.
    fn fence(&mut self);
}

/// One core's fabric over memory with coherent caches.
#[derive(Debug)]
pub struct CoherentFabric<C: Cells> {
    pub(super) cells: C,
    /// A row has bypassed the caches since the last fence.
    due: bool,
}

impl<C: Cells> CoherentFabric<C> {
    pub(super) const fn over(cells: C) -> Self {
        Self { cells, due: false }
    }

    /// Returns its memory.
    pub const fn cells(&self) -> &C {
        &self.cells
    }

    /// Refuses a put or publish to a far rank.
    #[inline(always)]
    fn near(&self, to: RankId, at: Place, len: usize) -> Result<(), Fault> {
        if self.cells.is_far(to) {
            return Err(Fault::new(to, at, len as u64));
        }
        Ok(())
    }

    #[inline]
    fn copied(&mut self, how: Copied) {
        if how == Copied::Streamed {
            self.due = true;
        }
    }

    /// Issues a fence, if a row has bypassed the caches since the last one.
    #[inline(always)]
    fn fence(&mut self) {
        if mem::take(&mut self.due) {
            self.cells.fence();
        }
    }
}

/// The fabric of a core that reaches `cells`.
impl<C: Cells> From<C> for CoherentFabric<C> {
    fn from(cells: C) -> Self {
        Self::over(cells)
    }
}

impl<C: Cells> Drop for CoherentFabric<C> {
    #[inline]
    fn drop(&mut self) {
        self.fence();
    }
}

impl<C: Cells> Fabric for CoherentFabric<C> {
    #[inline(always)]
    fn capabilities(&self) -> Capabilities {
        self.cells.capabilities()
    }

    // Inlined, so that a known region needs no choice of a segment.
    #[inline(always)]
    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        self.near(to, at, row.len())?;
        let how = self.cells.put(to, at, row, tail)?;
        self.copied(how);
        Ok(())
    }

    #[inline]
    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        self.near(to, at, 8)?;
        self.fence();
        self.cells.store(to, at, word, PUBLISH)
    }

    fn send(&mut self, to: RankId, at: Place, message: &[u8]) -> Result<(), Fault> {
        let (words, rest) = message.as_chunks();
        let fault = Fault::new(to, at, message.len() as u64);
        self.cells.check(to, at, fault.len)?;
        self.fence();
        if !self.cells.is_far(to) || !rest.is_empty() {
            return Err(fault);
        }
        // Each word covers all earlier messages.
        self.cells.store_words(to, at, words, PUBLISH)
    }

    #[inline]
    fn quiet(&mut self) -> Result<bool, Fault> {
        self.fence();
        Ok(true)
    }

    #[inline]
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        self.cells.load(self.cells.own(at), at, OBSERVE)
    }

    #[inline]
    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        self.cells.store(self.cells.own(at), at, word, STORE)
    }

    #[inline]
    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.cells.bytes(self.cells.own(at), at, len)
    }

    #[inline]
    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        self.cells.write(at, bytes)
    }

    #[inline]
    fn lend(&self, output: Place, len: u64) -> Option<&[Cell<u8>]> {
        self.cells.lend(output, len)
    }

    #[inline(always)]
    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        let how = self.cells.deliver(output, from, len)?;
        self.copied(how);
        Ok(())
    }

    #[inline]
    fn peer_bytes(&self, rank: RankId, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.cells.bytes(rank, at, len)
    }

    #[inline(always)]
    fn prefetch(&self, bytes: &[u8]) {
        self.cells.prefetch(bytes);
    }
}

/// An agent's interface over memory with coherent caches. The processor that posts a transfer delivers it at once.
#[derive(Debug)]
pub struct CoherentNic<C> {
    cells: C,
}

impl<C: Cells> CoherentNic<C> {
    pub(super) const fn over(cells: C) -> Self {
        Self { cells }
    }
}

/// The interface of an agent that reaches `cells`.
impl<C: Cells> From<C> for CoherentNic<C> {
    fn from(cells: C) -> Self {
        Self::over(cells)
    }
}

impl<C: Cells> Nic for CoherentNic<C> {
    #[inline]
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        self.cells.load(self.cells.own(at), at, OBSERVE)
    }

    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault> {
        let Transfer { to, from, at, len } = *transfer;
        let (cells, rank) = (&self.cells, self.cells.own(from));
        transfer.check(rank)?;
        // Both ranges are checked first, so that nothing is written of a refused transfer.
        cells.check(rank, from, len)?;
        cells.check(to, at, len)?;
        cells.transfer_words(transfer, SOURCE, TRANSFER)?;
        Ok(Post::Posted)
    }
}
