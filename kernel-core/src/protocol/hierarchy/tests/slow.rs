//! One server with a slow rank or core: steps that the others may take meanwhile, and steps that they may not.

use super::small;
use crate::layout::relay;
use crate::layout::state::Partition;
use crate::protocol::Stage;
use crate::shape::{Config, Shape};
use crate::sim::Actor;
use crate::sim::seeded::Memory::Weak;
use crate::testing::domain::{Dice, OwnedMask, Tensors, shape as shape_of};
use crate::testing::group::{Group, unmasked_rounds as random_rounds};
use crate::units::{CoreId, RankId};
use alloc::vec;
use alloc::vec::Vec;

/// A server of `ranks` ranks with two experts each.
fn one_server(ranks: i64, aiv_num: i64) -> Shape {
    let domain = Config { ep_world_size: ranks, server_ranks: ranks, moe_expert_num: 2 * ranks, ..small() };
    shape_of(&Config { aiv_num, k: 2, ..domain })
}

fn group(stage: Stage, shape: &Shape, round: Vec<Tensors>) -> Group {
    super::group(stage, shape, vec![round], "DC")
}

/// Returns the number of operators that each rank has ended.
fn ended(group: &Group) -> Vec<usize> {
    group.members.iter().map(|member| member.ended).collect()
}

fn random(shape: &Shape) -> Vec<Tensors> {
    random_rounds(shape, 1, &mut Dice(1)).swap_remove(0)
}

/// For this reason the check for entered ranks uses `>=`.
#[test]
fn a_slow_core_goes_on_though_a_near_rank_has_entered_the_next_operator() {
    for stage in [Stage::Two, Stage::Three] {
        // The fifth core has none of the four experts to forward to, so no other core waits for it.
        let shape = one_server(2, 5);
        let mut group = group(stage, &shape, random(&shape));
        group.run_without(|_, actor| actor == Actor { member: RankId(0), core: CoreId(4) }).unwrap();
        assert_eq!(ended(&group), [0, 1], "rank 1 has ended the dispatch");
        assert_eq!(group.memory.word(RankId(0), relay::entered(1)), 2, "and told that it is in combine");
        group.play(Weak, 1).unwrap();
    }
}

#[test]
fn a_near_rank_that_has_not_entered_is_not_written_to() {
    let shape = one_server(3, 2);
    for slow in (0..3).map(RankId) {
        let mut group = group(Stage::Three, &shape, random(&shape));
        group.run_without(|_, actor| actor.member == slow).unwrap();
        assert!(!group.memory.has_puts_on_their_way_to(slow));
        for source in (0..3).map(RankId) {
            let count = relay::count(&shape, Partition::P0, 0, source);
            assert_eq!(group.memory.word(slow, count), 0, "rank {source} wrote to rank {slow}");
        }
        group.play(Weak, 1).unwrap();
    }
}

/// This holds even for a rank without rows to return: it must be heard before memory is reused.
#[test]
fn no_combine_ends_before_every_near_rank_is_done_with_its_rows() {
    let shape = one_server(3, 2);
    for slow in (0..3).map(RankId) {
        let others: Vec<_> = (0..3).filter(|&rank| rank != slow.0.cast_signed()).collect();
        let ids: Vec<_> = others.iter().map(|rank| 2 * rank).collect();
        let tensors = |rank| {
            let ids = ids.repeat(shape.bs(rank) as usize);
            Tensors::new(&shape, rank, ids, OwnedMask::None)
        };
        let mut group = group(Stage::Three, &shape, (0..3).map(RankId).map(tensors).collect());
        // The rank announces that it has entered, to the third rank last, and then stops.
        let has_entered = |group: &Group| group.memory.word(RankId(2), relay::entered(slow.0)) == 2;
        group
            .run_without(|group, actor| {
                let in_combine = actor.member == slow && ended(group)[slow.index()] == 1;
                in_combine && (actor.core != CoreId(0) || has_entered(group))
            })
            .unwrap();
        assert!(has_entered(&group));
        assert_eq!(ended(&group), [1; 3], "rank {slow} is slow");
        group.play(Weak, 1).unwrap();
        assert_eq!(ended(&group), [2; 3]);
    }
}
