//! Identifiers of ranks, cores, experts and tokens, and divisions whose names state their rounding.
//!
//! Ids count from 0. A byte distance is an [`Offset`]; addresses never leave a backend.

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident,)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub u32);

        impl $name {
            /// Returns the id as a slice index.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

ids! {
    /// One die in the expert-parallel domain (CANN: `epRankId`).
    RankId,
    /// One AIV vector core of a rank.
    CoreId,
    /// A MoE expert by its global number (CANN: an entry of `expertIds`).
    ExpertId,
    /// A token by its row in `x` on its own rank.
    Token,
}

/// A token and one of its experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Pair {
    /// The token.
    pub token: Token,
    /// k index, or `K + j` for shared expert `j`.
    pub k: u32,
}

/// A distance in bytes from the start of a region.
pub type Offset = u64;

/// Returns `n` rounded up to a multiple of `step`; `n` itself when `step` is 0.
#[must_use]
pub const fn align_up(n: u64, step: u64) -> u64 {
    div_ceil(n, step) * if step == 0 { 1 } else { step }
}

/// Returns `a / b` rounded down; `a` when `b` is 0 (validation keeps divisors positive).
pub(crate) const fn div_floor(a: u64, b: u64) -> u64 {
    match a.checked_div(b) {
        Some(q) => q,
        None => a,
    }
}

/// Returns `a / b` rounded up; `a` when `b` is 0 (validation keeps divisors positive).
#[must_use]
pub const fn div_ceil(a: u64, b: u64) -> u64 {
    let floor = div_floor(a, b);
    if b != 0 && floor * b != a { floor + 1 } else { floor }
}

/// Returns quotient and remainder of 32-bit numbers, rounded down; `(a, 0)` when `b` is 0.
#[must_use]
pub const fn div_rem(a: u32, b: u32) -> (u32, u32) {
    match (a.checked_div(b), a.checked_rem(b)) {
        (Some(q), Some(r)) => (q, r),
        _ => (a, 0),
    }
}

/// Returns the `n`-th of consecutive pieces of `len` items each, if it is there.
#[inline]
pub(crate) fn nth_piece<T>(items: &[T], n: usize, len: usize) -> Option<&[T]> {
    items.get(n * len..)?.get(..len)
}

/// A divisor that is used at every step. It divides by a multiplication, since a division takes a processor some twenty
/// cycles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Divisor {
    by: u32,
    /// `2^64 / by`, rounded up. Its error is below 1, so for a dividend below 2^32 the error of a quotient is below `1 /
    /// by`, too little to reach the next integer.
    reciprocal: u64,
}

impl Divisor {
    /// Creates a divisor that divides by `by`.
    pub(crate) const fn new(by: u32) -> Self {
        Self { by, reciprocal: div_floor(u64::MAX, by as u64).wrapping_add(1) }
    }

    /// Divides like [`div_rem`].
    #[inline]
    pub(crate) const fn div_rem(self, a: u32) -> (u32, u32) {
        // 2^64 / 1 does not fit into u64.
        if self.by <= 1 {
            return (a, 0);
        }
        let quotient = ((a as u128).wrapping_mul(self.reciprocal as u128) >> 64) as u32;
        (quotient, a.wrapping_sub(quotient.wrapping_mul(self.by)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_divisor_divides_like_a_division() {
        let numbers = || (0..=70).chain([1 << 16, (1 << 31) - 1, 1 << 31, u32::MAX - 1, u32::MAX]);
        for by in numbers() {
            // A wrong quotient would show where the quotient changes.
            let edges = numbers().filter_map(|n| by.checked_mul(n)).flat_map(|n| [n.saturating_sub(1), n]);
            for a in numbers().chain(edges) {
                assert_eq!(Divisor::new(by).div_rem(a), div_rem(a, by), "{a} / {by}");
            }
        }
    }

    #[test]
    fn divisions_say_how_they_round() {
        assert_eq!(div_floor(7, 2), 3);
        assert_eq!(div_ceil(7, 2), 4);
        assert_eq!(div_ceil(8, 2), 4);
        assert_eq!(div_rem(7, 2), (3, 1));
        assert_eq!(align_up(14400, 512), 14848);
        assert_eq!(align_up(0, 512), 0);
    }

    #[test]
    fn a_zero_divisor_does_not_panic() {
        assert_eq!((div_floor(7, 0), div_ceil(7, 0), div_rem(7, 0)), (7, 7, (7, 0)));
        assert_eq!(align_up(7, 0), 7);
    }
}
