//! Rows of any bits through every vector unit that the processor has, each element against one worked out by itself:
//! `half` for the types, f64 where f32 must round once.
#![allow(unsafe_code)]

use crate::tape::read_in_order;
use arbitrary::Unstructured;
use half::{bf16, f16};
use veriep_core::shape::Dtype;
use veriep_core::vector::{Any, Term, Value, Vector, cells};

/// Rows and weights.
#[derive(Clone, Debug)]
pub struct Operands {
    pub is_f16: bool,
    /// Bit 0: smooth scales; bit 1: rows of halves, so that much of int8 is on a tie.
    pub modes: u8,
    pub kinds: [u8; 5],
    pub weights: [f32; 5],
    pub alphas: [f32; 2],
    pub eps: f32,
    pub rows: Vec<u16>,
}

read_in_order! {
    Operands { is_f16, modes, kinds, weights, alphas, eps, rows }
}

/// Works on what the bytes mean. Elements of a row.
pub fn run(bytes: &[u8]) -> Option<usize> {
    let mut source = Unstructured::new(bytes);
    let mut operands: Operands = source.arbitrary().ok()?;
    // The rest is elements, so that a row is a stretch of the bytes.
    operands.rows.extend(source.take_rest().as_chunks().0.iter().map(|&bytes| u16::from_le_bytes(bytes)));
    let h = (operands.rows.len() / 4).clamp(1, 300);
    let dtype = if operands.is_f16 { Dtype::F16 } else { Dtype::Bf16 };
    let row = |n: usize| -> Vec<u8> {
        let all = operands.rows.iter().copied().chain(core::iter::repeat(0x3F80));
        all.skip(n * h).take(h).flat_map(u16::to_le_bytes).collect()
    };
    let mut rows = [row(0), row(1), row(2), row(3)];
    if operands.modes & 2 != 0 {
        halve(dtype, &mut rows[0]);
    }
    for unit in units() {
        quantised(unit, dtype, &rows, operands.modes & 1 != 0);
        blocks(unit, dtype, &rows[0]);
        sum_blocks(unit, dtype, &rows);
        sums(unit, dtype, &rows, &operands);
        added(unit, dtype, &rows);
        normalised(unit, dtype, &rows, operands.eps);
    }
    Some(h)
}

/// Every unit that this processor has.
fn units() -> Vec<Any> {
    #[allow(unused_mut, reason = "elsewhere there is one")]
    let mut units = vec![Any::default()];
    #[cfg(target_arch = "x86_64")]
    {
        use std::is_x86_feature_detected as has;
        use veriep_core::vector::x86::{Avx2, Avx512};
        // SAFETY: the features that the unit asks for have just been found.
        units.extend((has!("avx2") && has!("f16c")).then(|| Any::Avx2(unsafe { Avx2::new() })));
        let wide = has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
        // SAFETY: as above.
        units.extend((wide && has!("f16c")).then(|| Any::Avx512(unsafe { Avx512::new() })));
    }
    units
}

/// Makes elements of the first of their block, or of its half: the half of the largest is a tie of int8, 63.5, which falls
/// to either side by the last bit of the scale.
fn halve(dtype: Dtype, row: &mut [u8]) {
    for block in row.chunks_mut(16) {
        let m = value(dtype, [block[0], block[1]]);
        let m = if m.is_finite() { m } else { 3.0 };
        for element in block.as_chunks_mut::<2>().0 {
            let part =
                [m, m / 2.0, -m / 2.0, m * (f32::from(element[1]) / 256.0)][usize::from(element[0] & 3)];
            *element = rounded(dtype, part);
        }
    }
}

fn value(dtype: Dtype, bits: [u8; 2]) -> f32 {
    match dtype {
        Dtype::Bf16 => bf16::from_le_bytes(bits).to_f32(),
        Dtype::F16 => f16::from_le_bytes(bits).to_f32(),
    }
}

fn values(dtype: Dtype, row: &[u8]) -> Vec<f32> {
    row.as_chunks().0.iter().map(|&bits| value(dtype, bits)).collect()
}

fn rounded(dtype: Dtype, value: f32) -> [u8; 2] {
    match dtype {
        Dtype::Bf16 if value.is_nan() => 0x7FC0u16.to_le_bytes(),
        Dtype::F16 if value.is_nan() => 0x7E00u16.to_le_bytes(),
        Dtype::Bf16 => bf16::from_f32(value).to_le_bytes(),
        Dtype::F16 => f16::from_f32(value).to_le_bytes(),
    }
}

