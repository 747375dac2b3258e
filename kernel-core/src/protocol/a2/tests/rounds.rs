//! Rounds on reused windows against the reference.

use super::{Delivery, TWO, a2, any_shape, flag_result, plain_result, random_rounds, routed, run};
use crate::shape::{BatchSizes, Buffer, Config, Dtype, Limits, Protocol, Shape};
use crate::sim::cluster::schedule;
use crate::testing::domain::{Dice, Domain, shape as shape_of};
use crate::testing::group::Group;
use crate::testing::random;
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

/// Runs rounds of random traffic: all bytes equal the reference's and no flag is left.
pub(super) fn assert_rounds(shape: &Shape, rounds: usize, flags: bool, delivery: Delivery, seed: u64) {
    let mut dice = Dice(seed);
    let tensors = random_rounds(shape, rounds, flags, &mut dice);
    let mut group = Group::of(shape, tensors, if flags { flag_result } else { plain_result });
    if dice.below(2) == 0 {
        group.near = Delivery::Strong;
    }
    // Both operators use both halves.
    let letters = ["DC", "DDCC", "DDDCCC", "DDCDCC"].map(|letters| schedule(letters, 1));
    let fitting: Vec<_> = letters.into_iter().filter(|s| s.len() == 2 * rounds).collect();
    if dice.below(2) == 0 && !fitting.is_empty() {
        group.operators = fitting[dice.below(fitting.len() as u32) as usize].clone();
    }
    assert_eq!(run(&mut group, delivery, seed), Ok(()), "{shape:?}");
    assert_eq!(group.flags_left(), [], "{shape:?}");
    let peers = shape.ep_world_size() as usize - 1;
    assert_eq!(
        group.memory.posted as usize,
        2 * rounds * (peers + 1) * peers,
        "one task per peer and operator"
    );
}

proptest! {
    #![proptest_config(random::config(40))]

    #[test]
    fn rounds_over_memory_that_delivers_at_once_give_the_oracles_bytes(
        shape in any_shape(), seed: u64, rounds in 1usize..5,
    ) {
        assert_rounds(&shape, rounds, false, Delivery::Strong, seed);
    }

    #[test]
    fn rounds_over_late_and_partial_delivery_give_the_oracles_bytes(
        shape in any_shape(), seed: u64, rounds in 1usize..5,
    ) {
        assert_rounds(&shape, rounds, false, Delivery::Weak, seed);
    }

    #[test]
    fn rows_that_are_full_of_flags_disturb_nothing(
        shape in any_shape(), seed: u64, rounds in 2usize..5, weak: bool,
    ) {
        let delivery = if weak { Delivery::Weak } else { Delivery::Strong };
        assert_rounds(&shape, rounds, true, delivery, seed);
    }
}

#[test]
fn a_rank_alone_sends_to_itself() {
    for cores in 1..=3 {
        let shape = shape_of(&Config { ep_world_size: 1, moe_expert_num: 2, aiv_num: cores, ..a2(TWO) });
        assert_rounds(&shape, 4, true, Delivery::Weak, cores as u64);
    }
}

/// A shape within the product's limits.
fn product_shape(config: Config<'_>) -> Shape {
    let required = Buffer::new(&config).required_mb.cast_signed();
    Shape::new(&Config { hccl_buffsize_mb: required, ..config }, Limits::Product).unwrap()
}

#[test]
fn the_smallest_groups_of_the_product_give_the_oracles_bytes() {
    let config = Config {
        comm_alg: Protocol::Fullmesh,
        ep_world_size: 16,
        moe_expert_num: 48,
        k: 4,
        h: 64,
        bs: BatchSizes::Uniform(5),
        aiv_num: 3,
        ..Config::default()
    };
    assert_rounds(&product_shape(config), 3, false, Delivery::Weak, 1);
    assert_rounds(&product_shape(Config { quant_mode: 2, ..config }), 3, false, Delivery::Weak, 2);
    assert_rounds(
        &product_shape(Config { quant_mode: 2, dtype: Dtype::F16, ..config }),
        3,
        true,
        Delivery::Weak,
        3,
    );
}

#[test]
fn no_core_clears_a_word_of_a_row_that_another_still_sums() {
    // All rows are full of flags, and every core's clears land at once.
    let shape = shape_of(&Config { aiv_num: 3, ..a2(Domain { r: 2, e: 2, k: 1, h: 64, bs: 3, ..TWO }) });
    let tensors = |_| vec![routed(&shape, 0, &[1, 1, 0]), routed(&shape, 1, &[0, 1, 0])];
    for seed in 0..40 {
        let mut group = Group::of(&shape, (0..2).map(tensors).collect(), |shape, _, _, _, _| {
            [0xFF; 2].repeat(shape.h() as usize)
        });
        group.near = Delivery::Strong;
        assert_eq!(run(&mut group, Delivery::Weak, seed), Ok(()), "seed {seed}");
    }
}
