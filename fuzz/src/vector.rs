//! Rows of any bits through the vector unit, each element against one worked out by itself: `half` for the types, f64
//! where f32 must round once.

use arbitrary::{Arbitrary, Unstructured};
use half::{bf16, f16};
use kernel_core::shape::Dtype;
use kernel_core::vector::{Portable, Term, Value, Vector};

/// Rows and weights.
#[derive(Arbitrary, Clone, Debug)]
#[expect(missing_docs, reason = "plain operands")]
pub struct Operands {
    pub is_f16: bool,
    pub smooth: bool,
    pub kinds: [u8; 5],
    pub weights: [f32; 5],
    pub alphas: [f32; 2],
    pub eps: f32,
    pub rows: Vec<u16>,
}

/// Works on what the bytes mean. Elements of a row.
///
/// # Panics
/// If an element is wrong.
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
    let rows = [row(0), row(1), row(2), row(3)];
    quantised(dtype, &rows, operands.smooth);
    blocks(dtype, &rows[0]);
    sums(dtype, &rows, &operands);
    added(dtype, &rows);
    normalised(dtype, &rows, operands.eps);
    Some(h)
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

fn quantised(dtype: Dtype, rows: &[Vec<u8>; 4], smooth: bool) {
    let smooth = smooth.then(|| values(dtype, &rows[1]));
    let factor = |i: usize| smooth.as_ref().map_or(1.0, |smooth| smooth[i]);
    let f: Vec<f32> =
        values(dtype, &rows[0]).iter().enumerate().map(|(i, &x)| product(x, factor(i))).collect();
    let mut out = vec![0x55; f.len()];
    let seen = Portable.quantise(dtype, &rows[0], smooth.as_deref(), &mut out);
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

fn blocks(dtype: Dtype, row: &[u8]) {
    let f = values(dtype, row);
    let (mut data, mut scales) = (vec![0x55; f.len()], vec![0x55; 2 * f.len().div_ceil(8)]);
    Portable.quantise_blocks(dtype, row, &mut data, &mut scales);
    for ((f, q), &scale) in f.chunks(8).zip(data.chunks(8)).zip(scales.as_chunks().0) {
        let m = f.iter().fold(0.0f32, |m, f| if f.is_nan() { f32::NAN } else { m.max(f.abs()) });
        if !f.iter().all(|f| f.is_finite()) {
            assert_eq!(scale, rounded(dtype, f32::NAN), "the scale of {f:?}");
            continue;
        }
        let s = product(m, 1.0 / 127.0);
        assert_eq!(scale, rounded(dtype, s), "the scale of {f:?}");
        for (&q, &f) in q.iter().zip(f) {
            let want = if s == 0.0 { 0.0 } else { quotient(f, s).round_ties_even() };
            assert_eq!(f32::from(q.cast_signed()), want + 0.0, "{f} of at most {m}");
        }
    }
}

fn sums(dtype: Dtype, rows: &[Vec<u8>; 4], operands: &Operands) {
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
    Portable.weighted_sum(dtype, &terms, &mut out);
    let rows: Vec<u8> = want.iter().flat_map(|&sum| rounded(dtype, sum)).collect();
    assert_eq!(out, rows, "the sum of {terms:?}");
    let mut sums = vec![0; 4 * h];
    Portable.accumulate(dtype, &terms, &mut sums);
    for (seen, want) in sums.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).zip(&want) {
        assert!(seen.to_bits() == want.to_bits() || seen.is_nan() && want.is_nan(), "{seen} for {want}");
    }
    Portable.narrow(dtype, &sums, &mut out);
    assert_eq!(out, rows, "rounded afterwards");
}

fn added(dtype: Dtype, rows: &[Vec<u8>; 4]) {
    let mut out = vec![0x55; rows[0].len()];
    Portable.add(dtype, &rows[0], &rows[1], &mut out);
    let pairs = values(dtype, &rows[0]).into_iter().zip(values(dtype, &rows[1]));
    let want: Vec<u8> = pairs.flat_map(|(a, b)| rounded(dtype, total(a, b))).collect();
    assert_eq!(out, want);
}

fn normalised(dtype: Dtype, rows: &[Vec<u8>; 4], eps: f32) {
    let r = values(dtype, &rows[0]);
    let sums: Vec<u8> = r.iter().flat_map(|r| r.to_le_bytes()).collect();
    let seen = Portable.rstd(&sums, eps);
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
    Portable.normalise(dtype, &sums, seen, &rows[1], &mut out);
    let normal = |r: f32| value(dtype, rounded(dtype, product(r, seen)));
    let want: Vec<u8> =
        r.iter().zip(&gamma).flat_map(|(&r, &gamma)| rounded(dtype, product(normal(r), gamma))).collect();
    assert_eq!(out, want, "normalised by {seen}");
}
