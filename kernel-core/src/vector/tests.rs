use super::{Any, NotFinite, Portable, Term, Value, Vector, cells};
use crate::reference::numerics;
use crate::shape::Dtype;
use crate::shape::element::{Bf16, Element, F16};
use crate::testing::random;
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

fn bytes(elements: &[u16]) -> Vec<u8> {
    elements.iter().flat_map(|e| e.to_le_bytes()).collect()
}

fn row(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|&v| numerics::to_bytes(dtype, v)).collect()
}

/// Returns every unit that this processor supports.
fn units() -> Vec<Any> {
    let mut units = vec![Any::default()];
    #[cfg(target_arch = "x86_64")]
    #[allow(unsafe_code)]
    {
        use super::x86::{Avx2, Avx512};
        use std::is_x86_feature_detected as has;
        // SAFETY: the features of each unit have just been found.
        unsafe {
            units.extend((has!("avx2") && has!("f16c")).then(|| Any::Avx2(Avx2::new())));
            let wide = has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
            units.extend((wide && has!("f16c")).then(|| Any::Avx512(Avx512::new())));
        }
    }
    units
}

#[test]
fn every_unit_widens_all_bit_patterns_as_half_does() {
    let elements: Vec<u16> = (0..=u16::MAX).collect();
    for (unit, dtype) in units().into_iter().flat_map(|unit| [(unit, Dtype::Bf16), (unit, Dtype::F16)]) {
        let mut sums = vec![0; 4 * elements.len()];
        unit.accumulate(dtype, &[Term::row(1.0, &bytes(&elements))], true, &mut sums);
        // A sum begins with +0.0, so a zero loses its sign.
        let expected: Vec<_> = numerics::values(dtype, &bytes(&elements)).iter().map(|v| v + 0.0).collect();
        assert!(comparable(&sums) == comparable(&f32s(&expected)), "{} {dtype:?}", unit.name());
        let mut out = bytes(&elements);
        unit.weighted_sum(dtype, &[Term::row(1.0, &bytes(&elements))], true, cells(&mut out));
        assert!(out == numerics::rounded(dtype, &expected), "rounded, {} {dtype:?}", unit.name());
    }
}

/// Tests every element, the tie above it, and one f32 to either side of both.
#[test]
fn every_unit_rounds_at_every_tie_as_half_does() {
    for dtype in [Dtype::Bf16, Dtype::F16] {
        let mut values = Vec::new();
        for bits in 0..=u16::MAX {
            let denormal_tie = (f32::from(bits) * 2.0 + 1.0) * f32::from_bits((127 - 25) << 23);
            let (value, tie) = match dtype {
                Dtype::Bf16 => (Bf16::widen(bits).to_bits(), Bf16::widen(bits).to_bits() | 0x8000),
                Dtype::F16 => (F16::widen(bits).to_bits(), F16::widen(bits).to_bits() | 0x1000),
            };
            for around in [value, tie, denormal_tie.to_bits(), (-denormal_tie).to_bits()] {
                let near = [around.wrapping_sub(1), around, around.wrapping_add(1)];
                values.extend(near.map(f32::from_bits));
            }
        }
        let expected = numerics::rounded(dtype, &values);
        for unit in units() {
            let mut out = vec![9; 2 * values.len()];
            unit.narrow(dtype, &f32s(&values), &mut out);
            assert!(out == expected, "{} {dtype:?}", unit.name());
        }
        for (values, expected) in values.as_chunks::<64>().0.iter().zip(expected.chunks(128)) {
            let (mut apart, mut out) = ([0.0; 64], [[0; 2]; 64]);
            let (first, second) = apart.split_at_mut(32);
            for ((first, second), pair) in first.iter_mut().zip(second).zip(values.as_chunks().0) {
                [*first, *second] = *pair;
            }
            match dtype {
                Dtype::Bf16 => Bf16.narrow_apart(&apart, &mut out),
                Dtype::F16 => F16.narrow_apart(values, &mut out),
            }
            assert!(out.as_flattened() == expected, "{dtype:?} {values:?}");
        }
    }
}

