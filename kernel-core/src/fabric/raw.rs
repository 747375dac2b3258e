//! The fabric over plain coherent shared memory, given as raw addresses: for threads, processes and firmware that map their
//! peers' windows. Addresses are dereferenced only here and in `prefetch.rs`, which copies rows for it.
//!
//! Words are `AtomicU64`. Rows are plain bytes; the flags prevent races on them, which the models check. Orderings and fences
//! are those of [`coherent`](super::coherent), whose fabric this is, over cells that are addresses.
#![allow(unsafe_code)]

use super::coherent::{Cells, CoherentFabric, CoherentNic, Copied};
use super::nic::Transfer;
use super::prefetch;
use super::{Capabilities, Fault};
use crate::place::{Place, Region, Tensor};
use crate::units::{RankId, div_rem};
use core::cell::Cell;
use core::marker::PhantomData;
use core::ptr;
use core::slice;
use core::sync::atomic::{AtomicU64, Ordering};

/// A stretch of memory by address.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Segment {
    base: *mut u8,
    len: u64,
}

// SAFETY: a segment is an address and a length; it gives no access by itself. The caller of `RawFabric::new` promises that
// accesses are legal.
unsafe impl Send for Segment {}
// SAFETY: as above; a shared reference to a segment only yields its address.
unsafe impl Sync for Segment {}

impl Segment {
    /// A segment without memory.
    pub const EMPTY: Self = Self { base: ptr::dangling_mut(), len: 0 };

    /// Creates the segment of the `len` bytes at `base`, which must be a multiple of 8 and not null.
    #[must_use]
    pub const fn new(base: *mut u8, len: u64) -> Self {
        Self { base, len }
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub const fn base(&self) -> *mut u8 {
        self.base
    }

    /// Returns the length in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the segment has no memory.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of `len` bytes at `offset`, if they are inside.
    #[inline]
    fn at(&self, offset: u64, len: u64) -> Option<*mut u8> {
        let end = offset.checked_add(len)?;
        // `wrapping_add` needs no unsafe; the result is inside the segment, so it does not wrap.
        (end <= self.len).then(|| self.base.wrapping_add(offset as usize))
    }
}

/// The memory of a rank that its peers write to.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Peer {
    /// The state region.
    pub state: Segment,
    /// The data region.
    pub window: Segment,
    /// A2's WindowsOut, which only the rank itself uses; [`Segment::EMPTY`] elsewhere.
    pub window_out: Segment,
}

/// The output tensors of a rank for one operator.
pub type Outputs = [Segment; Tensor::ALL.len()];

/// The way in which rows of a cache line or more are copied. The fastest one depends on the processor:
/// `docs/reference/performance.md`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RowCopy {
    /// Through the caches, with lines of both ends prefetched.
    #[default]
    Ahead,
    /// With the platform's own copy.
    Plain,
    /// Past the caches, with a fence before each flag. Do not `mem::forget` such a fabric: `Drop` issues its last store fence.
    Streaming,
}

/// One core's fabric over raw memory.
pub type RawFabric<'a> = CoherentFabric<RawCells<'a>>;

/// A rank's network interface over raw memory. The processor that posts a transfer delivers it at once.
pub type RawNic<'a> = CoherentNic<RawCells<'a>>;

/// The memory of all ranks by address, as one core reaches it. It is made by [`RawFabric::new`] and [`RawNic::new`].
#[derive(Debug)]
pub struct RawCells<'a> {
    peers: &'a [Peer],
    outputs: Outputs,
    rank: RankId,
    tp: &'a [Peer],
    tp_rank: RankId,
    /// The number of ranks of a server, if other servers are far; else 0.
    server_ranks: u32,
    /// The first rank of its own server.
    server_first: u32,
    row_copy: RowCopy,
    /// A cell, since outputs are lent by shared reference, which another thread must not have.
    memory: PhantomData<Cell<&'a mut [u8]>>,
}

/// A word that others access too.
struct Word<'a>(&'a AtomicU64);