/// f32 arithmetic by way of f64: sums and products of two f32 are rounded innocuously twice.
fn product(a: f32, b: f32) -> f32 {
    (f64::from(a) * f64::from(b)) as f32
}

fn total(a: f32, b: f32) -> f32 {
    (f64::from(a) + f64::from(b)) as f32
}

fn quotient(a: f32, b: f32) -> f32 {
    (f64::from(a) / f64::from(b)) as f32
}

fn quantised(unit: Any, dtype: Dtype, rows: &[Vec<u8>; 4], smooth: bool) {
    let smooth = smooth.then(|| values(dtype, &rows[1]));
    let factor = |i: usize| smooth.as_ref().map_or(1.0, |smooth| smooth[i]);
    let f: Vec<f32> =
        values(dtype, &rows[0]).iter().enumerate().map(|(i, &x)| product(x, factor(i))).collect();
    let mut out = vec![0x55; f.len()];
    let seen = unit.quantise(dtype, &rows[0], smooth.as_deref(), &mut out);
    if let Some(element) = f.iter().position(|f| !f.is_finite()) {
        let error = seen.expect_err("a value that is not finite is taken");
        assert_eq!(error.element as usize, element);
        assert!(out.iter().all(|&byte| byte == 0x55), "an error leaves the row alone");
        return;
    }
    let m = f.iter().fold(0.0f32, |m, f| m.max(f.abs()));
    let s = quotient(127.0, m);
    let none = m == 0.0 || !s.is_finite();
    let scale = if none { 0.0 } else { quotient(1.0, s) };
    assert_eq!(seen.map(f32::to_bits), Ok(scale.to_bits()), "scale of {f:?}");
    for (i, (&q, &f)) in out.iter().zip(&f).enumerate() {
        let want = if none { 0.0 } else { product(f, s).round_ties_even() };
        assert_eq!(f32::from(q.cast_signed()), want + 0.0, "element {i}, {f} of at most {m}");
    }
}

fn blocks(unit: Any, dtype: Dtype, row: &[u8]) {
    let f = values(dtype, row);
    let (mut data, mut scales) = (vec![0x55; f.len()], vec![0x55; 2 * f.len().div_ceil(8)]);
    unit.quantise_blocks(dtype, row, &mut data, &mut scales);
    are_blocks(dtype, &f, &data, &scales);
}

/// The same of rows of f32: of any bits, or of what is next to the ties.
fn sum_blocks(unit: Any, dtype: Dtype, rows: &[Vec<u8>; 4]) {
    let bits = |i: usize| [rows[1][2 * i], rows[1][2 * i + 1], rows[2][2 * i], rows[2][2 * i + 1]];
    let any: Vec<f32> = (0..rows[0].len() / 2).map(|i| f32::from_le_bytes(bits(i))).collect();
    let mut near: Vec<f32> = any.iter().map(|f| if f.is_finite() { *f } else { 1.0 }).collect();
    for block in near.chunks_mut(8) {
        let m = block[0].abs();
        let s = product(m, 1.0 / 127.0);
        for f in &mut block[1..] {
            *f = product(s, f32::from((f.to_bits() & 0x7F) as u8) % 126.0 + 0.5);
        }
    }
    for f in [any, near] {
        let row: Vec<u8> = f.iter().flat_map(|f| f.to_le_bytes()).collect();
        let (mut data, mut scales) = (vec![0x55; f.len()], vec![0x55; 2 * f.len().div_ceil(8)]);
        unit.quantise_sums(dtype, &row, &mut data, &mut scales);
        are_blocks(dtype, &f, &data, &scales);
    }
}

fn are_blocks(dtype: Dtype, f: &[f32], data: &[u8], scales: &[u8]) {
    for ((f, q), &scale) in f.chunks(8).zip(data.chunks(8)).zip(scales.as_chunks().0) {
        let m = f.iter().fold(0.0f32, |m, f| if f.is_nan() { f32::NAN } else { m.max(f.abs()) });
        if !f.iter().all(|f| f.is_finite()) {
            assert_eq!(scale, rounded(dtype, f32::NAN), "the scale of {f:?}");
            continue;
        }
        let s = product(m, 1.0 / 127.0);
        assert_eq!(scale, rounded(dtype, s), "the scale of {f:?}");
        // Nothing comes of such a block.
        if value(dtype, scale) == 0.0 {
            continue;
        }
        for (&q, &f) in q.iter().zip(f) {
            let want = if s == 0.0 { 0.0 } else { quotient(f, s).round_ties_even() };
            assert_eq!(f32::from(q.cast_signed()), want + 0.0, "{f} of at most {m}");
        }
    }
}

