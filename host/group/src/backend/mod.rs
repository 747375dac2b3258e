//! Memories that ranks share, each with its fabric.

pub mod far;
pub mod inject;
pub mod lockstep;
pub mod no_payload;
pub mod rank_remap;
pub mod row_copy;
pub mod shared;

use core::ops::{Deref, Range};
use memmap2::{MmapMut, MmapOptions};
use std::io;
use veriep_case::global_rank;
use veriep_core::fabric::nic::Nic;
use veriep_core::fabric::{Fabric, Wait};
use veriep_core::place::Tensor;
use veriep_core::shape::{Elastic, Shape};
use veriep_core::sim::cluster::{Answer, Planned};
use veriep_core::sim::storage::{Spot, region_sizes};
use veriep_core::units::{CoreId, RankId};

/// Regions, and each of a rank's outputs, begin at pages of their own.
const PAGE: u64 = 4096;

/// A function that is given bytes to look at.
pub type Reader<'r> = &'r mut dyn FnMut(&[u8]);

/// The memory of a live group: state and data regions of all ranks, outputs of every batch in flight.
pub trait Backend: Sync {
    /// Whether machines are compiled for this very fabric, which makes them fast. For any other they are compiled once, and
    /// call it by a table.
    const INLINED: bool = false;

    /// Whether a layer wants to hear of each step of a core, and of what cores and agents wait for.
    const STEPS: bool = false;

    /// The fabric of a core that works on batch number `batch`.
    fn fabric(&self, rank: RankId, core: CoreId, batch: usize) -> impl Fabric;

    /// The network interface of `rank`.
    fn nic(&self, rank: RankId) -> impl Nic;

    /// Reads the first `len` bytes of an output, between operators only.
    fn read_output(&self, rank: RankId, batch: usize, tensor: Tensor, len: usize, read: Reader<'_>);

    /// The driver tells how a core goes along, for layers that keep books.
    fn hears(&self, _rank: RankId, _core: CoreId, _told: Told) {}
}

/// A memory that others hold, too.
impl<P: Deref<Target: Backend> + Sync> Backend for P {
    const INLINED: bool = P::Target::INLINED;

    const STEPS: bool = P::Target::STEPS;

    fn fabric(&self, rank: RankId, core: CoreId, batch: usize) -> impl Fabric {
        (**self).fabric(rank, core, batch)
    }

    fn nic(&self, rank: RankId) -> impl Nic {
        (**self).nic(rank)
    }

    fn read_output(&self, rank: RankId, batch: usize, tensor: Tensor, len: usize, read: Reader<'_>) {
        (**self).read_output(rank, batch, tensor, len, read);
    }

    fn hears(&self, rank: RankId, core: CoreId, told: Told) {
        (**self).hears(rank, core, told);
    }
}

/// An event of a core or agent that a driver reports. In lockstep it reports begins and steps only; [`Layer::stepped`] gets the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It begins an operator.
    Begins(Planned),
    /// It is about to take a step of one, in the phase of that name. Threads tell it only if a layer [asks](Backend::STEPS).
    Steps(Planned, &'static str),
    /// It cannot move: it lacks this. Only threads tell it, and only if a layer asks.
    Waits(Wait),
    /// It has ended its operator.
    Ends,
    /// It was the last of its rank to do so, and the experts have run.
    Experts,
}

impl Told {
    fn renamed(self, name: &dyn Fn(RankId) -> RankId) -> Self {
        match self {
            Self::Waits(wait) => Self::Waits(wait.renamed(name)),
            other => other,
        }
    }
}

/// What is in front of a memory: a fabric in front of each core's, an interface in front of each agent's.
pub trait Layer: Sync + Sized {
    /// Whether machines are compiled for its fabric, if they are for the one behind it.
    const INLINED: bool = true;

    /// Whether it wants to hear of each step of a core, and of what cores and agents wait for.
    const STEPS: bool = false;

