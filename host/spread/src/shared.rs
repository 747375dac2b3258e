//! The assignment of tokens to the replicas of a shared expert: the rule in use, and the earlier one (910C guide, section
//! 2.1.1), which is kept to print and count it.
//!
//! Earlier, each rank split its tokens evenly over the `n` replicas, in the replicas' order. So every rank sent to every
//! replica, and all began with the first one, while the other replicas received nothing.

use veriep_core::placement::Home;
use veriep_core::plan::route::Send;
use veriep_core::plan::split;
use veriep_core::shape::Shape;
use veriep_core::units::{RankId, div_rem};

/// The distribution of a rank's tokens over the replicas of a shared expert.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SharedSplit {
    /// All to one replica: the rule of [`Shape::shared_home`].
    #[default]
    AllIn,
    /// Evenly over all replicas, in their order (the seed's equal split).
    Even,
}

impl SharedSplit {
    /// Returns the location and the slot there of the `ordinal`-th of `tokens` active tokens of rank `source`, for shared
    /// expert `j`.
    const fn row(self, shape: &Shape, source: RankId, j: u32, ordinal: u32, tokens: u32) -> (Home, u32) {
        match self {
            Self::AllIn => (shape.shared_home(source, j), ordinal),
            Self::Even => {
                let n = shape.shared_replicas();
                let replica = split::even_owner(tokens, n, ordinal);
                let slot = ordinal - split::even(tokens, n, replica).start;
                (Home { rank: RankId(j * n + replica), local_expert: 0 }, slot)
            }
        }
    }

    /// Returns the number of rows that rank `source` with `tokens` active tokens sends to shared-expert rank `to`.
    #[must_use]
    pub const fn count(self, shape: &Shape, source: RankId, to: RankId, tokens: u32) -> u32 {
        match self {
            Self::AllIn if shape.sends_to_shared(source, to) => tokens,
            Self::AllIn => 0,
            Self::Even => {
                let n = shape.shared_replicas();
                let share = split::even(tokens, n, div_rem(to.0, n).1);
                share.end - share.start
            }
        }
    }

    /// Converts a send of rank `source`, planned all-in, to this split, for `tokens` active tokens.
    #[must_use]
    pub const fn resend(self, shape: &Shape, source: RankId, send: Send, tokens: u32) -> Send {
        if send.pair.k < shape.k() {
            return send;
        }
        let (home, slot) = self.row(shape, source, send.pair.k - shape.k(), send.slot, tokens);
        Send { home, slot, ..send }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::shape as shape_of;
    use alloc::collections::BTreeSet;
    use alloc::vec;
    use alloc::vec::Vec;
    use veriep_core::shape::{BatchSizes, Config};

    fn a3_288() -> Shape {
        shape_of(&Config {
            ep_world_size: 288,
            moe_expert_num: 256,
            shared_expert_num: 1,
            shared_expert_rank_num: 32,
            h: 1,
            bs: BatchSizes::Uniform(48),
            ..Config::default()
        })
    }

    /// Returns the number of ranks that send their token number `token` to each shared-expert rank.
    fn at_once(shape: &Shape, split: SharedSplit, token: u32) -> Vec<usize> {
        let mut counts = vec![0; shape.shared_expert_rank_num() as usize];
        for source in (0..shape.ep_world_size()).map(RankId) {
            counts[split.row(shape, source, 0, token, shape.bs(source)).0.rank.index()] += 1;
        }
        counts
    }

    #[test]
    fn the_old_split_sends_288_to_one_and_all_in_9() {
        // The 910C guide, section 2.1.1 counts the 256 MoE ranks, "256 to 1" and "8 to 1"; shared-expert ranks send too.
        let shape = a3_288();
        for token in 0..48 {
            let old = at_once(&shape, SharedSplit::Even, token);
            assert_eq!(old.iter().filter(|&&n| n == 288).count(), 1, "one is overrun");
            assert_eq!(old.iter().filter(|&&n| n == 0).count(), 31, "the others are idle");
            assert_eq!(at_once(&shape, SharedSplit::AllIn, token), [9; 32]);
        }
        assert_eq!(at_once(&shape, SharedSplit::Even, 0)[0], 288, "all begin with the first");
    }

    #[test]
    fn the_old_split_gives_every_token_one_replica_and_row_one_slot() {
        for (s, replicas, tokens) in
            (1..=4).flat_map(|s| (1..=5).flat_map(move |n| (1..=12).map(move |t| (s, n, t))))
        {
            let rs = i64::from(s * replicas);
            let shape = shape_of(&Config {
                ep_world_size: rs + 1,
                moe_expert_num: 1,
                shared_expert_num: s.into(),
                shared_expert_rank_num: rs,
                k: 1,
                h: 1,
                bs: BatchSizes::Uniform(12),
                ..Config::default()
            });
            for source in (0..shape.ep_world_size()).map(RankId) {
                let mut rows = BTreeSet::new();
                for (j, ordinal) in (0..s).flat_map(|j| (0..tokens).map(move |t| (j, t))) {
                    let (home, slot) = SharedSplit::Even.row(&shape, source, j, ordinal, tokens);
                    assert_eq!(shape.shared_expert_of(home.rank), Some(j));
                    assert!(slot < tokens.div_ceil(replicas));
                    assert!(rows.insert((home.rank, slot)), "two rows in one slot");
                }
                for to in (0..shape.shared_expert_rank_num()).map(RankId) {
                    let seen = rows.iter().filter(|(rank, _)| *rank == to).count() as u32;
                    assert_eq!(SharedSplit::Even.count(&shape, source, to, tokens), seen);
                    let all_in = if shape.sends_to_shared(source, to) { tokens } else { 0 };
                    assert_eq!(SharedSplit::AllIn.count(&shape, source, to, tokens), all_in);
                }
                let all_in = |ordinal| SharedSplit::AllIn.row(&shape, source, 0, ordinal, tokens);
                assert!((0..tokens).all(|t| all_in(t) == (shape.shared_home(source, 0), t)));
            }
        }
    }
}