fn sums(unit: Any, dtype: Dtype, rows: &[Vec<u8>; 4], operands: &Operands) {
    let h = rows[0].len() / 2;
    let (data, scales) = (&rows[1][..h], &rows[2][..2 * h.div_ceil(8).min(h)]);
    let mut want = vec![0.0f32; h];
    let mut terms = Vec::new();
    for (i, (&kind, &weight)) in operands.kinds.iter().zip(&operands.weights).enumerate() {
        let [x, v] = [&rows[i % 4], &rows[(i + 1) % 4]];
        let [a, b] = operands.alphas;
        let (value, elements): (_, Vec<f32>) = match kind % 4 {
            0 | 1 => (Value::Row(x), values(dtype, x)),
            2 => {
                let scale = |i: usize| value(dtype, [scales[i / 8 * 2], scales[i / 8 * 2 + 1]]);
                let element = |i: usize| product(f32::from(data[i].cast_signed()), scale(i));
                let through = |i| value(dtype, rounded(dtype, element(i)));
                (Value::Blocks { data, scales }, (0..h).map(through).collect())
            }
            _ => {
                let (xs, vs) = (values(dtype, x), values(dtype, v));
                let mixed = |i: usize| total(product(a, xs[i]), product(b, vs[i]));
                (Value::Mix { alphas: [a, b], rows: [x, v] }, (0..h).map(mixed).collect())
            }
        };
        terms.push(Term { weight, value });
        want.iter_mut().zip(elements).for_each(|(sum, v)| *sum = total(*sum, product(weight, v)));
    }
    let mut out = vec![0x55; 2 * h];
    unit.weighted_sum(dtype, &terms, true, cells(&mut out));
    let rows: Vec<u8> = want.iter().flat_map(|&sum| rounded(dtype, sum)).collect();
    assert_eq!(out, rows, "the sum of {terms:?}");
    let mut sums = vec![0; 4 * h];
    unit.accumulate(dtype, &terms, true, &mut sums);
    for (seen, want) in sums.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).zip(&want) {
        assert!(seen.to_bits() == want.to_bits() || seen.is_nan() && want.is_nan(), "{seen} for {want}");
    }
    unit.narrow(dtype, &sums, &mut out);
    assert_eq!(out, rows, "rounded afterwards");
}

fn added(unit: Any, dtype: Dtype, rows: &[Vec<u8>; 4]) {
    let mut out = vec![0x55; rows[0].len()];
    unit.add(dtype, &rows[0], &rows[1], &mut out);
    let pairs = values(dtype, &rows[0]).into_iter().zip(values(dtype, &rows[1]));
    let want: Vec<u8> = pairs.flat_map(|(a, b)| rounded(dtype, total(a, b))).collect();
    assert_eq!(out, want);
}

fn normalised(unit: Any, dtype: Dtype, rows: &[Vec<u8>; 4], eps: f32) {
    let r = values(dtype, &rows[0]);
    let sums: Vec<u8> = r.iter().flat_map(|r| r.to_le_bytes()).collect();
    let seen = unit.rstd(&sums, eps);
    let part = 1.0 / r.len() as f32;
    let squares: Vec<f32> = r.iter().map(|&r| product(product(r, r), part)).collect();
    if squares.iter().all(|square| square.is_finite()) && eps >= 0.0 && eps.is_finite() {
        // Sums in any order: within n units of the last place.
        let sum: f64 = squares.iter().map(|&square| f64::from(square)).sum();
        let exact = 1.0 / (sum + f64::from(eps)).sqrt();
        let off = (r.len() as f64 + 4.0) / f64::from(1 << 23);
        // Beyond these f32 has lost the sum itself, to a denormal or to infinity.
        let lost = !(1e-30..=1e38).contains(&(sum + f64::from(eps)));
        let close = (f64::from(seen) - exact).abs() <= exact * off;
        assert!(lost || close, "rstd {seen} for {exact} of {r:?}");
    }
    let gamma = values(dtype, &rows[1]);
    let mut out = vec![0x55; rows[0].len()];
    unit.normalise(dtype, &sums, seen, &rows[1], &mut out);
    let normal = |r: f32| value(dtype, rounded(dtype, product(r, seen)));
    let want: Vec<u8> =
        r.iter().zip(&gamma).flat_map(|(&r, &gamma)| rounded(dtype, product(normal(r), gamma))).collect();
    assert_eq!(out, want, "normalised by {seen}");
}
