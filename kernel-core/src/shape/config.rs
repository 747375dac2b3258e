//! A configuration as given: the V2 reference's parameters in snake case, unchecked.

use super::sizes::SERVER_RANKS;
use super::{Dtype, Op, Protocol};
use crate::units::RankId;
use bitflags::bitflags;

/// The largest capacity of a rank in tokens.
pub(super) const CAPACITY_MAX: i64 = u16::MAX as i64;

/// Batch sizes as given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchSizes<'a> {
    /// One size for every EP rank.
    Uniform(i64),
    /// One entry per EP rank.
    PerRank(&'a [i64]),
    /// The size of one rank, which knows of the others only that they have no more tokens than
    /// [`global_bs`](Config::global_bs) allows, as a kernel does: with 0 they have as many. The shape is that rank's own, and
    /// may be another one in the next round.
    Own {
        /// The rank.
        rank: RankId,
        /// Its size.
        bs: i64,
    },
}

bitflags! {
    /// The optional input tensors that come with the case.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Given: u32 {
        /// `scales`, the smooth scales of dynamic quantisation (CANN: `scalesOptional`).
        const SCALES = 1;
        /// `x_active_mask` of shape `[bs]`.
        const MASK_1D = 1 << 1;
        /// `x_active_mask` of shape `[bs, k]`.
        const MASK_2D = 1 << 2;
        /// `elastic_info` that is switched on.
        const ELASTIC_INFO = 1 << 3;
        /// `shared_expert_x`.
        const SHARED_EXPERT_X = 1 << 4;
        /// `expert_map`.
        const EXPERT_MAP = 1 << 5;
    }
}

/// The parameters of an EP domain as a user gives them (V2 reference). [`Shape::new`] validates them: it returns a [`Shape`] or
/// reports every rule that they break.
///
/// [`Shape`]: super::Shape
/// [`Shape::new`]: super::Shape::new
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config<'a> {
    /// Communication layout, and so the product.
    pub comm_alg: Protocol,
    /// The operator after dispatch. It is checked, and no part of the shape: a shape serves both.
    pub op: Op,
    /// Element type of tokens and results.
    pub dtype: Dtype,
    /// Ranks of the EP domain, R.
    pub ep_world_size: i64,
    /// Ranks of a server, which share memory (A2): 8, except in tests and model checking.
    pub server_ranks: i64,
    /// Ranks of the TP domain; 0 and 1 mean none.
    pub tp_world_size: i64,
    /// MoE experts of the whole domain, E.
    pub moe_expert_num: i64,
    /// Shared experts, S.
    pub shared_expert_num: i64,
    /// Ranks that hold shared experts only, Rs; they come first.
    pub shared_expert_rank_num: i64,
    /// Zero experts.
    pub zero_expert_num: i64,
    /// Copy experts.
    pub copy_expert_num: i64,
    /// Const experts.
    pub const_expert_num: i64,
    /// Experts per token, K.
    pub k: i64,
    /// Hidden size in elements, H.
    pub h: i64,
    /// Tokens per rank, BS.
    pub bs: BatchSizes<'a>,
    /// The capacity of a rank times R, which sizes the windows: any multiple of R from the largest batch on. 0 = the batch
    /// size that all ranks have.
    pub global_bs: i64,
    /// How tokens travel to experts, by the [`mode`](super::RowElement::mode) of their elements.
    pub quant_mode: i64,
    /// How results travel back, likewise.
    pub comm_quant_mode: i64,
    /// 0 = prefix sums, 1 = counts.
    pub expert_token_nums_type: i64,
    /// Shared memory of a rank's data region in MiB (CANN: `HCCL_BUFFSIZE`).
    pub hccl_buffsize_mb: i64,
    /// Bytes added per source rank in front of its records (A3; 910C guide, section 2.3); 0 = none.
    pub port_offset: i64,
    /// Vector cores per rank.
    pub aiv_num: i64,
    /// Epsilon of AddRmsNorm, which works in f32.
    pub norm_eps: f32,
    /// Which optional inputs are given.
    pub given: Given,
}

impl Config<'_> {
    /// Returns the largest batch size as given.
    pub(super) fn largest_bs(&self) -> i64 {
        match self.bs {
            BatchSizes::Uniform(bs) | BatchSizes::Own { bs, .. } => bs,
            BatchSizes::PerRank(all) => all.iter().copied().max().unwrap_or(0),
        }
    }

    /// Returns the tokens of a rank for which windows are cut: `globalBs / R` if that is a capacity for `bs`, else `bs`.
    pub(super) fn capacity_for(&self, bs: i64) -> i64 {
        let rest = self.global_bs.checked_rem(self.ep_world_size);
        match self.global_bs.checked_div(self.ep_world_size) {
            Some(capacity @ 1..=CAPACITY_MAX) if rest == Some(0) => capacity.max(bs),
            _ => bs,
        }
    }
}

impl Default for Config<'_> {
    fn default() -> Self {
        Self {
            comm_alg: Protocol::FullmeshV1,
            op: Op::Combine,
            dtype: Dtype::Bf16,
            ep_world_size: 16,
            server_ranks: SERVER_RANKS as i64,
            tp_world_size: 0,
            moe_expert_num: 64,
            shared_expert_num: 0,
            shared_expert_rank_num: 0,
            zero_expert_num: 0,
            copy_expert_num: 0,
            const_expert_num: 0,
            k: 8,
            h: 7168,
            bs: BatchSizes::Uniform(16),
            global_bs: 0,
            quant_mode: 0,
            comm_quant_mode: 0,
            expert_token_nums_type: 1,
            hccl_buffsize_mb: 200,
            port_offset: 0,
            aiv_num: 8,
            norm_eps: 1e-6,
            given: Given::empty(),
        }
    }
}
