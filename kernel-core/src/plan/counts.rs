//! Counts of received rows and their prefix sums (A2 design, section 2.4; CANN: `epRecvCount`).
//!
//! Each core knows the counts of its own dispatch slots. From the cores before it, it must learn their total number of
//! rows, and how many of these belong to the local expert in which its own share begins.

use super::split;
use crate::layout::expr::Expr;
use crate::shape::Shape;
use crate::units::{CoreId, RankId};

/// What the next stretch of rows follows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stretch {
    /// The first row of a stretch.
    First,
    /// Its rows.
    Rows,
}

/// The first row of the next stretch, as a formula: how received rows, grants of direct placement and rows of a window of A2
/// follow each other, by local expert and, within one, by source.
pub const NEXT_FIRST: Expr<Stretch> = expr!(Stretch: First + Rows);

/// The sums that a core sends to the others: all rows of its share, and rows of the last local expert in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ShareSum {
    /// The number of rows of the share.
    pub rows: u32,
    /// The number of its rows for the local expert of the share's last slot.
    pub of_last_expert: u32,
}

impl ShareSum {
    /// Adds the count of slot `slot` of a share that ends at `end`.
    #[must_use]
    pub const fn with(self, shape: &Shape, slot: u32, end: u32, count: u32) -> Self {
        let last = expert_of_slot(shape, slot) == expert_of_slot(shape, end.saturating_sub(1));
        Self {
            rows: self.rows.saturating_add(count),
            of_last_expert: self.of_last_expert.saturating_add(if last { count } else { 0 }),
        }
    }
}

/// Returns the local expert of a dispatch slot.
#[must_use]
pub const fn expert_of_slot(shape: &Shape, slot: u32) -> u32 {
    shape.by_ranks(slot).0
}

/// The rows that precede a core's share, folded from the sums of the cores in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Prefix {
    /// The number of rows before the share: the row of `expand_x` at which it begins.
    pub rows_before: u32,
    /// The number of rows before the share that belong to the local expert in which it begins.
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

/// Computes the inclusive prefix sums of the transposed `counts`, which have a row per source and `experts` columns; `sums`
/// is local expert major (CANN: `epRecvCount`). [`add_gather_adds`](super::permute::add_gather_adds) suits a vector unit.
pub fn transposed_prefix(counts: &[u32], experts: usize, sums: &mut [u32]) {
    let columns = (0..experts).map(|expert| counts.iter().skip(expert).step_by(experts.max(1)));
    let mut sum = 0u32;
    for (to, &count) in sums.iter_mut().zip(columns.flatten()) {
        sum = sum.saturating_add(count);
        *to = sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::domain::{Domain, PAIR};
    use crate::testing::random;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const MOE_RANK: RankId = RankId(0);

    fn shape(r: u32, local: u32, cores: u32) -> Shape {
        Domain { r: r.into(), e: (r * local).into(), h: 1, bs: 9, cores: cores.into(), ..PAIR }.shape()
    }

    fn sum(shape: &Shape, core: u32, counts: &[u32]) -> ShareSum {
        let share = split::slots(shape, MOE_RANK, CoreId(core));
        let end = share.end;
        share.fold(ShareSum::default(), |sum, slot| sum.with(shape, slot, end, counts[slot as usize]))
    }

    /// Folds `counts`, slot by slot, over all cores, and compares with sums over the whole.
    fn assert_prefixes(shape: &Shape, counts: &[u32]) {
        let r = shape.ep_world_size() as usize;
        let sums: Vec<_> = (0..shape.aiv_num()).map(|core| sum(shape, core, counts)).collect();
        for core in (0..shape.aiv_num()).map(CoreId) {
            let share = split::slots(shape, MOE_RANK, core);
            if share.is_empty() {
                continue;
            }
            let start = share.start as usize;
            let expert_start = start / r * r;
            let expected = Prefix {
                rows_before: counts[..start].iter().sum(),
                expert_rows_before: counts[expert_start..start].iter().sum(),
            };
            let folded = prefix(shape, MOE_RANK, core, sums.iter().copied());
            assert_eq!(folded, expected, "core {core} of {} over {counts:?}, R = {r}", shape.aiv_num());
        }
    }

    #[test]
    fn folded_sums_of_all_small_counts_are_prefix_sums() {
        for (r, local) in [(1, 1), (1, 3), (2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (1, 6), (6, 1)] {
            let n = r * local;
            for cores in 1..=n + 2 {
                let shape = shape(r, local, cores);
                for code in 0..3u32.pow(n) {
                    let counts: Vec<u32> = (0..n).map(|i| code / 3u32.pow(i) % 3).collect();
                    assert_prefixes(&shape, &counts);
                }
            }
        }
    }

    proptest! {
        #![proptest_config(random::config(256))]

        #[test]
        fn folded_sums_are_prefix_sums(
            r in 1u32..14, local in 1u32..6, cores in 1u32..=48,
            counts in proptest::collection::vec(0u32..10, 14 * 6),
        ) {
            assert_prefixes(&shape(r, local, cores), &counts[..(r * local) as usize]);
        }
    }

    #[test]
    fn the_matrix_of_the_seed_comes_out() {
        // The A2 design, section 3.2.2: counts of expert 0 and 1 from ranks 0 to 3, and their prefix sums.
        let counts = [1, 0, 1, 1, 0, 5, 2, 2];
        let recv_counts = [1, 1, 2, 3, 3, 8, 10, 12];
        for cores in 1..=8 {
            let shape = shape(4, 2, cores);
            let sums: Vec<_> = (0..cores).map(|core| sum(&shape, core, &counts)).collect();
            for core in 0..cores {
                let share = split::slots(&shape, MOE_RANK, CoreId(core));
                let mut rows = prefix(&shape, MOE_RANK, CoreId(core), sums.iter().copied()).rows_before;
                for slot in share {
                    rows += counts[slot as usize];
                    assert_eq!(rows, recv_counts[slot as usize], "slot {slot}, {cores} cores");
                }
            }
        }
    }

    #[test]
    fn a_share_inside_one_expert_counts_all_its_rows_for_that_expert() {
        // R = 4, L = 2 over 3 cores: slots 0..3, 3..6, 6..8.
        let (shape, counts) = (shape(4, 2, 3), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(sum(&shape, 0, &counts), ShareSum { rows: 6, of_last_expert: 6 });
        assert_eq!(sum(&shape, 1, &counts), ShareSum { rows: 15, of_last_expert: 11 });
        assert_eq!(sum(&shape, 2, &counts), ShareSum { rows: 15, of_last_expert: 15 });
    }

    #[test]
    fn a_shared_expert_rank_has_one_expert() {
        let shape = Domain { r: 5, e: 8, s: 1, rs: 1, cores: 2, ..PAIR }.shape();
        assert_eq!(split::slots(&shape, RankId(0), CoreId(1)), 3..5);
        let sums = [ShareSum { rows: 4, of_last_expert: 4 }; 2];
        let expected = Prefix { rows_before: 4, expert_rows_before: 4 };
        assert_eq!(prefix(&shape, RankId(0), CoreId(1), sums.into_iter()), expected);
    }

    #[test]
    fn huge_sums_saturate_and_do_not_panic() {
        let shape = shape(2, 1, 2);
        let sums = [ShareSum { rows: u32::MAX, of_last_expert: u32::MAX }; 2];
        assert_eq!(prefix(&shape, MOE_RANK, CoreId(1), sums.into_iter()).rows_before, u32::MAX);
        assert_eq!(sums[0].with(&shape, 0, 0, 1).rows, u32::MAX);
    }
}