impl Word<'_> {
    #[inline(always)]
    fn load(&self, ordering: Ordering) -> u64 {
        #[cfg(test)]
        tests::note(tests::Did::Load(ordering));
        self.0.load(ordering)
    }

    #[inline(always)]
    fn store(&self, word: u64, ordering: Ordering) {
        #[cfg(test)]
        tests::note(tests::Did::Store(ordering));
        self.0.store(word, ordering);
    }
}

impl<'a> RawFabric<'a> {
    /// Creates the fabric of a core of `rank`.
    ///
    /// # Safety
    /// For `'a`:
    /// - every segment is allocated, readable and writable, its base a multiple of 8, and no two overlap;
    /// - the memory is accessed by nothing but fabrics over the same segments that are driven by this crate's
    ///   machines under the rules of their protocol (one driver for each core, the join kept), and between operators
    ///   by code that reads outputs, and by experts, which read rows and write results in this rank's window;
    /// - other callers keep the contract of [`Fabric`](super::Fabric): rows are read after a flag that covers them, have one writer, and
    ///   outputs are not read by [`bytes`](super::Fabric::bytes) while they are [lent](super::Fabric::lend).
    #[must_use]
    pub const unsafe fn new(peers: &'a [Peer], rank: RankId, outputs: Outputs) -> Self {
        Self::over(RawCells::new(peers, rank, outputs))
    }

    /// Sets the TP domain: the rank's number `tp_rank` in it, and its regions, TP state and TP window.
    ///
    /// # Safety
    /// The requirements of [`new`](Self::new), also for these segments.
    #[must_use]
    pub const unsafe fn with_tp(mut self, tp: &'a [Peer], tp_rank: RankId) -> Self {
        (self.cells.tp, self.cells.tp_rank) = (tp, tp_rank);
        self
    }

    /// Sets the size of servers: ranks of other servers are far, and get messages alone.
    #[must_use]
    pub const fn with_servers(mut self, server_ranks: u32) -> Self {
        self.cells.server_ranks = server_ranks;
        self.cells.server_first = self.cells.rank.0 - div_rem(self.cells.rank.0, server_ranks).1;
        self
    }

    /// Sets the way in which rows are copied.
    #[must_use]
    pub const fn with_row_copy(mut self, row_copy: RowCopy) -> Self {
        self.cells.row_copy = row_copy;
        self
    }
}

impl<'a> RawNic<'a> {
    /// Creates the interface of `rank`.
    ///
    /// # Safety
    /// The requirements of [`RawFabric::new`]; it is driven by the one agent of `rank`.
    #[must_use]
    pub const unsafe fn new(peers: &'a [Peer], rank: RankId) -> Self {
        Self::over(RawCells::new(peers, rank, [Segment::EMPTY; Tensor::ALL.len()]))
    }
}

impl<'a> RawCells<'a> {
    /// The caller that makes a fabric or an interface of it has the promises of [`RawFabric::new`].
    const fn new(peers: &'a [Peer], rank: RankId, outputs: Outputs) -> Self {
        Self {
            peers,
            outputs,
            rank,
            tp: &[],
            tp_rank: RankId(0),
            server_ranks: 0,
            server_first: 0,
            row_copy: RowCopy::Ahead,
            memory: PhantomData,
        }
    }
}

