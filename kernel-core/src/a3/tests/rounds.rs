//! Whole rounds of many shapes against the oracle. Each step of them is examined by the group: at most one
//! effect, and a pending machine unchanged.

use super::super::{Choices, Combine, Dispatch, Flags, ub_bytes, ub_words};
use crate::layout::state::{Kind, selector};
use crate::plan::order::SendOrder;
use crate::plan::{route, split};
use crate::shape::{BatchSizes, Config, Dtype, Shape};
use crate::testing::domain::{Dice, Domain, PAIR, Tensors, shape as shape_of};
use crate::testing::group::Group;
use crate::units::{CoreId, RankId};
use alloc::vec::Vec;
use proptest::prelude::*;

fn random_tensors(shape: &Shape, smoothed: bool, dice: &mut Dice) -> Vec<Tensors> {
    let tensors = (0..shape.ep_world_size()).map(|rank| Tensors::random(shape, RankId(rank), dice));
    tensors.map(|tensors| if smoothed { tensors.smoothed(shape) } else { tensors }).collect()
}

/// Rounds with fresh routings and masks on one group, in a random interleaving.
fn assert_rounds(shape: &Shape, rounds: u32, smoothed: bool, choices: Choices, dice: &mut Dice) {
    let mut group = Group::new(shape, random_tensors(shape, smoothed, dice));
    group.choices = choices;
    for round in 0..rounds {
        for (rank, tensors) in (0..).map(RankId).zip(&group.tensors) {
            assert_eq!(tensors.inputs().check(shape, rank), Ok(()), "the case must be legal");
        }
        group.begin_dispatch();
        group.run(|n| dice.below(n as u32) as usize, |_, _| ()).unwrap();
        group.check_dispatch();
        group.begin_combine();
        group.run(|n| dice.below(n as u32) as usize, |_, _| ()).unwrap();
        group.check_combine();
        for core in (0..shape.aiv_num()).map(CoreId) {
            for kind in [Kind::Dispatch, Kind::Combine] {
                let mut world = group.world.clone();
                world.settle();
                assert_eq!(world.peek_word(RankId(0), selector(kind, core)), u64::from((round + 1) % 2));
            }
        }
        let mut world = group.world.clone();
        world.settle();
        assert!(world.no_flag_is_left(), "a flag is left after round {round} of {shape:?}");
        group.tensors = random_tensors(shape, smoothed, dice);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]
    #[test]
    fn rounds_of_any_small_domain_give_what_the_oracle_gives(
        (moe_ranks, local, s, replicas) in (1i64..4, 1i64..4, 0i64..=2, 1i64..3),
        (k, h, bs, cores) in (1i64..=4, 1i64..=9, 1i64..=5, 1i64..=5),
        (quantised, smoothed, f16, plain, prefix_sums, separate) in any::<(bool, bool, bool, bool, bool, bool)>(),
        seed: u64,
    ) {
        let (rs, e) = (s * replicas, moe_ranks * local);
        let domain = Domain { r: moe_ranks + rs, e, s, rs, k: k.min(e), h, bs, cores };
        let shape = shape_of(&Config {
            quant_mode: if quantised { 2 } else { 0 },
            dtype: if f16 { "f16" } else { "bf16" },
            expert_token_nums_type: if prefix_sums { 0 } else { 1 },
            ..domain.config()
        });
        prop_assert_eq!(shape.dtype() == Dtype::F16, f16);
        let order = if plain { SendOrder::Plain } else { SendOrder::Staggered };
        let flags = if separate { Flags::Separate } else { Flags::Joint };
        assert_rounds(&shape, 3, quantised && smoothed, Choices { order, flags }, &mut Dice(seed));
    }
}

#[test]
fn more_cores_than_work_give_what_the_oracle_gives() {
    let domain = Domain { r: 3, e: 2, s: 1, rs: 1, k: 2, h: 3, bs: 1, cores: 48 };
    assert_rounds(&domain.shape(), 2, false, Choices::default(), &mut Dice(1));
}

#[test]
fn counts_and_indices_longer_than_one_write_give_what_the_oracle_gives() {
    // 2 * 40 pairs and 70 slots of one expert: each takes two writes.
    let domain = Domain { r: 70, e: 70, k: 40 / 8, h: 1, bs: 16, ..PAIR };
    assert_rounds(&domain.shape(), 1, false, Choices::default(), &mut Dice(2));
}

#[test]
fn ranks_with_batches_of_their_own_give_what_the_oracle_gives() {
    let domain = Domain { r: 3, e: 6, k: 2, h: 2, cores: 2, ..PAIR };
    let config = Config { bs: BatchSizes::PerRank(&[1, 5, 2]), global_bs: 15, ..domain.config() };
    assert_rounds(&shape_of(&config), 3, false, Choices::default(), &mut Dice(3));
}

#[test]
fn ten_rounds_turn_epochs_and_partitions_all_the_way_round() {
    let domain = Domain { e: 4, k: 2, cores: 3, ..PAIR };
    assert_rounds(&domain.shape(), 10, false, Choices::default(), &mut Dice(4));
}

#[test]
fn machines_are_small_enough_to_be_copied_about() {
    assert!(size_of::<Dispatch>() <= 512, "{}", size_of::<Dispatch>());
    assert!(size_of::<Combine>() <= 512, "{}", size_of::<Combine>());
}

proptest! {
    #[test]
    fn the_scratch_holds_what_any_core_of_any_rank_needs(
        (moe_ranks, local, s, replicas) in (1i64..9, 1i64..6, 0i64..=4, 1i64..4),
        (k, h, bs, cores) in (1i64..=16, 1i64..=100, 1i64..=40, 1i64..=48),
    ) {
        let (rs, e) = (s * replicas, moe_ranks * local);
        let domain = Domain { r: moe_ranks + rs, e, s, rs, k: k.min(e), h, bs, cores };
        let shape = domain.shape();
        let mut most = 0;
        for rank in (0..shape.ep_world_size()).map(RankId) {
            for core in (0..shape.aiv_num()).map(CoreId) {
                let pairs = route::share_len(&split::dispatch(&shape, rank, core)) as usize;
                let table = split::slots(&shape, rank, core).len().max(route::destinations(&shape) as usize);
                most = most.max(pairs + table);
            }
        }
        // The core with the most pairs may have one slot less than another.
        prop_assert!((most..=most + 1).contains(&ub_words(&shape)), "{} for {most}", ub_words(&shape));
        prop_assert!(ub_bytes(&shape) as u64 >= shape.row_bytes());
    }
}
