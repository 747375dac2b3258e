//! A table that hands all it is given to the portable unit comes to what the portable unit comes to.

use crate::codes::*;
use crate::types::{veriep_term, veriep_vector};
use crate::vector::Unit;
use core::ffi::c_void;
use core::slice::{from_raw_parts as rows, from_raw_parts_mut as rows_mut};
use kernel_core::shape::Dtype;
use kernel_core::vector::{Portable, Term, Value, Vector, cells};
use std::vec::Vec;
use std::{format, vec};

/// Counts calls in `calls`, one for each function, or in none.
pub(crate) fn table(calls: Option<&mut [u32; 9]>) -> veriep_vector {
    veriep_vector {
        context: calls.map_or(core::ptr::null_mut(), |calls| (&raw mut *calls).cast()),
        quantise: Some(quantise),
        quantise_blocks: Some(quantise_blocks),
        quantise_sums: Some(quantise_sums),
        weighted_sum: Some(weighted_sum),
        accumulate: Some(accumulate),
        narrow: Some(narrow),
        rstd: Some(rstd),
        normalise: Some(normalise),
        add: Some(add),
    }
}

unsafe fn called(context: *mut c_void, nth: usize) {
    // SAFETY: the table's.
    if let Some(calls) = unsafe { context.cast::<[u32; 9]>().as_mut() } {
        calls[nth] += 1;
    }
}

fn of(dtype: u32) -> Dtype {
    [Dtype::Bf16, Dtype::F16][dtype as usize]
}

unsafe extern "C" fn quantise(
    context: *mut c_void,
    dtype: u32,
    len: usize,
    row: *const u8,
    smooth: *const f32,
    out: *mut i8,
    scale: *mut f32,
) -> u32 {
    // SAFETY: as long as is said, here and below.
    unsafe {
        called(context, 0);
        let smooth = (!smooth.is_null()).then(|| rows(smooth, len));
        match Portable.quantise(of(dtype), rows(row, 2 * len), smooth, rows_mut(out.cast(), len)) {
            Ok(of_row) => {
                scale.write(of_row);
                VERIEP_NONE
            }
            Err(error) => error.element,
        }
    }
}

unsafe extern "C" fn quantise_blocks(
    context: *mut c_void,
    dtype: u32,
    len: usize,
    row: *const u8,
    data: *mut i8,
    scales: *mut u8,
) {
    // SAFETY: as above.
    unsafe {
        called(context, 1);
        let (data, scales) = (rows_mut(data.cast(), len), rows_mut(scales, 2 * len.div_ceil(8)));
        Portable.quantise_blocks(of(dtype), rows(row, 2 * len), data, scales);
    }
}

unsafe extern "C" fn quantise_sums(
    context: *mut c_void,
    dtype: u32,
    len: usize,
    sums: *const u8,
    data: *mut i8,
    scales: *mut u8,
) {
    // SAFETY: as above.
    unsafe {
        called(context, 2);
        let (data, scales) = (rows_mut(data.cast(), len), rows_mut(scales, 2 * len.div_ceil(8)));
        Portable.quantise_sums(of(dtype), rows(sums, 4 * len), data, scales);
    }
}

unsafe fn terms<'a>(given: *const veriep_term, count: usize, len: usize) -> Vec<Term<'a>> {
    // SAFETY: as above.
    let one = |term: &veriep_term| unsafe {
        let [first, second] = term.rows;
        let value = match term.kind {
            VERIEP_TERM_ROW => Value::Row(rows(first, 2 * len)),
            VERIEP_TERM_BLOCKS => {
                Value::Blocks { data: rows(first, len), scales: rows(second, 2 * len.div_ceil(8)) }
            }
            _ => Value::Mix { alphas: term.alphas, rows: [rows(first, 2 * len), rows(second, 2 * len)] },
        };
        Term { weight: term.weight, value }
    };
    // SAFETY: as above.
    unsafe { rows(given, count) }.iter().map(one).collect()
}

unsafe extern "C" fn weighted_sum(
    context: *mut c_void,
    dtype: u32,
    len: usize,
    given: *const veriep_term,
    count: usize,
    out: *mut u8,
) {
    // SAFETY: as above.
    unsafe {
        called(context, 3);
        let terms = terms(given, count, len);
        Portable.weighted_sum(of(dtype), &terms, false, cells(rows_mut(out, 2 * len)));
    }
}

unsafe extern "C" fn accumulate(
    context: *mut c_void,
    dtype: u32,
    len: usize,
    given: *const veriep_term,
    count: usize,
    sums: *mut u8,
) {
    // SAFETY: as above.
    unsafe {
        called(context, 4);
        Portable.accumulate(of(dtype), &terms(given, count, len), false, rows_mut(sums, 4 * len));
    }
}

unsafe extern "C" fn narrow(context: *mut c_void, dtype: u32, len: usize, sums: *const u8, out: *mut u8) {
    // SAFETY: as above.
    unsafe {
        called(context, 5);
        Portable.narrow(of(dtype), rows(sums, 4 * len), rows_mut(out, 2 * len));
    }
}

unsafe extern "C" fn rstd(context: *mut c_void, len: usize, sums: *const u8, eps: f32) -> f32 {
    // SAFETY: as above.
    unsafe {
        called(context, 6);
        Portable.rstd(rows(sums, 4 * len), eps)
    }
}

