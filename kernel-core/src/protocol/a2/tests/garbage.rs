//! Memory full of random words: no machine panics, no step has more than one effect, and no transfer leaves its window.

use super::{Delivery, a2, any_shape, plain_result, random_rounds};
use crate::layout::a2_message::{doorbell, task_word};
use crate::layout::a2_window::{FLAG, FLAG1, buffer_chosen, next_flag_place, window_in};
use crate::layout::state::{Partition, core_word};
use crate::place::Place;
use crate::shape::Shape;
use crate::testing::domain::{Dice, Domain, PAIR, shape as shape_of};
use crate::testing::group::Group;
use crate::testing::random;
use crate::units::{CoreId, RankId};
use alloc::vec::Vec;
use proptest::prelude::*;

/// Returns a word that is wrong in one of many ways, or right, so that machines get far enough.
fn word(dice: &mut Dice) -> u64 {
    match dice.below(8) {
        0 => dice.next(),
        1 | 2 => u64::from(dice.below(4)),
        3 | 4 => FLAG.into(),
        5 => u64::from(dice.below(4)) << 62,
        6 => u64::from(dice.below(3)) << 32 | u64::from(dice.below(3)),
        _ => dice.next() >> dice.below(64),
    }
}

/// Words that a machine or an agent may observe.
fn words(shape: &Shape) -> Vec<Place> {
    let mut all = Vec::from([doorbell(), buffer_chosen(shape)]);
    for half in [Partition::P0, Partition::P1] {
        for rank in (0..shape.ep_world_size()).map(RankId) {
            all.extend((0..4).map(|i| task_word(half, rank, i)));
            all.extend([0, 8, FLAG1].map(|at| window_in(shape, half, rank, at)));
            let mut at = 0;
            for _ in 0..40 {
                at = next_flag_place(shape, at + 1);
                all.push(window_in(shape, half, rank, at));
            }
        }
    }
    let cores = (0..shape.aiv_num()).map(CoreId);
    all.extend(cores.flat_map(|core| [0, 1].map(|epoch| core_word(core, epoch))));
    all
}

/// Steps actors at random while words and scratch are overwritten with random values; an actor that fails stops.
fn run_under_corruption(group: &mut Group, dice: &mut Dice, corruption: u32) {
    let words = words(group.shape);
    let mut alive: Vec<usize> = (0..group.actors.len()).collect();
    for _ in 0..1500 {
        if alive.is_empty() {
            return;
        }
        if dice.below(200) < corruption {
            let rank = RankId(dice.below(group.shape.ep_world_size()));
            let at = words[dice.below(words.len() as u32) as usize];
            group.memory.poke_word(rank, at, word(dice));
        }
        if dice.below(1000) < corruption {
            let core = dice.below(group.cores() as u32) as usize;
            let scratch = &mut group.core(core).words;
            let i = dice.below(scratch.len() as u32) as usize;
            scratch[i] = dice.next() as u32 >> dice.below(32);
        }
        if let (0, Some(&first)) = (dice.below(8), group.memory.transfers().first()) {
            group.memory.land(first, 8 * u64::from(dice.below(200)));
        }
        let at = dice.below(alive.len() as u32) as usize;
        if group.act(alive[at]).is_err() {
            alive.remove(at);
        }
    }
}

proptest! {
    #![proptest_config(random::config(120))]

    #[test]
    fn machines_and_agents_survive_any_memory(shape in any_shape(), seed: u64, corruption in 1u32..60) {
        let mut dice = Dice(seed);
        let tensors = random_rounds(&shape, 2, false, &mut dice);
        let mut group = Group::of(&shape, tensors, plain_result);
        // Outputs may be written twice when counts are random, so the fabric of the tests must accept that.
        group.memory.rewrites = true;
        group.begin_all();
        run_under_corruption(&mut group, &mut dice, corruption);
    }

    #[test]
    fn combine_survives_any_returned_rows(seed: u64, corruption in 1u32..60) {
        let mut dice = Dice(seed);
        let shape = shape_of(&a2(Domain { r: 2, e: 4, k: 2, h: 8, bs: 3, cores: 2, ..PAIR }));
        let tensors = random_rounds(&shape, 1, false, &mut dice);
        let mut group = Group::of(&shape, tensors, plain_result);
        let combine = group.operators.split_off(1);
        group.play(Delivery::Strong, seed).unwrap();
        group.operators.extend(combine);
        for rows in group.members.iter_mut().flat_map(|member| &mut member.returned) {
            for bytes in [&mut rows.y, &mut rows.ep_recv_counts, &mut rows.expand_idx] {
                for byte in bytes.iter_mut() {
                    if dice.below(400) < corruption {
                        *byte = dice.next() as u8;
                    }
                }
                if dice.below(200) < corruption {
                    bytes.truncate(dice.below(bytes.len() as u32 + 1) as usize);
                }
            }
        }
        group.begin_all();
        run_under_corruption(&mut group, &mut dice, 0);
    }
}