#[test]
fn every_unit_adds_up_for_rstd_in_the_same_order() {
    for len in [1, 15, 16, 17, 128, 129, 1024, 7168] {
        let sums = f32s(&(0..len).map(|i| (i * 37 % 101) as f32 / 7.0 - 5.0).collect::<Vec<_>>());
        for unit in units() {
            let (seen, expected) = (unit.rstd(&sums, 1e-6), Portable.rstd(&sums, 1e-6));
            assert_eq!(seen.to_bits(), expected.to_bits(), "{} {len}", unit.name());
        }
    }
}

#[test]
fn no_unit_writes_past_the_shortest_slice() {
    let long = bytes(&[0x3F80; 300]);
    for (unit, dtype) in units().into_iter().flat_map(|unit| [(unit, Dtype::Bf16), (unit, Dtype::F16)]) {
        for len in [0, 1, 31, 32, 127, 128, 129, 255] {
            let short = &long[..2 * len];
            let mut out = vec![9; 600];
            unit.add(dtype, &long, short, &mut out);
            assert!(out[2 * len..].iter().all(|&b| b == 9), "add {} {len}", unit.name());
            out.fill(9);
            unit.narrow(dtype, &f32s(&vec![1.0; len]), &mut out);
            assert!(out[2 * len..].iter().all(|&b| b == 9), "narrow {} {len}", unit.name());
            out.fill(9);
            unit.quantise(dtype, short, None, &mut out).unwrap();
            let zeros = if len == 0 { 0 } else { len };
            assert!(len == 0 || out[zeros..].iter().all(|&b| b == 9), "quantise {} {len}", unit.name());
            out.fill(9);
            unit.normalise(dtype, &f32s(&[1.0; 300]), 1.0, short, &mut out);
            assert!(out[2 * len..].iter().all(|&b| b == 9), "normalise {} {len}", unit.name());
        }
    }
}

#[test]
fn widening_agrees_with_half_on_all_bit_patterns() {
    for bits in 0..=u16::MAX {
        let bf16 = half::bf16::from_bits(bits).to_f32();
        let f16 = half::f16::from_bits(bits).to_f32();
        assert!(Bf16::widen(bits).to_bits() == bf16.to_bits() || bf16.is_nan() && Bf16::widen(bits).is_nan());
        assert!(F16::widen(bits).to_bits() == f16.to_bits() || f16.is_nan() && F16::widen(bits).is_nan());
    }
}

#[test]
fn elements_survive_the_round_trip_and_nans_become_canonical() {
    for bits in 0..=u16::MAX {
        let bf16 = if bits & 0x7FFF > 0x7F80 { 0x7FC0 } else { bits };
        let f16 = if bits & 0x7FFF > 0x7C00 { 0x7E00 } else { bits };
        assert_eq!(Bf16::narrow(Bf16::widen(bits)), bf16, "{bits:#06x}");
        assert_eq!(F16::narrow(F16::widen(bits)), f16, "{bits:#06x}");
    }
}

/// Tests every tie between two neighbours, and one f32 to either side; then all of f32, with infinities and NaNs.
#[test]
fn rounding_agrees_with_half_at_every_tie_and_all_over_f32() {
    fn check(value: f32) {
        for (dtype, narrow) in [(Dtype::Bf16, Bf16::narrow as fn(f32) -> u16), (Dtype::F16, F16::narrow)] {
            let expected = u16::from_le_bytes(numerics::to_bytes(dtype, value));
            assert_eq!(narrow(value), expected, "{dtype:?} {value:e} {:#010x}", value.to_bits());
        }
    }
    for bits in 0..=u16::MAX {
        let bf16 = u32::from(bits) << 16 | 0x8000;
        // Ties of normal f16, and of its denormals: an odd multiple of 2^-25.
        let f16 = F16::widen(bits).to_bits() | 0x1000;
        let denormal = (f32::from(bits) * 2.0 + 1.0) * f32::from_bits((127 - 25) << 23);
        for tie in [bf16, f16, denormal.to_bits(), (-denormal).to_bits()] {
            for near in [tie - 1, tie, tie + 1] {
                check(f32::from_bits(near));
            }
        }
    }
    // The step is a prime, so that low bits vary too.
    (0..=u32::MAX).step_by(4093).for_each(|bits| check(f32::from_bits(bits)));
    for special in [0, 0x7F80_0000, 0x7F80_0001, 0x7FFF_FFFF] {
        check(f32::from_bits(special));
        check(-f32::from_bits(special));
    }
}