unsafe extern "C" fn normalise(
    context: *mut c_void,
    dtype: u32,
    len: usize,
    sums: *const u8,
    rstd: f32,
    gamma: *const u8,
    out: *mut u8,
) {
    // SAFETY: as above.
    unsafe {
        called(context, 7);
        let (sums, gamma) = (rows(sums, 4 * len), rows(gamma, 2 * len));
        Portable.normalise(of(dtype), sums, rstd, gamma, rows_mut(out, 2 * len));
    }
}

unsafe extern "C" fn add(
    context: *mut c_void,
    dtype: u32,
    len: usize,
    a: *const u8,
    b: *const u8,
    out: *mut u8,
) {
    // SAFETY: as above.
    unsafe {
        called(context, 8);
        Portable.add(of(dtype), rows(a, 2 * len), rows(b, 2 * len), rows_mut(out, 2 * len));
    }
}

const LEN: usize = 21;

/// Everything that a unit makes of the same rows.
fn all(unit: impl Vector, dtype: Dtype) -> Vec<u8> {
    let row = |first: u16| -> Vec<u8> {
        (0..LEN as u16).flat_map(|i| (0x3C00 + 37 * i + first).to_le_bytes()).collect()
    };
    let (a, b, smooth) = (row(1), row(500), [0.75; LEN]);
    let (mut made, mut int8, mut scales) = (Vec::new(), vec![0; LEN], vec![0; 6]);
    for smooth in [None, Some(&smooth[..])] {
        let scale = unit.quantise(dtype, &a, smooth, &mut int8);
        made.extend(format!("{scale:?}{int8:?}").bytes());
    }
    let infinite = [&[0; 6][..], &[0, 0xFC, 0x80, 0xFF], &a].concat();
    let told = unit.quantise(dtype, &infinite[..2 * LEN], None, &mut int8);
    made.extend(format!("{told:?}").bytes());
    unit.quantise_blocks(dtype, &a, &mut int8, &mut scales);
    let weight = 0.375;
    let terms = [
        Term { weight, value: Value::Row(&a) },
        Term { weight, value: Value::Blocks { data: &int8, scales: &scales } },
        Term { weight, value: Value::Mix { alphas: [0.5, -2.0], rows: [&a, &b] } },
    ];
    let (mut out, mut sums) = (vec![0; 2 * LEN], vec![0; 4 * LEN]);
    unit.weighted_sum(dtype, &terms, false, cells(&mut out));
    made.extend(out.iter().chain(&int8).chain(&scales));
    unit.accumulate(dtype, &terms, false, &mut sums);
    unit.quantise_sums(dtype, &sums, &mut int8, &mut scales);
    unit.narrow(dtype, &sums, &mut out);
    made.extend(out.iter().chain(&int8).chain(&scales).chain(&sums));
    let rstd = unit.rstd(&sums, 1e-5);
    unit.normalise(dtype, &sums, rstd, &b, &mut out);
    made.extend(out.iter().chain(&rstd.to_le_bytes()));
    unit.add(dtype, &a, &b, &mut out);
    made.extend(&out);
    made
}

#[test]
fn a_table_is_told_all_that_a_unit_needs() {
    let mut calls = [0; 9];
    let table = table(Some(&mut calls));
    // SAFETY: the functions do as they say.
    let unit = unsafe { Unit::new(&raw const table) }.unwrap();
    for dtype in [Dtype::Bf16, Dtype::F16] {
        assert_eq!(all(unit, dtype), all(Portable, dtype));
    }
    assert_eq!(calls, [6, 2, 2, 2, 2, 2, 2, 2, 2]);
}

/// What a row lacks the table cannot know: then the portable unit is asked.
#[test]
fn rows_that_are_too_short_are_kept_from_the_table() {
    let mut calls = [0; 9];
    let table = table(Some(&mut calls));
    // SAFETY: the functions do as they say.
    let unit = unsafe { Unit::new(&raw const table) }.unwrap();
    let (short, long, mut out) = ([1; 6], [1; 8], [0; 8]);
    let term = Term { weight: 1.0, value: Value::Row(&short) };
    unit.weighted_sum(Dtype::Bf16, &[term], false, cells(&mut out));
    unit.weighted_sum(Dtype::Bf16, &[term; 99], false, cells(&mut out));
    unit.accumulate(Dtype::Bf16, &[Term { value: Value::Row(&[]), ..term }], false, &mut out);
    unit.quantise(Dtype::Bf16, &long, Some(&[1.0; 3]), &mut out).unwrap();
    unit.quantise(Dtype::Bf16, &long, None, &mut out[..3]).unwrap();
    unit.quantise_blocks(Dtype::Bf16, &long, &mut [0; 4], &mut []);
    unit.quantise_sums(Dtype::Bf16, &long, &mut [0; 1], &mut [0; 2]);
    unit.narrow(Dtype::Bf16, &long, &mut out[..3]);
    unit.normalise(Dtype::Bf16, &long, 1.0, &short[..3], &mut out);
    unit.add(Dtype::Bf16, &long, &short, &mut out);
    assert_eq!(calls, [0; 9]);
}
