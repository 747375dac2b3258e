//! The door: a [`Config`] as given becomes a [`Shape`] as valid, or the list of all rules it breaks.
//!
//! Behind the door nobody re-checks: divisors are positive, every size fits `u64`, every slot fits its
//! area. Seed 003, parameters and constraints.

mod addressable;
mod buffer;
mod config;
mod elastic;
pub(crate) mod element;
mod fingerprint;
mod limits;
mod per_rank;
mod row;
mod rules;
pub(crate) mod sizes;
mod validate;
mod violation;

pub use buffer::{Buffer, FACTORS_MAX, Factor, Limit, Term};
pub use config::{BatchSizes, Config, Given};
pub use elastic::Elastic;
pub(crate) use fingerprint::hash;
pub use row::{RowElement, RowFormat, Scale};
pub use violation::{Rule, Seen, Violation};

use crate::units::RankId;
use core::mem;
use per_rank::PerRank;
use sizes::Derived;

/// Most ranks of an EP domain.
pub const RANKS_MAX: usize = 768;
/// Most vector cores of a rank.
pub const CORES_MAX: usize = 48;
/// Most experts per token, K.
pub const K_MAX: usize = 16;
/// Most shared experts, S.
pub const SHARED_MAX: usize = 4;

/// The product whose limits hold (seed: `"a3"`, `"a2"`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Product {
    /// Atlas A3: one-sided writes of the vector cores into shared memory.
    A3,
    /// Atlas A2: batched writes, issued by an agent.
    A2,
}

/// Who writes what to whom (seed: `commAlg`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// A3 `""` and `"fullmesh_v1"`.
    FullmeshV1,
    /// A3 `"fullmesh_v2"`.
    FullmeshV2,
    /// A2 `""` and `"fullmesh"`.
    Fullmesh,
    /// A2 `"hierarchy"`.
    Hierarchy,
}

impl Product {
    /// What a configuration calls each.
    pub const WORDS: [(&'static str, Self); 2] = [("a3", Self::A3), ("a2", Self::A2)];
}

impl Protocol {
    /// What a configuration calls each on its product.
    pub const WORDS: [(Product, &'static str, Self); 6] = [
        (Product::A3, "", Self::FullmeshV1),
        (Product::A3, "fullmesh_v1", Self::FullmeshV1),
        (Product::A3, "fullmesh_v2", Self::FullmeshV2),
        (Product::A2, "", Self::Fullmesh),
        (Product::A2, "fullmesh", Self::Fullmesh),
        (Product::A2, "hierarchy", Self::Hierarchy),
    ];

    /// The product that has it.
    #[must_use]
    pub const fn product(self) -> Product {
        match self {
            Self::FullmeshV1 | Self::FullmeshV2 => Product::A3,
            Self::Fullmesh | Self::Hierarchy => Product::A2,
        }
    }
}

impl Op {
    /// What a configuration calls each.
    pub const WORDS: [(&'static str, Self); 2] =
        [("combine", Self::Combine), ("combine_add_rms_norm", Self::CombineAddRmsNorm)];
}

impl Dtype {
    /// What a configuration calls each.
    pub const WORDS: [(&'static str, Self); 2] = [("bf16", Self::Bf16), ("f16", Self::F16)];
}

/// The operator that follows dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Combine.
    Combine,
    /// Combine, then add and RMS norm.
    CombineAddRmsNorm,
}

/// Element type of tokens and results, 2 bytes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    F16,
}

/// Meaning of `expert_token_nums`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenNums {
    /// Type 0: prefix sums over the local experts.
    PrefixSums,
    /// Type 1: rows of each local expert.
    Counts,
}

/// Whose limits the door applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limits {
    /// The product's ranges: what the device takes.
    Product,
    /// Only what the arithmetic needs: for tests and model checking with tiny shapes.
    None,
}

/// A valid EP domain. Values only; every rank of a group holds an equal one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    comm_alg: Protocol,
    op: Op,
    dtype: Dtype,
    row_format: RowFormat,
    result_format: RowFormat,
    token_nums: TokenNums,
    ep_world_size: u32,
    server_ranks: u32,
    tp_world_size: u32,
    moe_expert_num: u32,
    local_expert_num: u32,
    shared_expert_num: u32,
    shared_expert_rank_num: u32,
    zero_expert_num: u32,
    copy_expert_num: u32,
    const_expert_num: u32,
    k: u32,
    h: u32,
    bs_max: u32,
    /// Empty when the batch size is uniform.
    bs_per_rank: PerRank,
    aiv_num: u32,
    hccl_buffsize_mb: u32,
    port_offset: u32,
    norm_eps_bits: u32,
    /// Of the survivors of an elastic domain.
    kept: Option<Kept>,
    derived: Derived,
}

/// What the survivors of an elastic domain keep of the whole one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Kept {
    shared_expert_num: u32,
    moe_expert_num: u32,
    rows_max: u64,
}

impl Shape {
    /// Checks every rule of the product (all of seed 003's constraints) and calls `found` with each that is broken, in
    /// the order of the rules. There is a shape if none is.
    // A frame of its own: it is deeper than those that call it once should be for all of their lives.
    #[inline(never)]
    pub fn check(config: &Config<'_>, limits: Limits, found: &mut dyn FnMut(&Violation)) -> Option<Self> {
        rules::check(config, limits, found)
    }

