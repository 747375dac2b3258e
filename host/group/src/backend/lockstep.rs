//! Memory for one thread that drives all cores: nothing is concurrent, so everything replays. It is the
//! [simulated memory](veriep_core::sim) of the core, strong or weak, whose bytes are mapped as they are touched.
//!
//! A second write to a byte of an output within one operator is refused: its writers must be disjoint. What no core has
//! written in an operator holds a pattern, so that a value of the operator before cannot pass for a new one.

use super::{Backend, Members, PAGE, Pages, Reader, anonymous, take};
use crate::dump;
use core::ops::Range;
use memmap2::MmapMut;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use veriep_case::parallel::lock;
use veriep_core::fabric::Fabric;
use veriep_core::fabric::nic::Nic;
use veriep_core::place::{Place, Tensor};
use veriep_core::shape::Shape;
use veriep_core::sim::chooser::{AGENT, Actor, Choice};
use veriep_core::sim::flight::Broken;
pub use veriep_core::sim::seeded::Memory;
use veriep_core::sim::seeded::Seeded;
use veriep_core::sim::storage::{Spot, Storage};
use veriep_core::sim::{self, NicView, View};
use veriep_core::units::{CoreId, RankId};

/// Transfers that an agent can have in flight.
const TRANSFERS_MAX: u32 = 5;

/// Bytes of a cache line. Each region begins at a multiple of it, and many are so short that they share a page.
const LINE: u64 = 64;

/// The memory of a group.
#[derive(Debug)]
pub struct Lockstep {
    inner: Mutex<Inner>,
    batches: usize,
}

pub(crate) type Inner = sim::Memory<Mapped, Seeded>;
type Guard<'b> = MutexGuard<'b, Inner>;

/// Bytes of all members that are mapped as they are touched.
#[derive(Debug, Default)]
pub struct Mapped {
    /// One mapping for all regions, since the system takes as long to make a small one as a large one. None while the memory
    /// is lent out.
    map: Option<MmapMut>,
    /// By member, then region: where its bytes lie.
    members: Vec<Vec<Range<u64>>>,
    /// One bit for each page, which is set once something has been written there.
    touched: Vec<u64>,
}

/// The content of untouched pages. Longer parts are read from the mapping.
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

impl Mapped {
    /// Zeroed memory of members whose regions have these sizes.
    ///
    /// # Errors
    /// The system refuses the mapping.
    pub fn new(sizes: impl Iterator<Item = Vec<u64>>) -> io::Result<Self> {
        let mut end = 0;
        let mut member = |sizes: Vec<u64>| sizes.into_iter().map(|size| take(&mut end, size, LINE)).collect();
        let members = sizes.map(&mut member).collect::<io::Result<_>>()?;
        // An empty mapping is refused.
        let map = Some(anonymous(end.max(1), Pages::Small)?);
        Ok(Self { map, members, touched: vec![0; (end / PAGE / 64 + 1) as usize] })
    }

    /// Returns the part of the mapping that holds `len` bytes from `from` on, or `None` if they are not all in one region.
    fn range(&self, from: Spot, len: u64) -> Option<Range<u64>> {
        let region = self.members.get(from.member.index())?.get(from.region())?;
        let start = region.start.checked_add(from.at.offset)?;
        Some(start..start.checked_add(len).filter(|end| *end <= region.end)?)
    }

    /// Returns the zeros that a range holds if no core has written to its pages. Words are read so often that a look at every
    /// one would cost more than it saves: for them it returns `None`.
    fn untouched(&self, range: &Range<u64>) -> Option<&'static [u8]> {
        let len = (range.end - range.start) as usize;
        let zeros = ZEROS.get(..len).filter(|_| len > 8)?;
        let is_touched = |page: usize| self.touched[page / 64] >> (page % 64) & 1 != 0;
        (!pages(range).any(is_touched)).then_some(zeros)
    }
}

/// The pages that a range of bytes is in.
fn pages(range: &Range<u64>) -> impl Iterator<Item = usize> {
    let end = range.end.div_ceil(PAGE);
    (range.start / PAGE..end).map(|page| page as usize)
}

impl Storage for Mapped {
    fn read(&self, from: Spot, len: u64) -> Option<&[u8]> {
        let range = self.range(from, len)?;
        self.untouched(&range).or_else(|| self.map.as_ref()?.get(range.start as usize..range.end as usize))
    }

    fn holds(&self, at: Spot, len: u64) -> bool {
        self.range(at, len).is_some()
    }

    fn write(&mut self, to: Spot, bytes: &[u8]) {
        let range = self.range(to, bytes.len() as u64).expect("no such bytes");
        // Rows that a simulation leaves out are zeros; to touch pages for them would take as long as all else.
        if self.untouched(&range) == Some(bytes) {
            return;
        }
        pages(&range).for_each(|page| self.touched[page / 64] |= 1 << (page % 64));
        let map = self.map.as_mut().expect("a member's memory is mapped");
        map[range.start as usize..range.end as usize].copy_from_slice(bytes);
    }
}

