//! The way back from a place to its slot: the inverse of the [table](super::table), for messages, checks and traces. No machine
//! needs it.

use super::affine::{Dim, INDICES_MAX, Index, Map, Named};
use super::map::Field;
use super::quantity::Memory;
use crate::place::Place;
use core::fmt;

/// A byte of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spot {
    /// The map that has the slot.
    pub map: Map,
    /// The indices of the slot, in the order of [`Map::dims`]; 0 after them.
    pub indices: [u32; INDICES_MAX],
    /// The byte in the slot.
    pub inside: u64,
}

/// Returns the slot of an area or output that has this byte of a rank's memory; `None` if no slot has it. At most one has: `verify`
/// proves that rows of the table do not overlap, but for those that share. It looks for no slot [inside](Named::inside) that one:
/// [`Named::find`] does. Tokens of outputs count up to the capacity, which a rank with fewer tokens does not use.
#[must_use]
pub fn locate(memory: &Memory<'_>, place: Place) -> Option<Spot> {
    let is_in_region = |named: &Named| named.row().is_some_and(|row| row.region == place.region);
    let outer = Named::ALL.into_iter().filter(|named| named.inside().is_empty() && is_in_region(named));
    // Returned slots are near slots by other indices; who wants those calls `Named::find`.
    outer.filter(|named| *named != Named::ReturnedSlots).find_map(|named| named.find(memory, place.offset))
}

impl Named {
    /// Returns the slot of this map that has a byte. `offset` counts from the start of the region, which the caller sees to, or of
    /// the outer slot if the map is [inside](Self::inside) another.
    #[must_use]
    pub fn find(self, memory: &Memory<'_>, offset: u64) -> Option<Spot> {
        let map = self.map_in(memory)?;
        let (indices, inside) = map.find(memory.owner(), offset)?;
        Some(Spot { map, indices, inside })
    }
}

impl Map {
    /// Returns the indices of the slot that has this byte, and the byte in it. `owner` is the value of [`Index::Owner`], which
    /// no offset tells.
    ///
    /// For each other index the bytes of a slot and all that the inner indices add are at most its stride, so the quotient by the
    /// stride is the index. `verify` proves this for every legal shape. An index whose stride is negative counts from its last
    /// slot, which has the lowest offset.
    #[must_use]
    pub fn find(&self, owner: u32, offset: u64) -> Option<([u32; INDICES_MAX], u64)> {
        let negative = self.dims().iter().filter(|dim| dim.stride < 0);
        let lowest = negative.fold(self.base, |at, dim| at.wrapping_sub(reach(dim)));
        let mut rest = offset.checked_sub(lowest)?;
        let mut indices = [0; INDICES_MAX];
        for (dim, index) in self.dims().iter().zip(&mut indices) {
            let last = dim.extent.checked_sub(1)?;
            let steps = match dim.index {
                // Its stride, the port offset, may be 0 or less than what is inside: a quotient would not find it.
                Index::Owner => owner,
                // After the last slot the rest stays too large for the comparison at the end.
                _ => rest.checked_div(dim.stride.unsigned_abs()).map_or(0, |n| n.min(last.into()) as u32),
            };
            rest = rest.checked_sub(u64::from(steps) * dim.stride.unsigned_abs())?;
            *index = if dim.stride < 0 { last - steps } else { steps };
        }
        (rest < self.bytes).then_some((indices, rest))
    }
}

/// Returns the bytes from the first slot along an index to the last.
fn reach(dim: &Dim) -> u64 {
    u64::from(dim.extent.saturating_sub(1)) * dim.stride.unsigned_abs()
}

impl Spot {
    /// Returns the index of this kind.
    #[must_use]
    pub fn index(&self, of: Index) -> Option<u32> {
        self.map.dims().iter().zip(self.indices).find(|(dim, _)| dim.index == of).map(|(_, index)| index)
    }

    /// Returns the field that has the byte, if the slot has fields.
    #[must_use]
    pub fn field(&self, memory: &Memory<'_>) -> Option<Field> {
        let has_byte = |field: &Field| (field.offset..field.offset + field.size).contains(&self.inside);
        self.map.named.fields(memory.shape, memory.mode).find(has_byte)
    }
}

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.map.named.name())?;
        for (dim, index) in self.map.dims().iter().zip(self.indices) {
            write!(f, ", {} {index}", dim.index.name())?;
        }
        Ok(())
    }
}
