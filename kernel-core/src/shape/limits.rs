//! Limits as columns of one table, read by the rules: what our machines run, and what the operators of a release accept.

use super::config::CAPACITY_MAX;
use super::release::{Algorithm, Release};
use super::sizes::{COUNT_WORDS, SERVER_RANKS};
use super::{CORES_MAX, Given, K_MAX, Limits, Protocol, RANKS_MAX, SHARED_MAX};

/// Every value from `min` to `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) min: i64,
    pub(crate) max: i64,
}

/// The batch sizes that a group may have, and what `global_bs` may say of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Batches {
    /// Every rank has the same; `global_bs` is their sum or 0.
    Equal,
    /// Ranks may differ below a capacity, `global_bs / R`.
    Capacity,
    /// The same, but with a mask tensor every rank has as many as the capacity.
    CapacityUnlessMasked,
}

/// The formula of the windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Window {
    /// Dispatch and combine areas of A3, which our layout shares with the operators.
    A3 {
        /// Records in blocks with a flag each.
        blocks: bool,
    },
    /// A window for each peer in both halves (A2).
    A2Fullmesh,
    /// Near, words and relay areas (A2 hierarchy), as our layout and the operators before 9.0.0 have them.
    A2Hierarchy,
    /// The A2 hierarchy of the operators from 9.0.0 on.
    A2HierarchyFrom900,
    /// The A3 hierarchy of the operators.
    A3Hierarchy,
}

/// The limits of one product with one algorithm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    /// The name in messages.
    pub(super) name: &'static str,
    pub(crate) ep_world_size: Range,
    pub(super) ep_world_size_step: i64,
    /// Up to this number of ranks the step does not count.
    pub(super) small_world: i64,
    pub(crate) server_ranks: Range,
    pub(crate) moe_expert_num: Range,
    /// Largest `moe_expert_num / ep_world_size`.
    pub(crate) experts_per_rank_max: i64,
    pub(crate) h: Range,
    pub(crate) h_step: i64,
    pub(crate) k: Range,
    pub(crate) bs: Range,
    pub(super) batches: Batches,
    /// Whether some ranks of a list of batch sizes may have no tokens. This is ours: the shipped operators take no batch of
    /// 0, but a mask.
    pub(super) idle_ranks: bool,
    pub(crate) shared_expert_num: Range,
    pub(super) shared_ranks: bool,
    pub(super) tp_world_size: Range,
    pub(super) comm_quant_mode: &'static [i64],
    /// The range of zero experts and of copy experts.
    pub(super) zero_or_copy: Range,
    pub(super) const_expert_num: Range,
    pub(super) given: Given,
    /// Whether AddRmsNorm can follow combine.
    pub(super) norm: bool,
    pub(crate) hccl_buffsize_mb: Range,
    pub(crate) port_offset: Range,
    pub(super) window: Window,
    /// Whether the window of the TP domain has to fit `hccl_buffsize_mb` too.
    pub(super) tp_window: bool,
    /// Whether status slots bound the numbers of experts, ranks and tokens (A3).
    pub(super) status_slots: bool,
    /// Whether a relay area of fixed size bounds the tokens of a rank, and ranks fill servers (our A2 hierarchy).
    pub(super) relay: bool,
}

/// Largest sum of MoE and special experts: ids are i32.
pub(super) const EXPERT_IDS_MAX: i64 = i32::MAX as i64;

const SPECIALS: Range = Range { min: 0, max: EXPERT_IDS_MAX - 1 };
const SERVERS: Range = Range { min: SERVER_RANKS as i64, max: SERVER_RANKS as i64 };
const NONE: Range = Range { min: 0, max: 0 };
const UP_TO_ONE: Range = Range { min: 0, max: 1 };

const K: Range = Range { min: 1, max: K_MAX as i64 };
pub(crate) const AIV_NUM: Range = Range { min: 1, max: CORES_MAX as i64 };
pub(super) const TOKEN_NUMS_TYPE: Range = UP_TO_ONE;