#[test]
fn a_row_is_quantised_as_by_hand() {
    // m = 127, s = 1: ties go to the even neighbour.
    let x = [127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, -127.0, -0.0, 63.5];
    for dtype in [Dtype::Bf16, Dtype::F16] {
        let mut out = [9; 10];
        assert_eq!(Portable.quantise(dtype, &row(dtype, &x), None, &mut out), Ok(1.0));
        assert_eq!(out.map(|q| q as i8), [127, 0, 2, 2, 0, -2, -2, -127, 0, 64]);
    }
}

#[test]
fn a_scale_is_the_inverse_of_a_rounded_quotient() {
    // m = 143 / 128 and m / 2. 127 / m = 113.678321.. is rounded down, to 0x42E35B4D; its inverse lies nearest to 0x3C102040.
    // m / 127, rounded once, would be 0x3C102041, and m / 2 would be below 63.5 of these steps: 63, not 64.
    let x = [1.117_187_5, 0.558_593_75, -1.117_187_5];
    for dtype in [Dtype::Bf16, Dtype::F16] {
        let mut out = [9; 3];
        let scale = Portable.quantise(dtype, &row(dtype, &x), None, &mut out);
        assert_eq!(scale.map(f32::to_bits), Ok(0x3C10_2040));
        assert_eq!(out.map(|q| q as i8), [127, 64, -127]);
    }
}

#[test]
fn a_row_of_zeros_or_of_too_little_becomes_zeros_with_scale_zero() {
    let mut out = [9; 3];
    assert_eq!(Portable.quantise(Dtype::Bf16, &bytes(&[0, 0x8000, 0]), None, &mut out), Ok(0.0));
    assert_eq!(out, [0; 3]);
    // The smallest denormal: 127 / 2^-133 is infinite.
    out = [9; 3];
    assert_eq!(Portable.quantise(Dtype::Bf16, &bytes(&[1, 0, 0x8001]), None, &mut out), Ok(0.0));
    assert_eq!(out, [0; 3]);
}

#[test]
fn a_scale_may_be_a_denormal() {
    // m = 2^-121: s = 127 * 2^121 is finite, 1 / s is below 2^-126.
    let mut out = [0; 2];
    let scale = Portable.quantise(Dtype::Bf16, &bytes(&[6 << 7, 5 << 7]), None, &mut out);
    let expected = 1.0 / (127.0 / f32::from_bits(6 << 23));
    assert!(expected > 0.0 && expected < f32::MIN_POSITIVE);
    assert_eq!((scale, out), (Ok(expected), [127, 64]));
}

#[test]
fn a_row_that_is_not_finite_is_named_by_its_first_element() {
    let mut out = [9; 3];
    let refused = |element| Err(NotFinite { element });
    assert_eq!(Portable.quantise(Dtype::Bf16, &bytes(&[0, 0x7F80, 0xFFC0]), None, &mut out), refused(1));
    assert_eq!(Portable.quantise(Dtype::F16, &bytes(&[0, 1, 0xFC00]), None, &mut out), refused(2));
    let large = bytes(&[0, 0x7F00, 0]);
    assert_eq!(Portable.quantise(Dtype::Bf16, &large, Some(&[4.0; 3]), &mut out), refused(1));
    // Infinity is also refused before smoothing: 0 * infinity is not a number.
    assert_eq!(Portable.quantise(Dtype::F16, &bytes(&[0, 0x7C00, 0]), Some(&[0.0; 3]), &mut out), refused(1));
    assert_eq!(out, [9; 3]);
}

