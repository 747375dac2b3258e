//! The purpose of separate flags: counts are processed while tokens are still on their way. It is measured in steps of a
//! group in lockstep, not in time.

use crate::fabric::Progress;
use crate::protocol::{Choices, Flags};
use crate::shape::{Config, Protocol, Shape};
use crate::testing::domain::{Dice, Domain, PAIR, Tensors, shape as shape_of};
use crate::testing::group::Group;
use crate::units::RankId;
use alloc::vec;
use alloc::vec::Vec;

/// Far more steps, most of them in vain, than any of these groups takes.
const STEPS_MAX: usize = 1_000_000;

/// Returns for each rank the step at which a count was first written, and the one by which its last record had landed.
fn counted_and_arrived(shape: &Shape, choices: Choices, seed: u64) -> Vec<(usize, usize)> {
    let mut dice = Dice(seed);
    let tensors = (0..shape.ep_world_size()).map(|rank| Tensors::random(shape, RankId(rank), &mut dice));
    let mut group = Group::new(shape, tensors.collect());
    group.choices = choices;
    group.begin_dispatch();
    let mut seen = vec![(usize::MAX, 0); shape.ep_world_size() as usize];
    let mut running: Vec<usize> = (0..group.cores()).collect();
    for now in 0..STEPS_MAX {
        let at = dice.below(running.len() as u32) as usize;
        let step = group.step(running[at]).unwrap();
        let rank = group.actors[running[at]].member;
        if step.effect.is_some_and(|effect| effect.starts_with("write   ep_recv_counts")) {
            let (counted, _) = &mut seen[rank.index()];
            *counted = now.min(*counted);
        }
        for (rank, (_, arrived)) in (0..).map(RankId).zip(&mut seen) {
            if group.memory.has_puts_on_their_way_to(rank) {
                *arrived = now + 1;
            }
        }
        if step.progress == Progress::Done {
            running.swap_remove(at);
        }
        if running.is_empty() {
            return seen;
        }
    }
    panic!("{} cores do not end: {shape:?}", running.len());
}

/// Returns how many of 600 ranks of random groups wrote a count before their last record had landed.
fn ahead(comm_alg: Protocol, flags: Flags) -> usize {
    let runs = (0..200).flat_map(|seed| {
        let domain = Domain { r: 3, e: 6, k: 2, bs: 4, cores: 1 + (seed % 3) as i64, ..PAIR };
        let shape = shape_of(&Config { comm_alg, ..domain.config() });
        counted_and_arrived(&shape, Choices { flags, ..Choices::default() }, seed)
    });
    runs.filter(|(counted, arrived)| counted < arrived).count()
}

#[test]
fn separate_but_not_joint_flags_overlap_counts_with_tokens() {
    assert_eq!(ahead(Protocol::FullmeshV1, Flags::Joint), 0);
    let separate = ahead(Protocol::FullmeshV1, Flags::Separate);
    assert!(separate > 500, "{separate} of 600");
}

#[test]
fn fullmesh_v2_overlaps_counts_with_tokens() {
    let blocks = ahead(Protocol::FullmeshV2, Flags::Joint);
    assert!(blocks > 10, "{blocks} of 600");
}
