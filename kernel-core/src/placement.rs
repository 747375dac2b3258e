//! The placement of experts on ranks.
//!
//! Shared-expert ranks come first (`0 .. Rs`). MoE expert `e` lives on rank `Rs + e / L` as local expert
//! `e % L` (floor: the seed's `Ceil` sends expert 1 of rank 0 to rank 1, see `docs/internals/sources.md`). Each shared
//! expert has `n = Rs / S` replicas; rank `s` sends all its active tokens to shared expert `j` on rank
//! `j * n + s % n` (910C guide, section 2.1, all-in).

use crate::shape::Shape;
use crate::units::{ExpertId, RankId};

/// The meaning of an entry of `expert_ids`. Special experts follow the MoE experts, and are never sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Expert {
    /// An expert that lives on some rank.
    Moe(ExpertId),
    /// Adds nothing (CANN: `zeroExpertNum`).
    Zero,
    /// Returns the token itself (CANN: `copyExpertNum`).
    Copy,
    /// Const expert `i` mixes the token with a row of its own (CANN: `constExpertNum`).
    Const(u32),
}

/// The location of an expert: a rank and the expert's number on that rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Home {
    /// The rank that hosts the expert.
    pub rank: RankId,
    /// Its local number there (0 on a shared-expert rank).
    pub local_expert: u32,
}

impl Shape {
    /// Returns the expert that `id` of `expert_ids` names; `None` if it is out of range.
    #[inline]
    #[must_use]
    pub fn expert(&self, id: i32) -> Option<Expert> {
        let id = u32::try_from(id).ok()?;
        let Some(special) = id.checked_sub(self.moe_expert_num()) else {
            return Some(Expert::Moe(ExpertId(id)));
        };
        let Some(after_zeros) = special.checked_sub(self.zero_expert_num()) else {
            return Some(Expert::Zero);
        };
        let Some(constant) = after_zeros.checked_sub(self.copy_expert_num()) else {
            return Some(Expert::Copy);
        };
        (constant < self.const_expert_num()).then_some(Expert::Const(constant))
    }

    /// Returns the MoE expert that `id` of `expert_ids` names, if it is one.
    #[inline]
    pub(crate) const fn moe_expert(&self, id: i32) -> Option<ExpertId> {
        // As unsigned, a negative id is larger than any expert's.
        let id = id.cast_unsigned();
        if id < self.moe_expert_num() { Some(ExpertId(id)) } else { None }
    }

    /// Returns the location of MoE expert `e`.
    #[inline]
    #[must_use]
    pub const fn moe_home(&self, e: ExpertId) -> Home {
        let (rank, local_expert) = self.by_local_experts(e.0);
        Home { rank: RankId(self.shared_expert_rank_num() + rank), local_expert }
    }

    /// Returns the number of servers of the domain (A2).
    #[must_use]
    pub const fn servers(&self) -> u32 {
        self.by_server_ranks(self.ep_world_size()).0
    }

    /// Returns the server of a rank and the rank's number on it.
    #[must_use]
    pub const fn server_of(&self, rank: RankId) -> (u32, u32) {
        self.by_server_ranks(rank.0)
    }

    /// Returns the rank with this number on a server.
    #[must_use]
    pub const fn rank_on(&self, server: u32, number: u32) -> RankId {
        RankId(server * self.server_ranks() + number)
    }

    /// Returns the rank on `server` through which `rank` reaches that server, and which reaches `rank` from there: its
    /// namesake, with the same number.
    #[must_use]
    pub const fn relay(&self, rank: RankId, server: u32) -> RankId {
        self.rank_on(server, self.server_of(rank).1)
    }

    /// Returns the location to which rank `source` sends its tokens for shared expert `j`.
    #[must_use]
    pub const fn shared_home(&self, source: RankId, j: u32) -> Home {
        let n = self.shared_replicas();
        Home { rank: RankId(j * n + self.by_replicas(source.0).1), local_expert: 0 }
    }

    /// Returns the shared expert that `rank` holds, if it is a shared-expert rank.
    #[inline]
    #[must_use]
    pub const fn shared_expert_of(&self, rank: RankId) -> Option<u32> {
        if rank.0 < self.shared_expert_rank_num() { Some(self.by_replicas(rank.0).0) } else { None }
    }

    /// Returns whether rank `source` sends to shared-expert rank `to`.
    #[must_use]
    pub const fn sends_to_shared(&self, source: RankId, to: RankId) -> bool {
        match self.shared_expert_of(to) {
            Some(j) => self.shared_home(source, j).rank.0 == to.0,
            None => false,
        }
    }

    /// Returns the maximum number of rows that rank `source` can send to one expert of rank `to`.
    #[must_use]
    pub fn rows_from(&self, source: RankId, to: RankId) -> u32 {
        let sends = self.shared_expert_of(to).is_none() || self.sends_to_shared(source, to);
        if sends { self.bs(source) } else { 0 }
    }

