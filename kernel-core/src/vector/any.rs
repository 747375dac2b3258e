//! A vector unit that is chosen at run time.

use super::portable::with_functions;
#[cfg(target_arch = "x86_64")]
use super::x86::{Avx2, Avx512};
use super::{NotFinite, Portable, Term, Vector};
use crate::shape::Dtype;
use core::cell::Cell;

/// One of the units of this architecture. It is chosen again for every row, at negligible cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Any {
    /// The unit of any machine.
    Portable(Portable),
    /// 32 bytes at a time.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// 64 bytes at a time.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl Any {
    /// Returns the name in options and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable(_) => "portable",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => "avx512",
        }
    }
}

impl Default for Any {
    fn default() -> Self {
        Self::Portable(Portable)
    }
}

macro_rules! any {
    ((); $($function:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        impl Vector for Any {
            $(
                // The cost of a call is negligible for a row, and it makes rows visible in a profile.
                #[inline(never)]
                fn $function(&self, $($argument: $type),*) -> $result {
                    match self {
                        Self::Portable(unit) => unit.$function($($argument),*),
                        #[cfg(target_arch = "x86_64")]
                        Self::Avx2(unit) => unit.$function($($argument),*),
                        #[cfg(target_arch = "x86_64")]
                        Self::Avx512(unit) => unit.$function($($argument),*),
                    }
                }
            )*
        }
    };
}

with_functions! { any! () }
