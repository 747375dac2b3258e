//! The order of sending (seed 004 section 2.1): staggered, so that not everybody sends to the same rank first.

use crate::units::{RankId, div_rem};
use core::ops::Range;

/// In which order a core goes through its own items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SendOrder {
    /// From the first to the last.
    Plain,
    /// Rotated by `ep_rank_id % count`.
    #[default]
    Staggered,
}

impl SendOrder {
    /// The `i`-th item that `rank` takes from its share.
    #[inline]
    #[must_use]
    pub const fn item(self, share: &Range<u32>, rank: RankId, i: u32) -> u32 {
        share.start + turned(share.end - share.start, self.turn(share, rank), i)
    }

    /// By how much `rank` turns its share.
    #[inline]
    pub(crate) const fn turn(self, share: &Range<u32>, rank: RankId) -> u32 {
        let count = share.end - share.start;
        match self {
            Self::Plain => 0,
            // Most ranks turn a share by less than its length: there is nothing to divide.
            Self::Staggered if rank.0 < count => rank.0,
            Self::Staggered if count == 0 => 0,
            Self::Staggered => div_rem(rank.0, count).1,
        }
    }

    /// All items of a share, as `rank` takes them.
    pub fn items(self, share: Range<u32>, rank: RankId) -> impl Iterator<Item = u32> + Clone {
        (0..share.end - share.start).map(move |i| self.item(&share, rank, i))
    }
}

/// The `i`-th of `count` items, taken from the `turn`-th on.
#[inline(always)]
pub(crate) const fn turned(count: u32, turn: u32, i: u32) -> u32 {
    let item = turn + i;
    if item < count { item } else { item - count }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn items(order: SendOrder, share: Range<u32>, rank: u32) -> Vec<u32> {
        order.items(share, RankId(rank)).collect()
    }

    #[test]
    fn plain_order_is_the_share_itself() {
        for (start, count) in (0..5).flat_map(|start| (0..12).map(move |count| (start, count))) {
            let share = start..start + count;
            assert!(items(SendOrder::Plain, share.clone(), 7).into_iter().eq(share));
        }
    }

    #[test]
    fn staggered_order_rotates_the_share_by_the_rank() {
        for (start, count) in (0..4).flat_map(|start| (1..14).map(move |count| (start, count))) {
            for rank in 0..30 {
                let mut expected: Vec<u32> = (start..start + count).collect();
                expected.rotate_left((rank % count) as usize);
                assert_eq!(items(SendOrder::Staggered, start..start + count, rank), expected, "rank {rank}");
            }
        }
    }

    #[test]
    fn rank_two_of_six_begins_with_its_third_item() {
        // Seed 004 section 2.1, with the rank in place of the seed's 0.
        assert_eq!(items(SendOrder::Staggered, 10..16, 2), [12, 13, 14, 15, 10, 11]);
        assert_eq!(items(SendOrder::Staggered, 10..16, 6), [10, 11, 12, 13, 14, 15]);
    }

    #[test]
    fn an_empty_share_has_no_items_and_asking_does_not_panic() {
        for order in [SendOrder::Plain, SendOrder::Staggered] {
            assert!(items(order, 5..5, 3).is_empty());
            assert_eq!(order.item(&(5..5), RankId(3), 0), 5);
        }
    }
}
