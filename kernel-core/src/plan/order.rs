//! The order of sending (910C guide, section 2.1): staggered, so that ranks do not all send to the same rank first.

use crate::units::{RankId, div_floor, div_rem};
use core::ops::Range;

/// The order in which a core processes its own items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SendOrder {
    /// From the first to the last.
    Plain,
    /// Rotated by `ep_rank_id % count`.
    #[default]
    Staggered,
    /// Rotated over the destination ranks: of the runs of items with one destination, number `ep_rank_id % runs` comes
    /// first. Rows of combine are sorted by destination; where items are not, as in dispatch, this equals
    /// [`Staggered`](Self::Staggered).
    Destinations,
    /// Rotated by `ep_rank_id % count`, and then every n-th item, so that consecutive items go to different ranks; n is
    /// near 0.618 * count and has no divisor in common with it.
    Stride,
}

/// The path of a core through its items: item number `i` is `(first + i * stride) % count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Path {
    count: u32,
    first: u32,
    stride: u32,
}

impl Path {
    /// The path through no items.
    pub(crate) const EMPTY: Self = Self { count: 0, first: 0, stride: 1 };

    pub(crate) const fn len(self) -> u32 {
        self.count
    }

    /// Returns the `i`-th item, for `i` below the number of items.
    #[inline(always)]
    pub(crate) const fn item(self, i: u32) -> u32 {
        let item = self.first as u64 + i as u64 * self.stride as u64;
        let count = self.count as u64;
        // For consecutive items this avoids a division.
        if item < count {
            item as u32
        } else if item - count < count {
            (item - count) as u32
        } else {
            far(item, count)
        }
    }
}

#[cold]
const fn far(item: u64, count: u64) -> u32 {
    (item - div_floor(item, if count == 0 { 1 } else { count }) * count) as u32
}

impl SendOrder {
    /// Every order.
    pub const ALL: [Self; 4] = [Self::Plain, Self::Staggered, Self::Destinations, Self::Stride];

    /// Returns the `i`-th item that `rank` takes from its share.
    #[inline]
    pub(crate) const fn item(self, share: &Range<u32>, rank: RankId, i: u32) -> u32 {
        share.start + self.path(share.end - share.start, rank).item(i)
    }

    /// Returns the path of `rank` through `count` items.
    #[inline]
    pub(crate) const fn path(self, count: u32, rank: RankId) -> Path {
        let first = match self {
            Self::Plain => 0,
            // Most ranks rotate a share by less than its length, which needs no division.
            _ if rank.0 < count => rank.0,
            _ if count == 0 => 0,
            _ => div_rem(rank.0, count).1,
        };
        let stride = match self {
            Self::Stride => stride(count),
            _ => 1,
        };
        Path { count, first, stride }
    }

    /// Returns the path of `rank` through `count` items sorted by destination, which `destination` returns for each.
    ///
    /// # Errors
    /// The error of `destination`.
    pub(crate) fn path_by<E>(
        self,
        count: u32,
        rank: RankId,
        mut destination: impl FnMut(u32) -> Result<RankId, E>,
    ) -> Result<Path, E> {
        let mut path = self.path(count, rank);
        if self == Self::Destinations {
            let mut starts_before = |end| {
                let (mut stretches, mut last, mut latest) = (0, None, 0);
                for item in 0..count {
                    let to = Some(destination(item)?);
                    if to != last {
                        (stretches, last, latest) = (stretches + 1, to, item);
                    }
                    if stretches == end {
                        break;
                    }
                }
                Ok((stretches, latest))
            };
            let (stretches, _) = starts_before(u32::MAX)?;
            if stretches > 0 {
                (_, path.first) = starts_before(div_rem(rank.0, stretches).1 + 1)?;
            }
        }
        Ok(path)
    }

    /// Returns all items of a share, in the order of `rank`.
    pub fn items(self, share: Range<u32>, rank: RankId) -> impl Iterator<Item = u32> + Clone {
        let path = self.path(share.end - share.start, rank);
        (0..path.len()).map(move |i| share.start + path.item(i))
    }
}

