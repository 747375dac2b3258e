//! Small domains and the inputs of their ranks.

use crate::inputs::{AddRmsNorm, Inputs, Mask};
use crate::reference::numerics;
use crate::shape::{BatchSizes, Buffer, Config, Dtype, Limits, Shape};
use crate::units::{RankId, Token};
use alloc::vec::Vec;

/// A domain by its numbers; everything else has its default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Domain {
    pub(crate) r: i64,
    pub(crate) e: i64,
    pub(crate) s: i64,
    pub(crate) rs: i64,
    pub(crate) k: i64,
    pub(crate) h: i64,
    pub(crate) bs: i64,
    pub(crate) cores: i64,
}

/// Two ranks, two experts, one core.
pub(crate) const PAIR: Domain = Domain { r: 2, e: 2, s: 0, rs: 0, k: 1, h: 4, bs: 2, cores: 1 };

impl Domain {
    pub(crate) fn config(self) -> Config<'static> {
        Config {
            ep_world_size: self.r,
            moe_expert_num: self.e,
            shared_expert_num: self.s,
            shared_expert_rank_num: self.rs,
            k: self.k,
            h: self.h,
            bs: BatchSizes::Uniform(self.bs),
            aiv_num: self.cores,
            ..Config::default()
        }
    }

    /// Returns `None` if the numbers break a rule.
    pub(crate) fn try_shape(self) -> Option<Shape> {
        try_shape(&self.config())
    }

    pub(crate) fn shape(self) -> Shape {
        shape(&self.config())
    }
}

/// Returns the shape of a configuration with a window just large enough, without the product's limits.
pub(crate) fn try_shape(config: &Config<'_>) -> Option<Shape> {
    let buffer = Buffer::with(config, Limits::None);
    let config = Config { hccl_buffsize_mb: i64::try_from(buffer.required_mb).ok()?, ..*config };
    Shape::new(&config, Limits::None).ok()
}

pub(crate) fn shape(config: &Config<'_>) -> Shape {
    try_shape(config).unwrap_or_else(|| panic!("not a domain: {config:?}"))
}

/// Returns these batch sizes, if all are 0 with one token on the first rank.
pub(crate) fn not_all_idle(sizes: &[i64]) -> Vec<i64> {
    let mut sizes = sizes.to_vec();
    if sizes.iter().all(|&bs| bs == 0) {
        sizes.iter_mut().take(1).for_each(|first| *first = 1);
    }
    sizes
}

/// Random numbers, reproducible by seed.
#[derive(Clone, Debug)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn next(&mut self) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number in `0..n`; 0 when `n` is 0.
    pub(crate) fn below(&mut self, n: u32) -> u32 {
        self.next().checked_rem(n.into()).unwrap_or(0) as u32
    }
}

/// A mask that owns its flags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum OwnedMask {
    #[default]
    None,
    Tokens(Vec<bool>),
    Pairs(Vec<bool>),
}

/// One rank's tensors, owned.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tensors {
    pub(crate) x: Vec<u8>,
    pub(crate) ids: Vec<i32>,
    pub(crate) weights: Vec<f32>,
    pub(crate) mask: OwnedMask,
    pub(crate) scales: Option<Vec<f32>>,
    pub(crate) shared_expert_x: Option<Vec<u8>>,
    pub(crate) alpha_1: Vec<u8>,
    pub(crate) alpha_2: Vec<u8>,
    pub(crate) const_v: Vec<u8>,
    /// `residual_x` and `gamma`.
    pub(crate) add_rms_norm: Option<[Vec<u8>; 2]>,
}

impl Tensors {
    /// Creates tensors with these ids and mask, and an `x` that distinguishes every element of every rank.
    pub(crate) fn new(shape: &Shape, rank: RankId, ids: Vec<i32>, mask: OwnedMask) -> Self {
        let element = |i: u32| ((rank.0 * 89 + i * 7) % 251) as f32 - 125.0;
        let (dtype, h, consts) = (shape.dtype(), shape.h(), shape.const_expert_num());
        // Const experts are the same on all ranks.
        Self {
            x: row(shape.dtype(), shape.bs(rank) * shape.h(), element),
            weights: (0..ids.len()).map(|i| 0.25 + (i % 5) as f32).collect(),
            ids,
            mask,
            scales: None,
            shared_expert_x: None,
            alpha_1: row(dtype, consts, |i| 0.75 - i as f32),
            alpha_2: row(dtype, consts, |i| 1.25 + i as f32),
            const_v: row(dtype, consts * h, |i| ((i * 11) % 61) as f32 - 30.5),
            add_rms_norm: None,
        }
    }