#[test]
fn a_sum_starts_from_plus_zero_and_an_empty_one_is_zero() {
    let minus_zero = bytes(&[0x8000; 70]);
    let mut out = vec![9; 140];
    Portable.weighted_sum(Dtype::Bf16, &[Term::row(1.0, &minus_zero); 2], false, cells(&mut out));
    assert_eq!(out, [0; 140]);
    out.fill(9);
    Portable.weighted_sum(Dtype::F16, &[], true, cells(&mut out));
    assert_eq!(out, [0; 140]);
}

#[test]
fn products_are_rounded_before_they_are_added() {
    // (1 + 2^-23) * (1 + 2^-7) = 1 + 2^-7 + 2^-23 + 2^-30 loses its 2^-30.
    let (v, minus) = (1.0 + 1.0 / 128.0, -(1.0 + 1.0 / 128.0));
    let rows = [row(Dtype::Bf16, &[minus]), row(Dtype::Bf16, &[v])];
    let mut out = [0; 2];
    let weight = 1.0 + f32::EPSILON;
    Portable.weighted_sum(
        Dtype::Bf16,
        &[Term::row(1.0, &rows[0]), Term::row(weight, &rows[1])],
        false,
        cells(&mut out),
    );
    // Fused it would be 2^-23 + 2^-30, which bf16 can represent.
    assert_eq!(out, *row(Dtype::Bf16, &[f32::EPSILON]));
}

/// Lengths around the chunks in which units process rows: 32, 64 and 128.
fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 1usize..=70, 1 => 120usize..=136, 1 => 250usize..=330]
}

fn dtypes() -> impl Strategy<Value = Dtype> {
    prop_oneof![Just(Dtype::Bf16), Just(Dtype::F16)]
}

/// Any bits, special values, or values close enough together to affect each other.
fn elements(len: usize) -> impl Strategy<Value = Vec<u16>> {
    let special =
        prop::sample::select(vec![0u16, 0x8000, 1, 0x8001, 0x7F, 0x3FF, 0x7F80, 0x7C00, 0xFC01, 0x7FC1]);
    prop_oneof![
        prop::collection::vec(any::<u16>(), len),
        prop::collection::vec(prop_oneof![any::<u16>(), special], len),
        prop::collection::vec(
            (0x3C00u16..0x4200, any::<bool>()).prop_map(|(v, s)| v | u16::from(s) << 15),
            len
        ),
        prop::collection::vec((0u16..0x1000, any::<bool>()).prop_map(|(v, s)| v | u16::from(s) << 15), len),
    ]
}

/// A row, and finite smooth factors.
fn rows_to_quantise() -> impl Strategy<Value = (Vec<u16>, Option<Vec<f32>>)> {
    let factor = prop_oneof![0.25f32..4.0, any::<f32>().prop_filter("finite", |f| f.is_finite()), Just(0.0)];
    lengths().prop_flat_map(move |len| {
        (elements(len), prop::option::of(prop::collection::vec(factor.clone(), len)))
    })
}

/// A term that owns its rows.
#[derive(Clone, Debug)]
enum Owned {
    Row(Vec<u16>),
    Blocks { data: Vec<u8>, scales: Vec<u16> },
    Mix { alphas: [f32; 2], rows: [Vec<u16>; 2] },
}

impl Owned {
    /// Returns its values, one by one.
    fn values(&self, dtype: Dtype) -> Vec<f32> {
        let of = |row: &[u16]| numerics::values(dtype, &bytes(row));
        match self {
            Self::Row(row) => of(row),
            Self::Blocks { data, scales } => {
                let scales = of(scales);
                let product = |(i, &q): (usize, &u8)| f32::from(q as i8) * scales[i / 8];
                of_bytes(dtype, &data.iter().enumerate().map(product).collect::<Vec<_>>())
            }
            Self::Mix { alphas, rows } => {
                let rows = [of(&rows[0]), of(&rows[1])];
                (0..rows[0].len()).map(|i| alphas[0] * rows[0][i] + alphas[1] * rows[1][i]).collect()
            }
        }
    }
}

