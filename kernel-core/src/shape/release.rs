//! Releases of the shipped operators, whose rules and sizes [`Release::check`] and [`Release::buffer`] apply.
//!
//! Rules are what the operators enforce when they are called, by their public sources; nothing was run on a device. What only
//! their documentation states is a [note](Release::notes). A release changes rules and sizes, but no place in our memory
//! layout, so a [`Shape`](super::Shape) has none.

use super::limits::{Batches, Column};
use super::violation::Found;
use super::{Buffer, Config, Given, Product, Protocol, rules};
use crate::units::div_rem;

named! {
    /// A release of the operators, oldest first.
    Release {
        /// The operators of November 2025, which the documents of this project follow.
        Seed = "seed",
        /// CANN 8.5.0, January 2026.
        V8_5_0 = "8.5.0",
        /// CANN 9.0.0, April 2026; 9.0.1 has the same rules.
        V9_0_0 = "9.0.0",
        /// CANN 9.1.0, July 2026.
        V9_1_0 = "9.1.0",
        /// The newest public sources, of July 2026.
        July2026 = "2026-07",
    }
}

/// A communication algorithm of the operators (CANN: `commAlg`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// A3 `""` and `"fullmesh_v1"`.
    A3Fullmesh,
    /// A3 `"fullmesh_v2"`.
    A3FullmeshV2,
    /// A3 `"hierarchy"`, between super pods.
    A3Hierarchy,
    /// A2 `""` and `"fullmesh"`.
    A2Fullmesh,
    /// A2 `"hierarchy"`.
    A2Hierarchy,
}

impl Algorithm {
    /// The names in a configuration, by product.
    pub const WORDS: [(Product, &'static str, Self); 7] = [
        (Product::A3, "", Self::A3Fullmesh),
        (Product::A3, "fullmesh_v1", Self::A3Fullmesh),
        (Product::A3, "fullmesh_v2", Self::A3FullmeshV2),
        (Product::A3, "hierarchy", Self::A3Hierarchy),
        (Product::A2, "", Self::A2Fullmesh),
        (Product::A2, "fullmesh", Self::A2Fullmesh),
        (Product::A2, "hierarchy", Self::A2Hierarchy),
    ];

    /// Returns the product that has this algorithm.
    #[must_use]
    pub const fn product(self) -> Product {
        match self {
            Self::A3Fullmesh | Self::A3FullmeshV2 | Self::A3Hierarchy => Product::A3,
            Self::A2Fullmesh | Self::A2Hierarchy => Product::A2,
        }
    }

    /// Returns our protocol for this algorithm; `None` where there is none.
    #[must_use]
    pub const fn protocol(self) -> Option<Protocol> {
        match self {
            Self::A3Fullmesh => Some(Protocol::FullmeshV1),
            Self::A3FullmeshV2 => Some(Protocol::FullmeshV2),
            Self::A3Hierarchy => None,
            Self::A2Fullmesh => Some(Protocol::Fullmesh),
            Self::A2Hierarchy => Some(Protocol::Hierarchy),
        }
    }
}

impl Release {
    /// The newest release, whose rules apply unless another is named.
    pub const NEWEST: Self = Self::July2026;

    /// Returns the release of this name, in any case; 9.0.1 is 9.0.0.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let name = if name == "9.0.1" { Self::V9_0_0.name() } else { name };
        Self::ALL.into_iter().find(|release| release.name().eq_ignore_ascii_case(name))
    }

    /// Returns whether the operators of this release have an algorithm.
    #[must_use]
    pub fn has(self, algorithm: Algorithm) -> bool {
        algorithm != Algorithm::A3Hierarchy || self >= Self::V9_0_0
    }

    /// Returns the algorithm that runs when another is asked for: from 9.0.0 on a hierarchy of at most 8 ranks is a full mesh.
    #[must_use]
    pub fn chosen(self, asked: Algorithm, config: &Config<'_>) -> Algorithm {
        let is_one_server = self >= Self::V9_0_0 && (1..=8).contains(&config.ep_world_size);
        if asked == Algorithm::A2Hierarchy && is_one_server { Algorithm::A2Fullmesh } else { asked }
    }

    fn column(self, asked: Algorithm, config: &Config<'_>) -> Column {
        Column::accepted(self, self.chosen(asked, config))
    }

    /// Checks what the operators of this release enforce, and calls `found` with each broken rule, in the order of the rules.
    /// Returns whether they accept `config`, whose own `comm_alg` does not count.
    #[inline(never)]
    pub fn check(self, asked: Algorithm, config: &Config<'_>, found: Found<'_>) -> bool {
        rules::accepts(config, &self.column(asked, config), found)
    }

    /// Computes the window that the operators of this release ask for, valid or not, as [`Buffer::new`] does for ours.
    #[must_use]
    pub fn buffer(self, asked: Algorithm, config: &Config<'_>) -> Buffer {
        Buffer::of(config, &self.column(asked, config))
    }

