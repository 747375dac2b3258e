//! Rows of the [table](super::table) that have the same places in every shape, read at compile time.

use super::affine::{Index, Named};
use super::expr::Expr;
use super::quantity::Quantity;
use super::state::Slots;
use super::table::TABLE;
use crate::place::{Place, Region};
use crate::units::Offset;

/// The slots of a row by one or two of its indices. The others are 0, or part of a number that the caller counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fixed<const N: usize> {
    region: Region,
    base: Offset,
    strides: [u64; N],
}

impl Named {
    /// Returns the bytes from one slot to the next along an index, for a constant.
    ///
    /// # Panics
    /// Does not compile if the row has not this index, or if its stride depends on a shape.
    pub(super) const fn stride(self, index: Index) -> u64 {
        self.stride_of(Slots::Shipped, index)
    }

    /// Returns the same for groups with these slots.
    const fn stride_of(self, slots: Slots, index: Index) -> u64 {
        let mut axes = TABLE[self as usize].axes;
        while let Some((axis, inner)) = axes.split_first() {
            if axis.index as usize == index as usize {
                return match axis.stride {
                    Expr::Of(Quantity::StatusSlot) => slots.bytes(),
                    stride => stride.constant().expect("a stride for all shapes"),
                };
            }
            axes = inner;
        }
        panic!("an index of the row")
    }

    /// Returns the slots of a row, for a constant.
    ///
    /// # Panics
    /// Does not compile if the row has not these indices, or if the base or one of their strides depends on a shape.
    pub(super) const fn fixed<const N: usize>(self, by: [Index; N]) -> Fixed<N> {
        self.fixed_of(Slots::Shipped, by)
    }

    /// Returns the same for groups with these slots.
    pub(super) const fn fixed_of<const N: usize>(self, slots: Slots, by: [Index; N]) -> Fixed<N> {
        let row = &TABLE[self as usize];
        let mut strides = [0; N];
        let mut n = 0;
        while n < N {
            strides[n] = self.stride_of(slots, by[n]);
            n += 1;
        }
        Fixed { region: row.region, base: row.base.constant().expect("a base for all shapes"), strides }
    }
}

impl Fixed<0> {
    /// Returns the only place.
    pub(super) const fn at(&self) -> Place {
        Place { region: self.region, offset: self.base }
    }
}

impl Fixed<1> {
    /// Returns the place at an index.
    #[inline(always)]
    pub(super) const fn at(&self, index: u32) -> Place {
        Place { region: self.region, offset: self.base + index as u64 * self.strides[0] }
    }
}

impl Fixed<2> {
    /// Returns the place at two indices, the outer one first.
    #[inline(always)]
    pub(super) const fn at(&self, outer: u32, inner: u32) -> Place {
        let [of_outer, of_inner] = self.strides;
        let offset = self.base + outer as u64 * of_outer + inner as u64 * of_inner;
        Place { region: self.region, offset }
    }
}
