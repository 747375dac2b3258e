//! The vector unit of a run: the widest that the processor has, or the one asked for.
#![allow(unsafe_code)]

use crate::error::Error;
use kernel_core::vector::Any;

/// Which unit works on rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Unit {
    /// The widest that the processor has.
    #[default]
    Auto,
    /// What every processor of this architecture has.
    Portable,
    /// AVX2.
    Avx2,
    /// AVX-512 (F, BW, DQ, VL).
    Avx512,
}

impl Unit {
    /// The unit.
    ///
    /// # Errors
    /// The processor does not have it.
    pub fn find(self) -> Result<Any, Error> {
        let (name, found) = match self {
            Self::Auto => ("auto", avx512().or_else(avx2).or_else(|| Some(Any::default()))),
            Self::Portable => ("portable", Some(Any::default())),
            Self::Avx2 => ("avx2", avx2()),
            Self::Avx512 => ("avx512", avx512()),
        };
        let best = || avx512().or_else(avx2).unwrap_or_default().name();
        found.ok_or_else(|| {
            Error::Request(format!(
                "--vector {name}: this processor does not have it, its widest is {}",
                best()
            ))
        })
    }
}

#[cfg(target_arch = "x86_64")]
fn avx2() -> Option<Any> {
    use std::is_x86_feature_detected as has;
    // SAFETY: the features that the unit asks for have just been found.
    (has!("avx2") && has!("f16c")).then(|| Any::Avx2(unsafe { kernel_core::vector::x86::Avx2::new() }))
}

#[cfg(target_arch = "x86_64")]
fn avx512() -> Option<Any> {
    use std::is_x86_feature_detected as has;
    let all = has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl") && has!("f16c");
    // SAFETY: as above.
    all.then(|| Any::Avx512(unsafe { kernel_core::vector::x86::Avx512::new() }))
}

#[cfg(not(target_arch = "x86_64"))]
fn avx2() -> Option<Any> {
    None
}

#[cfg(not(target_arch = "x86_64"))]
fn avx512() -> Option<Any> {
    None
}