const A3: Column = Column {
    name: "a3",
    ep_world_size: Range { min: 2, max: RANKS_MAX as i64 },
    ep_world_size_step: 1,
    small_world: 0,
    server_ranks: SERVERS,
    moe_expert_num: Range { min: 1, max: 1024 },
    experts_per_rank_max: i64::MAX,
    h: Range { min: 1024, max: 8192 },
    h_step: 1,
    k: K,
    bs: Range { min: 1, max: 512 },
    batches: Batches::Capacity,
    idle_ranks: true,
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
    window: Window::A3 { blocks: false },
    tp_window: true,
    status_slots: true,
    relay: false,
};

const A3_V2: Column = Column {
    name: "a3 fullmesh_v2",
    tp_world_size: UP_TO_ONE,
    given: Given::all().difference(Given::ELASTIC_INFO),
    window: Window::A3 { blocks: true },
    ..A3
};

const A2_FULLMESH: Column = Column {
    name: "a2 fullmesh",
    ep_world_size: Range { min: 16, max: 256 },
    ep_world_size_step: SERVER_RANKS as i64,
    small_world: 0,
    server_ranks: SERVERS,
    moe_expert_num: Range { min: 1, max: 1024 },
    experts_per_rank_max: 24,
    h: Range { min: 1, max: 10240 },
    h_step: 32,
    k: K,
    bs: Range { min: 1, max: 256 },
    batches: Batches::Capacity,
    idle_ranks: true,
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
    window: Window::A2Fullmesh,
    tp_window: false,
    status_slots: false,
    relay: false,
};

const A2_HIERARCHY: Column = Column {
    name: "a2 hierarchy",
    ep_world_size: Range { min: 16, max: 64 },
    moe_expert_num: Range { min: 1, max: 512 },
    experts_per_rank_max: i64::MAX,
    bs: Range { min: 1, max: 512 },
    comm_quant_mode: &[0, 2],
    zero_or_copy: NONE,
    given: Given::EXPERT_MAP,
    window: Window::A2Hierarchy,
    relay: true,
    ..A2_FULLMESH
};

/// What the operators of any release accept on A3; [`Column::accepted`] has what differs.
const OPERATORS_A3: Column =
    Column { batches: Batches::CapacityUnlessMasked, idle_ranks: false, port_offset: ANY_OFFSET, ..A3 };

const OPERATORS_A3_HIERARCHY: Column = Column {
    name: "a3 hierarchy",
    ep_world_size: Range { min: 16, max: 256 },
    ep_world_size_step: 16,
    moe_expert_num: Range { min: 1, max: 512 },
    h: Range { min: 1, max: 7168 },
    h_step: 32,
    bs: Range { min: 1, max: 256 },
    batches: Batches::Equal,
    shared_expert_num: UP_TO_ONE,
    shared_ranks: false,
    tp_world_size: UP_TO_ONE,
    zero_or_copy: NONE,
    const_expert_num: NONE,
    given: Given::SCALES.union(Given::MASK_1D).union(Given::SHARED_EXPERT_X).union(Given::EXPERT_MAP),
    norm: false,
    window: Window::A3Hierarchy,
    tp_window: false,
    status_slots: false,
    ..OPERATORS_A3
};

const OPERATORS_A2_FULLMESH: Column = Column { idle_ranks: false, port_offset: ANY_OFFSET, ..A2_FULLMESH };

const OPERATORS_A2_HIERARCHY: Column =
    Column { idle_ranks: false, relay: false, port_offset: ANY_OFFSET, ..A2_HIERARCHY };

