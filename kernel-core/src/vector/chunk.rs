//! Rows by chunks of `N` elements, small enough that a chunk stays in registers. The last one may be shorter: it is padded
//! with zeros, and truncated when it is stored.
//!
//! Loops here and in the other files of this module contain no closures: a closure might not be inlined, and so not be
//! compiled for the instructions of its unit.

use crate::shape::element::{Element, bits};
use core::cell::Cell;

/// Borrows chunk `i` of a row of `B` bytes for each item: the row's own, or padded in `$padding`.
macro_rules! chunk {
    ($row:expr, $i:expr, $padding:ident) => {{
        let rest = $row.get($i..).unwrap_or(&[]);
        match rest.first_chunk() {
            Some(whole) => whole,
            None => {
                $padding = padded(rest);
                &$padding
            }
        }
    }};
}

#[cold]
#[inline(never)]
fn padded<T: Copy + Default, const N: usize>(rest: &[T]) -> [T; N] {
    let mut padded = [T::default(); N];
    for (to, from) in padded.iter_mut().zip(rest) {
        *to = *from;
    }
    padded
}

/// Returns the values of chunk `i` of a row of dtype.
#[inline(always)]
pub(super) fn elements<E: Element, const N: usize>(element: E, row: &[u8], i: usize) -> [f32; N] {
    let padding;
    let chunk: &[[u8; 2]; N] = chunk!(row.as_chunks().0, i * N, padding);
    element.widen_all(chunk)
}

/// Returns them in the [order](Element::widen_apart) that costs least.
#[inline(always)]
pub(super) fn elements_apart<E: Element, const N: usize>(element: E, row: &[u8], i: usize) -> [f32; N] {
    let padding;
    let chunk: &[[u8; 2]; N] = chunk!(row.as_chunks().0, i * N, padding);
    element.widen_apart(chunk)
}

/// Returns chunk `i` of a row of f32.
#[inline(always)]
pub(super) fn floats<const N: usize>(row: &[u8], i: usize) -> [f32; N] {
    let padding;
    let chunk: &[[u8; 4]; N] = chunk!(row.as_chunks().0, i * N, padding);
    let mut values = [0.0; N];
    for (to, &from) in values.iter_mut().zip(chunk) {
        *to = f32::from_le_bytes(from);
    }
    values
}

/// Returns chunk `i` of factors.
#[inline(always)]
pub(super) fn factors<const N: usize>(row: &[f32], i: usize) -> [f32; N] {
    let padding;
    *chunk!(row, i * N, padding)
}

/// Returns the values of chunk `i` of a row of int8.
#[inline(always)]
pub(super) fn integers<const N: usize>(row: &[u8], i: usize) -> [f32; N] {
    let padding;
    let chunk: &[u8; N] = chunk!(row, i * N, padding);
    let mut values = [0.0; N];
    for (to, &from) in values.iter_mut().zip(chunk) {
        *to = f32::from(from.cast_signed());
    }
    values
}

/// Stores a chunk into the `out` of a row of dtype.
#[inline(always)]
pub(super) fn put_elements<E: Element, const N: usize>(element: E, values: &[f32; N], out: &mut [u8]) {
    match out.as_chunks_mut().0.first_chunk_mut() {
        Some(out) => element.narrow_all(values, out),
        None => {
            let mut whole = [[0; 2]; N];
            element.narrow_all(values, &mut whole);
            put_some(out, whole.as_flattened());
        }
    }
}

/// Stores elements of a chunk of a row of dtype into cells.
#[inline(always)]
pub(super) fn put_in_cells<const N: usize>(whole: &[[u8; 2]; N], out: &[Cell<u8>]) {
    match out.as_chunks::<2>().0.first_chunk::<N>() {
        // The length is a constant, so that they are whole vectors.
        Some(out) => set(out.as_flattened(), whole.as_flattened()),
        None => set(out, whole.as_flattened()),
    }
}

#[inline(always)]
fn set(out: &[Cell<u8>], from: &[u8]) {
    for (to, from) in out.iter().zip(from) {
        to.set(*from);
    }
}

/// Stores a chunk into the `out` of a row of f32.
#[inline(always)]
pub(super) fn put_floats<const N: usize>(values: &[f32; N], out: &mut [u8]) {
    match out.as_chunks_mut().0.first_chunk_mut() {
        Some(out) => bytes_of(values, out),
        None => {
            let mut whole = [[0; 4]; N];
            bytes_of(values, &mut whole);
            put_some(out, whole.as_flattened());
        }
    }
}

#[inline(always)]
fn bytes_of<const N: usize>(values: &[f32; N], out: &mut [[u8; 4]; N]) {
    for (to, from) in out.iter_mut().zip(values) {
        *to = bits(*from).to_le_bytes();
    }
}

/// Stores as much of `from` as fits.
#[cold]
#[inline(never)]
pub(super) fn put_some(out: &mut [u8], from: &[u8]) {
    for (to, from) in out.iter_mut().zip(from) {
        *to = *from;
    }
}
