//! The vector unit of a run: the widest that the processor has, or the one asked for.
#![allow(unsafe_code)]

use core::cell::Cell;
#[cfg(target_arch = "x86_64")]
use std::is_x86_feature_detected as has;
use veriep_case::error::Error;
use veriep_core::shape::Dtype;
use veriep_core::vector::{Any, NotFinite, Term, Vector};

/// Which unit computes on rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// The widest that the processor has.
    #[default]
    Auto,
    /// Plain loops, for every processor.
    Portable,
    /// AVX2.
    Avx2,
    /// AVX-512 (F, BW, DQ, VL).
    Avx512,
}

impl Unit {
    /// Every unit.
    pub const ALL: [Self; 4] = [Self::Auto, Self::Portable, Self::Avx2, Self::Avx512];

    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    /// Returns one sentence about it.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::Auto => "The widest that the processor has",
            Self::Portable => "Plain loops, for every processor",
            Self::Avx2 => "AVX2",
            Self::Avx512 => "AVX-512 (F, BW, DQ, VL)",
        }
    }

    /// The unit.
    ///
    /// # Errors
    /// The processor does not have it.
    pub fn find(self) -> Result<Any, Error> {
        let found = match self {
            Self::Auto => avx512().or_else(avx2).or_else(|| Some(Any::default())),
            Self::Portable => Some(Any::default()),
            Self::Avx2 => avx2(),
            Self::Avx512 => avx512(),
        };
        let best = || avx512().or_else(avx2).unwrap_or_default().name();
        found.ok_or_else(|| {
            Error::Request(format!(
                "--vector {}: this processor does not have it, its widest is {}",
                self.name(),
                best()
            ))
        })
    }
}

fn avx2() -> Option<Any> {
    #[cfg(target_arch = "x86_64")]
    if has!("avx2") && has!("f16c") {
        // SAFETY: the features that the unit asks for have just been found.
        return Some(Any::Avx2(unsafe { veriep_core::vector::x86::Avx2::new() }));
    }
    None
}

fn avx512() -> Option<Any> {
    #[cfg(target_arch = "x86_64")]
    if has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl") && has!("f16c") {
        // SAFETY: the features that the unit asks for have just been found.
        return Some(Any::Avx512(unsafe { veriep_core::vector::x86::Avx512::new() }));
    }
    None
}

/// A unit, or none: then rows are not computed at all, so that what else an operator does can be measured.
#[derive(Clone, Copy, Debug)]
pub struct RowUnit(pub Option<Any>);

macro_rules! rows {
    ($($function:ident($($argument:ident: $type:ty),*) -> $result:ty = $nothing:expr;)*) => {
        impl Vector for RowUnit {
            $(
                #[inline]
                fn $function(&self, $($argument: $type),*) -> $result {
                    match self.0 {
                        Some(unit) => unit.$function($($argument),*),
                        None => $nothing,
                    }
                }
            )*
        }
    };
}

rows! {
    quantise(dtype: Dtype, row: &[u8], smooth: Option<&[f32]>, out: &mut [u8]) -> Result<f32, NotFinite> = Ok(1.0);
    quantise_blocks(dtype: Dtype, row: &[u8], data: &mut [u8], scales: &mut [u8]) -> () = ();
    quantise_sums(dtype: Dtype, sums: &[u8], data: &mut [u8], scales: &mut [u8]) -> () = ();
    weighted_sum(dtype: Dtype, terms: &[Term<'_>], prefetch: bool, out: &[Cell<u8>]) -> () = ();
    accumulate(dtype: Dtype, terms: &[Term<'_>], prefetch: bool, sums: &mut [u8]) -> () = ();
    narrow(dtype: Dtype, sums: &[u8], out: &mut [u8]) -> () = ();
    rstd(sums: &[u8], eps: f32) -> f32 = 1.0;
    normalise(dtype: Dtype, sums: &[u8], rstd: f32, gamma: &[u8], out: &mut [u8]) -> () = ();
    add(dtype: Dtype, a: &[u8], b: &[u8], out: &mut [u8]) -> () = ();
}