/// Returns the values rounded to `dtype`.
fn of_bytes(dtype: Dtype, values: &[f32]) -> Vec<f32> {
    numerics::values(dtype, &numerics::rounded(dtype, values))
}

fn weights() -> impl Strategy<Value = f32> {
    prop_oneof![4 => -2.0f32..2.0, 1 => any::<f32>(), 1 => Just(1.0)]
}

/// Rows alone, or terms of all kinds.
fn terms() -> impl Strategy<Value = (usize, Vec<(f32, Owned)>)> {
    (lengths(), 0usize..=20, any::<bool>()).prop_flat_map(|(len, terms, rows_only)| {
        let row = elements(len).prop_map(Owned::Row);
        let blocks = (prop::collection::vec(any::<u8>(), len), elements(len.div_ceil(8)))
            .prop_map(|(data, scales)| Owned::Blocks { data, scales });
        let mix = (prop::array::uniform2(weights()), prop::array::uniform2(elements(len)))
            .prop_map(|(alphas, rows)| Owned::Mix { alphas, rows });
        let value = if rows_only { row.boxed() } else { prop_oneof![row, blocks, mix].boxed() };
        (Just(len), prop::collection::vec((weights(), value), terms))
    })
}

/// Passes `terms` by reference to `f`.
fn with_terms<T>(terms: &[(f32, Owned)], f: impl FnOnce(&[Term<'_>]) -> T) -> T {
    let rows: Vec<[Vec<u8>; 2]> = terms
        .iter()
        .map(|(_, owned)| match owned {
            Owned::Row(row) => [bytes(row), Vec::new()],
            Owned::Blocks { data, scales } => [data.clone(), bytes(scales)],
            Owned::Mix { rows: [a, b], .. } => [bytes(a), bytes(b)],
        })
        .collect();
    fn value<'a>(owned: &Owned, a: &'a [u8], b: &'a [u8]) -> Value<'a> {
        match *owned {
            Owned::Row(_) => Value::Row(a),
            Owned::Blocks { .. } => Value::Blocks { data: a, scales: b },
            Owned::Mix { alphas, .. } => Value::Mix { alphas, rows: [a, b] },
        }
    }
    let terms: Vec<_> = terms
        .iter()
        .zip(&rows)
        .map(|((weight, owned), [a, b])| Term { weight: *weight, value: value(owned, a, b) })
        .collect();
    f(&terms)
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Returns the bits, with all NaNs equal: an f32 keeps any payload that the operation left.
fn comparable(row: &[u8]) -> Vec<u32> {
    let values = row.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b));
    values.map(|v| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() }).collect()
}

#[test]
fn blocks_are_quantised_as_by_hand() {
    let row = row(Dtype::Bf16, &[127.0, 63.5, -0.5, 1.5, -2.5, 0.0, -127.0, 64.0, 1.0, -0.5]);
    let (mut data, mut scales) = ([9; 10], [9; 4]);
    Portable.quantise_blocks(Dtype::Bf16, &row, &mut data, &mut scales);
    assert_eq!(data.map(|q| q as i8), [127, 64, 0, 2, -2, 0, -127, 64, 127, -64]);
    // 1 and 1 / 127 as bf16.
    assert_eq!(scales, *bytes(&[0x3F80, 0x3C01]));
}

#[test]
fn a_block_that_is_not_finite_gets_the_nan_of_its_type() {
    for (dtype, infinity, nan) in [(Dtype::Bf16, 0x7F80, 0x7FC0_u16), (Dtype::F16, 0xFC00, 0x7E00)] {
        let (mut data, mut scales) = ([9; 9], [9; 4]);
        let row = bytes(&[0, 0, infinity, 0, 0, 0, 0, 0, 0]);
        Portable.quantise_blocks(dtype, &row, &mut data, &mut scales);
        assert_eq!((data, scales.to_vec()), ([0; 9], bytes(&[nan, 0])));
    }
}

