//! Which rank hosts which expert.
//!
//! Shared-expert ranks come first (`0 .. Rs`). MoE expert `e` lives on rank `Rs + e / L` as local expert
//! `e % L` (floor: the seed's `Ceil` sends expert 1 of rank 0 to rank 1, see `docs/SEEDS.md`). Each shared
//! expert has `n = Rs / S` replicas; rank `s` sends all its active tokens to shared expert `j` on rank
//! `j * n + s % n` (seed 004 section 2.1, all-in).

use crate::shape::Shape;
use crate::units::{ExpertId, RankId, div_rem};

/// The place of an expert: a rank and its number among that rank's experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Home {
    /// The rank that hosts the expert.
    pub rank: RankId,
    /// Its local number there (0 on a shared-expert rank).
    pub local_expert: u32,
}

impl Shape {
    /// Where MoE expert `e` lives.
    #[must_use]
    pub const fn moe_home(&self, e: ExpertId) -> Home {
        let (rank, local_expert) = div_rem(e.0, self.local_expert_num());
        Home { rank: RankId(self.shared_expert_rank_num() + rank), local_expert }
    }

    /// Where rank `source` sends its tokens for shared expert `j`.
    #[must_use]
    pub const fn shared_home(&self, source: RankId, j: u32) -> Home {
        let n = self.shared_replicas();
        Home { rank: RankId(j * n + div_rem(source.0, n).1), local_expert: 0 }
    }

    /// The shared expert that `rank` holds, if it is a shared-expert rank.
    #[must_use]
    pub const fn shared_expert_of(&self, rank: RankId) -> Option<u32> {
        if rank.0 < self.shared_expert_rank_num() {
            Some(div_rem(rank.0, self.shared_replicas()).0)
        } else {
            None
        }
    }

    /// Whether rank `source` sends to shared-expert rank `to`.
    #[must_use]
    pub const fn sends_to_shared(&self, source: RankId, to: RankId) -> bool {
        match self.shared_expert_of(to) {
            Some(j) => self.shared_home(source, j).rank.0 == to.0,
            None => false,
        }
    }

    /// The row of `scales` and `expert_gain` that belongs to a local expert: shared experts first.
    #[must_use]
    pub const fn expert_row(&self, at: Home) -> u32 {
        match self.shared_expert_of(at.rank) {
            Some(j) => j,
            None => {
                let moe_rank = at.rank.0 - self.shared_expert_rank_num();
                self.shared_expert_num() + moe_rank * self.local_expert_num() + at.local_expert
            }
        }
    }
}
