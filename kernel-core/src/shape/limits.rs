//! The table of limits: one column per product and algorithm, read by the rules.

use super::sizes::{COUNT_WORDS, SERVER_RANKS};
use super::{CORES_MAX, CommAlg, Config, Given, K_MAX, Limits, Product, RANKS_MAX, SHARED_MAX};

/// Every value from `min` to `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) min: i64,
    pub(super) max: i64,
}

/// What one product takes with one algorithm.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    /// For messages.
    pub(super) name: &'static str,
    pub(super) ep_world_size: Range,
    pub(super) ep_world_size_step: i64,
    pub(super) server_ranks: Range,
    pub(super) moe_expert_num: Range,
    /// Largest `moe_expert_num / ep_world_size`.
    pub(super) experts_per_rank_max: i64,
    pub(super) h: Range,
    pub(super) h_step: i64,
    pub(super) bs: Range,
    pub(super) shared_expert_num: Range,
    pub(super) shared_ranks: bool,
    pub(super) tp_world_size: Range,
    pub(super) comm_quant_mode: &'static [i64],
    /// Zero experts, copy experts.
    pub(super) zero_or_copy: Range,
    pub(super) const_expert_num: Range,
    pub(super) given: Given,
    pub(super) ops: &'static [&'static str],
    pub(super) hccl_buffsize_mb: Range,
    pub(super) port_offset: Range,
}

/// Largest sum of MoE and special experts: ids are i32.
pub(super) const EXPERT_IDS_MAX: i64 = i32::MAX as i64;

/// Words of an algorithm-independent parameter and what they mean, in the same order.
pub(super) struct Words<T: 'static> {
    pub(super) names: &'static [&'static str],
    pub(super) values: &'static [T],
}

pub(super) const PRODUCTS: Words<Product> =
    Words { names: &["a3", "a2"], values: &[Product::A3, Product::A2] };

const A3_ALGS: Words<CommAlg> = Words {
    names: &["", "fullmesh_v1", "fullmesh_v2"],
    values: &[CommAlg::FullmeshV1, CommAlg::FullmeshV1, CommAlg::FullmeshV2],
};

const A2_ALGS: Words<CommAlg> = Words {
    names: &["", "fullmesh", "hierarchy"],
    values: &[CommAlg::Fullmesh, CommAlg::Fullmesh, CommAlg::Hierarchy],
};

/// The words that some product knows.
const ANY_ALG: &[&str] = &["", "fullmesh_v1", "fullmesh_v2", "fullmesh", "hierarchy"];

const SPECIALS: Range = Range { min: 0, max: EXPERT_IDS_MAX - 1 };
const SERVERS: Range = Range { min: SERVER_RANKS as i64, max: SERVER_RANKS as i64 };
const NONE: Range = Range { min: 0, max: 0 };
const UP_TO_ONE: Range = Range { min: 0, max: 1 };
const ANY_OP: &[&str] = &["combine", "combine_add_rms_norm"];

pub(super) const K: Range = Range { min: 1, max: K_MAX as i64 };
pub(super) const AIV_NUM: Range = Range { min: 1, max: CORES_MAX as i64 };
pub(super) const TOKEN_NUMS_TYPE: Range = UP_TO_ONE;
pub(super) const QUANT_MODE: &[i64] = &[0, 2];

const A3: Column = Column {
    name: "a3",
    ep_world_size: Range { min: 2, max: RANKS_MAX as i64 },
    ep_world_size_step: 1,
    server_ranks: SERVERS,
    moe_expert_num: Range { min: 1, max: 1024 },
    experts_per_rank_max: i64::MAX,
    h: Range { min: 1024, max: 8192 },
    h_step: 1,
    bs: Range { min: 1, max: 512 },
    shared_expert_num: Range { min: 0, max: SHARED_MAX as i64 },
    shared_ranks: true,
    tp_world_size: Range { min: 0, max: 2 },
    comm_quant_mode: &[0, 2],
    zero_or_copy: SPECIALS,
    const_expert_num: SPECIALS,
    given: Given::all(),
    ops: ANY_OP,
    hccl_buffsize_mb: Range { min: 2, max: u32::MAX as i64 },
    // Far more than any hash of addresses needs; what fits, the window tells.
    port_offset: Range { min: 0, max: 1 << 30 },
};

const A2_FULLMESH: Column = Column {
    name: "a2 fullmesh",
    ep_world_size: Range { min: 16, max: 256 },
    ep_world_size_step: SERVER_RANKS as i64,
    server_ranks: SERVERS,
    moe_expert_num: Range { min: 1, max: 512 },
    experts_per_rank_max: 24,
    h: Range { min: 1, max: 7168 },
    h_step: 32,
    bs: Range { min: 1, max: 256 },
    shared_expert_num: UP_TO_ONE,
    shared_ranks: false,
    tp_world_size: UP_TO_ONE,
    comm_quant_mode: &[0],
    zero_or_copy: SPECIALS,
    const_expert_num: NONE,
    given: Given::SCALES.union(Given::MASK_1D).union(Given::MASK_2D),
    ops: &["combine"],
    hccl_buffsize_mb: Range { min: 2, max: u32::MAX as i64 },
    port_offset: NONE,
};