#[test]
fn a_mixed_row_is_rounded_as_f32_before_it_is_scaled() {
    // 1 + 2^-9 keeps its 2^-9 until the copy is subtracted.
    let (one, small) = (row(Dtype::Bf16, &[1.0]), row(Dtype::Bf16, &[1.0 / 512.0]));
    let mix = Value::Mix { alphas: [1.0, 1.0], rows: [&one, &small] };
    let mut out = [0; 2];
    Portable.weighted_sum(
        Dtype::Bf16,
        &[Term { weight: 1.0, value: mix }, Term::row(-1.0, &one)],
        false,
        cells(&mut out),
    );
    assert_eq!(out, *small);
}

#[test]
fn a_row_is_normalised_as_by_hand() {
    let r = f32s(&[1.0, 2.0, 2.0, -4.0]);
    let rstd = Portable.rstd(&r, 0.0);
    assert_eq!(rstd, 0.4);
    assert_eq!(Portable.rstd(&r, 9.75), 0.25);
    let gamma = row(Dtype::Bf16, &[1.0, -1.0, 2.0, 0.5]);
    let mut y = [0; 8];
    Portable.normalise(Dtype::Bf16, &r, rstd, &gamma, &mut y);
    let n = 205.0 / 512.0;
    assert_eq!(y, *row(Dtype::Bf16, &[n, -2.0 * n, 4.0 * n, -2.0 * n]));
    // 1 + 2^-8 times 1 + 2^-7 is 1 + 2^-7 if rounded in between, else 1 + 2^-6.
    let r = f32s(&[1.0 + 1.0 / 256.0]);
    Portable.normalise(Dtype::Bf16, &r, 1.0, &row(Dtype::Bf16, &[1.0 + 1.0 / 128.0]), &mut y);
    assert_eq!(y[..2], row(Dtype::Bf16, &[1.0 + 1.0 / 128.0]));
}

