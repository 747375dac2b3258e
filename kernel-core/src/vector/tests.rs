use super::element::{Bf16, Element, F16};
use super::{NotFinite, Portable, Vector};
use crate::reference::numerics;
use crate::shape::Dtype;
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

fn bytes(elements: &[u16]) -> Vec<u8> {
    elements.iter().flat_map(|e| e.to_le_bytes()).collect()
}

fn row(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|&v| numerics::to_bytes(dtype, v)).collect()
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
fn every_element_survives_the_round_trip_and_every_nan_becomes_the_canonical_one() {
    for bits in 0..=u16::MAX {
        let bf16 = if bits & 0x7FFF > 0x7F80 { 0x7FC0 } else { bits };
        let f16 = if bits & 0x7FFF > 0x7C00 { 0x7E00 } else { bits };
        assert_eq!(Bf16::narrow(Bf16::widen(bits)), bf16, "{bits:#06x}");
        assert_eq!(F16::narrow(F16::widen(bits)), f16, "{bits:#06x}");
    }
}

/// Around every border between two neighbours: the tie, and one f32 to either side of it.
#[test]
fn rounding_agrees_with_half_at_every_tie() {
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
    // m = 2^-121: s = 127 * 2^121 is finite, 1 / s lies below 2^-126.
    let mut out = [0; 2];
    let scale = Portable.quantise(Dtype::Bf16, &bytes(&[6 << 7, 5 << 7]), None, &mut out);
    let expected = 1.0 / (127.0 / f32::from_bits(6 << 23));
    assert!(expected > 0.0 && expected < f32::MIN_POSITIVE);
    assert_eq!((scale, out), (Ok(expected), [127, 64]));
}

#[test]
fn what_is_not_finite_is_named_by_its_first_element() {
    let mut out = [9; 3];
    let refused = |element| Err(NotFinite { element });
    assert_eq!(Portable.quantise(Dtype::Bf16, &bytes(&[0, 0x7F80, 0xFFC0]), None, &mut out), refused(1));
    assert_eq!(Portable.quantise(Dtype::F16, &bytes(&[0, 1, 0xFC00]), None, &mut out), refused(2));
    let large = bytes(&[0, 0x7F00, 0]);
    assert_eq!(Portable.quantise(Dtype::Bf16, &large, Some(&[4.0; 3]), &mut out), refused(1));
    // Infinity is refused before smoothing, too: 0 * infinity is not a number.
    assert_eq!(Portable.quantise(Dtype::F16, &bytes(&[0, 0x7C00, 0]), Some(&[0.0; 3]), &mut out), refused(1));
    assert_eq!(out, [9; 3]);
}

#[test]
fn a_sum_starts_from_plus_zero_and_an_empty_one_is_zero() {
    let minus_zero = bytes(&[0x8000; 70]);
    let mut out = vec![9; 140];
    Portable.weighted_sum(Dtype::Bf16, &[&minus_zero], &[1.0], &[&minus_zero], &mut out);
    assert_eq!(out, [0; 140]);
    out.fill(9);
    Portable.weighted_sum(Dtype::F16, &[], &[], &[], &mut out);
    assert_eq!(out, [0; 140]);
}

#[test]
fn products_are_rounded_before_they_are_added() {
    // (1 + 2^-23) * (1 + 2^-7) = 1 + 2^-7 + 2^-23 + 2^-30 loses its 2^-30.
    let (v, minus) = (1.0 + 1.0 / 128.0, -(1.0 + 1.0 / 128.0));
    let rows = [row(Dtype::Bf16, &[minus]), row(Dtype::Bf16, &[v])];
    let mut out = [0; 2];
    let weight = 1.0 + f32::EPSILON;
    Portable.weighted_sum(Dtype::Bf16, &[&rows[0], &rows[1]], &[1.0, weight], &[], &mut out);
    // Fused it would be 2^-23 + 2^-30, which bf16 holds.
    assert_eq!(out, *row(Dtype::Bf16, &[f32::EPSILON]));
}

