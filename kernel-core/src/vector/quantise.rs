//! Rows to int8, portable: a token with one scale, a result with one for each block.

use super::NotFinite;
use super::element::{Element, load};
use crate::shape::sizes::COMM_BLOCK;

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

/// A token.
#[inline(always)]
pub(super) fn token<E: Element>(
    row: &[u8],
    smooth: Option<&[f32]>,
    out: &mut [u8],
) -> Result<f32, NotFinite> {
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

/// A result, block by block.
#[inline(always)]
pub(super) fn blocks<E: Element>(row: &[u8], data: &mut [u8], scales: &mut [u8]) {
    let peak = |row: &[[u8; 2]]| {
        let peak = row.iter().fold(0, |peak, &x| peak.max(element_magnitude(x)));
        magnitude(E::widen(peak.cast_unsigned()))
    };
    in_blocks::<E, 2>(row, data, scales, peak, load::<E>);
}

/// A row of f32, block by block. A block so small that its scale is zero in dtype may have any data: nothing comes of it.
#[inline(always)]
pub(super) fn sums<E: Element>(sums: &[u8], data: &mut [u8], scales: &mut [u8]) {
    let peak =
        |sums: &[[u8; 4]]| sums.iter().fold(0, |peak, &sum| peak.max(magnitude(f32::from_le_bytes(sum))));
    in_blocks::<E, 4>(sums, data, scales, peak, f32::from_le_bytes);
}

/// Elements of `N` bytes, block by block; `peak` is the largest magnitude of a block.
#[inline(always)]
fn in_blocks<E: Element, const N: usize>(
    row: &[u8],
    data: &mut [u8],
    scales: &mut [u8],
    peak: impl Fn(&[[u8; N]]) -> i32,
    value: impl Fn([u8; N]) -> f32,
) {
    const LEN: usize = COMM_BLOCK as usize;
    let (rows, last_row) = row.as_chunks::<N>().0.as_chunks::<LEN>();
    let (datas, last_data) = data.as_chunks_mut::<LEN>();
    let rows = rows.iter().map(<[_; LEN]>::as_slice).chain([last_row]);
    let datas = datas.iter_mut().map(<[_; LEN]>::as_mut_slice).chain([last_data]);
    // There is no scale for a last block that is empty.
    for ((row, data), scale) in rows.zip(datas).zip(scales.as_chunks_mut::<2>().0) {
        let peak = peak(row);
        if peak >= INFINITY {
            data.fill(0);
            *scale = E::narrow(f32::NAN).to_le_bytes();
            continue;
        }
        let s = f32::from_bits(peak.cast_unsigned()) * (1.0 / 127.0);
        // Of results, nothing but zeros has s = 0: one 127th of the smallest denormal of either type is still an f32.
        let divisor = if s > 0.0 { s } else { 1.0 };
        data.iter_mut().zip(row).for_each(|(q, &x)| *q = nearest_i8(value(x) / divisor));
        *scale = E::narrow(s).to_le_bytes();
    }
}
