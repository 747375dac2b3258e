//! The region map of a rank: every area with its place, size and stride, as data to print or check.

use super::affine::{Dim, INDICES_MAX, Index, Map, Mode, Named};
pub use super::field::Field;
use super::state::Partition;
use super::table::GROUPS;
use crate::place::{Place, Tensor};
use crate::shape::{Protocol, Shape};
use crate::units::RankId;

/// A row of equal slots in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Area {
    /// Its content.
    pub named: Named,
    /// The partition that it belongs to, if there is one.
    pub partition: Option<Partition>,
    /// The place of its first slot.
    pub start: Place,
    /// The number of slots.
    pub count: u64,
    /// The distance in bytes between the starts of two slots.
    pub stride: u64,
    /// The number of used bytes of a slot.
    pub slot: u64,
}

impl Area {
    /// Returns the bytes from the start to the end of the last stride.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.count * self.stride
    }
}

/// Returns every area of `rank`'s memory, in address order: the [maps](super::affine) as rows of equal slots. A map that is
/// not one such row is several: with a port offset dispatch records are one area for each source.
pub fn areas(shape: &Shape, mode: Mode, rank: RankId) -> impl Iterator<Item = Area> {
    // Who walks what is small is outside: each of these keeps two of what it walks.
    let all = GROUPS.into_iter().flat_map(|group| {
        let halves = [Partition::P0, Partition::P1].into_iter();
        halves.flat_map(move |half| group.iter().map(move |named| (named, half)))
    });
    all.filter_map(move |(named, half)| Some((named.map(shape, mode, rank)?, half)))
        .filter(|(map, half)| half.index() < map.dims().first().map_or(1, |dim| partitions(*dim)))
        .flat_map(move |(map, half)| rows(map, shape, rank, half))
}

/// Returns the number of partitions of an area.
const fn partitions(dim: Dim) -> u32 {
    if matches!(dim.index, Index::Partition | Index::Area) { dim.extent } else { 1 }
}

/// Returns the areas of a map in one partition on one rank.
fn rows(map: Map, shape: &Shape, rank: RankId, partition: Partition) -> impl Iterator<Item = Area> {
    let is_parted = map.dims().first().is_some_and(|dim| matches!(dim.index, Index::Partition | Index::Area));
    let owner = rank.0.checked_sub(shape.shared_expert_rank_num()).unwrap_or(rank.0);
    let mut first = [0; INDICES_MAX];
    let (mut row, mut repeated) = (None, (1, 0));
    for (dim, index) in map.dims().iter().zip(&mut first).rev() {
        let (extent, stride) = (u64::from(dim.extent), dim.stride.unsigned_abs());
        match (dim.index, row) {
            (Index::Partition | Index::Area, _) => *index = partition.index(),
            (Index::Owner, _) => *index = owner,
            (_, None) => row = Some((extent, stride)),
            (_, Some((count, step))) if count * step == stride => row = Some((count * extent, step)),
            _ => repeated = (extent, stride),
        }
    }
    let (count, step) = row.unwrap_or((1, map.bytes));
    let start = map.offset(first);
    (0..repeated.0).map(move |n| Area {
        named: map.named,
        partition: is_parted.then_some(partition),
        start: Place { region: map.region, offset: start + n * repeated.1 },
        count,
        stride: step,
        slot: map.bytes,
    })
}

/// Returns the fields of a token record, or of its counterpart in other protocols. With fullmesh_v2 the data continue after
/// the flag of each block; the fields include the payload and the flag of the first block.
pub fn record_fields(shape: &Shape) -> impl Iterator<Item = Field> {
    let record = match shape.protocol() {
        Protocol::FullmeshV1 | Protocol::FullmeshV2 => Named::DispatchRecords,
        Protocol::Fullmesh => Named::WindowRecords,
        Protocol::Hierarchy => Named::RelayRecords,
    };
    record.fields(shape, Mode::default())
}

/// Returns the fields of a row of the combine area.
pub fn combine_fields(shape: &Shape) -> impl Iterator<Item = Field> {
    Named::CombineRows.fields(shape, Mode::default())
}

/// Returns every output tensor of `rank` with its capacity in bytes.
pub fn outputs(shape: &Shape, rank: RankId) -> impl Iterator<Item = (Tensor, u64)> {
    Tensor::ALL.map(|tensor| (tensor, super::outputs::capacity(shape, rank, tensor))).into_iter()
}
