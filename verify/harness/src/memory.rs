//! Memory of the ranks, from one block.

use crate::Group;
use crate::scene::{Domain, RANKS, Scene};
use veriep_core::fabric::raw::{Peer, Segment};
use veriep_core::layout::state::STATE_BYTES;
use veriep_core::layout::tp;
use veriep_core::place::Tensor;
use veriep_core::units::RankId;

/// Each segment begins at a multiple of this.
pub const PAGE: u64 = 4096;
/// Room for one output, and for the results of experts.
pub(crate) const OUTPUT: u64 = 64 << 10;

/// What is not taken yet of a block. Processors that take the same in the same order have the same memory, so they need not
/// tell each other where it is.
#[derive(Debug)]
pub struct Arena {
    rest: Segment,
    /// Of the last group.
    ranks: Option<[Memory; RANKS]>,
}

/// The memory of a rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) ep: Peer,
    pub(crate) tp: Peer,
    /// Room for each tensor.
    pub(crate) outputs: Segment,
    /// What the experts return.
    pub(crate) y: Segment,
}

impl Memory {
    const NO_PEER: Peer = Peer { state: Segment::EMPTY, window: Segment::EMPTY, window_out: Segment::EMPTY };
    const NONE: Self =
        Self { ep: Self::NO_PEER, tp: Self::NO_PEER, outputs: Segment::EMPTY, y: Segment::EMPTY };
}

impl Arena {
    /// Creates the arena of a block that is zero, and of a length and base that are multiples of [`PAGE`].
    ///
    /// # Safety
    /// For the rest of the run, the block is allocated, and accessed through what is taken of it alone:
    /// - the cores and agents of a [`Group`], each driven by one processor at a time, keep the join of their rank;
    /// - one processor asks for a member's [`experts`](Group::experts) after its cores have ended dispatch, and before they
    ///   begin combine;
    /// - [`results`](Group::results) are asked for between a member's combine and its next one;
    /// - a fabric over a [`peer`](Self::peer) keeps the contract of [`RawFabric::new`](veriep_core::fabric::raw::RawFabric::new).
    pub const unsafe fn new(block: Segment) -> Self {
        Self { rest: block, ranks: None }
    }

    fn take(&mut self, bytes: u64) -> Option<Segment> {
        if bytes == 0 {
            return Some(Segment::EMPTY);
        }
        let whole = bytes.checked_next_multiple_of(PAGE)?;
        let taken = part(self.rest, 0, bytes)?;
        self.rest = part(self.rest, whole, self.rest.len().checked_sub(whole)?)?;
        Some(taken)
    }

    /// Returns regions of a rank that has these windows, if there is room.
    pub fn peer(&mut self, window: u64, window_out: u64) -> Option<Peer> {
        Some(Peer {
            state: self.take(STATE_BYTES)?,
            window: self.take(window)?,
            window_out: self.take(window_out)?,
        })
    }

    /// Returns the group of a scene: in memory of its own, or in that of the last group if the scene runs there [again](Scene::again).
    /// `None` if there is no room.
    pub fn group<'a>(&mut self, scene: &'a Scene, domain: &'a Domain) -> Option<Group<'a>> {
        let ranks = match self.ranks {
            Some(ranks) if scene.again => ranks,
            _ => self.take_ranks(domain)?,
        };
        self.ranks = Some(ranks);
        Group::new(scene, domain, ranks)
    }

    fn take_ranks(&mut self, domain: &Domain) -> Option<[Memory; RANKS]> {
        let shape = &domain.shape;
        let mut ranks = [Memory::NONE; RANKS];
        for memory in ranks.iter_mut().take(domain.ranks() as usize) {
            memory.ep = self.peer(shape.window_bytes(), shape.window_out_bytes())?;
            if domain.has_tp() {
                memory.tp = self.peer(tp::window_bytes(shape, RankId(0)), 0)?;
            }
            memory.outputs = self.take(OUTPUT * Tensor::ALL.len() as u64)?;
            memory.y = self.take(OUTPUT)?;
        }
        Some(ranks)
    }
}

/// Returns `len` bytes of a segment.
pub(crate) fn part(of: Segment, offset: u64, len: u64) -> Option<Segment> {
    let end = offset.checked_add(len)?;
    (end <= of.len()).then(|| Segment::new(of.base().wrapping_add(offset as usize), len))
}

/// Returns the bytes of a segment of an arena, which no core writes between the operators.
pub(crate) const fn bytes<'a>(segment: Segment) -> &'a [u8] {
    // SAFETY: allocated, and accessed as the caller of `Arena::new` promises.
    unsafe { core::slice::from_raw_parts(segment.base(), segment.len() as usize) }
}

/// Returns the bytes of a segment of an arena, which its one caller writes between the operators.
pub(crate) const fn bytes_mut<'a>(segment: Segment) -> &'a mut [u8] {
    // SAFETY: as of `bytes`.
    unsafe { core::slice::from_raw_parts_mut(segment.base(), segment.len() as usize) }
}