    /// Returns the row of `scales` and `expert_gain` that belongs to a local expert: shared experts come first.
    #[must_use]
    pub const fn expert_row(&self, at: Home) -> u32 {
        match self.shared_expert_of(at.rank) {
            Some(j) => j,
            None => {
                let moe_rank = at.rank.0 - self.shared_expert_rank_num();
                self.shared_expert_rows() + moe_rank * self.local_expert_num() + at.local_expert
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Config;
    use crate::testing::domain::{Domain, PAIR, shape};
    use alloc::vec;
    use alloc::vec::Vec;

    /// Every valid domain of up to 8 ranks, 12 experts and 4 shared experts.
    fn small_domains() -> impl Iterator<Item = Shape> {
        (1..=8).flat_map(|r| {
            (1..=12).flat_map(move |e| {
                (0..=4).flat_map(move |s| {
                    (0..r).filter_map(move |rs| Domain { r, e, s, rs, ..PAIR }.try_shape())
                })
            })
        })
    }

    fn ranks(shape: &Shape) -> impl Iterator<Item = RankId> + use<> {
        (0..shape.ep_world_size()).map(RankId)
    }

    #[test]
    fn every_moe_expert_has_exactly_one_home_and_homes_are_in_order() {
        let mut domains = 0;
        for shape in small_domains() {
            // Counts off the local experts of all MoE ranks one by one.
            let mut homes = ranks(&shape)
                .filter(|rank| rank.0 >= shape.shared_expert_rank_num())
                .flat_map(|rank| (0..shape.local_experts(rank)).map(move |local| (rank, local)));
            for e in 0..shape.moe_expert_num() {
                let home = shape.moe_home(ExpertId(e));
                assert_eq!(Some((home.rank, home.local_expert)), homes.next(), "expert {e} in {shape:?}");
            }
            assert_eq!(homes.next(), None, "{shape:?}");
            domains += 1;
        }
        assert!(domains > 200, "{domains}");
    }

    #[test]
    fn special_experts_follow_the_moe_experts() {
        for (z, c, q) in (0..3).flat_map(|z| (0..3).flat_map(move |c| (0..3).map(move |q| (z, c, q)))) {
            let config = Config {
                zero_expert_num: z,
                copy_expert_num: c,
                const_expert_num: q,
                ..Domain { e: 4, ..PAIR }.config()
            };
            let shape = shape(&config);
            let mut expected: Vec<_> = (0..4).map(|e| Some(Expert::Moe(ExpertId(e)))).collect();
            expected.extend((0..z).map(|_| Some(Expert::Zero)));
            expected.extend((0..c).map(|_| Some(Expert::Copy)));
            expected.extend((0..q as u32).map(|i| Some(Expert::Const(i))));
            assert_eq!(expected.len(), shape.expert_ids_end() as usize);
            expected.extend([None, None]);
            let seen: Vec<_> = (0..expected.len() as i32).map(|id| shape.expert(id)).collect();
            assert_eq!(seen, expected, "{z} zero, {c} copy, {q} const");
            assert_eq!((shape.expert(-1), shape.expert(i32::MAX)), (None, None));
        }
    }

    #[test]
    fn a_home_is_found_by_rounding_down_not_up() {
        // With Ceil, expert 1 would live on rank 1.
        let shape = Domain { r: 4, e: 8, ..PAIR }.shape();
        let rank = |e| shape.moe_home(ExpertId(e)).rank.0;
        assert_eq!([0, 1, 2, 3, 4, 5, 6, 7].map(rank), [0, 0, 1, 1, 2, 2, 3, 3]);
        let local = |e| shape.moe_home(ExpertId(e)).local_expert;
        assert_eq!([0, 1, 2, 3, 4, 5, 6, 7].map(local), [0, 1, 0, 1, 0, 1, 0, 1]);
    }

    #[test]
    fn a_source_sends_each_shared_expert_to_exactly_one_rank_that_holds_it() {
        for shape in small_domains() {
            for source in ranks(&shape) {
                let mut receivers = vec![0; shape.shared_expert_num() as usize];
                for to in ranks(&shape).filter(|&to| shape.sends_to_shared(source, to)) {
                    receivers[shape.shared_expert_of(to).unwrap() as usize] += 1;
                }
                assert!(receivers.iter().all(|&n| n == 1), "{source}: {receivers:?} in {shape:?}");
                for j in 0..shape.shared_expert_num() {
                    let n = shape.shared_expert_rank_num() / shape.shared_expert_num();
                    let home = shape.shared_home(source, j);
                    assert_eq!(home, Home { rank: RankId(j * n + source.0 % n), local_expert: 0 });
                    assert_eq!(shape.shared_expert_of(home.rank), Some(j));
                    assert!(shape.sends_to_shared(source, home.rank));
                }
            }
        }
    }

    #[test]
    fn the_288_ranks_of_the_seed_send_eight_to_nine_to_one() {
        // The 910C guide, section 2.1: rank i sends to shared expert i % 32.
        let shape = Domain { r: 288, e: 256, s: 1, rs: 32, k: 8, bs: 1, ..PAIR }.shape();
        assert_eq!(shape.shared_home(RankId(287), 0).rank, RankId(287 % 32));
        for to in (0..32).map(RankId) {
            assert_eq!(ranks(&shape).filter(|&from| shape.sends_to_shared(from, to)).count(), 9);
        }
        assert_eq!(shape.moe_home(ExpertId(255)), Home { rank: RankId(287), local_expert: 0 });
    }

    #[test]
    fn rows_of_scales_count_shared_experts_first_and_then_moe_experts() {
        for shape in small_domains() {
            for e in 0..shape.moe_expert_num() {
                let row = shape.expert_row(shape.moe_home(ExpertId(e)));
                assert_eq!(row, shape.shared_expert_num() + e, "expert {e} in {shape:?}");
            }
            for rank in ranks(&shape) {
                if let Some(j) = shape.shared_expert_of(rank) {
                    assert_eq!(shape.expert_row(Home { rank, local_expert: 0 }), j);
                }
            }
        }
    }
}