    /// Calls `note` with each sentence that a user of these operators should know: what only their documentation refuses, what
    /// they do without saying so, and what no source decides. There are none where they refuse more than the buffer.
    pub fn notes(self, asked: Algorithm, config: &Config<'_>, note: &mut dyn FnMut(&'static str)) {
        let mut is_refused = false;
        self.check(asked, config, &mut |violation| is_refused |= violation.parameter != "hccl_buffsize_mb");
        if is_refused {
            return;
        }
        let algorithm = self.chosen(asked, config);
        let (ranks, masks) = (config.ep_world_size, Given::MASK_1D | Given::MASK_2D);
        let per_rank = match div_rem_of(config.moe_expert_num, ranks) {
            Some((per_rank, 0)) => per_rank,
            _ => 0,
        };
        let column = Column::accepted(self, algorithm);
        let is_capacity =
            config.global_bs > 0 && config.global_bs != config.largest_bs().saturating_mul(ranks);
        let is_beyond_bs = ranks > 0 && config.global_bs > column.bs.max.saturating_mul(ranks);
        let (is_seed, is_late) = (self == Self::Seed, self >= Self::V9_0_0);
        let worlds: &[i64] = match algorithm {
            Algorithm::A2Fullmesh if is_late => &[2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128, 192, 256, 384],
            Algorithm::A2Fullmesh if !is_seed => &[16, 32, 64, 128, 192, 256],
            Algorithm::A2Hierarchy if !is_seed => &[16, 32, 64],
            _ => &[],
        };
        let is_a2_hierarchy = algorithm == Algorithm::A2Hierarchy && !is_seed;
        let is_a3_hierarchy = algorithm == Algorithm::A3Hierarchy;
        let specials = config.zero_expert_num > 0 || config.copy_expert_num > 0;
        let notes = [
            (
                algorithm != asked,
                "the operator runs at most 8 ranks as a full mesh, whatever comm_alg says, and does not say so",
            ),
            (
                !worlds.is_empty() && !worlds.contains(&ranks),
                "the documentation lists fewer values of ep_world_size; the operator accepts this one",
            ),
            (
                algorithm == Algorithm::A2Fullmesh && is_late && per_rank > 256,
                "more than 256 experts a rank: no source says whether the operator is made for it",
            ),
            (
                algorithm == Algorithm::A2Fullmesh && !is_seed && config.given.contains(Given::MASK_2D),
                "the documentation takes one mask flag a token on A2; the operator accepts one a pair",
            ),
            (
                is_a2_hierarchy && (specials || config.given.intersects(masks | Given::SCALES)),
                "the documentation excludes masks, scales and special experts here; the operator accepts them",
            ),
            (
                is_a3_hierarchy && per_rank > 24,
                "the documentation allows 24 experts a rank; the operator accepts more",
            ),
            (
                is_a3_hierarchy && config.h < 1024,
                "the documentation asks for h of 1024 or more; the operator accepts less",
            ),
            (
                is_a3_hierarchy,
                "the operator reads HCCL_BUFFSIZE of the environment alone: a size set on the group does not count",
            ),
            (
                is_late && config.given.contains(Given::ELASTIC_INFO),
                "the documentation says that elastic_info is not supported; the operator accepts it",
            ),
            (
                is_seed && config.tp_world_size == 2,
                "the operator does not check the window of the TP group, which needs as much as later releases ask for",
            ),
            (
                column.batches == Batches::Capacity && is_capacity && config.given.intersects(masks),
                "a mask beside a capacity: no source says whether the operator accepts it",
            ),
            (
                is_beyond_bs,
                "global_bs / ep_world_size is above the range of bs: no source says whether the operator accepts it",
            ),
            (
                config.hccl_buffsize_mb > 65535 && (is_seed || is_a3_hierarchy),
                "the operator reads HCCL_BUFFSIZE of the environment into 16 bits: 65536 and more wrap around",
            ),
            (
                self >= Self::V9_1_0 && self.halves_overlap(asked, config),
                "the kernels cut the window into halves of (size - ep_world_size * 1024) / 2 bytes, which the operator's own \
                 check leaves out: at this size the halves overlap; 1 MB more avoids it",
            ),
        ];
        notes.into_iter().filter(|(applies, _)| *applies).for_each(|(_, text)| note(text));
    }

    /// Returns whether the window passes the operator's check and is too small for the halves that its kernels cut (A3).
    fn halves_overlap(self, asked: Algorithm, config: &Config<'_>) -> bool {
        if !matches!(asked, Algorithm::A3Fullmesh | Algorithm::A3FullmeshV2) {
            return false;
        }
        let buffer = self.buffer(asked, config);
        let (Ok(size), Ok(ranks)) =
            (u64::try_from(config.hccl_buffsize_mb), u64::try_from(config.ep_world_size))
        else {
            return false;
        };
        let left = size.saturating_mul(1 << 20).checked_sub(buffer.bytes());
        left.is_some_and(|left| left < ranks.saturating_mul(1024))
    }
}

fn div_rem_of(number: i64, by: i64) -> Option<(u32, u32)> {
    let (number, by) = (u32::try_from(number).ok()?, u32::try_from(by).ok()?);
    (by > 0).then(|| div_rem(number, by))
}
