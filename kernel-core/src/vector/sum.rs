//! Weighted sums of rows, `N` elements at a time, which stay in registers while all terms are added.

use super::chunk::{elements, elements_apart, floats, integers, put_floats, put_in_cells};
use super::{Term, Value};
use crate::fabric::prefetch;
use crate::shape::element::{Element, load};
use crate::shape::sizes::COMM_BLOCK;
use core::cell::Cell;

/// Computes the result of a token: from +0.0, rounded into `out`.
#[inline(always)]
pub(super) fn rounded<E: Element, const N: usize>(
    element: E,
    terms: &[Term<'_>],
    prefetch: bool,
    out: &[Cell<u8>],
) {
    let rows = Rows::of(terms, prefetch);
    for (i, out) in out.chunks(2 * N).enumerate() {
        let (mut sums, mut whole) = ([0.0; N], [[0; 2]; N]);
        if rows.alone {
            for &Term { weight, value } in terms {
                if let Value::Row(row) = value {
                    rows.fetch::<N>(row, i);
                    add(&mut sums, weight, &elements_apart(element, row, i));
                }
            }
            element.narrow_apart(&sums, &mut whole);
        } else {
            add_terms(element, terms, i, &mut sums);
            element.narrow_all(&sums, &mut whole);
        }
        put_in_cells(&whole, out);
    }
}

/// Adds the terms to `out`, a row of f32.
#[inline(always)]
pub(super) fn added<E: Element, const N: usize>(
    element: E,
    terms: &[Term<'_>],
    prefetch: bool,
    out: &mut [u8],
) {
    let rows = Rows::of(terms, prefetch);
    for (i, out) in out.chunks_mut(4 * N).enumerate() {
        let mut sums: [f32; N] = floats(out, 0);
        if rows.alone {
            for &Term { weight, value } in terms {
                if let Value::Row(row) = value {
                    rows.fetch::<N>(row, i);
                    add(&mut sums, weight, &elements(element, row, i));
                }
            }
        } else {
            add_terms(element, terms, i, &mut sums);
        }
        put_floats(&sums, out);
    }
}

/// Common properties of a token's terms.
#[derive(Clone, Copy)]
struct Rows {
    /// All terms are rows, as for most tokens; their loop then handles nothing else.
    alone: bool,
    /// The distance in bytes by which rows are prefetched; without prefetching, more than the length of any row.
    ahead: usize,
}

impl Rows {
    fn of(terms: &[Term<'_>], prefetch: bool) -> Self {
        Self {
            alone: terms.iter().all(|term| matches!(term.value, Value::Row(_))),
            ahead: if prefetch { 512 } else { usize::MAX },
        }
    }

    /// Prefetches what chunk `i` of a row has ahead of it.
    #[inline(always)]
    fn fetch<const N: usize>(self, row: &[u8], i: usize) {
        prefetch::fetch_row(row, (2 * i * N).saturating_add(self.ahead), 2 * N);
    }
}

/// Adds chunk `i` of all terms.
#[inline(always)]
fn add_terms<E: Element, const N: usize>(element: E, terms: &[Term<'_>], i: usize, sums: &mut [f32; N]) {
    for &Term { weight, value } in terms {
        match value {
            Value::Row(row) => add(sums, weight, &elements(element, row, i)),
            Value::Blocks { data, scales } => add(sums, weight, &dequantised(element, data, scales, i)),
            Value::Mix { alphas: [a, b], rows: [x, v] } => {
                let (mut x, v) = (elements::<E, N>(element, x, i), elements::<E, N>(element, v, i));
                for (x, v) in x.iter_mut().zip(v) {
                    *x = a * *x + b * v;
                }
                add(sums, weight, &x);
            }
        }
    }
}

#[inline(always)]
fn add<const N: usize>(sums: &mut [f32; N], weight: f32, values: &[f32; N]) {
    for (sum, v) in sums.iter_mut().zip(values) {
        *sum += weight * v;
    }
}

/// The number of elements of an int8 block.
const BLOCK: usize = COMM_BLOCK as usize;

/// Returns chunk `i` of int8 blocks, rounded as if it had travelled in dtype.
#[inline(always)]
fn dequantised<E: Element, const N: usize>(element: E, data: &[u8], scales: &[u8], i: usize) -> [f32; N] {
    let mut values: [f32; N] = integers(data, i);
    let scales = scales.as_chunks().0.get(i * (N / BLOCK)..).unwrap_or(&[]);
    // The scales are spread out first, so that the rest is the same for every element.
    let mut spread = [0.0; N];
    for (n, spread) in spread.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
        *spread = [scales.get(n).map_or(0.0, |&scale| load::<E>(scale)); BLOCK];
    }
    for (v, scale) in values.iter_mut().zip(spread) {
        *v *= scale;
    }
    element.round_all(&mut values);
    values
}
