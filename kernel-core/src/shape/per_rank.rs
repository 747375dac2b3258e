//! A number for each rank, by value.

use super::RANKS_MAX;
use core::fmt;

/// A number for each rank, or for none.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PerRank {
    len: u16,
    /// 0 from `len` on.
    entries: [u16; RANKS_MAX],
}

impl PerRank {
    pub(super) const NONE: Self = Self { len: 0, entries: [0; RANKS_MAX] };

    /// Replaces the numbers by `all`, at most one for each rank.
    pub(super) fn set(&mut self, all: impl Iterator<Item = u16>) {
        *self = Self::NONE;
        for (place, entry) in self.entries.iter_mut().zip(all) {
            *place = entry;
            self.len += 1;
        }
    }

    #[inline]
    pub(super) const fn get(&self, rank: usize) -> Option<u16> {
        match self.entries.split_at_checked(rank) {
            Some((_, [entry, ..])) if rank < self.len() => Some(*entry),
            _ => None,
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u16> {
        self.entries.iter().copied().take(self.len())
    }

    pub(super) const fn len(&self) -> usize {
        self.len as usize
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl fmt::Debug for PerRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
