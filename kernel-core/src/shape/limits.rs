//! The table of limits: one column per product and algorithm, read by the rules.

use super::sizes::{COUNT_WORDS, SERVER_RANKS};
use super::{CORES_MAX, Given, K_MAX, Limits, Protocol, RANKS_MAX, SHARED_MAX};

/// Every value from `min` to `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) min: i64,
    pub(super) max: i64,
}

/// The limits of one product with one algorithm.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    /// The name in messages.
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
    /// The range of zero experts and of copy experts.
    pub(super) zero_or_copy: Range,
    pub(super) const_expert_num: Range,
    pub(super) given: Given,
    /// Whether AddRmsNorm can follow combine.
    pub(super) norm: bool,
    pub(super) hccl_buffsize_mb: Range,
    pub(super) port_offset: Range,
}

/// Largest sum of MoE and special experts: ids are i32.
pub(super) const EXPERT_IDS_MAX: i64 = i32::MAX as i64;

const SPECIALS: Range = Range { min: 0, max: EXPERT_IDS_MAX - 1 };
const SERVERS: Range = Range { min: SERVER_RANKS as i64, max: SERVER_RANKS as i64 };
const NONE: Range = Range { min: 0, max: 0 };
const UP_TO_ONE: Range = Range { min: 0, max: 1 };

pub(super) const K: Range = Range { min: 1, max: K_MAX as i64 };
pub(super) const AIV_NUM: Range = Range { min: 1, max: CORES_MAX as i64 };
pub(super) const TOKEN_NUMS_TYPE: Range = UP_TO_ONE;

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
    norm: true,
    hccl_buffsize_mb: Range { min: 2, max: u32::MAX as i64 },
    // This is far more than any hash of addresses needs; the size of the window is the real limit.
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
    given: Given::SCALES.union(Given::MASK_1D).union(Given::MASK_2D).union(Given::EXPERT_MAP),
    norm: false,
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
    given: Given::EXPERT_MAP,
    ..A2_FULLMESH
};

impl Range {
    /// Returns the value if it is in the range, else the smallest that is.
    pub(super) const fn legal(self, value: i64) -> i64 {
        if self.holds(value) { value } else { self.min }
    }

    pub(super) const fn holds(self, value: i64) -> bool {
        self.min <= value && value <= self.max
    }
}

impl Column {
    /// Returns the limits of a layout, and so of its product.
    pub(super) fn of(alg: Protocol, limits: Limits) -> Self {
        let column = match alg {
            Protocol::FullmeshV1 | Protocol::FullmeshV2 => A3,
            Protocol::Fullmesh => A2_FULLMESH,
            Protocol::Hierarchy => A2_HIERARCHY,
        };
        match limits {
            Limits::Product => column,
            Limits::None => column.without_ranges(alg),
        }
    }

    /// Returns only the limits of the arithmetic. Features that the protocols lack stay unsupported.
    fn without_ranges(self, alg: Protocol) -> Self {
        Self {
            ep_world_size: Range { min: 1, max: RANKS_MAX as i64 },
            ep_world_size_step: 1,
            server_ranks: Range { min: 1, ..SERVERS },
            moe_expert_num: Range {
                min: 1,
                // The hierarchy has an area of limited size for counts.
                max: if alg == Protocol::Hierarchy { COUNT_WORDS as i64 } else { EXPERT_IDS_MAX },
            },
            // Up to here every H is an exact f32, so that 1/H is one rounding.
            h: Range { min: 1, max: 1 << 24 },
            // Flags of A2 follow whole rows and must be aligned words, even if rows are int8.
            h_step: if self.h_step > 1 { 8 } else { 1 },
            bs: Range { min: 1, max: u16::MAX as i64 },
            hccl_buffsize_mb: Range { min: 1, max: u32::MAX as i64 },
            ..self
        }
    }
}
