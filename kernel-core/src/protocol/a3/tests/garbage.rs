//! Memory full of random words: no machine panics, and no step has more effects than a run.

use crate::fabric::Progress;
use crate::layout::state::{Operator, Partition, Slots, core_word, selector};
use crate::place::Place;
use crate::protocol::Flags;
use crate::shape::{Config, Shape};
use crate::sync::flag;
use crate::testing::domain::{Dice, Domain, Tensors, shape as shape_of};
use crate::testing::group::Group;
use crate::testing::random;
use crate::units::{CoreId, RankId};
use alloc::vec::Vec;
use proptest::prelude::*;

/// Returns a word that is wrong in one of many ways, or right, so that machines get far enough.
fn word(dice: &mut Dice) -> u64 {
    let (epoch, rows, last) = (dice.below(4), dice.below(12), dice.below(12));
    match dice.below(9) {
        0 => dice.next(),
        1 => u64::from(dice.below(3)),
        2 | 3 => flag::status(dice.below(4)),
        4 => flag::ARRIVED,
        5 => flag::status(dice.next() as u32),
        6 | 7 => u64::from(epoch) << 62 | u64::from(rows) << 31 | u64::from(last),
        _ => u64::from(epoch) << 62 | dice.next() >> 2,
    }
}

/// Every word that a machine of this shape may observe.
fn words(shape: &Shape) -> Vec<Place> {
    let slots = shape.dispatch_slots() as u32;
    let rows = shape.bs_max() * shape.combine_columns();
    let cores = || (0..shape.aiv_num()).map(CoreId);
    let mut all = Vec::new();
    for partition in [Partition::P0, Partition::P1] {
        all.extend((0..slots).map(|slot| Slots::Shipped.dispatch_status(partition, slot)));
        all.extend((0..slots).map(|slot| Slots::Shipped.token_flag(partition, slot)));
        all.extend((0..rows).map(|slot| Slots::Shipped.combine_status(partition, slot)));
    }
    for kind in [Operator::Dispatch, Operator::Combine] {
        all.extend(cores().map(|core| selector(kind, core)));
    }
    all.extend(cores().flat_map(|core| [0, 1].map(|epoch| core_word(core, epoch))));
    all
}

fn random_group(shape: &Shape, dice: &mut Dice) -> Group {
    let ranks = (0..shape.ep_world_size()).map(RankId);
    let tensors = ranks.map(|rank| Tensors::random(shape, rank, dice)).collect();
    let mut group = Group::new(shape, tensors);
    group.choices.flags = if dice.below(2) == 0 { Flags::Joint } else { Flags::Separate };
    group.one_by_one = if dice.below(2) == 0 { |_| true } else { |_| false };
    // The results of random words are not judged.
    group.judge.lenient = true;
    for rank in (0..shape.ep_world_size()).map(RankId) {
        let window: Vec<u8> = (0..4096).map(|_| dice.next() as u8 & 3).collect();
        group.memory.poke(rank, Place::window(shape.combine_area()), &window);
    }
    for core in group.members.iter_mut().flat_map(|member| &mut member.cores) {
        core.words.iter_mut().for_each(|word| *word = dice.next() as u32);
        core.row.iter_mut().for_each(|byte| *byte = dice.next() as u8);
    }
    group
}

/// Steps cores at random while words are overwritten with random ones; a core that fails stops.
fn run_under_corruption(group: &mut Group, dice: &mut Dice, corruption: u32, scratch_too: bool) {
    let words = words(group.shape);
    let mut alive: Vec<usize> = (0..group.cores()).collect();
    for _ in 0..600 {
        if alive.is_empty() {
            return;
        }
        if dice.below(100) < corruption {
            let rank = RankId(dice.below(group.shape.ep_world_size()));
            let at = words[dice.below(words.len() as u32) as usize];
            group.memory.poke_word(rank, at, word(dice));
        }
        let at = dice.below(alive.len() as u32) as usize;
        if scratch_too && dice.below(100) < corruption {
            let scratch = &mut group.core(alive[at]).words;
            let i = dice.below(scratch.len() as u32) as usize;
            scratch[i] = dice.next() as u32 >> dice.below(33).min(31);
        }
        if !group.step(alive[at]).is_ok_and(|step| step.progress != Progress::Done) {
            alive.remove(at);
        }
    }
}

fn any_shape() -> impl Strategy<Value = Shape> {
    let sizes = (1i64..3, 1i64..3, 0i64..=1, 1i64..=2, 1i64..=3, 1i64..=3);
    (sizes, any::<bool>()).prop_map(|((moe_ranks, local, s, k, bs, cores), quantised)| {
        let e = moe_ranks * local;
        let domain = Domain { r: moe_ranks + s, e, s, rs: s, k: k.min(e), h: 3, bs, cores };
        shape_of(&Config { quant_mode: if quantised { 2 } else { 0 }, ..domain.config() })
    })
}

proptest! {
    #![proptest_config(random::config(400))]

    #[test]
    fn dispatch_survives_any_memory(shape in any_shape(), seed: u64, corruption in 0u32..40, scratch_too: bool) {
        let mut dice = Dice(seed);
        let mut group = random_group(&shape, &mut dice);
        for at in words(&shape) {
            if dice.below(100) < corruption {
                group.memory.poke_word(RankId(0), at, word(&mut dice));
            }
        }
        group.begin_dispatch();
        // Outputs may be written twice when counts are random, so the fabric of the tests must accept that.
        group.memory.rewrites = true;
        run_under_corruption(&mut group, &mut dice, corruption, scratch_too);
    }

    #[test]
    fn combine_survives_any_memory_and_any_returned_rows(shape in any_shape(), seed: u64, corruption in 0u32..40) {
        let mut dice = Dice(seed);
        let mut group = random_group(&shape, &mut dice);
        group.begin_dispatch();
        group.run(|n| dice.below(n as u32) as usize, |_, _| ()).unwrap();
        group.begin_combine();
        for rows in group.members.iter_mut().flat_map(|member| &mut member.returned) {
            for bytes in [&mut rows.assist_info, &mut rows.ep_recv_counts, &mut rows.y] {
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
        run_under_corruption(&mut group, &mut dice, corruption, false);
    }
}
