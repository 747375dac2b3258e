//! What a vector unit does to rows: quantise a token, sum the returned results of one.
//!
//! A row is `H` little-endian elements of two bytes ([`Dtype`]); a quantised row is `H` bytes of int8.
//! [`Portable`] is the reference for every other implementation: they must agree with it bit by bit.
//! Arithmetic is f32 as IEEE 754 has it: every operation rounded once, no fused multiply-add, denormals
//! kept.

mod element;
mod portable;
#[cfg(test)]
mod tests;

pub use portable::Portable;

use crate::shape::Dtype;
use core::fmt;

/// A value that dynamic quantisation cannot take, before or after smoothing.
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

/// A vector unit. Lengths are the caller's duty; where slices disagree, what is missing adds nothing and
/// nothing is written beyond the shortest.
pub trait Vector: Copy {
    /// Dynamic int8 quantisation of one token (seed 003: `quantMode` 2): `f = x * smooth`, `m = max|f|`,
    /// `s = 127 / m`, `out = i8(rint(f * s))` with ties to even. Returns `dynamic_scale = 1 / s`; a row with
    /// `m` zero, or so small that `s` overflows, becomes all zeros with scale 0.
    ///
    /// # Errors
    /// [`NotFinite`] if any `f` is not finite; `out` is then left as it was.
    fn quantise(
        &self,
        dtype: Dtype,
        row: &[u8],
        smooth: Option<&[f32]>,
        out: &mut [u8],
    ) -> Result<f32, NotFinite>;

    /// The result of one token: from +0.0, `rows` in order, each times its weight (a rounded multiply, then
    /// a rounded add), then `unscaled` in order, rounded once to `dtype`. A NaN becomes 0x7FC0 (bf16) or
    /// 0x7E00 (f16). All rows are as long as `out`.
    fn weighted_sum(&self, dtype: Dtype, rows: &[&[u8]], weights: &[f32], unscaled: &[&[u8]], out: &mut [u8]);

    /// The sum of two rows, each element rounded once to `dtype` (TP = 2); NaN as above.
    fn add(&self, dtype: Dtype, a: &[u8], b: &[u8], out: &mut [u8]);
}
