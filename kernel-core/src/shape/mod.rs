//! Validation: a [`Config`] as given becomes a valid [`Shape`], or a list of all rules that it breaks.
//!
//! Code that receives a shape need not check it again: divisors are positive, every size fits `u64`, every slot fits its
//! area. The V2 reference, parameters and constraints.

mod addressable;
mod buffer;
mod config;
mod elastic;
pub(crate) mod element;
mod fingerprint;
pub(crate) mod limits;
mod per_rank;
mod release;
mod row;
mod rules;
pub(crate) mod sizes;
mod validate;
mod violation;

pub use buffer::{Buffer, FACTORS_MAX, Factor, Limit, Term};
pub use config::{BatchSizes, Config, Given};
pub use elastic::Elastic;
pub(crate) use fingerprint::hash;
pub use release::{Algorithm, Release};
pub use row::{RowElement, RowFormat, Scale};
pub use violation::{Rule, Seen, Violation};

use crate::units::RankId;
use core::mem;
use limits::Column;
use per_rank::PerRank;
use sizes::Derived;

/// The maximum number of ranks of an EP domain.
pub const RANKS_MAX: usize = 768;
/// The maximum number of vector cores of a rank.
pub const CORES_MAX: usize = 48;
/// The maximum number of experts per token, K.
pub const K_MAX: usize = 16;
/// The maximum number of shared experts, S.
pub const SHARED_MAX: usize = 4;

/// The product whose limits apply (CANN: `"a3"`, `"a2"`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Product {
    /// Atlas A3: one-sided writes of the vector cores into shared memory.
    A3,
    /// Atlas A2: batched writes, issued by an agent.
    A2,
}