    /// Adds what combine with AddRmsNorm reads.
    pub(crate) fn with_add_rms_norm(mut self, shape: &Shape, rank: RankId) -> Self {
        let residual = |i: u32| ((rank.0 * 7 + i * 3) % 97) as f32 * 0.75 - 36.0;
        let (dtype, h) = (shape.dtype(), shape.h());
        let residual_x = row(dtype, shape.bs(rank) * h, residual);
        // The same on all ranks.
        self.add_rms_norm = Some([residual_x, row(dtype, h, |i| 0.5 + (i % 9) as f32 / 4.0)]);
        self
    }

    /// Adds `shared_expert_x`.
    pub(crate) fn with_shared_expert_x(mut self, shape: &Shape, rank: RankId) -> Self {
        let element = |i: u32| ((rank.0 * 31 + i * 13) % 127) as f32 / 8.0;
        self.shared_expert_x = Some(row(shape.dtype(), shape.bs(rank) * shape.h(), element));
        self
    }

    /// Creates tensors with random routing and mask. In half of the cases masked pairs have ids that are none.
    pub(crate) fn random(shape: &Shape, rank: RankId, dice: &mut Dice) -> Self {
        let tensors = Self::random_valid(shape, rank, dice);
        if dice.clone().below(2) == 0 { tensors } else { tensors.with_unread_ids(shape) }
    }

    /// Creates tensors with random routing.
    pub(crate) fn unmasked(shape: &Shape, rank: RankId, dice: &mut Dice) -> Self {
        Self { mask: OwnedMask::None, ..Self::random_valid(shape, rank, dice) }
    }

    /// Creates tensors with random routing and mask, and valid ids everywhere.
    fn random_valid(shape: &Shape, rank: RankId, dice: &mut Dice) -> Self {
        let (bs, k) = (shape.bs(rank), shape.k());
        let mut ids = Vec::new();
        for _ in 0..bs {
            let mut all: Vec<i32> = (0..shape.expert_ids_end().cast_signed()).collect();
            ids.extend((0..k).map(|_| all.swap_remove(dice.below(all.len() as u32) as usize)));
        }
        let mask = match dice.below(if shape.may_have_inactive_tokens() { 5 } else { 1 }) {
            0 | 1 => OwnedMask::None,
            2 => {
                let active = dice.below(bs + 1);
                OwnedMask::Tokens((0..bs).map(|token| token < active).collect())
            }
            3 => OwnedMask::Pairs((0..bs * k).map(|_| dice.below(2) == 0).collect()),
            // An idle rank.
            _ => OwnedMask::Tokens((0..bs).map(|_| false).collect()),
        };
        Self::new(shape, rank, ids, mask)
    }

    /// Replaces the ids of masked pairs by numbers that name no expert, and by the first of their token.
    fn with_unread_ids(mut self, shape: &Shape) -> Self {
        let k = shape.k();
        for pair in 0..self.ids.len() as u32 {
            if !self.inputs().pair_is_active(shape, Token(pair / k), pair % k) {
                let of_first = self.ids[(pair - pair % k) as usize];
                self.ids[pair as usize] = [-1, of_first, i32::MAX, i32::MIN][pair as usize % 4];
            }
        }
        self
    }

    /// Adds a smooth scale for every element of every expert.
    pub(crate) fn smoothed(mut self, shape: &Shape) -> Self {
        assert!(shape.row_format().scale.is_some());
        let rows = shape.shared_expert_num() + shape.moe_expert_num();
        self.scales = Some((0..rows * shape.h()).map(|i| 0.5 + (i % 7) as f32).collect());
        self
    }

    pub(crate) fn inputs(&self) -> Inputs<'_> {
        let mask = match &self.mask {
            OwnedMask::None => Mask::None,
            OwnedMask::Tokens(mask) => Mask::Tokens(mask),
            OwnedMask::Pairs(mask) => Mask::Pairs(mask),
        };
        let norm = self.add_rms_norm.as_ref();
        Inputs {
            x: &self.x,
            expert_ids: &self.ids,
            expert_scales: &self.weights,
            mask,
            scales: self.scales.as_deref(),
            shared_expert_x: self.shared_expert_x.as_deref(),
            const_expert_alpha_1: &self.alpha_1,
            const_expert_alpha_2: &self.alpha_2,
            const_expert_v: &self.const_v,
            add_rms_norm: norm.map(|[residual_x, gamma]| AddRmsNorm { residual_x, gamma }),
            call: None,
            dispatched: None,
        }
    }
}

pub(crate) fn row(dtype: Dtype, len: u32, element: impl Fn(u32) -> f32) -> Vec<u8> {
    (0..len).flat_map(|i| numerics::to_bytes(dtype, element(i))).collect()
}

/// Returns the experts' result for a row of `(source, token, k)`: small and different for each.
pub(crate) fn result_row(shape: &Shape, source: u32, token: u32, k: u32) -> Vec<u8> {
    row(shape.dtype(), shape.h(), |i| ((source * 53 + token * 17 + k * 5 + i) % 127) as f32 - 60.0)
}
