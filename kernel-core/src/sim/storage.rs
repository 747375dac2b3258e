//! Storage of the bytes of a simulated group.

use crate::layout::outputs::capacity;
use crate::layout::state::STATE_BYTES;
use crate::layout::tp;
use crate::place::{Place, Region, Tensor};
use crate::shape::Shape;
use crate::units::RankId;
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// A place of one member of a group. An output has one instance for each batch in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spot {
    /// The member: `ep_rank * tp_world_size + tp_rank`.
    pub member: RankId,
    /// The batch that an output belongs to; 0 for every other region.
    pub batch: usize,
    /// The place.
    pub at: Place,
}

impl Spot {
    /// How many regions a member with outputs for `batches` batches has.
    #[must_use]
    pub const fn regions(batches: usize) -> usize {
        5 + batches * Tensor::ALL.len()
    }

    /// The number of the spot's region among those of its member.
    #[must_use]
    pub const fn region(&self) -> usize {
        match self.at.region {
            Region::State => 0,
            Region::Window => 1,
            Region::WindowOut => 2,
            Region::TpState => 3,
            Region::TpWindow => 4,
            Region::Output(tensor) => 5 + self.batch * Tensor::ALL.len() + tensor as usize,
        }
    }
}

/// The bytes of every region of a member, by [`Spot::region`]. `ep` is its EP rank; a rank that has left an elastic domain
/// has none, and no memory.
#[must_use]
pub fn region_sizes(shape: &Shape, ep: Option<RankId>, batches: usize) -> Vec<u64> {
    let Some(ep) = ep else { return vec![0; Spot::regions(batches)] };
    let tp = shape.tp_world_size() > 1;
    let mut sizes = vec![
        STATE_BYTES,
        shape.window_bytes(),
        shape.window_out_bytes(),
        if tp { tp::TP_STATE_BYTES } else { 0 },
        if tp { tp::window_bytes(shape, ep) } else { 0 },
    ];
    sizes.extend((0..batches).flat_map(|_| Tensor::ALL.map(|tensor| capacity(shape, ep, tensor))));
    sizes
}

/// The same of every member of a group of `shape`, with outputs of one batch.
pub fn group_sizes(shape: &Shape) -> impl Iterator<Item = Vec<u64>> {
    let tp = shape.tp_world_size();
    (0..shape.ep_world_size() * tp).map(move |member| region_sizes(shape, Some(RankId(member / tp)), 1))
}

/// The memory of all members, zeroed when it is made.
pub trait Storage {
    /// `len` bytes from a spot on; `None` if they are not all in its region.
    fn read(&self, from: Spot, len: u64) -> Option<&[u8]>;

    /// Whether [`read`](Self::read) would return them.
    fn holds(&self, at: Spot, len: u64) -> bool {
        self.read(at, len).is_some()
    }

    /// Overwrites bytes that [`read`](Self::read) would return.
    fn write(&mut self, to: Spot, bytes: &[u8]);
}

/// Every byte of every region, in vectors.
#[derive(Clone, Debug)]
pub struct Dense {
    /// By member, then region.
    pub members: Vec<Vec<Vec<u8>>>,
}

impl Dense {
    /// Memory for members with regions of these [sizes](region_sizes).
    #[must_use]
    pub fn new(sizes: impl IntoIterator<Item = Vec<u64>>) -> Self {
        let member = |sizes: Vec<u64>| sizes.into_iter().map(|size| vec![0; size as usize]).collect();
        Self { members: sizes.into_iter().map(member).collect() }
    }
}

impl Storage for Dense {
    fn read(&self, from: Spot, len: u64) -> Option<&[u8]> {
        let region = self.members.get(from.member.index())?.get(from.region())?;
        let end = from.at.offset.checked_add(len)?;
        region.get(usize::try_from(from.at.offset).ok()?..usize::try_from(end).ok()?)
    }

    fn write(&mut self, to: Spot, bytes: &[u8]) {
        let region = &mut self.members[to.member.index()][to.region()];
        region[to.at.offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }
}

/// Pages that are made when they are first written, for groups of which most memory is never touched.
///
/// A page holds a copy of the first bytes of the next one, so that a row that crosses its end still is in one piece.
/// Outputs are kept whole.
#[derive(Clone, Debug)]
pub struct Sparse {
    /// By member, then region.
    members: Vec<Vec<Pages>>,
    outputs: Dense,
    /// The longest range that is ever read at once, but of outputs.
    longest: usize,
    zeros: Box<[u8]>,
}

#[derive(Clone, Debug)]
struct Pages {
    size: u64,
    pages: Vec<Option<Box<[u8]>>>,
}

const PAGE: usize = 4096;

impl Sparse {
    /// Memory for members with regions of these [sizes](region_sizes), of which at most `longest` bytes are read at once.
    #[must_use]
    pub fn new(sizes: impl IntoIterator<Item = Vec<u64>>, longest: usize) -> Self {
        let region =
            |size: &u64| Pages { size: *size, pages: vec![None; size.div_ceil(PAGE as u64) as usize] };
        let shared = Spot::regions(0);
        let (mut members, mut outputs) = (Vec::new(), Vec::new());
        for mut sizes in sizes {
            members.push(sizes[..shared].iter().map(region).collect());
            sizes[..shared].fill(0);
            outputs.push(sizes);
        }
        Self { members, outputs: Dense::new(outputs), longest, zeros: vec![0; PAGE + longest].into() }
    }
}

impl Storage for Sparse {
    fn read(&self, from: Spot, len: u64) -> Option<&[u8]> {
        if let Region::Output(_) = from.at.region {
            return self.outputs.read(from, len);
        }
        let region = self.members.get(from.member.index())?.get(from.region())?;
        from.at.offset.checked_add(len).filter(|&end| end <= region.size)?;
        assert!(len <= self.longest as u64, "{len} bytes are read at once at {}", from.at);
        let (page, inside) = (from.at.offset as usize / PAGE, from.at.offset as usize % PAGE);
        let page = region.pages.get(page).and_then(Option::as_deref).unwrap_or(&self.zeros);
        page.get(inside..inside + len as usize)
    }

    fn holds(&self, at: Spot, len: u64) -> bool {
        let region = self.members.get(at.member.index()).and_then(|member| member.get(at.region()));
        match (at.at.region, region) {
            (Region::Output(_), _) => self.outputs.holds(at, len),
            (_, None) => false,
            (_, Some(region)) => at.at.offset.checked_add(len).is_some_and(|end| end <= region.size),
        }
    }

    fn write(&mut self, to: Spot, bytes: &[u8]) {
        if let Region::Output(_) = to.at.region {
            return self.outputs.write(to, bytes);
        }
        let (start, end) = (to.at.offset as usize, to.at.offset as usize + bytes.len());
        let region = &mut self.members[to.member.index()][to.region()];
        let first = start.saturating_sub(self.longest) / PAGE;
        for number in first..end.div_ceil(PAGE) {
            // The part of the bytes that this page holds, if only as a copy.
            let page_start = number * PAGE;
            let (from, to) = (start.max(page_start), end.min(page_start + self.zeros.len()));
            if from < to {
                let page = region.pages[number].get_or_insert_with(|| self.zeros.clone());
                page[from - page_start..to - page_start].copy_from_slice(&bytes[from - start..to - start]);
            }
        }
    }
}
