//! The reference implementation: plain loops that a compiler vectorises for whatever it targets.
//!
//! Everything here is inlined, so that a backend can compile it again with wider vectors by calling it from
//! a function with target features of its own.

use super::element::{Bf16, Element, F16};
use super::{NotFinite, Vector};
use crate::shape::Dtype;

/// The vector unit of any machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Portable;

impl Vector for Portable {
    #[inline(always)]
    fn quantise(
        &self,
        dtype: Dtype,
        row: &[u8],
        smooth: Option<&[f32]>,
        out: &mut [u8],
    ) -> Result<f32, NotFinite> {
        match dtype {
            Dtype::Bf16 => quantise::<Bf16>(row, smooth, out),
            Dtype::F16 => quantise::<F16>(row, smooth, out),
        }
    }

    #[inline(always)]
    fn weighted_sum(
        &self,
        dtype: Dtype,
        rows: &[&[u8]],
        weights: &[f32],
        unscaled: &[&[u8]],
        out: &mut [u8],
    ) {
        match dtype {
            Dtype::Bf16 => weighted_sum::<Bf16>(rows, weights, unscaled, out),
            Dtype::F16 => weighted_sum::<F16>(rows, weights, unscaled, out),
        }
    }

    #[inline(always)]
    fn add(&self, dtype: Dtype, a: &[u8], b: &[u8], out: &mut [u8]) {
        match dtype {
            Dtype::Bf16 => add::<Bf16>(a, b, out),
            Dtype::F16 => add::<F16>(a, b, out),
        }
    }
}

#[inline(always)]
fn add<E: Element>(a: &[u8], b: &[u8], out: &mut [u8]) {
    let sums = a.as_chunks().0.iter().zip(b.as_chunks().0).map(|(&a, &b)| load::<E>(a) + load::<E>(b));
    for (out, sum) in out.as_chunks_mut().0.iter_mut().zip(sums) {
        *out = E::narrow(sum).to_le_bytes();
    }
}

#[inline(always)]
fn load<E: Element>(bytes: [u8; 2]) -> f32 {
    E::widen(u16::from_le_bytes(bytes))
}

/// The bits of `|value|`: as integers they are ordered like the values, NaN above infinity, and an integer
/// maximum needs no rule for NaN, so it vectorises.
#[inline(always)]
fn magnitude(value: f32) -> i32 {
    value.to_bits().cast_signed() & i32::MAX
}

/// The same before widening, which keeps the order.
#[inline(always)]
fn element_magnitude(bytes: [u8; 2]) -> i16 {
    i16::from_le_bytes(bytes) & i16::MAX
}

const INFINITY: i32 = 0x7F80_0000;

#[inline(always)]
fn quantise<E: Element>(row: &[u8], smooth: Option<&[f32]>, out: &mut [u8]) -> Result<f32, NotFinite> {
    let (row, _) = row.as_chunks::<2>();
    let peak = match smooth {
        None => {
            let peak = row.iter().fold(0, |peak, &x| peak.max(element_magnitude(x)));
            magnitude(E::widen(peak.cast_unsigned()))
        }
        Some(smooth) => row.iter().zip(smooth).fold(0, |peak, (&x, w)| peak.max(magnitude(load::<E>(x) * w))),
    };
    if peak >= INFINITY {
        return Err(first_not_finite::<E>(row, smooth));
    }
    let s = 127.0 / f32::from_bits(peak.cast_unsigned());
    // Also when the peak is 0.
    if !s.is_finite() {
        out.fill(0);
        return Ok(0.0);
    }
    match smooth {
        None => out.iter_mut().zip(row).for_each(|(q, &x)| *q = nearest_i8(load::<E>(x) * s)),
        Some(smooth) => {
            for ((q, &x), w) in out.iter_mut().zip(row).zip(smooth) {
                *q = nearest_i8(load::<E>(x) * w * s);
            }
        }
    }
    Ok(1.0 / s)
}

/// `rint` of a value within about +-127, as the byte of an i8.
///
/// The sum with 1.5 * 2^23 lies in [2^23, 2^24), where the last place is 1: the addition itself rounds to
/// the nearest integer, and ties go to even because 1.5 * 2^23 is even. Its mantissa then is 2^22 + the
/// integer in two's complement, whose low byte is the i8. Exact for |value| <= 2^22; `f * (127 / m)` exceeds
/// 127 by two roundings at most.
#[inline(always)]
fn nearest_i8(value: f32) -> u8 {
    (value + 12_582_912.0).to_bits() as u8
}

#[cold]
#[inline(never)]
fn first_not_finite<E: Element>(row: &[[u8; 2]], smooth: Option<&[f32]>) -> NotFinite {
    let factor = |i| smooth.and_then(|smooth| smooth.get(i)).copied().unwrap_or(1.0);
    let mut values = row.iter().enumerate().map(|(i, &x)| load::<E>(x) * factor(i));
    NotFinite { element: values.position(|f| !f.is_finite()).unwrap_or(0) as u32 }
}

/// Elements summed at a time: their sums stay close to the unit while all rows pass.
const BLOCK: usize = 32;
const BLOCK_BYTES: usize = 2 * BLOCK;

#[inline(always)]
fn weighted_sum<E: Element>(rows: &[&[u8]], weights: &[f32], unscaled: &[&[u8]], out: &mut [u8]) {
    let (blocks, tail) = out.as_chunks_mut::<BLOCK_BYTES>();
    let start_of_tail = blocks.len() * BLOCK_BYTES;
    for (i, out) in blocks.iter_mut().enumerate() {
        let block = |row: &&[u8]| {
            row.get(i * BLOCK_BYTES..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; _])
        };
        sum_block::<E>(rows, weights, unscaled, block, out);
    }
    if !tail.is_empty() {
        let block = |row: &&[u8]| {
            let mut padded = [0; BLOCK_BYTES];
            let rest = row.get(start_of_tail..).unwrap_or(&[]);
            padded.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
            padded
        };
        let mut out = [0; BLOCK_BYTES];
        sum_block::<E>(rows, weights, unscaled, block, &mut out);
        tail.iter_mut().zip(out).for_each(|(to, from)| *to = from);
    }
}

#[inline(always)]
fn sum_block<E: Element>(
    rows: &[&[u8]],
    weights: &[f32],
    unscaled: &[&[u8]],
    block: impl Fn(&&[u8]) -> [u8; BLOCK_BYTES],
    out: &mut [u8; BLOCK_BYTES],
) {
    let mut sums = [0.0f32; BLOCK];
    for (row, weight) in rows.iter().zip(weights) {
        let values = block(row);
        for (sum, &v) in sums.iter_mut().zip(values.as_chunks().0) {
            *sum += weight * load::<E>(v);
        }
    }
    for row in unscaled {
        let values = block(row);
        for (sum, &v) in sums.iter_mut().zip(values.as_chunks().0) {
            *sum += load::<E>(v);
        }
    }
    for (to, sum) in out.as_chunks_mut().0.iter_mut().zip(sums) {
        *to = E::narrow(sum).to_le_bytes();
    }
}