    /// The same for those to whom one reason is enough.
    ///
    /// # Errors
    /// The first violation.
    #[allow(clippy::result_large_err, reason = "there is no allocator, and a shape is larger still")]
    pub fn new(config: &Config<'_>, limits: Limits) -> Result<Self, Violation> {
        let mut first = Violation::new("config", Seen::Present, Rule::Words("must be valid"));
        let mut is_first = true;
        Self::check(config, limits, &mut |violation| {
            if mem::take(&mut is_first) {
                first = *violation;
            }
        })
        .ok_or(first)
    }

    /// The product.
    #[must_use]
    pub const fn product(&self) -> Product {
        self.comm_alg.product()
    }

    /// Communication layout.
    #[must_use]
    pub const fn protocol(&self) -> Protocol {
        self.comm_alg
    }

    /// The operator after dispatch.
    #[must_use]
    pub const fn op(&self) -> Op {
        self.op
    }

    /// Element type.
    #[must_use]
    pub const fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// How a dispatched row travels.
    #[inline]
    #[must_use]
    pub const fn row_format(&self) -> &RowFormat {
        &self.row_format
    }

    /// How combine sends a result, or the hierarchy the sum of some.
    #[inline]
    #[must_use]
    pub const fn result_format(&self) -> &RowFormat {
        &self.result_format
    }

    /// Meaning of `expert_token_nums`.
    #[must_use]
    pub(crate) const fn token_nums(&self) -> TokenNums {
        self.token_nums
    }

    /// R: ranks of the EP domain.
    #[must_use]
    pub const fn ep_world_size(&self) -> u32 {
        self.ep_world_size
    }

    /// Ranks of a server, which share memory (A2): 8, but for models.
    #[must_use]
    pub const fn server_ranks(&self) -> u32 {
        self.server_ranks
    }

    /// TP ranks: 1 (none) or 2.
    #[must_use]
    pub const fn tp_world_size(&self) -> u32 {
        self.tp_world_size
    }

    /// E: MoE experts of the domain.
    #[must_use]
    pub const fn moe_expert_num(&self) -> u32 {
        self.moe_expert_num
    }

    /// L: MoE experts of a MoE rank.
    #[must_use]
    pub const fn local_expert_num(&self) -> u32 {
        self.local_expert_num
    }

    /// S: shared experts that travel; 0 when no rank holds shared experts.
    #[must_use]
    pub const fn shared_expert_num(&self) -> u32 {
        self.shared_expert_num
    }

    /// Rows of `scales` and `expert_gain` before the first MoE expert's: S. They stay when an elastic domain has
    /// lost all shared-expert ranks and [`shared_expert_num`](Self::shared_expert_num) counts as 0.
    #[must_use]
    pub const fn shared_expert_rows(&self) -> u32 {
        match self.kept {
            Some(kept) => kept.shared_expert_num,
            None => self.shared_expert_num,
        }
    }

    /// Rows of `scales` and `expert_gain`: S + E, in an elastic domain those of the whole one.
    #[must_use]
    pub const fn expert_rows(&self) -> u32 {
        match self.kept {
            Some(kept) => kept.shared_expert_num + kept.moe_expert_num,
            None => self.shared_expert_num + self.moe_expert_num,
        }
    }

    /// Rs: ranks that hold shared experts only.
    #[must_use]
    pub const fn shared_expert_rank_num(&self) -> u32 {
        self.shared_expert_rank_num
    }

    /// Zero experts.
    #[must_use]
    pub const fn zero_expert_num(&self) -> u32 {
        self.zero_expert_num
    }

    /// Copy experts.
    #[must_use]
    pub const fn copy_expert_num(&self) -> u32 {
        self.copy_expert_num
    }

    /// Const experts.
    #[must_use]
    pub const fn const_expert_num(&self) -> u32 {
        self.const_expert_num
    }

    /// One past the largest legal entry of `expert_ids`.
    #[must_use]
    pub const fn expert_ids_end(&self) -> u32 {
        self.moe_expert_num + self.zero_expert_num + self.copy_expert_num + self.const_expert_num
    }

    /// K: experts per token.
    #[must_use]
    pub const fn k(&self) -> u32 {
        self.k
    }

    /// H: elements of a token.
    #[must_use]
    pub const fn h(&self) -> u32 {
        self.h
    }

    /// BS of a rank: its tokens.
    #[must_use]
    #[inline]
    pub fn bs(&self, rank: RankId) -> u32 {
        self.bs_per_rank.get(rank.index()).map_or(self.bs_max, u32::from)
    }

    /// The largest BS of any rank; slots are sized by it.
    #[must_use]
    pub const fn bs_max(&self) -> u32 {
        self.bs_max
    }

    /// Whether ranks differ in BS.
    #[must_use]
    pub fn bs_is_uneven(&self) -> bool {
        // Of an elastic domain the whole one decides, also if survivors are alike.
        !self.bs_per_rank.is_empty()
    }

    /// Vector cores of a rank.
    #[must_use]
    pub const fn aiv_num(&self) -> u32 {
        self.aiv_num
    }

    /// Configured size of the data region in MiB.
    #[must_use]
    pub const fn hccl_buffsize_mb(&self) -> u32 {
        self.hccl_buffsize_mb
    }

    /// Bytes added per source rank in front of its records (A3; seed 004 section 2.3): rank `s` has `s` times
    /// as many. A multiple of 512; 0 by default.
    #[must_use]
    pub const fn port_offset(&self) -> u64 {
        self.port_offset as u64
    }

    /// Epsilon of AddRmsNorm.
    #[must_use]
    pub const fn norm_eps(&self) -> f32 {
        f32::from_bits(self.norm_eps_bits)
    }
}
