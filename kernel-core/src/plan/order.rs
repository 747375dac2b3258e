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
    #[must_use]
    pub const fn item(self, share: &Range<u32>, rank: RankId, i: u32) -> u32 {
        let count = share.end - share.start;
        match self {
            Self::Plain => share.start + i,
            Self::Staggered => share.start + div_rem(rank.0 + i, count).1,
        }
    }
}
