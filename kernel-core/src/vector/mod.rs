//! The operations of a vector unit on rows: quantise a token or a result, sum the results of a token, normalise it.
//!
//! A row is `H` little-endian elements of two bytes ([`Dtype`]), or of four (f32) where stated; a quantised row is `H`
//! bytes of int8. [`Portable`] is the reference for every other implementation: they must agree with it bit by bit, except
//! for the order in which [`rstd`](Vector::rstd) adds. Arithmetic is f32 as in IEEE 754: every operation is rounded once,
//! without fused multiply-add, and denormals are kept. Values are rounded to `dtype` to nearest even, and a NaN becomes
//! 0x7FC0 (bf16) or 0x7E00 (f16).

mod any;
mod chunk;
mod portable;
mod quantise;
mod sum;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
pub mod x86;

pub use any::Any;
pub use portable::Portable;

use crate::shape::{Dtype, RowElement, Shape};
use core::cell::Cell;
use core::fmt;

/// A value that dynamic quantisation does not support, before or after smoothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NotFinite {
    /// The first such element of the row.
    pub element: u32,
}

impl fmt::Display for NotFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "element {} is not finite before or after smoothing", self.element)
    }
}

impl core::error::Error for NotFinite {}

/// A term of a token's sum: `weight * value`, where the product is rounded before it is added. An unscaled row has weight
/// 1, which causes no rounding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Term<'a> {
    /// The factor.
    pub weight: f32,
    /// The row, in one of its formats.
    pub value: Value<'a>,
}

impl<'a> Term<'a> {
    /// A row of dtype times `weight`.
    pub(crate) const fn row(weight: f32, row: &'a [u8]) -> Self {
        Self { weight, value: Value::Row(row) }
    }
}

/// The row of a term.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// Elements of dtype.
    Row(&'a [u8]),
    /// int8 blocks of 8 elements, the last may be shorter: `f32(data) * f32(scale of the block)`, rounded to dtype.
    Blocks {
        /// int8.
        data: &'a [u8],
        /// One element of dtype for each block.
        scales: &'a [u8],
    },
    /// `alphas[0] * rows[0] + alphas[1] * rows[1]`: each product rounded, then the sum, all in f32.
    Mix {
        /// The factors.
        alphas: [f32; 2],
        /// Rows of dtype.
        rows: [&'a [u8]; 2],
    },
}

/// Returns bytes as cells.
#[inline]
#[must_use]
pub const fn cells(bytes: &mut [u8]) -> &[Cell<u8>] {
    Cell::from_mut(bytes).as_slice_of_cells()
}

/// Converts a token into the payload of a dispatched row. Returns the row's scale, 0 where rows have none.
///
/// # Errors
/// [`NotFinite`] where the format needs finite values; `out` is then unchanged.
#[inline]
pub(crate) fn convert(
    unit: &dyn Vector,
    shape: &Shape,
    row: &[u8],
    smooth: Option<&[f32]>,
    out: &mut [u8],
) -> Result<f32, NotFinite> {
    match shape.row_format().element {
        RowElement::Dtype => {
            out.iter_mut().zip(row).for_each(|(to, &from)| *to = from);
            Ok(0.0)
        }
        RowElement::Int8 => unit.quantise(shape.dtype(), row, smooth, out),
    }
}

/// A vector unit. The caller ensures that lengths agree; if they do not, missing elements add nothing and no write exceeds
/// the shortest slice.
pub trait Vector {
    /// Dynamic int8 quantisation of one token (V2 reference: `quantMode` 2): `f = x * smooth`, `m = max|f|`,
    /// `s = 127 / m`, `out = i8(rint(f * s))` with ties to even. Returns `dynamic_scale = 1 / s`; a row with
    /// `m` zero, or so small that `s` overflows, becomes all zeros with scale 0.
    ///
    /// # Errors
    /// [`NotFinite`] if any `f` is not finite; `out` is then unchanged.
    fn quantise(
        &self,
        dtype: Dtype,
        row: &[u8],
        smooth: Option<&[f32]>,
        out: &mut [u8],
    ) -> Result<f32, NotFinite>;

    /// Int8 quantisation of one result in blocks of 8 elements (V2 reference: `commQuantMode` 2): `m = max|f|`, `s = m * (1 /
    /// 127)`, `data = i8(rint(f / s))` with ties to even and the unrounded `s`; `scales` has each `s` rounded to `dtype`. A
    /// block of zeros gives zeros; one that is not finite gets a NaN as its scale.
    fn quantise_blocks(&self, dtype: Dtype, row: &[u8], data: &mut [u8], scales: &mut [u8]);

    /// Quantises a row of f32 in the same way: a partial sum on its way to another server.
    fn quantise_sums(&self, dtype: Dtype, sums: &[u8], data: &mut [u8], scales: &mut [u8]);

    /// The result of one token: from +0.0, `terms` in order, rounded once to `dtype`. The output is cells, as a fabric
    /// [lends](crate::fabric::Fabric::lend) them; [`cells`] converts other memory. Rows may be prefetched if their memory
    /// [supports it](crate::fabric::Capabilities::PREFETCH).
    fn weighted_sum(&self, dtype: Dtype, terms: &[Term<'_>], prefetch: bool, out: &[Cell<u8>]);

    /// Adds `terms` in order to `sums`, a row of f32. Rows may be prefetched as in a weighted sum.
    fn accumulate(&self, dtype: Dtype, terms: &[Term<'_>], prefetch: bool, sums: &mut [u8]);

    /// Rounds a row of f32 to `dtype`.
    fn narrow(&self, dtype: Dtype, sums: &[u8], out: &mut [u8]);

    /// `1 / sqrt(sum + eps)` of a row of f32, where `sum` adds every `r * r * (1 / H)`: `1 / H` is one f32 and each product
    /// is rounded; they may be added in any order.
    fn rstd(&self, sums: &[u8], eps: f32) -> f32;

    /// `round(round(r * rstd) * gamma)` of a row of f32, both rounded to `dtype`; `gamma` is a row of `dtype`.
    fn normalise(&self, dtype: Dtype, sums: &[u8], rstd: f32, gamma: &[u8], out: &mut [u8]);

    /// The sum of two rows, each element rounded once to `dtype` (TP = 2); NaN as above.
    fn add(&self, dtype: Dtype, a: &[u8], b: &[u8], out: &mut [u8]);
}