fn dtypes() -> impl Strategy<Value = Dtype> {
    prop_oneof![Just(Dtype::Bf16), Just(Dtype::F16)]
}

/// Any bits; or the values that break things; or values close enough together to matter to each other.
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

/// A row, and smooth factors that are finite.
fn rows_to_quantise() -> impl Strategy<Value = (Vec<u16>, Option<Vec<f32>>)> {
    let factor = prop_oneof![0.25f32..4.0, any::<f32>().prop_filter("finite", |f| f.is_finite()), Just(0.0)];
    (1usize..=70).prop_flat_map(move |len| {
        (elements(len), prop::option::of(prop::collection::vec(factor.clone(), len)))
    })
}

/// Rows of one length with their weights, and unscaled rows.
#[derive(Clone, Debug)]
struct Terms {
    rows: Vec<Vec<u16>>,
    weights: Vec<f32>,
    unscaled: Vec<Vec<u16>>,
    len: usize,
}

fn terms() -> impl Strategy<Value = Terms> {
    (1usize..=70, 0usize..=16, 0usize..=4).prop_flat_map(|(len, rows, unscaled)| {
        let weight = prop_oneof![-2.0f32..2.0, any::<f32>()];
        (
            prop::collection::vec(elements(len), rows),
            prop::collection::vec(weight, rows),
            prop::collection::vec(elements(len), unscaled),
        )
            .prop_map(move |(rows, weights, unscaled)| Terms { rows, weights, unscaled, len })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn quantise_agrees_with_the_plain_one(dtype in dtypes(), (x, smooth) in rows_to_quantise()) {
        let x = bytes(&x);
        let mut out = vec![9; x.len() / 2];
        let scale = Portable.quantise(dtype, &x, smooth.as_deref(), &mut out);
        let smoothed = numerics::values(dtype, &x);
        let factor = |i: usize| smooth.as_ref().map_or(1.0, |smooth| smooth[i]);
        match smoothed.iter().enumerate().position(|(i, f)| !(f * factor(i)).is_finite()) {
            Some(element) => prop_assert_eq!(scale, Err(NotFinite { element: element as u32 })),
            None => {
                let mut expected = Vec::new();
                let expected_scale = numerics::quantise(dtype, &x, smooth.as_deref(), &mut expected);
                prop_assert_eq!(scale.map(f32::to_bits), Ok(expected_scale.to_bits()));
                prop_assert_eq!(out, expected);
            }
        }
    }

    #[test]
    fn weighted_sum_agrees_with_the_plain_one(dtype in dtypes(), terms in terms()) {
        let rows: Vec<_> = terms.rows.iter().map(|row| bytes(row)).collect();
        let unscaled: Vec<_> = terms.unscaled.iter().map(|row| bytes(row)).collect();
        let mut sum = vec![0.0; terms.len];
        for (row, &weight) in rows.iter().zip(&terms.weights) {
            numerics::add_row(dtype, &mut sum, row, Some(weight));
        }
        for row in &unscaled {
            numerics::add_row(dtype, &mut sum, row, None);
        }
        let expected = row(dtype, &sum);

        let rows: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
        let unscaled: Vec<&[u8]> = unscaled.iter().map(Vec::as_slice).collect();
        let mut out = vec![9; 2 * terms.len];
        Portable.weighted_sum(dtype, &rows, &terms.weights, &unscaled, &mut out);
        prop_assert_eq!(out, expected);
    }

    #[test]
    fn narrowing_agrees_with_half(bits in any::<u32>()) {
        let value = f32::from_bits(bits);
        let [bf16, f16] = [Dtype::Bf16, Dtype::F16].map(|d| u16::from_le_bytes(numerics::to_bytes(d, value)));
        prop_assert_eq!((Bf16::narrow(value), F16::narrow(value)), (bf16, f16));
    }
}
