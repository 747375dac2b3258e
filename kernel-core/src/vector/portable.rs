//! The loops over rows, in plain Rust that a compiler vectorises for its target, and the portable unit made of them.
//!
//! They are all inlined, so that a caller with target features of its own has them compiled for those.

use super::chunk::{elements, floats, put_elements};
use super::{NotFinite, Term, Vector, quantise, sum};
use crate::shape::Dtype;
use crate::shape::element::{Bf16, Element, F16};
use core::cell::Cell;

/// The loops. `half` converts f16; `SUM` elements are summed at a time, which as f32 should fill half the registers, and
/// `MAP` elements are mapped at a time.
#[derive(Clone, Copy)]
pub(super) struct Loops<H, const SUM: usize, const MAP: usize> {
    pub(super) half: H,
}

impl<H: Element, const SUM: usize, const MAP: usize> Vector for Loops<H, SUM, MAP> {
    #[inline(always)]
    fn quantise(
        &self,
        dtype: Dtype,
        row: &[u8],
        smooth: Option<&[f32]>,
        out: &mut [u8],
    ) -> Result<f32, NotFinite> {
        match dtype {
            Dtype::Bf16 => quantise::token::<_, MAP>(Bf16, row, smooth, out),
            Dtype::F16 => quantise::token::<_, MAP>(self.half, row, smooth, out),
        }
    }

    #[inline(always)]
    fn quantise_blocks(&self, dtype: Dtype, row: &[u8], data: &mut [u8], scales: &mut [u8]) {
        match dtype {
            Dtype::Bf16 => quantise::blocks::<Bf16>(row, data, scales),
            Dtype::F16 => quantise::blocks::<H>(row, data, scales),
        }
    }

    #[inline(always)]
    fn quantise_sums(&self, dtype: Dtype, sums: &[u8], data: &mut [u8], scales: &mut [u8]) {
        match dtype {
            Dtype::Bf16 => quantise::sums::<Bf16>(sums, data, scales),
            Dtype::F16 => quantise::sums::<H>(sums, data, scales),
        }
    }