proptest! {
    #![proptest_config(random::config(1024))]

    #[test]
    fn quantise_agrees_with_the_plain_one(dtype in dtypes(), (x, smooth) in rows_to_quantise()) {
        let x = bytes(&x);
        let smoothed = numerics::values(dtype, &x);
        let factor = |i: usize| smooth.as_ref().map_or(1.0, |smooth| smooth[i]);
        let refused = smoothed.iter().enumerate().position(|(i, f)| !(f * factor(i)).is_finite());
        for unit in units() {
            let mut out = vec![9; x.len() / 2];
            let scale = unit.quantise(dtype, &x, smooth.as_deref(), &mut out);
            match refused {
                Some(element) => {
                    prop_assert_eq!(scale, Err(NotFinite { element: element as u32 }), "{}", unit.name());
                    prop_assert!(out.iter().all(|&q| q == 9));
                }
                None => {
                    let mut expected = Vec::new();
                    let expected_scale = numerics::quantise(dtype, &x, smooth.as_deref(), &mut expected);
                    prop_assert_eq!(scale.map(f32::to_bits), Ok(expected_scale.to_bits()), "{}", unit.name());
                    prop_assert_eq!(&out, &expected, "{}", unit.name());
                }
            }
        }
    }

    #[test]
    fn weighted_sum_agrees_with_the_plain_one(dtype in dtypes(), (len, terms) in terms()) {
        let mut sum = vec![0.0; len];
        for (weight, owned) in &terms {
            numerics::add(&mut sum, &owned.values(dtype), Some(*weight));
        }
        for unit in units() {
            let mut out = vec![9; 2 * len];
            with_terms(&terms, |terms| unit.weighted_sum(dtype, terms, true, cells(&mut out)));
            prop_assert_eq!(&out, &numerics::rounded(dtype, &sum), "{}", unit.name());

            // The same sum in two parts, unrounded in between.
            let (first, second) = terms.split_at(terms.len() / 2);
            let mut sums = vec![0; 4 * len];
            for part in [first, second] {
                with_terms(part, |terms| unit.accumulate(dtype, terms, true, &mut sums));
            }
            prop_assert_eq!(comparable(&sums), comparable(&f32s(&sum)), "{}", unit.name());
            let mut narrowed = vec![9; 2 * len];
            unit.narrow(dtype, &sums, &mut narrowed);
            prop_assert_eq!(narrowed, out, "{}", unit.name());
        }
    }

    #[test]
    fn blocks_agree_with_the_plain_ones(dtype in dtypes(), x in lengths().prop_flat_map(elements)) {
        let (row, len) = (bytes(&x), x.len());
        let mut expected = vec![0.0; len];
        numerics::add(&mut expected, &numerics::through_blocks(dtype, &numerics::values(dtype, &row)), None);
        let expected = numerics::rounded(dtype, &expected);
        for unit in units() {
            let (mut data, mut scales) = (vec![9; len], vec![9; 2 * len.div_ceil(8)]);
            unit.quantise_blocks(dtype, &row, &mut data, &mut scales);
            let mut out = vec![9; 2 * len];
            let value = Value::Blocks { data: &data, scales: &scales };
            unit.weighted_sum(dtype, &[Term { weight: 1.0, value }], true, cells(&mut out));
            prop_assert_eq!(&out, &expected, "{}", unit.name());
        }
    }

    #[test]
    fn blocks_of_sums_come_back_as_the_oracle_has_it(
        bits in lengths().prop_flat_map(|len| prop::collection::vec(
            prop_oneof![any::<u32>(), 0u32..300, 0x3F00_0000u32..0x4200_0000],
            len,
        )),
        dtype in dtypes(),
    ) {
        let sums: Vec<f32> = bits.iter().map(|&bits| f32::from_bits(bits)).collect();
        let (row, len) = (f32s(&sums), sums.len());
        let mut expected = vec![0.0; len];
        numerics::add(&mut expected, &numerics::through_blocks(dtype, &sums), None);
        let expected = numerics::rounded(dtype, &expected);
        for unit in units() {
            let (mut data, mut scales) = (vec![9; len], vec![9; 2 * len.div_ceil(8)]);
            unit.quantise_sums(dtype, &row, &mut data, &mut scales);
            let mut out = vec![9; 2 * len];
            let value = Value::Blocks { data: &data, scales: &scales };
            unit.weighted_sum(dtype, &[Term { weight: 1.0, value }], true, cells(&mut out));
            prop_assert_eq!(&out, &expected, "{}", unit.name());
        }
    }

    #[test]
    fn sums_and_normal_rows_agree_with_plain_arithmetic(
        dtype in dtypes(),
        rstd in prop_oneof![0.01f32..100.0, any::<f32>()],
        (a, b) in lengths().prop_flat_map(|len| (elements(len), elements(len))),
        bits in prop::collection::vec(any::<u32>(), 330),
    ) {
        let (len, a, b) = (a.len(), bytes(&a), bytes(&b));
        let (x, y) = (numerics::values(dtype, &a), numerics::values(dtype, &b));
        let sums: Vec<_> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
        // Any bits, and values as they are.
        let r: Vec<_> = bits.iter().zip(&x).map(|(&bits, x)| if bits % 2 == 0 { f32::from_bits(bits) } else { *x }).collect();
        let scaled: Vec<_> = r.iter().map(|r| r * rstd).collect();
        let normal: Vec<_> = of_bytes(dtype, &scaled).iter().zip(&y).map(|(n, gamma)| n * gamma).collect();
        for unit in units() {
            let mut out = vec![9; 2 * len];
            unit.add(dtype, &a, &b, &mut out);
            prop_assert_eq!(&out, &numerics::rounded(dtype, &sums), "{}", unit.name());
            unit.normalise(dtype, &f32s(&r), rstd, &b, &mut out);
            prop_assert_eq!(&out, &numerics::rounded(dtype, &normal), "{}", unit.name());
        }
    }

    #[test]
    fn narrowing_agrees_with_half(bits in any::<u32>()) {
        let value = f32::from_bits(bits);
        let [bf16, f16] = [Dtype::Bf16, Dtype::F16].map(|d| u16::from_le_bytes(numerics::to_bytes(d, value)));
        prop_assert_eq!((Bf16::narrow(value), F16::narrow(value)), (bf16, f16));
    }
}
