//! Whole rounds against the reference. The test of the plain layout covers random shapes in every receive mode.

use crate::layout::state::{Direct, Partition, Slots};
use crate::plan::counts::{NEXT_FIRST, Stretch};
use crate::plan::order::SendOrder;
use crate::protocol::a3::tests::rounds::{Extras, assert_rounds};
use crate::protocol::{Choices, Flags, Receive, Stage};
use crate::shape::{BatchSizes, Config};
use crate::sim::storage::Spot;
use crate::testing::domain::{Dice, Domain, PAIR, shape as shape_of};
use crate::testing::group::{Group, in_turn, unmasked_rounds};
use crate::units::RankId;

const ONE: Choices = Choices {
    receive: Receive::Direct { areas: 1 },
    order: SendOrder::Staggered,
    flags: Flags::Joint,
    stage: Stage::Three,
    checked: false,
    slots: Slots::Shipped,
};

#[test]
fn more_cores_than_work_agree_with_the_oracle() {
    let domain = Domain { r: 3, e: 2, s: 1, rs: 1, k: 2, h: 3, bs: 1, cores: 48 };
    assert_rounds(&domain.shape(), 2, Extras::NONE, ONE, &mut Dice(1));
}

#[test]
fn ten_rounds_turn_epochs_partitions_and_areas_all_the_way_round() {
    let domain = Domain { e: 4, k: 2, cores: 3, ..PAIR };
    let areas = |areas| [Receive::Direct { areas }, Receive::Overwrite { areas }];
    for receive in [1, 2].map(areas).into_iter().flatten() {
        let choices = Choices { receive, ..ONE };
        assert_rounds(&domain.shape(), 10, Extras::NONE, choices, &mut Dice(4));
    }
}

#[test]
fn ranks_with_different_batches_and_many_pairs_agree_with_the_oracle() {
    // Also with a shared expert's rank, whose batch is smaller than the others', and with ranks without tokens.
    for (s, bs) in [0, 1].into_iter().flat_map(|s| [[1, 5, 2], [0, 5, 2], [5, 0, 0]].map(|bs| (s, bs))) {
        let domain = Domain { r: 3, e: 6, s, rs: s, k: 2, h: 2, cores: 2, ..PAIR };
        let config = Config { bs: BatchSizes::PerRank(&bs), global_bs: 15, ..domain.config() };
        for receive in [ONE.receive, Receive::Overwrite { areas: 1 }] {
            assert_rounds(&shape_of(&config), 3, Extras::NONE, Choices { receive, ..ONE }, &mut Dice(3));
        }
    }
    // 2 * 40 pairs, 70 slots of one expert: each takes two writes.
    let domain = Domain { r: 70, e: 70, k: 5, h: 1, bs: 16, ..PAIR };
    assert_rounds(&domain.shape(), 1, Extras::NONE, ONE, &mut Dice(2));
}

#[test]
fn tables_of_more_words_than_one_put_has_agree_with_the_oracle() {
    // 70 local experts: counts, grants and sums of a rank take two puts each, in steps of their own.
    let domain = Domain { e: 140, k: 8, h: 1, bs: 16, cores: 2, ..PAIR };
    assert_rounds(&domain.shape(), 2, Extras::NONE, ONE, &mut Dice(2));
}

/// The formula of the proof that no row is granted twice.
#[test]
fn grants_follow_each_other_by_expert_and_source() {
    for cores in [1, 2, 5] {
        let shape = Domain { r: 3, e: 6, k: 3, bs: 5, cores, ..PAIR }.shape();
        let mut group = Group::new(&shape, unmasked_rounds(&shape, 1, &mut Dice(6)).remove(0));
        group.choices = ONE;
        group.begin_dispatch();
        group.run(in_turn(), |_, _| ()).unwrap();
        let entry = |member: RankId, what: Direct, of: RankId, expert| {
            let at = what.entry(&shape, Partition::P0, of, expert);
            let bytes = group.memory.read(Spot { member, batch: 0, at }, 4).unwrap();
            u64::from(u32::from_le_bytes(*bytes.first_chunk().unwrap()))
        };
        let ranks = || (0..shape.ep_world_size()).map(RankId);
        for rank in ranks() {
            let mut first = 0;
            for expert in 0..shape.local_experts(rank) {
                for source in ranks() {
                    assert_eq!(entry(source, Direct::Grants, rank, expert), first, "{source} for {expert}");
                    let rows = entry(rank, Direct::Counts, source, expert);
                    first = NEXT_FIRST.value(&|of| match of {
                        Stretch::First => first,
                        Stretch::Rows => rows,
                    });
                }
            }
            assert!(first > 0, "{rank}");
        }
    }
}
