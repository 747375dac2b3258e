//! AddRmsNorm: its outputs after the sums of combine.
//!
//! `rstd` needs the sum of a row's squares, which may be added in any order. So it has a range, exact at both ends, and `y`
//! is computed for the `rstd` of a run: then it is a single row of bytes again.

use super::{Cluster, numerics};
use crate::inputs::AddRmsNorm;
use crate::units::{RankId, Token};
use alloc::vec::Vec;

/// The outputs of AddRmsNorm on one rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Normed {
    /// `[bs, h]` in `dtype`, as without AddRmsNorm.
    pub x_out: Vec<u8>,
    /// `[bs, h]` in `dtype`: the sums plus the residual.
    pub x: Vec<u8>,
    /// `[bs]`.
    pub rstd: Vec<Range>,
    /// The values of `x` before they are rounded.
    r: Vec<f32>,
}

/// The range of a number that depends on the order of additions, including both ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// The value without any rounding in the sum itself.
    pub exact: f32,
    /// The lower end; if it is NaN, the number must be NaN.
    pub smallest: f32,
    /// The upper end; if it is NaN, the number may be NaN, or anything from `smallest` on.
    pub largest: f32,
}

impl Range {
    /// Returns whether `seen` is in the range.
    #[must_use]
    pub fn holds(&self, seen: f32) -> bool {
        if self.smallest.is_nan() {
            return seen.is_nan();
        }
        let may_be_nan = self.largest.is_nan();
        if seen.is_nan() { may_be_nan } else { self.smallest <= seen && (may_be_nan || seen <= self.largest) }
    }
}

impl Cluster<'_> {
    fn add_rms_norm(&self, rank: RankId) -> AddRmsNorm<'_> {
        self.ranks[rank.index()].add_rms_norm.expect("the rank calls combine with AddRmsNorm")
    }

    /// Returns the outputs of AddRmsNorm on `rank` except `y`. `returned` is as for [`combine`](Cluster::combine).
    pub fn combine_add_rms_norm(
        &self,
        rank: RankId,
        returned: &mut dyn FnMut(Token, u32, &mut Vec<u8>),
    ) -> Normed {
        let dtype = self.shape.dtype();
        let mut r = self.sums(rank, returned);
        let x_out = numerics::rounded(dtype, &r);
        numerics::add(&mut r, &numerics::values(dtype, self.add_rms_norm(rank).residual_x), None);
        let rstd = r.chunks(self.shape.h() as usize).map(|row| rstd(row, self.shape.norm_eps())).collect();
        Normed { x_out, x: numerics::rounded(dtype, &r), rstd, r }
    }

    /// Returns `y` of `rank`, `[bs, h]` in `dtype`, for the `rstd` that a run computed.
    #[must_use]
    pub fn y(&self, rank: RankId, normed: &Normed, rstd: &[f32]) -> Vec<u8> {
        let dtype = self.shape.dtype();
        let gamma = numerics::values(dtype, self.add_rms_norm(rank).gamma);
        let mut y = Vec::new();
        for (row, rstd) in normed.r.chunks(gamma.len()).zip(rstd) {
            for (r, gamma) in row.iter().zip(&gamma) {
                let normal = numerics::from_bytes(dtype, numerics::to_bytes(dtype, r * rstd));
                y.extend(numerics::to_bytes(dtype, normal * gamma));
            }
        }
        y
    }
}

/// The sum of n non-negative terms in any order is off by at most (n - 1) * 2^-24 of it; a double adds them with an error
/// of at most n * 2^-53. The result falls as the sum rises, and rounding keeps the order.
fn rstd(row: &[f32], eps: f32) -> Range {
    let part = 1.0f32 / row.len() as f32;
    let sum: f64 = row.iter().map(|r| f64::from(r * r * part)).sum();
    let n = row.len() as f64;
    let off = (n - 1.0) / f64::from(1 << 24) + n / (1u64 << 53) as f64;
    let of_sum = |sum: f64| 1.0f32 / libm::sqrtf(sum as f32 + eps);
    Range { exact: of_sum(sum), smallest: of_sum(sum * (1.0 + off)), largest: of_sum(sum * (1.0 - off)) }
}