impl RawCells<'_> {
    #[inline(always)]
    fn address(&self, rank: RankId, at: Place, len: u64) -> Result<*mut u8, Fault> {
        let segment = match at.region {
            Region::State => self.peers.get(rank.index()).map(|peer| &peer.state),
            Region::Window => self.peers.get(rank.index()).map(|peer| &peer.window),
            Region::WindowOut if rank != self.rank => None,
            Region::WindowOut => self.peers.get(rank.index()).map(|peer| &peer.window_out),
            Region::TpState => self.tp.get(rank.index()).map(|peer| &peer.state),
            Region::TpWindow => self.tp.get(rank.index()).map(|peer| &peer.window),
            Region::Output(_) if rank != self.rank => None,
            Region::Output(tensor) => self.outputs.get(tensor as usize),
        };
        segment.and_then(|s| s.at(at.offset, len)).ok_or(Fault::new(rank, at, len))
    }

    #[inline]
    fn word(&self, rank: RankId, at: Place) -> Result<Word<'_>, Fault> {
        let first = self.words(rank, at, 1)?;
        // SAFETY: `words` checked that the word is there. Flag words are only accessed as atomics by the machines.
        Ok(Word(unsafe { AtomicU64::from_ptr(first) }))
    }

    /// Returns the address of the first of that many words, which are in a segment: its base is a multiple of 8, and it is
    /// allocated for `'a` (`new`).
    #[inline(always)]
    fn words(&self, rank: RankId, at: Place, count: usize) -> Result<*mut u64, Fault> {
        let len = (count as u64).saturating_mul(8);
        if !at.offset.is_multiple_of(8) {
            return Err(Fault::new(rank, at, len));
        }
        Ok(self.address(rank, at, len)?.cast())
    }

    /// Prefetches for a copy of `words` words, before word number `next`.
    #[inline(always)]
    fn fetch_ahead(&self, from: *const u8, to: *mut u8, next: usize, words: usize) {
        if self.row_copy != RowCopy::Plain && (8 * next).is_multiple_of(prefetch::LINE) {
            prefetch::fetch_ahead(from, to, 8 * next, 8 * words);
        }
    }

    /// Copies a row in the chosen way.
    ///
    /// # Safety
    /// The requirements of [`ptr::copy_nonoverlapping`].
    #[inline(always)]
    unsafe fn copy_row(&self, from: *const u8, to: *mut u8, len: usize) -> Copied {
        // Such a short row is not worth a special way.
        let way = if len < prefetch::LINE { RowCopy::Plain } else { self.row_copy };
        // SAFETY: the caller's promise; after a row that bypasses the caches a fence precedes the next flag.
        unsafe {
            match way {
                RowCopy::Plain => ptr::copy_nonoverlapping(from, to, len),
                RowCopy::Streaming if prefetch::copy_past_caches(from, to, len) => return Copied::Streamed,
                RowCopy::Ahead | RowCopy::Streaming => prefetch::copy(from, to, len),
            }
        }
        Copied::Cached
    }
}

