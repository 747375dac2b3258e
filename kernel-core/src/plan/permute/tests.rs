//! Permutations are compared with rows counted off one by one.

use super::{Cumsum, RecvCounts, add_gather_adds, cumulate};
use crate::layout::a2_window::FLAG;
use crate::placement::Home;
use crate::plan::counts::transposed_prefix;
use crate::shape::Shape;
use crate::testing::domain::{Domain, PAIR};
use crate::testing::random;
use crate::units::{ExpertId, RankId};
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

fn shape(r: u32, local: u32) -> Shape {
    Domain { r: r.into(), e: (r * local).into(), ..PAIR }.shape()
}

/// Computes the prefix sums over (expert, source) of a matrix with a row per source, entry by entry.
fn by_hand(counts: &[u32], experts: usize) -> Vec<u32> {
    let sources = counts.len() / experts;
    let entry = |slot: usize| counts[slot % sources * experts + slot / sources];
    (0..counts.len()).map(|end| (0..=end).map(entry).sum()).collect()
}

fn assert_both_forms(counts: &[u32], experts: usize) {
    let (mut plain, mut vector) = (vec![7; counts.len()], vec![9; counts.len()]);
    transposed_prefix(counts, experts, &mut plain);
    add_gather_adds(&mut counts.to_vec(), experts, &mut vector);
    let expected = by_hand(counts, experts);
    assert_eq!(plain, expected, "plain, {counts:?} with {experts} experts");
    assert_eq!(vector, expected, "add, gather, adds, {counts:?} with {experts} experts");
}

#[test]
fn both_forms_of_the_prefix_are_the_sums_of_all_small_matrices() {
    for (sources, experts) in [(1, 1), (1, 4), (4, 1), (2, 2), (2, 3), (3, 2), (2, 4), (4, 2), (1, 8), (8, 1)]
    {
        let n = sources * experts;
        for code in 0..3u32.pow(n) {
            let counts: Vec<u32> = (0..n).map(|i| code / 3u32.pow(i) % 3).collect();
            assert_both_forms(&counts, experts as usize);
        }
    }
}

proptest! {
    #![proptest_config(random::config(256))]

    #[test]
    fn both_forms_of_the_prefix_are_the_sums(
        sources in 1usize..40, experts in 1usize..=24,
        counts in proptest::collection::vec(0u32..5000, 40 * 24),
    ) {
        assert_both_forms(&counts[..sources * experts], experts);
    }

    #[test]
    fn a_row_of_the_receiver_is_found_where_it_lies(
        r in 1u32..6, local in 1u32..5, counts in proptest::collection::vec(0u32..4, 6 * 5),
    ) {
        let shape = shape(r, local);
        let counts = &counts[..(r * local) as usize];
        let mut sums = vec![0; counts.len()];
        transposed_prefix(counts, local as usize, &mut sums);
        let recv = RecvCounts { shape: &shape, sums: &sums };
        let mut windows = vec![0; r as usize];
        let mut row = 0;
        for expert in 0..local {
            for source in 0..r {
                prop_assert_eq!(recv.first_row(expert, RankId(source)), row);
                prop_assert_eq!(recv.position(expert, RankId(source)), windows[source as usize]);
                let count = counts[(source * local + expert) as usize];
                prop_assert_eq!(recv.rows(expert, RankId(source)), count);
                for _ in 0..count {
                    prop_assert_eq!(recv.source_of(row), (RankId(source), windows[source as usize]));
                    windows[source as usize] += 1;
                    row += 1;
                }
            }
        }
        for source in 0..r {
            prop_assert_eq!(recv.rows_from(RankId(source)), windows[source as usize]);
        }
    }

    #[test]
    fn a_senders_row_follows_all_rows_for_earlier_experts_of_the_rank(
        r in 1u32..6, local in 1u32..5, counts in proptest::collection::vec(0u32..4, 6 * 5),
    ) {
        let shape = shape(r, local);
        let counts = &counts[..(r * local) as usize];
        let mut sums = [counts, &[0]].concat();
        cumulate(&mut sums);
        let sent = Cumsum { shape: &shape, sums: &sums };
        for rank in 0..r {
            let mut position = 0;
            let status = sent.status(RankId(rank));
            for local_expert in 0..local {
                let e = rank * local + local_expert;
                prop_assert_eq!(status[local_expert as usize], counts[e as usize]);
                prop_assert_eq!(sent.rows(ExpertId(e)), counts[e as usize]);
                for slot in 0..counts[e as usize] {
                    let home = Home { rank: RankId(rank), local_expert };
                    prop_assert_eq!(sent.position(home, slot), position);
                    position += 1;
                }
            }
            prop_assert_eq!(sent.rows_to(RankId(rank)), position);
            prop_assert_eq!(status[24], FLAG);
            let rest = status.iter().enumerate().filter(|&(i, _)| i >= local as usize && i != 24);
            prop_assert!(rest.into_iter().all(|(_, &word)| word == 0));
        }
    }
}

#[test]
fn the_matrix_of_the_seed_gives_the_rows_that_rank_0_returns() {
    // The A2 design, section 3.2.2: from expert 0 no row, from expert 1 five, the first of them row 3 of expand_x.
    let shape = shape(4, 2);
    let counts = RecvCounts { shape: &shape, sums: &[1, 1, 2, 3, 3, 8, 10, 12] };
    let to = RankId(1);
    assert_eq!((counts.rows(0, to), counts.first_row(0, to)), (0, 1));
    assert_eq!((counts.rows(1, to), counts.first_row(1, to)), (5, 3));
    assert_eq!([3, 7].map(|row| counts.source_of(row)), [(to, 0), (to, 4)]);
    assert_eq!(counts.source_of(8), (RankId(2), 1), "after its row of expert 0");
}

#[test]
fn a_matrix_without_experts_or_sources_does_not_panic() {
    add_gather_adds(&mut [1, 2], 0, &mut [0; 2]);
    add_gather_adds(&mut [], 3, &mut [0; 2]);
    transposed_prefix(&[1, 2], 0, &mut [0; 2]);
    transposed_prefix(&[], 3, &mut [0; 2]);
}
