//! Whole rounds of many shapes against the reference.

use crate::plan::order::SendOrder;
use crate::protocol::a3::tests::rounds::{Extras, assert_rounds};
use crate::protocol::{Choices, Flags};
use crate::shape::{BatchSizes, Config, Dtype, Protocol};
use crate::testing::domain::{Dice, Domain, PAIR, not_all_idle, shape as shape_of};
use crate::testing::random;
use proptest::prelude::*;

proptest! {
    #![proptest_config(random::config(120))]

    #[test]
    fn rounds_of_any_small_domain_agree_with_the_oracle(
        (moe_ranks, local, s, replicas) in (1i64..4, 1i64..4, 0i64..=2, 1i64..3),
        (k, h, bs, cores) in (1i64..=4, prop_oneof![1i64..=9, 180i64..=260, 1i64..=1000], 1i64..=5, 1i64..=9),
        (quantised, smoothed, f16, plain, prefix_sums) in any::<(bool, bool, bool, bool, bool)>(),
        [zero_expert_num, copy_expert_num, const_expert_num] in prop_oneof![Just([0; 3]), prop::array::uniform3(0i64..3)],
        uneven in prop::option::of(prop::collection::vec(0i64..6, 7)), seed: u64,
    ) {
        let (rs, e) = (s * replicas, moe_ranks * local);
        let domain = Domain { r: moe_ranks + rs, e, s, rs, k: k.min(e), h, bs, cores };
        let uneven = uneven.map(|list| not_all_idle(&list[..domain.r as usize]));
        let shape = shape_of(&Config {
            comm_alg: Protocol::FullmeshV2,
            bs: uneven.as_deref().map_or(BatchSizes::Uniform(bs), BatchSizes::PerRank),
            global_bs: uneven.as_ref().map_or(0, |list| list.iter().max().unwrap() * domain.r),
            zero_expert_num,
            copy_expert_num,
            const_expert_num,
            quant_mode: if quantised { 2 } else { 0 },
            dtype: if f16 { Dtype::F16 } else { Dtype::Bf16 },
            expert_token_nums_type: if prefix_sums { 0 } else { 1 },
            ..domain.config()
        });
        let order = if plain { SendOrder::Plain } else { SendOrder::Staggered };
        assert_rounds(&shape, 3, Extras { smoothed: quantised && smoothed, ..Extras::NONE }, Choices { order, ..Choices::default() }, &mut Dice(seed));
    }
}

#[test]
fn more_cores_than_work_agree_with_the_oracle() {
    let domain = Domain { r: 3, e: 2, s: 1, rs: 1, k: 2, h: 300, bs: 1, cores: 48 };
    let shape = shape_of(&Config { comm_alg: Protocol::FullmeshV2, ..domain.config() });
    assert_rounds(&shape, 2, Extras::NONE, Choices::default(), &mut Dice(1));
}

#[test]
fn ten_rounds_turn_epochs_and_partitions_all_the_way_round() {
    let domain = Domain { e: 4, k: 2, cores: 3, h: 250, ..PAIR };
    let shape = shape_of(&Config { comm_alg: Protocol::FullmeshV2, ..domain.config() });
    // The choice between joint and separate flags belongs to the plain layout and changes nothing here.
    for flags in [Flags::Joint, Flags::Separate] {
        assert_rounds(&shape, 10, Extras::NONE, Choices { flags, ..Choices::default() }, &mut Dice(4));
    }
}
