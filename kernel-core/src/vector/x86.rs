//! Wider vectors of x86-64: the loops of [`Portable`](super::Portable), compiled again for AVX2 and for AVX-512.
//!
//! The same source gives the same bits: Rust neither fuses a multiplication with an addition nor flushes denormals, at any
//! vector width. Only the conversions of f16 are written by hand, since compilers do not generate them from the loops. This
//! crate cannot query the processor's features; the creator of a unit must have done so.
#![allow(unsafe_code)]

use super::portable::{Loops, with_functions};
use super::{NotFinite, Term, Vector};
use crate::shape::Dtype;
use crate::shape::element::{Element, F16};
use core::arch::x86_64::{
    __m128i, __m256, __m256i, __m512, _MM_FROUND_TO_NEAREST_INT, _mm256_cvtph_ps, _mm256_cvtps_ph,
    _mm512_cvtph_ps, _mm512_cvtps_ph,
};
use core::cell::Cell;

macro_rules! unit {
    (($(#[$doc:meta])* $name:ident, $features:literal, $sum:literal, $map:literal);
        $($function:ident($($argument:ident: $type:ty),*) -> $result:ty;)*
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name(());

        impl $name {
            #[doc = concat!("The unit of a processor with ", $features, ".")]
            ///
            /// # Safety
            /// The processor must have these features, and the operating system must save the registers that they need.
            #[must_use]
            pub const unsafe fn new() -> Self {
                Self(())
            }
        }

        impl Vector for $name {
            $(
                fn $function(&self, $($argument: $type),*) -> $result {
                    #[target_feature(enable = $features)]
                    fn wide(unit: Loops<$name, $sum, $map>, $($argument: $type),*) -> $result {
                        unit.$function($($argument),*)
                    }
                    // SAFETY: a value of this type exists, so the processor has the features (`new`).
                    unsafe { wide(Loops { half: *self }, $($argument),*) }
                }
            )*
        }
    };
}

with_functions! { unit! (
    /// Vectors of 32 bytes.
    Avx2, "avx2,f16c", 64, 128
) }

with_functions! { unit! (
    /// Vectors of 64 bytes.
    Avx512, "avx512f,avx512bw,avx512dq,avx512vl,f16c", 128, 128
) }

/// Rounds to nearest, ties to even; denormals of f16 are kept in every mode of the processor.
const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;

/// Converts f16 by the instructions of a unit, `$lanes` elements at a time. These keep the payload of a NaN on conversion
/// to f16; it is removed here.
macro_rules! half {
    ($name:ident, $lanes:literal, $packed:ty, $wide:ty, $widen:ident, $narrow:ident) => {
        impl Element for $name {
            #[inline(always)]
            fn widen(bits: u16) -> f32 {
                F16::widen(bits)
            }

            #[inline(always)]
            fn narrow(value: f32) -> u16 {
                F16::narrow(value)
            }

            #[inline(always)]
            fn widen_all<const N: usize>(self, from: &[[u8; 2]; N]) -> [f32; N] {
                let mut to = [0.0; N];
                let (from, rest) = from.as_chunks::<$lanes>();
                let (whole, last) = to.as_chunks_mut::<$lanes>();
                for (to, from) in whole.iter_mut().zip(from) {
                    // SAFETY: a value of this type exists, so the processor has the instruction. Arrays and vectors have
                    // the same size, and any bits are valid values of both.
                    *to = unsafe {
                        core::mem::transmute::<$wide, [f32; $lanes]>($widen(core::mem::transmute::<
                            [[u8; 2]; $lanes],
                            $packed,
                        >(*from)))
                    };
                }
                for (to, from) in last.iter_mut().zip(rest) {
                    *to = F16::widen(u16::from_le_bytes(*from));
                }
                to
            }

            #[inline(always)]
            fn narrow_all<const N: usize>(self, from: &[f32; N], to: &mut [[u8; 2]; N]) {
                let (from, rest) = from.as_chunks::<$lanes>();
                let (whole, last) = to.as_chunks_mut::<$lanes>();
                for (to, from) in whole.iter_mut().zip(from) {
                    // SAFETY: as above.
                    let elements = unsafe {
                        core::mem::transmute::<$packed, [i16; $lanes]>($narrow::<NEAREST>(
                            core::mem::transmute::<[f32; $lanes], $wide>(*from),
                        ))
                    };
                    for (to, element) in to.iter_mut().zip(elements) {
                        *to = if element & i16::MAX > 0x7C00 { 0x7E00 } else { element }.to_le_bytes();
                    }
                }
                for (to, from) in last.iter_mut().zip(rest) {
                    *to = F16::narrow(*from).to_le_bytes();
                }
            }

            #[inline(always)]
            fn round_all<const N: usize>(self, values: &mut [f32; N]) {
                let mut elements = [[0; 2]; N];
                self.narrow_all(values, &mut elements);
                *values = self.widen_all(&elements);
            }
        }
    };
}

half!(Avx2, 8, __m128i, __m256, _mm256_cvtph_ps, _mm256_cvtps_ph);
half!(Avx512, 16, __m256i, __m512, _mm512_cvtph_ps, _mm512_cvtps_ph);
