//! Quantisation of rows to int8: a token with one scale, a result with one for each block.

use super::NotFinite;
use super::chunk::{elements, factors, put_some};
use crate::shape::element::{Element, bits, load};
use crate::shape::sizes::COMM_BLOCK;

/// Returns the bits of `|value|`. As integers they are ordered like the values, with NaN above infinity, and an integer
/// maximum needs no rule for NaN, so it vectorises.
#[inline(always)]
fn magnitude(value: f32) -> i32 {
    value.to_bits().cast_signed() & i32::MAX
}

/// Returns the bits of an element's magnitude before widening, which keeps the order.
#[inline(always)]
fn element_magnitude(bytes: [u8; 2]) -> i16 {
    i16::from_le_bytes(bytes) & i16::MAX
}

const INFINITY: i32 = 0x7F80_0000;

/// Quantises a token.
#[inline(always)]
pub(super) fn token<E: Element, const N: usize>(
    element: E,
    row: &[u8],
    smooth: Option<&[f32]>,
    out: &mut [u8],
) -> Result<f32, NotFinite> {
    let (pairs, _) = row.as_chunks::<2>();
    let peak = match smooth {
        None => {
            let mut peak = 0;
            for &x in pairs {
                peak = element_magnitude(x).max(peak);
            }
            magnitude(E::widen(peak.cast_unsigned()))
        }
        Some(smooth) => {
            let mut peaks = [0; N];
            for i in 0..pairs.len().min(smooth.len()).div_ceil(N) {
                let values = smoothed::<E, N>(element, row, smooth, i);
                for (peak, f) in peaks.iter_mut().zip(values) {
                    *peak = magnitude(f).max(*peak);
                }
            }
            peaks.into_iter().fold(0, i32::max)
        }
    };
    if peak >= INFINITY {
        return Err(first_not_finite::<E>(pairs, smooth));
    }
    let s = 127.0 / f32::from_bits(peak.cast_unsigned());
    // This includes a peak of 0.
    if !s.is_finite() {
        out.fill(0);
        return Ok(0.0);
    }
    let len = out.len().min(pairs.len()).min(smooth.map_or(usize::MAX, <[f32]>::len));
    for (i, out) in out.get_mut(..len).unwrap_or(&mut []).chunks_mut(N).enumerate() {
        let values: [f32; N] = match smooth {
            None => elements(element, row, i),
            Some(smooth) => smoothed(element, row, smooth, i),
        };
        put_integers(&values, s, out);
    }
    Ok(1.0 / s)
}

/// Returns chunk `i` of a row times its smooth factors; zeros where there are none.
#[inline(always)]
fn smoothed<E: Element, const N: usize>(element: E, row: &[u8], smooth: &[f32], i: usize) -> [f32; N] {
    let mut values: [f32; N] = elements(element, row, i);
    for (v, w) in values.iter_mut().zip(factors::<N>(smooth, i)) {
        *v *= w;
    }
    values
}

/// Stores `rint(value * s)` of a chunk into `out`.
#[inline(always)]
fn put_integers<const N: usize>(values: &[f32; N], s: f32, out: &mut [u8]) {
    match out.first_chunk_mut() {
        Some(out) => integers_of(values, s, out),
        None => {
            let mut whole = [0; N];
            integers_of(values, s, &mut whole);
            put_some(out, &whole);
        }
    }
}

#[inline(always)]
fn integers_of<const N: usize>(values: &[f32; N], s: f32, out: &mut [u8; N]) {
    for (q, v) in out.iter_mut().zip(values) {
        *q = nearest_i8(v * s);
    }
}

/// Returns `rint` of a value within about +-127, as the byte of an i8.
///
/// The sum with 1.5 * 2^23 is in [2^23, 2^24), where the last place is 1: the addition itself rounds to
/// the nearest integer, and ties go to even because 1.5 * 2^23 is even. Its mantissa then is 2^22 + the
/// integer in two's complement, whose low byte is the i8. Exact for |value| <= 2^22; `f * (127 / m)` exceeds
/// 127 by two roundings at most.
#[inline(always)]
fn nearest_i8(value: f32) -> u8 {
    bits(value + 12_582_912.0) as u8
}