impl Lockstep {
    /// Zeroed memory of all ranks with outputs for `batches` batches in flight.
    ///
    /// # Errors
    /// The system refuses the mapping.
    pub fn new<'a>(
        members: impl Into<Members<'a>>,
        batches: usize,
        memory: Memory,
        seed: u64,
    ) -> io::Result<Self> {
        let members = members.into();
        let sizes = |rank| members.region_sizes(rank, batches);
        let storage = Mapped::new(members.ranks().map(sizes))?;
        let mut inner = Inner::new(members.shape, storage, Seeded::new(memory, seed));
        inner.room = TRANSFERS_MAX;
        for (rank, batch) in members.ranks().flat_map(|rank| (0..batches).map(move |batch| (rank, batch))) {
            inner.mark_outputs(rank, batch, &sizes(rank));
        }
        Ok(Self { inner: Mutex::new(inner), batches })
    }

    /// The same with rules of the contract broken, to see what is on them. For tests.
    #[must_use]
    pub fn breaking(mut self, broken: Broken) -> Self {
        self.inner.get_mut().unwrap_or_else(PoisonError::into_inner).broken = broken;
        self
    }

    /// Where the regions of all members are, for a dump.
    pub fn mapped(&self) -> Vec<dump::Mapped> {
        let Mapped { map, members, .. } = &self.lock().storage;
        let base = map.as_ref().map_or(0, |map| map.as_ptr().addr());
        let region = |region: &Range<u64>| (base + region.start as usize, region.end - region.start);
        let member = |regions: &Vec<Range<u64>>| {
            core::array::from_fn(|number| regions.get(number).map_or((0, 0), region))
        };
        members.iter().map(member).collect()
    }

    /// Lends the memory out, with how many batches it has outputs for; meanwhile nothing is here.
    pub(crate) fn lend(&self, shape: &Shape) -> (Inner, usize) {
        let nothing = Inner::new(shape, Mapped::default(), Seeded::new(Memory::Strong, 0));
        (core::mem::replace(&mut *self.lock(), nothing), self.batches)
    }

    /// Takes it back.
    pub(crate) fn take_back(&self, memory: Inner) {
        *self.lock() = memory;
    }

    fn lock(&self) -> Guard<'_> {
        lock(&self.inner)
    }

    /// A core's view. It holds the memory for as long as it lives: one actor moves at a time.
    fn view(&self, member: RankId, core: CoreId, batch: usize) -> View<'_, Guard<'_>, Mapped, Seeded> {
        let mut memory = self.lock();
        memory.begin_step();
        View::new(memory, Actor { member, core }, batch)
    }

    /// Time passes: something in flight may land.
    pub fn tick(&self) {
        let mut inner = self.lock();
        if let Some(Choice::Land(flight, bytes)) = inner.chooser.tick() {
            inner.land(flight, bytes);
        }
    }

    /// Lands one effect in flight. `false` when there is none.
    pub fn land_one(&self) -> bool {
        let mut inner = self.lock();
        while let Some(Choice::Land(flight, bytes)) = inner.chooser.land_any() {
            if inner.land(flight, bytes) {
                return true;
            }
        }
        false
    }
}

impl Backend for Lockstep {
    fn fabric(&self, rank: RankId, core: CoreId, batch: usize) -> impl Fabric {
        self.view(rank, core, batch)
    }

    fn nic(&self, rank: RankId) -> impl Nic {
        NicView(self.view(rank, AGENT, 0))
    }

    fn read_output(&self, rank: RankId, batch: usize, tensor: Tensor, len: usize, read: Reader<'_>) {
        let inner = self.lock();
        let spot = Spot { member: rank, batch, at: Place::output(tensor, 0) };
        let Range { start, end } = inner.storage.members[rank.index()][spot.region()];
        let size = end - start;
        read(inner.output(rank, batch, tensor, size.min(len as u64)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use veriep_core::sim::Dense;
    use veriep_core::sim::chooser::Dice;

    #[test]
    fn mapped_bytes_are_those_of_vectors_whether_pages_are_touched_or_not() {
        const SIZE: usize = 50_000;
        let sizes = [vec![SIZE as u64; Spot::regions(0)]];
        let mut dice = Dice(1);
        for _ in 0..20 {
            let mut mapped = Mapped::new(sizes.iter().cloned()).unwrap();
            let mut dense = Dense::new(sizes.iter().cloned());
            for _ in 0..100 {
                let mut part = || {
                    let offset = dice.below(SIZE);
                    // The end of the first region and the start of the second are in the same page.
                    let at = [Place::window, Place::window_out][dice.below(2)](offset as u64);
                    let spot = Spot { member: RankId(0), batch: 0, at };
                    (spot, dice.below(SIZE - offset + 1).min(dice.below(10_000)))
                };
                let ((to, len), (from, wanted)) = (part(), part());
                let bytes = vec![dice.below(3) as u8; len];
                mapped.write(to, &bytes);
                dense.write(to, &bytes);
                assert!(
                    mapped.read(from, wanted as u64) == dense.read(from, wanted as u64),
                    "{wanted} bytes of {from:?}"
                );
            }
        }
    }
}
