//! The arithmetic of rows, one element at a time.

use crate::shape::{Dtype, RowElement, Shape};
use alloc::vec::Vec;
use half::{bf16, f16};

/// Returns an element's value.
#[must_use]
pub fn from_bytes(dtype: Dtype, bytes: [u8; 2]) -> f32 {
    match dtype {
        Dtype::Bf16 => bf16::from_le_bytes(bytes).to_f32(),
        Dtype::F16 => f16::from_le_bytes(bytes).to_f32(),
    }
}

/// Returns a value rounded to nearest even; every NaN gives the same bits.
#[must_use]
pub fn to_bytes(dtype: Dtype, value: f32) -> [u8; 2] {
    match dtype {
        Dtype::Bf16 if value.is_nan() => [0xC0, 0x7F],
        Dtype::F16 if value.is_nan() => [0x00, 0x7E],
        Dtype::Bf16 => bf16::from_f32(value).to_le_bytes(),
        Dtype::F16 => f16::from_f32(value).to_le_bytes(),
    }
}

/// Returns the values of a row.
#[must_use]
pub fn values(dtype: Dtype, row: &[u8]) -> Vec<f32> {
    row.as_chunks().0.iter().map(|&element| from_bytes(dtype, element)).collect()
}

/// Writes a token into `out` as it travels to an expert, and returns its `dynamic_scale`, 0 where rows have none.
pub fn sent(shape: &Shape, token: &[u8], smooth: Option<&[f32]>, out: &mut Vec<u8>) -> f32 {
    match shape.row_format().element {
        RowElement::Dtype => {
            out.clear();
            out.extend_from_slice(token);
            0.0
        }
        RowElement::Int8 => quantise(shape.dtype(), token, smooth, out),
    }
}

/// Returns the values of a row that has travelled to an expert with this scale.
#[must_use]
pub fn received(shape: &Shape, row: &[u8], scale: f32) -> Vec<f32> {
    match shape.row_format().element {
        RowElement::Dtype => values(shape.dtype(), row),
        RowElement::Int8 => row.iter().map(|&q| f32::from(q.cast_signed()) * scale).collect(),
    }
}

/// Quantises a row to int8 dynamically into `out`, and returns its `dynamic_scale`.
///
/// # Panics
/// If a value is not finite, before or after smoothing.
pub fn quantise(dtype: Dtype, row: &[u8], smooth: Option<&[f32]>, out: &mut Vec<u8>) -> f32 {
    let mut f = values(dtype, row);
    for (i, f) in f.iter_mut().enumerate() {
        *f *= smooth.map_or(1.0, |smooth| smooth[i]);
        assert!(f.is_finite(), "element {i} is not finite before or after smoothing");
    }
    let m = f.iter().fold(0.0f32, |m, f| m.max(f.abs()));
    let s = 127.0 / m;
    out.clear();
    if m == 0.0 || s.is_infinite() {
        out.resize(f.len(), 0);
        return 0.0;
    }
    out.extend(f.iter().map(|f| libm::rintf(f * s) as i8 as u8));
    1.0 / s
}

/// Returns the sum of two rows, each element rounded: the common result of TP peers.
///
/// # Panics
/// If the second row is shorter.
#[must_use]
pub fn add_rows(dtype: Dtype, a: &[u8], b: &[u8]) -> Vec<u8> {
    let mut sums = values(dtype, a);
    add(&mut sums, &values(dtype, b), None);
    rounded(dtype, &sums)
}

/// Returns values rounded to `dtype`.
#[must_use]
pub fn rounded(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    values.iter().map(|&value| to_bytes(dtype, value)).collect::<Vec<_>>().into_flattened()
}

/// Returns values after transport in int8 blocks of 8 elements with scales of `dtype`.
#[must_use]
pub fn through_blocks(dtype: Dtype, values: &[f32]) -> Vec<f32> {
    let round = |value| from_bytes(dtype, to_bytes(dtype, value));
    let mut out = Vec::new();
    for block in values.chunks(8) {
        if block.iter().any(|f| !f.is_finite()) {
            out.extend(block.iter().map(|_| f32::NAN));
            continue;
        }
        let m = block.iter().fold(0.0f32, |m, f| m.max(f.abs()));
        let s = m * (1.0f32 / 127.0f32);
        for f in block {
            let q = if s == 0.0 { 0.0 } else { libm::rintf(f / s) };
            // `q` may exceed an int8 only with a scale so small that it is zero in `dtype`.
            let scale = round(s);
            assert!(q.abs() <= 127.0 || scale == 0.0, "an int8 holds it");
            out.push(round(q * scale));
        }
    }
    out
}

/// Adds values to a sum: times their weight if they have one, each operation rounded separately.
///
/// # Panics
/// If there are fewer values than sums.
pub fn add(sum: &mut [f32], values: &[f32], weight: Option<f32>) {
    let values = &values[..sum.len()];
    let sums = sum.iter_mut().zip(values);
    match weight {
        Some(weight) => sums.for_each(|(sum, value)| *sum += weight * value),
        None => sums.for_each(|(sum, value)| *sum += value),
    }
}