    /// The fabric of a core in front of that of the memory behind.
    fn fabric<'b, F: Fabric + 'b>(&'b self, rank: RankId, core: CoreId, inner: F) -> impl Fabric;

    /// The interface of the agent of `rank` in front of that of the memory behind: by default that one.
    fn nic<'b, N: Nic + 'b>(&'b self, _rank: RankId, inner: N) -> impl Nic {
        inner
    }

    /// The name that the memory behind has for a rank.
    fn behind(&self, rank: RankId) -> RankId {
        rank
    }

    /// The driver tells how a core goes along.
    fn hears(&self, _rank: RankId, _core: CoreId, _told: Told) {}

    /// What the step of a core or agent has come to. Only a scheduler in one thread tells.
    fn stepped(&self, _rank: RankId, _core: CoreId, _answer: &Answer) {}

    /// This layer in front of a memory.
    fn over<B>(self, inner: B) -> Layered<Self, B> {
        Layered { layer: self, inner }
    }
}

/// A memory with a layer in front of it.
#[derive(Debug)]
pub struct Layered<L, B> {
    /// The layer.
    pub layer: L,
    /// The memory, perhaps with other layers.
    pub inner: B,
}

impl<L: Layer, B: Backend> Backend for Layered<L, B> {
    const INLINED: bool = L::INLINED && B::INLINED;

    const STEPS: bool = L::STEPS || B::STEPS;

    #[inline]
    fn fabric(&self, rank: RankId, core: CoreId, batch: usize) -> impl Fabric {
        self.layer.fabric(rank, core, self.inner.fabric(self.layer.behind(rank), core, batch))
    }

    fn nic(&self, rank: RankId) -> impl Nic {
        self.layer.nic(rank, self.inner.nic(self.layer.behind(rank)))
    }

    fn read_output(&self, rank: RankId, batch: usize, tensor: Tensor, len: usize, read: Reader<'_>) {
        self.inner.read_output(self.layer.behind(rank), batch, tensor, len, read);
    }

    fn hears(&self, rank: RankId, core: CoreId, told: Told) {
        self.layer.hears(rank, core, told);
        self.inner.hears(self.layer.behind(rank), core, told.renamed(&|rank| self.layer.behind(rank)));
    }
}

/// Whose memory a group needs.
#[derive(Clone, Copy, Debug)]
pub struct Members<'a> {
    /// The domain that runs.
    pub shape: &'a Shape,
    /// Of an elastic domain, who is left; then memory goes by physical rank.
    pub left: Option<&'a Elastic>,
}

impl<'a> From<&'a Shape> for Members<'a> {
    fn from(shape: &'a Shape) -> Self {
        Self { shape, left: None }
    }
}

impl Members<'_> {
    /// Every member that has state and window, also those that are gone.
    fn ranks(&self) -> impl Iterator<Item = RankId> + use<> {
        (0..self.left.map_or(global_rank::count(self.shape), Elastic::whole_world_size)).map(RankId)
    }

    /// Bytes of each region of a member, by [`Spot::region`]; one that is gone has no outputs.
    fn region_sizes(&self, rank: RankId, batches: usize) -> Vec<u64> {
        let new_id = self.left.map_or(Some(rank), |left| left.new_id(rank));
        let ep_rank = global_rank::ep_rank(self.shape, new_id.unwrap_or_default());
        let mut sizes = region_sizes(self.shape, Some(ep_rank), batches);
        if new_id.is_none() {
            sizes[Spot::regions(0)..].fill(0);
        }
        sizes
    }
}

/// In what pieces memory is committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pages {
    /// A huge page would commit hundreds of untouched slots at once.
    #[default]
    Small,
    /// Copies of rows are faster with them, if there is memory for what is never touched.
    Huge,
}

/// Zeroed memory that is committed as it is touched: most of a window never is.
fn anonymous(bytes: u64, pages: Pages) -> io::Result<MmapMut> {
    let map = MmapOptions::new().len(bytes as usize).no_reserve_swap().map_anon()?;
    // Advice only: its refusal changes nothing.
    #[cfg(target_os = "linux")]
    let _ = map.advise(match pages {
        Pages::Small => memmap2::Advice::NoHugePage,
        Pages::Huge => memmap2::Advice::HugePage,
    });
    #[cfg(not(target_os = "linux"))]
    let _ = pages;
    Ok(map)
}

/// Takes the next `bytes` of a memory whose first `taken` bytes are given away. What follows them begins at a multiple of
/// `unit`.
fn take(taken: &mut u64, bytes: u64, unit: u64) -> io::Result<Range<u64>> {
    let start = *taken;
    let end = start.checked_add(bytes).ok_or(io::ErrorKind::OutOfMemory)?;
    *taken = end.checked_next_multiple_of(unit).ok_or(io::ErrorKind::OutOfMemory)?;
    Ok(start..end)
}
