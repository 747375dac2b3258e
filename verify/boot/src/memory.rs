//! Memory of the ranks: what lies behind the program and is zero when a machine starts.

use crate::arch;
use crate::scene::RANKS;
use core::array::from_fn;
use veriep_core::fabric::raw::{Outputs, Peer, Segment};
use veriep_core::layout::outputs::capacity;
use veriep_core::layout::state::STATE_BYTES;
use veriep_core::place::{Place, Region, Tensor};
use veriep_core::shape::Shape;
use veriep_core::units::RankId;

const PAGE: u64 = 4096;

unsafe extern "C" {
    /// Where it begins, as the linker says.
    static __heap_base: u8;
}

/// The memory that is not taken yet. All processors take the same in the same order, and so agree without a word.
pub(crate) struct Free {
    next: u64,
}

#[derive(Clone, Copy)]
pub(crate) struct Rank {
    pub(crate) peer: Peer,
    pub(crate) outputs: Outputs,
    /// What the rank's tokens are, and what its experts return.
    pub(crate) x: Segment,
    pub(crate) y: Segment,
}

impl Free {
    pub(crate) fn new() -> Self {
        Self { next: ((&raw const __heap_base).expose_provenance() as u64).next_multiple_of(PAGE) }
    }

    fn take(&mut self, bytes: u64) -> Segment {
        if bytes == 0 {
            return Segment::EMPTY;
        }
        let base = core::ptr::with_exposed_provenance_mut(self.next as usize);
        self.next += bytes.next_multiple_of(PAGE);
        if self.next > arch::MEMORY_END {
            crate::fail("memory", &self.next);
        }
        Segment::new(base, bytes)
    }

    /// Regions of a rank that has these windows.
    pub(crate) fn peer(&mut self, window: u64, window_out: u64) -> Peer {
        let state = self.take(STATE_BYTES);
        Peer { state, window: self.take(window), window_out: self.take(window_out) }
    }

    pub(crate) fn ranks(&mut self, shape: &Shape) -> [Rank; RANKS] {
        from_fn(|rank| {
            let rank = RankId(rank as u32);
            let peer = self.peer(shape.window_bytes(), shape.window_out_bytes());
            let outputs = Tensor::ALL.map(|tensor| self.take(capacity(shape, rank, tensor)));
            let x = self.take(u64::from(shape.bs(rank)) * shape.row_bytes());
            Rank { peer, outputs, x, y: self.take(capacity(shape, rank, Tensor::ExpandX)) }
        })
    }
}

impl Rank {
    /// An output, whole.
    pub(crate) fn output(&self, tensor: Tensor) -> Segment {
        self.outputs[tensor as usize]
    }

    /// `len` bytes of the window or of an output.
    pub(crate) fn at(&self, place: Place, len: u64) -> Segment {
        let of = match place.region {
            Region::Output(tensor) => self.output(tensor),
            _ => self.peer.window,
        };
        if place.offset + len > of.len() {
            crate::fail("a place", &place);
        }
        Segment::new(of.base().wrapping_add(place.offset as usize), len)
    }
}

/// The bytes of a segment.
///
/// # Safety
/// No processor writes them for as long as they are borrowed, or all bytes are read behind what orders them.
pub(crate) unsafe fn bytes<'a>(segment: Segment) -> &'a [u8] {
    // SAFETY: a segment of `Free` or a part of one, or the empty one; the rest is the caller's.
    unsafe { core::slice::from_raw_parts(segment.base(), segment.len() as usize) }
}

/// The bytes of a segment, to be written.
///
/// # Safety
/// No other processor accesses them for as long as they are borrowed.
pub(crate) unsafe fn bytes_mut<'a>(segment: Segment) -> &'a mut [u8] {
    // SAFETY: as above.
    unsafe { core::slice::from_raw_parts_mut(segment.base(), segment.len() as usize) }
}