/// Returns the smallest number from 0.618 * `count` on that has no divisor in common with it.
const fn stride(count: u32) -> u32 {
    let mut stride = div_floor(count as u64 * 618, 1000) as u32;
    if stride == 0 {
        stride = 1;
    }
    // The loop ends at `count + 1` at the latest, which is 1 modulo `count`.
    while !coprime(stride, count) {
        stride += 1;
    }
    stride
}

const fn coprime(mut a: u32, mut b: u32) -> bool {
    while b != 0 {
        (a, b) = (b, div_rem(a, b).1);
    }
    a == 1
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
        // The 910C guide, section 2.1, with the rank in place of its 0.
        assert_eq!(items(SendOrder::Staggered, 10..16, 2), [12, 13, 14, 15, 10, 11]);
        assert_eq!(items(SendOrder::Staggered, 10..16, 6), [10, 11, 12, 13, 14, 15]);
    }

    #[test]
    fn an_empty_share_has_no_items_and_asking_does_not_panic() {
        for order in SendOrder::ALL {
            assert!(items(order, 5..5, 3).is_empty());
            assert_eq!(order.item(&(5..5), RankId(3), 0), 5);
        }
    }

    /// Ranks have rows for six ranks each, by destination: at each step every rank sends to another one (910C guide, section
    /// 2.1: rank i begins with rank i). Rotated over rows, whose numbers differ by rank, some would wait for each other.
    #[test]
    fn rotation_over_destinations_begins_with_another_rank_on_each_rank() {
        let rows = |rank: u32| {
            (0..6u32).flat_map(move |to| core::iter::repeat_n(to, 2 + ((rank + to) % 3) as usize))
        };
        let first_to = |order: SendOrder| {
            let of = |rank| {
                let to: Vec<u32> = rows(rank).collect();
                let destination = |item: u32| Ok::<_, ()>(RankId(to[item as usize]));
                let path = order.path_by(to.len() as u32, RankId(rank), destination).unwrap();
                let mut all: Vec<u32> = (0..path.len()).map(|i| path.item(i)).collect();
                let first = to[all[0] as usize];
                let of_first = to.iter().position(|&rank| rank == first);
                assert!(order != SendOrder::Destinations || of_first == Some(all[0] as usize), "rank {rank}");
                all.sort_unstable();
                assert!(all.into_iter().eq(0..to.len() as u32), "{order:?} leaves rows out");
                first
            };
            (0..6).map(of).collect::<Vec<_>>()
        };
        assert_eq!(first_to(SendOrder::Destinations), [0, 1, 2, 3, 4, 5]);
        assert_eq!(first_to(SendOrder::Plain), [0; 6]);
        assert_ne!(first_to(SendOrder::Staggered), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn rotation_over_destinations_reports_the_error_of_an_item() {
        let refused = SendOrder::Destinations
            .path_by(3, RankId(0), |item| if item < 2 { Ok(RankId(item)) } else { Err(item) });
        assert_eq!(refused, Err(2));
    }

    /// Rotation alone is the twin: neighbouring items go out one after the other.
    #[test]
    fn a_stride_takes_every_item_once_and_no_two_neighbours_in_a_row() {
        for count in 1..200 {
            for rank in [0, 1, 7, 100, 1000] {
                let mut taken = items(SendOrder::Stride, 3..3 + count, rank);
                let neighbours = taken.windows(2).filter(|two| two[1] == two[0] + 1).count();
                assert!(count < 5 || neighbours == 0, "{count}: {taken:?}");
                taken.sort_unstable();
                assert!(taken.into_iter().eq(3..3 + count), "{count} items of rank {rank}");
            }
        }
        let rotated = items(SendOrder::Staggered, 0..8, 1);
        assert!(rotated.windows(2).any(|two| two[1] == two[0] + 1));
    }
}