impl Cells for RawCells<'_> {
    /// Returns all calls; messages only if there is a far rank.
    #[inline(always)]
    fn capabilities(&self) -> Capabilities {
        let has_far = self.server_ranks != 0 && (self.server_ranks as usize) < self.peers.len();
        if has_far { Capabilities::all() } else { Capabilities::all().difference(Capabilities::SEND) }
    }

    #[inline(always)]
    fn own(&self, at: Place) -> RankId {
        if at.region.is_of_tp() { self.tp_rank } else { self.rank }
    }

    #[inline(always)]
    fn is_far(&self, rank: RankId) -> bool {
        self.server_ranks != 0 && rank.0.wrapping_sub(self.server_first) >= self.server_ranks
    }

    #[inline(always)]
    fn check(&self, rank: RankId, at: Place, len: u64) -> Result<(), Fault> {
        self.address(rank, at, len).map(|_| ())
    }

    #[inline(always)]
    fn load(&self, rank: RankId, at: Place, ordering: Ordering) -> Result<u64, Fault> {
        Ok(self.word(rank, at)?.load(ordering))
    }

    #[inline(always)]
    fn store(&self, rank: RankId, at: Place, word: u64, ordering: Ordering) -> Result<(), Fault> {
        self.word(rank, at)?.store(word, ordering);
        Ok(())
    }

    fn store_words(
        &self,
        rank: RankId,
        at: Place,
        words: &[[u8; 8]],
        ordering: Ordering,
    ) -> Result<(), Fault> {
        let first = self.words(rank, at, words.len())?;
        for (i, word) in words.iter().enumerate() {
            self.fetch_ahead(words.as_ptr().cast(), first.cast(), i, words.len());
            // SAFETY: `words` checked that so many words are there.
            let to = Word(unsafe { AtomicU64::from_ptr(first.add(i)) });
            to.store(u64::from_le_bytes(*word), ordering);
        }
        Ok(())
    }

    fn transfer_words(&self, transfer: &Transfer, load: Ordering, store: Ordering) -> Result<(), Fault> {
        let Transfer { to, from, at, len } = *transfer;
        let words = (len / 8) as usize;
        let (from, to) = (self.words(self.own(from), from, words)?, self.words(to, at, words)?);
        for i in 0..words {
            self.fetch_ahead(from.cast(), to.cast(), i, words);
            // SAFETY: `words` checked that so many words are in both places.
            let (from, to) = unsafe { (AtomicU64::from_ptr(from.add(i)), AtomicU64::from_ptr(to.add(i))) };
            Word(to).store(Word(from).load(load), store);
        }
        Ok(())
    }

    #[inline(always)]
    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<Copied, Fault> {
        let len = (row.len() as u64).saturating_add(tail.len() as u64);
        let first = self.address(to, at, len)?;
        // SAFETY: `address` checked that both, one after the other, are in a segment. As in `write`: there is no reader or
        // writer now, and neither source overlaps it.
        unsafe {
            let copied = self.copy_row(row.as_ptr(), first, row.len());
            prefetch::copy_short(tail.as_ptr(), first.wrapping_add(row.len()), tail.len());
            Ok(copied)
        }
    }

    #[inline(always)]
    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<Copied, Fault> {
        let to = self.address(self.rank, output, len)?;
        let from = self.address(self.own(from), from, len)?;
        // SAFETY: both are in segments, and an observed flag covers the source (as in `bytes`). `to` is in an output
        // segment, which does not overlap the window; each output row has one writer, and it is read only after the
        // operator has ended.
        Ok(unsafe { self.copy_row(from, to, len as usize) })
    }

    #[inline]
    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        let to = self.address(self.rank, at, bytes.len() as u64)?;
        // SAFETY: the destination is in a segment. It is not read until a flag published after this covers it, it has no
        // other writer (the layout gives every row one), and `bytes` does not overlap it: they are an input, a scratch, a
        // machine's own, or a received row, none of which is where rows are sent to.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    #[inline(always)]
    fn bytes(&self, rank: RankId, at: Place, len: u64) -> Result<&[u8], Fault> {
        let address = self.address(rank, at, len)?;
        // SAFETY: the range is in a segment of any rank, which is mapped for 'a. The machines ask only for rows that an
        // observed flag covers, and their writer does not touch them again: of this rank, before this operator has
        // ended here; of a peer, before this rank's next flag.
        Ok(unsafe { slice::from_raw_parts(address, len as usize) })
    }

    #[inline]
    fn lend(&self, output: Place, len: u64) -> Option<&[Cell<u8>]> {
        if !matches!(output.region, Region::Output(_)) {
            return None;
        }
        let address = self.address(self.rank, output, len).ok()?;
        // SAFETY: the range is in an output segment, which is allocated for 'a, overlaps no other (`new`) and holds
        // bytes, as a cell of bytes does. No slice of its plain bytes is alive: outputs are read when nothing is lent
        // (`new`). The cells are shared within this thread alone, as this type is not `Sync`; each output row has one
        // writer, and it is read only after the operator has ended.
        Some(unsafe { slice::from_raw_parts(address.cast(), len as usize) })
    }

    #[inline(always)]
    fn prefetch(&self, bytes: &[u8]) {
        prefetch::fetch(bytes.as_ptr());
    }

    #[inline]
    fn fence(&mut self) {
        // SAFETY: every x86-64 has the instruction, and it touches no memory.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            core::arch::x86_64::_mm_sfence();
        }
        #[cfg(test)]
        tests::note(tests::Did::Fence);
    }
}

#[cfg(test)]
mod tests;
