//! Counts of received rows and their prefix sums (seed 000 section 2.4; seed: `epRecvCount`).
//!
//! Each core knows the counts of its own dispatch slots. What it must learn from the cores before it is how
//! many rows they have in all, and how many of them belong to the local expert that its own share begins in.

use super::split;
use crate::shape::Shape;
use crate::units::{CoreId, RankId, div_rem};

/// What a core tells the others about its share: rows in all, and rows of the last local expert in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ShareSum {
    /// Rows of the share.
    pub rows: u32,
    /// Those of the local expert that the last slot of the share belongs to.
    pub of_last_expert: u32,
}

impl ShareSum {
    /// Adds the count of slot `slot` of a share that ends at `end`.
    #[must_use]
    pub const fn with(self, shape: &Shape, slot: u32, end: u32, count: u32) -> Self {
        let last = expert_of_slot(shape, slot) == expert_of_slot(shape, end - 1);
        Self {
            rows: self.rows.saturating_add(count),
            of_last_expert: self.of_last_expert.saturating_add(if last { count } else { 0 }),
        }
    }
}

/// The local expert of a dispatch slot.
#[must_use]
pub const fn expert_of_slot(shape: &Shape, slot: u32) -> u32 {
    div_rem(slot, shape.ep_world_size()).0
}

/// What comes before a core's share, folded from the sums of the cores in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Prefix {
    /// Rows before the share: the row of `expand_x` that the share begins with.
    pub rows_before: u32,
    /// Rows before the share that belong to the local expert it begins in.
    pub expert_rows_before: u32,
}

/// Folds the sums of the cores `0, 1, ...` of a rank into the prefix of `core`.
#[must_use]
pub fn prefix(shape: &Shape, rank: RankId, core: CoreId, sums: impl Iterator<Item = ShareSum>) -> Prefix {
    let first = expert_of_slot(shape, split::slots(shape, rank, core).start);
    let mut prefix = Prefix::default();
    for (i, sum) in (0..core.0).zip(sums) {
        let share = split::slots(shape, rank, CoreId(i));
        prefix.rows_before = prefix.rows_before.saturating_add(sum.rows);
        if !share.is_empty() && expert_of_slot(shape, share.end - 1) == first {
            prefix.expert_rows_before = prefix.expert_rows_before.saturating_add(sum.of_last_expert);
        }
    }
    prefix
}