/// Port offsets are ours: the operators have nothing to say of them.
const ANY_OFFSET: Range = Range { min: i64::MIN, max: i64::MAX };

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
    /// Returns the batch sizes that an entry of a list may have.
    pub(super) fn listed_bs(&self) -> Range {
        Range { min: if self.idle_ranks { 0 } else { self.bs.min }, ..self.bs }
    }

    /// Returns the widest limits of a layout, within which the others are.
    pub(crate) fn widest(alg: Protocol) -> Self {
        Self::of(alg, Limits::None)
    }

    /// Returns the limits of the product for a protocol.
    const fn of_product(protocol: Protocol) -> &'static Self {
        match protocol {
            Protocol::FullmeshV1 => &A3,
            Protocol::FullmeshV2 => &A3_V2,
            Protocol::Fullmesh => &A2_FULLMESH,
            Protocol::Hierarchy => &A2_HIERARCHY,
        }
    }

    /// Returns the optional tensors that our machines read.
    pub(super) const fn taken_by(protocol: Protocol) -> Given {
        Self::of_product(protocol).given
    }

    /// Returns whether our machines have AddRmsNorm.
    pub(super) const fn norm_of(protocol: Protocol) -> bool {
        Self::of_product(protocol).norm
    }

    /// Returns the limits of our machines for a layout, and so of its product.
    pub(super) fn of(alg: Protocol, limits: Limits) -> Self {
        let column = match alg {
            Protocol::FullmeshV1 => A3,
            Protocol::FullmeshV2 => A3_V2,
            Protocol::Fullmesh => A2_FULLMESH,
            Protocol::Hierarchy => A2_HIERARCHY,
        };
        match limits {
            Limits::Product => column,
            Limits::None => column.without_ranges(alg),
        }
    }

    /// Returns what the operators of a release accept: the table of what differs between releases. Rules that only a page
    /// states are [notes](super::release).
    pub(super) fn accepted(release: Release, algorithm: Algorithm) -> Self {
        use Release::{Seed, V8_5_0, V9_0_0, V9_1_0};
        let masks = Given::MASK_1D.union(Given::MASK_2D);
        match algorithm {
            // From 2026-07 on A3 refuses a TP domain; before, it needs a window that only the seed's operator does not check.
            Algorithm::A3Fullmesh => Self {
                tp_world_size: if release > V9_1_0 { UP_TO_ONE } else { A3.tp_world_size },
                tp_window: release > Seed,
                ..OPERATORS_A3
            },
            Algorithm::A3FullmeshV2 => {
                let v2 =
                    Self { tp_world_size: UP_TO_ONE, window: A3_V2.window, name: A3_V2.name, ..OPERATORS_A3 };
                // What the layout lacked at first: masks, special experts, elastic domains and batches that differ.
                let bare = Self {
                    batches: Batches::Equal,
                    zero_or_copy: NONE,
                    const_expert_num: NONE,
                    given: Given::all().difference(masks.union(Given::ELASTIC_INFO)),
                    ..v2
                };
                let (k, bs) = (Range { max: 12, ..K }, Range { min: 1, max: 256 });
                match release {
                    Seed => bare,
                    V8_5_0 => Self { k, bs, given: bare.given.union(Given::MASK_1D), ..bare },
                    _ => Self { k, bs, ..v2 },
                }
            }
            Algorithm::A3Hierarchy => OPERATORS_A3_HIERARCHY,
            Algorithm::A2Fullmesh => {
                let early = release < V9_0_0;
                let wide = release >= V9_1_0;
                Self {
                    ep_world_size: match release {
                        Seed => Range { min: 16, max: 256 },
                        V8_5_0 => Range { min: 8, max: 256 },
                        _ => Range { min: 1, max: 384 },
                    },
                    small_world: if early { 0 } else { SERVER_RANKS as i64 },
                    moe_expert_num: Range { min: 1, max: if wide { 1024 } else { 512 } },
                    experts_per_rank_max: if early { 24 } else { i64::MAX },
                    h: Range { min: 1, max: if wide { 10240 } else { 7168 } },
                    ..OPERATORS_A2_FULLMESH
                }
            }
            Algorithm::A2Hierarchy => {
                let early = release < V9_0_0;
                let lenient = release > Seed;
                Self {
                    ep_world_size: Range { min: if lenient { 8 } else { 16 }, max: 64 },
                    bs: Range { min: 1, max: if early { 256 } else { 512 } },
                    zero_or_copy: if lenient { SPECIALS } else { NONE },
                    given: if lenient { OPERATORS_A2_FULLMESH.given } else { A2_HIERARCHY.given },
                    window: if early { Window::A2Hierarchy } else { Window::A2HierarchyFrom900 },
                    ..OPERATORS_A2_HIERARCHY
                }
            }
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
            bs: Range { min: 1, max: CAPACITY_MAX },
            hccl_buffsize_mb: Range { min: 1, max: u32::MAX as i64 },
            ..self
        }
    }
}