const A2_HIERARCHY: Column = Column {
    name: "a2 hierarchy",
    ep_world_size: Range { min: 16, max: 64 },
    experts_per_rank_max: i64::MAX,
    h: Range { min: 1, max: 10240 },
    comm_quant_mode: &[0, 2],
    zero_or_copy: NONE,
    given: Given::empty(),
    ..A2_FULLMESH
};

impl Range {
    pub(super) const fn holds(self, value: i64) -> bool {
        self.min <= value && value <= self.max
    }

    /// The smallest range that holds both.
    const fn or(self, other: Self) -> Self {
        Self {
            min: if self.min < other.min { self.min } else { other.min },
            max: if self.max > other.max { self.max } else { other.max },
        }
    }
}

impl Column {
    /// The limits that are sure to hold: of the product and algorithm, or, where a word is not known, the
    /// widest of all that it could have meant (a wrong word must not bring other violations with it).
    pub(super) fn of(product: Option<Product>, alg: Option<CommAlg>, limits: Limits) -> Self {
        let column = match (product, alg) {
            (_, Some(CommAlg::FullmeshV1 | CommAlg::FullmeshV2)) | (Some(Product::A3), _) => A3,
            (_, Some(CommAlg::Fullmesh)) => A2_FULLMESH,
            (_, Some(CommAlg::Hierarchy)) => A2_HIERARCHY,
            (Some(Product::A2), None) => A2_FULLMESH.or(A2_HIERARCHY, "a2"),
            (None, None) => A3.or(A2_FULLMESH, "any product").or(A2_HIERARCHY, "any product"),
        };
        match limits {
            Limits::Product => column,
            Limits::None => column.without_ranges(alg),
        }
    }

    /// What the arithmetic alone needs. Support of features stays as it is: the protocols lack the others.
    fn without_ranges(self, alg: Option<CommAlg>) -> Self {
        Self {
            ep_world_size: Range { min: 1, max: RANKS_MAX as i64 },
            ep_world_size_step: 1,
            server_ranks: Range { min: 1, ..SERVERS },
            moe_expert_num: Range {
                min: 1,
                // Counts have an area of their own there.
                max: if alg == Some(CommAlg::Hierarchy) { COUNT_WORDS as i64 } else { EXPERT_IDS_MAX },
            },
            // Up to here every H is an exact f32, so that 1/H is one rounding.
            h: Range { min: 1, max: 1 << 24 },
            // Flags of A2 lie behind whole rows and must be aligned words, also when a row is int8.
            h_step: if self.h_step > 1 { 8 } else { 1 },
            bs: Range { min: 1, max: u16::MAX as i64 },
            hccl_buffsize_mb: Range { min: 1, max: u32::MAX as i64 },
            ..self
        }
    }

    fn or(self, other: Self, name: &'static str) -> Self {
        let longer = |a: &'static [i64], b: &'static [i64]| if a.len() < b.len() { b } else { a };
        Self {
            name,
            ep_world_size: self.ep_world_size.or(other.ep_world_size),
            ep_world_size_step: self.ep_world_size_step.min(other.ep_world_size_step),
            server_ranks: self.server_ranks.or(other.server_ranks),
            moe_expert_num: self.moe_expert_num.or(other.moe_expert_num),
            experts_per_rank_max: self.experts_per_rank_max.max(other.experts_per_rank_max),
            h: self.h.or(other.h),
            h_step: self.h_step.min(other.h_step),
            bs: self.bs.or(other.bs),
            shared_expert_num: self.shared_expert_num.or(other.shared_expert_num),
            shared_ranks: self.shared_ranks || other.shared_ranks,
            tp_world_size: self.tp_world_size.or(other.tp_world_size),
            comm_quant_mode: longer(self.comm_quant_mode, other.comm_quant_mode),
            zero_or_copy: self.zero_or_copy.or(other.zero_or_copy),
            const_expert_num: self.const_expert_num.or(other.const_expert_num),
            given: self.given.union(other.given),
            ops: if self.ops.len() < other.ops.len() { other.ops } else { self.ops },
            hccl_buffsize_mb: self.hccl_buffsize_mb.or(other.hccl_buffsize_mb),
            port_offset: self.port_offset.or(other.port_offset),
        }
    }
}

impl<T: Copy> Words<T> {
    /// What `word` means.
    pub(super) fn find(&self, word: &str) -> Option<T> {
        self.names.iter().zip(self.values).find(|(name, _)| **name == word).map(|(_, &value)| value)
    }
}

/// The words of `comm_alg` that are legal on `product`.
pub(super) const fn alg_names(product: Option<Product>) -> &'static [&'static str] {
    match product {
        Some(Product::A3) => A3_ALGS.names,
        Some(Product::A2) => A2_ALGS.names,
        None => ANY_ALG,
    }
}

/// The product and the algorithm of a configuration, as far as its words are known.
pub(super) fn meaning(config: &Config<'_>) -> (Option<Product>, Option<CommAlg>) {
    let product = PRODUCTS.find(config.product);
    let alg = match product {
        Some(Product::A3) => A3_ALGS.find(config.comm_alg),
        Some(Product::A2) => A2_ALGS.find(config.comm_alg),
        None => None,
    };
    (product, alg)
}
