//! Domains of minimum and maximum size, and special experts, as on A3.

use super::rounds::assert_rounds;
use super::{Delivery, TWO, a2, run};
use crate::place::Tensor;
use crate::plan::split;
use crate::protocol::a2::{scratch_bytes, scratch_words};
use crate::shape::{Config, Shape};
use crate::testing::domain::{Dice, Domain, OwnedMask, Tensors, row, shape as shape_of};
use crate::testing::group::Group;
use crate::testing::random;
use crate::units::{CoreId, RankId};
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

#[test]
fn more_cores_than_work_give_the_oracles_bytes() {
    let shape = shape_of(&a2(Domain { r: 3, e: 3, bs: 1, cores: 48, ..TWO }));
    assert_rounds(&shape, 2, true, Delivery::Weak, 1);
}

#[test]
fn counts_and_indices_longer_than_one_write_give_the_oracles_bytes() {
    // 5 * 16 pairs and 72 slots of one core: each takes two writes.
    let shape = shape_of(&a2(Domain { r: 9, e: 72, k: 5, bs: 16, ..TWO }));
    assert_rounds(&shape, 1, false, Delivery::Weak, 2);
}

#[test]
fn ten_rounds_turn_epochs_and_halves_all_the_way_round() {
    let shape = shape_of(&a2(Domain { cores: 3, ..TWO }));
    assert_rounds(&shape, 10, true, Delivery::Weak, 3);
}

proptest! {
    #![proptest_config(random::config(256))]

    #[test]
    fn the_scratch_is_exactly_as_large_as_the_largest_core_needs(
        (r, local, k, h) in (1i64..9, 1i64..6, 1i64..=16, 1i64..=12), (bs, cores) in (1i64..=40, 1i64..=48), quantised: bool,
    ) {
        let domain = Domain { r, e: r * local, k: k.min(r * local), h: 8 * h, bs, cores, ..TWO };
        let shape = shape_of(&Config { quant_mode: if quantised { 2 } else { 0 }, ..a2(domain) });
        let pairs = (0..shape.aiv_num()).map(|core| split::tokens(&shape, RankId(0), CoreId(core)).len() * shape.k() as usize);
        // The slots of its pairs, rows before each expert and of all, the counts of all sources and their sums.
        let words = pairs.max().unwrap() as i64 + r * local + 1 + 2 * r * local;
        prop_assert_eq!(scratch_words(&shape) as i64, words);
        // A row of dtype, or one of int8 with its scale.
        let bytes = if quantised { (16 * h).max(8 * h + 32) } else { 16 * h };
        prop_assert_eq!(scratch_bytes(&shape) as i64, (bytes + 31) / 32 * 32);
    }
}

/// One rank; its two tokens have three pairs each, of a MoE, a zero and two copy experts, numbered 0 to 3 in this order.
fn specials(ids: [i32; 6], mask: OwnedMask, change: impl FnOnce(&mut Tensors)) -> Vec<f32> {
    let domain = Domain { r: 1, e: 1, k: 3, ..TWO };
    let shape = shape_of(&Config { zero_expert_num: 1, copy_expert_num: 2, ..a2(domain) });
    let mut tensors = Tensors::new(&shape, RankId(0), ids.to_vec(), mask);
    change(&mut tensors);
    let mut group = Group::of(&shape, vec![vec![tensors]], |shape: &Shape, _, _, _, _| {
        row(shape.dtype(), shape.h(), |_| 7.0)
    });
    // The reference agrees.
    assert_eq!(run(&mut group, Delivery::Weak, 1), Ok(()));
    let x_out = group.output(RankId(0), Tensor::XOut).as_chunks().0.iter();
    x_out.map(|&bytes| half::bf16::from_le_bytes(bytes).to_f32()).collect()
}

#[test]
fn tokens_with_special_experts_alone_are_made_of_those() {
    let only = |pairs: [usize; 1]| OwnedMask::Pairs((0..6).map(|pair| pairs.contains(&pair)).collect());
    // The first token gets itself twice, with a weight of 0.25.
    let copies = specials([2, 1, 3, 1, 2, 3], only([0]), |tensors| tensors.x = [0x80, 0x3F].repeat(16));
    assert_eq!(copies, [[0.25; 8], [0.0; 8]].concat());
    let zero = specials([2, 1, 3, 1, 2, 3], only([3]), |_| ());
    assert_eq!(zero, [0.0; 16]);
}

#[test]
fn terms_are_added_in_the_order_of_k() {
    // x, 7 and -x, or x, -x and 7. Next to x = 2^24 an odd number is rounded.
    let sums = specials([2, 0, 3, 2, 3, 0], OwnedMask::None, |tensors| {
        tensors.x = [0x80, 0x4B].repeat(16);
        tensors.weights = vec![1.0, 1.0, -1.0, 1.0, -1.0, 1.0];
    });
    assert_eq!(sums, [[8.0; 8], [7.0; 8]].concat());
}

#[test]
fn a_zero_expert_adds_nothing_whatever_the_weight() {
    // Neither passes the check of the inputs; 0 times either would be NaN.
    let sums = specials([1, 0, 2, 0, 1, 2], OwnedMask::None, |tensors| {
        tensors.weights[0] = f32::INFINITY;
        tensors.weights[4] = f32::NAN;
    });
    assert!(sums.iter().all(|sum| sum.is_finite()), "{sums:?}");
}

#[test]
fn both_operators_move_the_half_and_the_doorbell_on_by_one() {
    use crate::layout::{a2_message::doorbell, a2_window::buffer_chosen};
    let shape = shape_of(&a2(Domain { cores: 2, ..TWO }));
    let tensors = super::random_rounds(&shape, 3, false, &mut Dice(4));
    let mut group = Group::of(&shape, tensors, super::plain_result);
    let all = group.operators.clone();
    for end in 1..=all.len() {
        group.operators = all[..end].to_vec();
        assert_eq!(run(&mut group, Delivery::Weak, end as u64), Ok(()));
        for rank in [0, 1].map(RankId) {
            assert_eq!(group.memory.word(rank, buffer_chosen(&shape)), end as u64 % 2);
            assert_eq!(group.memory.word(rank, doorbell()), end as u64);
        }
        // There is one task for each peer and operator, after each of them.
        assert_eq!(group.memory.posted as usize, 2 * end);
    }
}