/// The communication protocol (CANN: `commAlg`).
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
    /// The names in a configuration.
    pub const WORDS: [(&'static str, Self); 2] = [("a3", Self::A3), ("a2", Self::A2)];
}

impl Protocol {
    /// The names in a configuration, by product.
    pub const WORDS: [(Product, &'static str, Self); 6] = [
        (Product::A3, "", Self::FullmeshV1),
        (Product::A3, "fullmesh_v1", Self::FullmeshV1),
        (Product::A3, "fullmesh_v2", Self::FullmeshV2),
        (Product::A2, "", Self::Fullmesh),
        (Product::A2, "fullmesh", Self::Fullmesh),
        (Product::A2, "hierarchy", Self::Hierarchy),
    ];

    /// Returns the product that has this protocol.
    #[must_use]
    pub const fn product(self) -> Product {
        match self {
            Self::FullmeshV1 | Self::FullmeshV2 => Product::A3,
            Self::Fullmesh | Self::Hierarchy => Product::A2,
        }
    }
}

impl Op {
    /// The names in a configuration.
    pub const WORDS: [(&'static str, Self); 2] =
        [("combine", Self::Combine), ("combine_add_rms_norm", Self::CombineAddRmsNorm)];
}

impl Dtype {
    /// The names in a configuration.
    pub const WORDS: [(&'static str, Self); 2] = [("bf16", Self::Bf16), ("f16", Self::F16)];
}

/// The operator that callers mean to call after dispatch. Its [inputs](crate::inputs::Inputs::add_rms_norm) say which one a call
/// is.
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

/// The limits that validation applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limits {
    /// The ranges of the product that our machines run. What the operators accept, [`Release::check`] knows.
    Product,
    /// Only the limits of the arithmetic, for tests and model checking with tiny shapes.
    None,
}

/// A valid EP domain. It contains only values; every rank of a group holds an equal one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    comm_alg: Protocol,
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
    /// Empty when every rank has as many tokens as the capacity.
    bs_per_rank: PerRank,
    /// The one rank whose entry there is its size; those of others are the capacity, a bound of theirs.
    own: Option<RankId>,
    aiv_num: u32,
    hccl_buffsize_mb: u32,
    port_offset: u32,
    norm_eps_bits: u32,
    /// Set for the survivors of an elastic domain.
    kept: Option<Kept>,
    derived: Derived,
}

/// The numbers of the whole domain that survivors of an elastic domain keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Kept {
    shared_expert_num: u32,
    moe_expert_num: u32,
    rows_max: u64,
}

/// Declares functions of a shape that return a field.
macro_rules! fields {
    ($($(#[$about:meta])* $field:ident: $type:ty,)*) => {
        impl Shape {
            $(
                $(#[$about])*
                #[must_use]
                pub const fn $field(&self) -> $type {
                    self.$field
                }
            )*
        }
    };
}

fields! {
    /// Returns the element type.
    dtype: Dtype,
    /// Returns R, the number of ranks of the EP domain.
    ep_world_size: u32,
    /// Returns the number of ranks of a server, which share memory (A2): 8, except in models.
    server_ranks: u32,
    /// Returns the number of TP ranks: 1 (none) or 2.
    tp_world_size: u32,
    /// Returns E, the number of MoE experts of the domain.
    moe_expert_num: u32,
    /// Returns L, the number of MoE experts of a MoE rank.
    local_expert_num: u32,
    /// Returns S, the number of shared experts that travel; 0 when no rank holds shared experts.
    shared_expert_num: u32,
    /// Returns Rs, the number of ranks that hold shared experts only.
    shared_expert_rank_num: u32,
    /// Returns the number of zero experts.
    zero_expert_num: u32,
    /// Returns the number of copy experts.
    copy_expert_num: u32,
    /// Returns the number of const experts.
    const_expert_num: u32,
    /// Returns K, the number of experts per token.
    k: u32,
    /// Returns H, the number of elements of a token.
    h: u32,
    /// Returns the capacity, which determines the number of slots: `globalBs / R`, else the largest BS of any rank.
    bs_max: u32,
    /// Returns the number of vector cores of a rank.
    aiv_num: u32,
    /// Returns the configured size of the data region in MiB.
    hccl_buffsize_mb: u32,
}

impl Shape {
    /// Checks every rule of the product (all constraints of the V2 reference) and calls `found` with each broken one, in the
    /// order of the rules. Returns a shape if no rule is broken.
    // It has a frame of its own, deeper than its callers should carry for all of their lives.
    #[inline(never)]
    pub fn check(config: &Config<'_>, limits: Limits, found: &mut dyn FnMut(&Violation)) -> Option<Self> {
        rules::check(config, limits, found)
    }

    /// Checks every rule like [`check`](Self::check), and reports only the first broken one.
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

    /// Returns the product.
    #[must_use]
    pub const fn product(&self) -> Product {
        self.comm_alg.product()
    }

    /// Returns the communication protocol.
    #[must_use]
    pub const fn protocol(&self) -> Protocol {
        self.comm_alg
    }

    /// Returns the format in which a dispatched row travels.
    #[inline]
    #[must_use]
    pub const fn row_format(&self) -> &RowFormat {
        &self.row_format
    }

    /// Returns the format in which combine sends a result, or the hierarchy a sum of results.
    #[inline]
    pub(crate) const fn result_format(&self) -> &RowFormat {
        &self.result_format
    }

    /// Returns the meaning of `expert_token_nums`.
    pub(crate) const fn token_nums(&self) -> TokenNums {
        self.token_nums
    }

    /// Returns S, the number of rows of `scales` and `expert_gain` before the first MoE expert's. They stay when an elastic
    /// domain has lost all shared-expert ranks and [`shared_expert_num`](Self::shared_expert_num) is 0.
    #[must_use]
    pub const fn shared_expert_rows(&self) -> u32 {
        match self.kept {
            Some(kept) => kept.shared_expert_num,
            None => self.shared_expert_num,
        }
    }

    /// Returns S + E, the number of rows of `scales` and `expert_gain`; in an elastic domain that of the whole domain.
    #[must_use]
    pub const fn expert_rows(&self) -> u32 {
        match self.kept {
            Some(kept) => kept.shared_expert_num + kept.moe_expert_num,
            None => self.shared_expert_num + self.moe_expert_num,
        }
    }

    /// Returns one past the largest legal entry of `expert_ids`.
    #[must_use]
    pub const fn expert_ids_end(&self) -> u32 {
        self.moe_expert_num + self.zero_expert_num + self.copy_expert_num + self.const_expert_num
    }

    /// Returns BS of a rank, the number of its tokens.
    #[must_use]
    #[inline]
    pub const fn bs(&self, rank: RankId) -> u32 {
        match self.bs_per_rank.get(rank.index()) {
            Some(bs) => bs as u32,
            None => self.bs_max,
        }
    }

    /// Returns whether the number of tokens of `rank` is known, and not only the capacity as its bound.
    pub(crate) fn knows_bs(&self, rank: RankId) -> bool {
        self.own.is_none_or(|own| own == rank)
    }

    /// Returns the number of tokens of `rank` that all ranks of a group must know alike: where each knows its own alone, the
    /// capacity.
    pub(crate) fn agreed_bs(&self, rank: RankId) -> u32 {
        if self.own.is_some() { self.bs_max } else { self.bs(rank) }
    }

    /// Returns whether a rank has fewer tokens than the capacity.
    #[must_use]
    pub fn bs_is_uneven(&self) -> bool {
        // In an elastic domain the whole domain decides, even if the survivors agree.
        !self.bs_per_rank.is_empty()
    }

    /// Returns whether tokens may be inactive: never in the hierarchy, and on A3 only if every batch is as large as the capacity.
    #[must_use]
    pub fn may_have_inactive_tokens(&self) -> bool {
        self.takes(Given::MASK_1D) && (matches!(self.product(), Product::A2) || !self.bs_is_uneven())
    }

    /// Returns whether the machines of its protocol read this optional tensor.
    #[must_use]
    pub const fn takes(&self, tensor: Given) -> bool {
        Column::taken_by(self.protocol()).contains(tensor)
    }

    /// Returns whether the protocol has combine with AddRmsNorm.
    #[must_use]
    pub const fn has_add_rms_norm(&self) -> bool {
        Column::norm_of(self.protocol())
    }

    /// Returns the bytes added per source rank before its records (A3; 910C guide, section 2.3): for rank `s` they are added
    /// `s` times. A multiple of 512; 0 by default.
    #[must_use]
    pub const fn port_offset(&self) -> u64 {
        self.port_offset as u64
    }

    /// Returns the epsilon of AddRmsNorm.
    #[must_use]
    pub const fn norm_eps(&self) -> f32 {
        f32::from_bits(self.norm_eps_bits)
    }
}