    #[inline(always)]
    fn weighted_sum(&self, dtype: Dtype, terms: &[Term<'_>], prefetch: bool, out: &[Cell<u8>]) {
        match dtype {
            Dtype::Bf16 => sum::rounded::<_, SUM>(Bf16, terms, prefetch, out),
            Dtype::F16 => sum::rounded::<_, SUM>(self.half, terms, prefetch, out),
        }
    }

    #[inline(always)]
    fn accumulate(&self, dtype: Dtype, terms: &[Term<'_>], prefetch: bool, sums: &mut [u8]) {
        match dtype {
            Dtype::Bf16 => sum::added::<_, SUM>(Bf16, terms, prefetch, sums),
            Dtype::F16 => sum::added::<_, SUM>(self.half, terms, prefetch, sums),
        }
    }

    #[inline(always)]
    fn narrow(&self, dtype: Dtype, sums: &[u8], out: &mut [u8]) {
        match dtype {
            Dtype::Bf16 => narrow::<_, MAP>(Bf16, sums, out),
            Dtype::F16 => narrow::<_, MAP>(self.half, sums, out),
        }
    }

    #[inline(always)]
    fn rstd(&self, sums: &[u8], eps: f32) -> f32 {
        rstd(sums, eps)
    }

    #[inline(always)]
    fn normalise(&self, dtype: Dtype, sums: &[u8], rstd: f32, gamma: &[u8], out: &mut [u8]) {
        match dtype {
            Dtype::Bf16 => normalise::<_, MAP>(Bf16, sums, rstd, gamma, out),
            Dtype::F16 => normalise::<_, MAP>(self.half, sums, rstd, gamma, out),
        }
    }

    #[inline(always)]
    fn add(&self, dtype: Dtype, a: &[u8], b: &[u8], out: &mut [u8]) {
        match dtype {
            Dtype::Bf16 => add::<_, MAP>(Bf16, a, b, out),
            Dtype::F16 => add::<_, MAP>(self.half, a, b, out),
        }
    }
}

/// Returns the first `len` elements of a row of dtype, or all if there are fewer.
#[inline(always)]
fn first(out: &mut [u8], len: usize) -> &mut [u8] {
    let len = out.len().min(2 * len);
    out.get_mut(..len).unwrap_or(&mut [])
}

#[inline(always)]
fn add<E: Element, const N: usize>(element: E, a: &[u8], b: &[u8], out: &mut [u8]) {
    for (i, out) in first(out, a.len().min(b.len()) / 2).chunks_mut(2 * N).enumerate() {
        let (mut sums, b) = (elements::<E, N>(element, a, i), elements::<E, N>(element, b, i));
        for (sum, b) in sums.iter_mut().zip(b) {
            *sum += b;
        }
        put_elements(element, &sums, out);
    }
}

#[inline(always)]
fn narrow<E: Element, const N: usize>(element: E, sums: &[u8], out: &mut [u8]) {
    for (i, out) in first(out, sums.len() / 4).chunks_mut(2 * N).enumerate() {
        put_elements(element, &floats::<N>(sums, i), out);
    }
}

/// The number of partial sums of [`rstd`]: element `i` is added to number `i` modulo this.
const LANES: usize = 16;

#[inline(always)]
fn rstd(sums: &[u8], eps: f32) -> f32 {
    let (values, _) = sums.as_chunks::<4>();
    let part = 1.0 / values.len() as f32;
    let square = |&r: &[u8; 4]| f32::from_le_bytes(r) * f32::from_le_bytes(r) * part;
    let (blocks, rest) = values.as_chunks::<LANES>();
    let mut lanes = [0.0f32; LANES];
    for block in blocks {
        for (lane, r) in lanes.iter_mut().zip(block) {
            *lane += square(r);
        }
    }
    for (lane, r) in lanes.iter_mut().zip(rest) {
        *lane += square(r);
    }
    let total = lanes.into_iter().fold(0.0, |total, lane| total + lane);
    1.0 / libm::sqrtf(total + eps)
}

#[inline(always)]
fn normalise<E: Element, const N: usize>(element: E, sums: &[u8], rstd: f32, gamma: &[u8], out: &mut [u8]) {
    for (i, out) in first(out, (sums.len() / 4).min(gamma.len() / 2)).chunks_mut(2 * N).enumerate() {
        let (mut values, gamma) = (floats::<N>(sums, i), elements::<E, N>(element, gamma, i));
        for r in values.iter_mut() {
            *r *= rstd;
        }
        element.round_all(&mut values);
        for (normal, gamma) in values.iter_mut().zip(gamma) {
            *normal *= gamma;
        }
        put_elements(element, &values, out);
    }
}

/// The portable vector unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Portable;

/// Passes the functions of [`Vector`] to a macro that implements it, with the arguments `$given`.
macro_rules! with_functions {
    ($implement:ident! $given:tt) => {
        $implement! { $given;
            quantise(dtype: Dtype, row: &[u8], smooth: Option<&[f32]>, out: &mut [u8]) -> Result<f32, NotFinite>;
            quantise_blocks(dtype: Dtype, row: &[u8], data: &mut [u8], scales: &mut [u8]) -> ();
            quantise_sums(dtype: Dtype, sums: &[u8], data: &mut [u8], scales: &mut [u8]) -> ();
            weighted_sum(dtype: Dtype, terms: &[Term<'_>], prefetch: bool, out: &[Cell<u8>]) -> ();
            accumulate(dtype: Dtype, terms: &[Term<'_>], prefetch: bool, sums: &mut [u8]) -> ();
            narrow(dtype: Dtype, sums: &[u8], out: &mut [u8]) -> ();
            rstd(sums: &[u8], eps: f32) -> f32;
            normalise(dtype: Dtype, sums: &[u8], rstd: f32, gamma: &[u8], out: &mut [u8]) -> ();
            add(dtype: Dtype, a: &[u8], b: &[u8], out: &mut [u8]) -> ();
        }
    };
}
pub(super) use with_functions;

macro_rules! portable {
    (($loops:expr); $($function:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        impl Vector for Portable {
            $(
                #[inline]
                fn $function(&self, $($argument: $type),*) -> $result {
                    $loops.$function($($argument),*)
                }
            )*
        }
    };
}

with_functions! { portable! (Loops::<F16, 32, 32> { half: F16 }) }
