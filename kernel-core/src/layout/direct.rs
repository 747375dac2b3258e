//! The window with direct placement: rows are put where experts read them, results stay where experts write them.
//!
//! ```text
//! area a at a * area, one for each batch in flight; A = most rows that the rank can receive:
//!   +0                     rows      A rows of H elements, one after the other: the matrix that experts read
//!   +align(rows, 512)      infos     A, 16 B apart: scale (f32, present even when unquantised) and triple of each row
//!   +align(infos, 512)     results   A rows of H elements of dtype, one after the other: what experts write and the
//!                                    tokens' owners read
//! ```
//!
//! Where experts overwrite the rows that they have read, there is no third part: a result replaces its row.
//!
//! The window then holds neither records nor a combine area. [`required_bytes`] returns the size of the areas: unquantised,
//! one needs no more than the plain layout's two partitions.

use super::affine::{Index, Mode, Named};
use super::field::FieldName;
use super::quantity::{Memory, number};
use super::record::Triple;
use super::table::places;
use crate::place::Place;
use crate::shape::Shape;
pub use crate::shape::sizes::LANDING_INFO as INFO;
use crate::units::{Offset, RankId};
use static_assertions::const_assert;

const_assert!(INFO == SCALE + Triple::BYTES);
/// The bytes from one info to the next.
const STEP: u64 = Named::Infos.stride(Index::Row);
/// The length in bytes of the scale, which comes first.
pub const SCALE: u64 = 4;

/// An area of the window with direct placement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Area {
    /// The area's number.
    pub number: u32,
    /// Whether results overwrite the rows that they were computed from. This needs rows as long as results, so unquantised.
    pub overwritten: bool,
}

/// Returns the bytes of window that `areas` areas need on the rank that can receive most rows.
#[must_use]
pub fn required_bytes(shape: &Shape, areas: u32, overwritten: bool) -> u64 {
    let area = Area { number: 0, overwritten };
    // Rank 0 holds a shared expert if any rank does, the last rank never.
    let ends = [RankId(0), RankId(shape.ep_world_size().saturating_sub(1))];
    let most = ends.map(|rank| area.bytes(shape, rank)).into_iter().max();
    u64::from(areas).saturating_mul(most.unwrap_or(0))
}

impl Area {
    /// Returns the bytes of each such area on `rank`.
    const fn bytes(self, shape: &Shape, rank: RankId) -> u64 {
        number::LandingBytes(&self.memory(shape, rank))
    }

    /// Returns the memory that has such areas.
    const fn memory(self, shape: &Shape, rank: RankId) -> Memory<'_> {
        let Memory { mode, .. } = Memory::of(shape, rank);
        Memory { shape, mode: Mode { overwritten: self.overwritten, ..mode }, rank }
    }
}

/// The places of the parts of an area on a rank, computed once for many rows.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    rows: Offset,
    infos: Offset,
    results: Offset,
    payload: u64,
    row: u64,
    rows_max: u64,
}

impl Parts {
    /// Returns the layout of one area on `rank`.
    #[inline]
    #[must_use]
    pub const fn of(shape: &Shape, rank: RankId, area: Area) -> Self {
        let memory = &area.memory(shape, rank);
        let rows = places::Rows(memory, [area.number, 0]).offset;
        let next_row = places::Rows(memory, [area.number, 1]).offset;
        let results = places::Results(memory, [area.number, 0]).offset;
        let next_result = places::Results(memory, [area.number, 1]).offset;
        Self {
            rows,
            infos: places::Infos(memory, [area.number, 0]).offset,
            results: if area.overwritten {
                places::OverwrittenRows(memory, [area.number, 0]).offset
            } else {
                results
            },
            payload: next_row - rows,
            row: next_result - results,
            rows_max: shape.rows_max(rank),
        }
    }

    /// Returns whether the area has this row.
    #[inline]
    pub(crate) const fn has(&self, row: u32) -> bool {
        (row as u64) < self.rows_max
    }

    /// Returns the place of row `row`.
    #[inline]
    #[must_use]
    pub const fn row(&self, row: u32) -> Place {
        Place::window(self.rows + row as u64 * self.payload)
    }

    /// Returns the place of scale and triple of that row.
    #[inline]
    #[must_use]
    pub const fn info(&self, row: u32) -> Place {
        Place::window(self.infos + row as u64 * STEP)
    }

    /// Returns the place of the expert's result for that row.
    #[inline]
    #[must_use]
    pub const fn result(&self, row: u32) -> Place {
        Place::window(self.results + row as u64 * self.row)
    }
}

/// Returns the bytes of an info.
pub(crate) fn info_of(scale: f32, triple: Triple) -> [u8; INFO as usize] {
    let words = [scale.to_bits(), triple.source.0, triple.token.0, triple.k];
    // The bytes are computed in registers, since reading back single written bytes would stall.
    words.into_iter().rev().fold(0, |info: u128, word| info << 32 | u128::from(word)).to_le_bytes()
}

/// Returns the place of the info `rows` rows after this one.
#[inline]
pub(crate) const fn info_behind(info: Place, rows: u32) -> Place {
    Place { offset: info.offset + rows as u64 * STEP, ..info }
}

/// Returns the place of the triple in an info, which follows its scale.
pub(crate) const fn triple_of(info: Place) -> Place {
    const TRIPLE: u64 = Named::Infos.field(FieldName::Triple);
    Place { offset: info.offset + TRIPLE, ..info }
}

#[cfg(test)]
mod tests;