#[cold]
#[inline(never)]
fn first_not_finite<E: Element>(row: &[[u8; 2]], smooth: Option<&[f32]>) -> NotFinite {
    let factor = |i| smooth.and_then(|smooth| smooth.get(i)).copied().unwrap_or(1.0);
    let mut values = row.iter().enumerate().map(|(i, &x)| load::<E>(x) * factor(i));
    NotFinite { element: values.position(|f| !f.is_finite()).unwrap_or(0) as u32 }
}

/// The number of elements of a block.
const BLOCK: usize = COMM_BLOCK as usize;

/// Quantises a result, block by block.
#[inline(always)]
pub(super) fn blocks<E: Element>(row: &[u8], data: &mut [u8], scales: &mut [u8]) {
    let peak = |row: &[[u8; 2]; BLOCK]| {
        let mut peak = 0;
        for &x in row {
            peak = element_magnitude(x).max(peak);
        }
        magnitude(E::widen(peak.cast_unsigned()))
    };
    in_blocks::<E, 2>(row, data, scales, peak, load::<E>);
}

/// Quantises a row of f32, block by block. The data of a block whose scale is zero in dtype have no effect.
#[inline(always)]
pub(super) fn sums<E: Element>(sums: &[u8], data: &mut [u8], scales: &mut [u8]) {
    let peak = |sums: &[[u8; 4]; BLOCK]| {
        let mut peak = 0;
        for &sum in sums {
            peak = magnitude(f32::from_le_bytes(sum)).max(peak);
        }
        peak
    };
    in_blocks::<E, 4>(sums, data, scales, peak, f32::from_le_bytes);
}

/// Quantises elements of `N` bytes, block by block; `peak` is the largest magnitude of a block.
#[inline(always)]
fn in_blocks<E: Element, const N: usize>(
    row: &[u8],
    data: &mut [u8],
    scales: &mut [u8],
    peak: impl Fn(&[[u8; N]; BLOCK]) -> i32,
    value: impl Fn([u8; N]) -> f32,
) {
    let (rows, last_row) = row.as_chunks::<N>().0.as_chunks::<BLOCK>();
    let (datas, last_data) = data.as_chunks_mut::<BLOCK>();
    let mut scales = scales.as_chunks_mut::<2>().0.iter_mut();
    for ((row, data), scale) in rows.iter().zip(datas).zip(&mut scales) {
        *scale = block::<E, N>(row, data, peak(row), &value);
    }
    if let Some(scale) = scales.next().filter(|_| !last_row.is_empty()) {
        let (mut row, mut data) = ([[0; N]; BLOCK], [0; BLOCK]);
        for (to, from) in row.iter_mut().zip(last_row) {
            *to = *from;
        }
        *scale = block::<E, N>(&row, &mut data, peak(&row), &value);
        put_some(last_data, &data);
    }
}

#[inline(always)]
fn block<E: Element, const N: usize>(
    row: &[[u8; N]; BLOCK],
    data: &mut [u8; BLOCK],
    peak: i32,
    value: impl Fn([u8; N]) -> f32,
) -> [u8; 2] {
    if peak >= INFINITY {
        *data = [0; BLOCK];
        return E::narrow(f32::NAN).to_le_bytes();
    }
    let s = f32::from_bits(peak.cast_unsigned()) * (1.0 / 127.0);
    // For results, only zeros have s = 0: one 127th of the smallest denormal of either type is still an f32.
    let divisor = if s > 0.0 { s } else { 1.0 };
    for (q, &x) in data.iter_mut().zip(row) {
        *q = nearest_i8(value(x) / divisor);
    }
    E::narrow(s).to_le_bytes()
}
