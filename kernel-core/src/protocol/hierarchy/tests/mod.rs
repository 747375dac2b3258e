//! Against the oracle, over messages that arrive late, in pieces and in any order inside.

mod corrupt;
mod slow;

use crate::layout::relay;
use crate::protocol::Stage;
use crate::shape::{BatchSizes, Config, Shape};
use crate::testing::domain::{Dice, Domain, result_row, shape as shape_of};
use crate::testing::messages::Loose;
use crate::testing::nic::Bend;
use crate::testing::random;
use crate::testing::servers::{Group, random_rounds};
use proptest::prelude::*;

/// Two servers of two ranks.
fn small() -> Config<'static> {
    Config {
        product: "a2",
        comm_alg: "hierarchy",
        server_ranks: 2,
        ..Domain { r: 4, e: 8, s: 0, rs: 0, k: 3, h: 8, bs: 3, cores: 1 }.config()
    }
}

fn run(stage: Stage, shape: &Shape, letters: &str, rounds: usize, seed: u64) {
    let mut dice = Dice(seed);
    let rounds = random_rounds(shape, rounds, &mut dice);
    let mut group = Group::new(shape, rounds, letters, result_row);
    group.stage = stage;
    group.run(&mut dice).unwrap();
}

#[test]
fn a_token_goes_over_relays_and_back_as_the_oracle_has_it() {
    for (seed, letters) in (0..).zip(["DC", "DC", "DDCC", "DDDCCC"]) {
        for (stage, cores) in [Stage::Two, Stage::Three].into_iter().flat_map(|s| [(s, 1), (s, 2), (s, 3)]) {
            run(stage, &shape_of(&Config { aiv_num: cores, ..small() }), letters, 6, seed);
        }
    }
}

proptest! {
    #![proptest_config(random::config(48))]

    #[test]
    fn every_hierarchy_agrees_with_the_oracle(
        (servers, near, local, k, cores) in (1i64..=3, 1i64..=3, 1i64..=3, 1i64..=4, 1i64..=5),
        (h, quant_mode, comm_quant_mode, f16) in (1i64..=3, any::<bool>(), any::<bool>(), any::<bool>()),
        (letters, types) in (prop::sample::select(&["DC", "DDCC", "DDDCCC"]), 0i64..2),
        (bs, uneven, seed) in (prop::collection::vec(1i64..=5, 9), any::<bool>(), any::<u64>()),
        agent in any::<bool>(),
    ) {
        let r = servers * near;
        let sizes = &bs[..r as usize];
        let max = *sizes.iter().max().unwrap();
        let shape = shape_of(&Config {
            server_ranks: near,
            bs: if uneven { BatchSizes::PerRank(sizes) } else { BatchSizes::Uniform(max) },
            global_bs: max * r,
            quant_mode: if quant_mode { 2 } else { 0 },
            comm_quant_mode: if comm_quant_mode { 2 } else { 0 },
            dtype: if f16 { "f16" } else { "bf16" },
            expert_token_nums_type: types,
            ep_world_size: r,
            moe_expert_num: r * local,
            k: k.min(r * local),
            h: 8 * h,
            aiv_num: cores,
            ..small()
        });
        let stage = if agent { Stage::Two } else { Stage::Three };
        run(stage, &shape, letters, if letters.len() == 6 { 3 } else { 4 }, seed);
    }
}

/// How many of so many seeds show that something is left out.
fn caught(config: &Config<'_>, loose: Loose, letters: &str) -> usize {
    caught_in(Stage::Three, config, Bend::Servers(loose), letters)
}

fn caught_in(stage: Stage, config: &Config<'_>, bend: Bend, letters: &str) -> usize {
    let shape = shape_of(config);
    let fails = |&seed: &u64| {
        let mut dice = Dice(seed);
        let rounds = random_rounds(&shape, 6, &mut dice);
        let mut group = Group::new(&shape, rounds, letters, result_row);
        group.world.bend = bend.clone();
        group.stage = stage;
        group.run(&mut dice).is_err()
    };
    (0..20).filter(fails).count()
}

#[test]
fn messages_that_overtake_each_other_are_caught() {
    assert!(caught(&small(), Loose::Messages, "DC") > 10);
}

#[test]
fn a_flag_that_is_trusted_for_its_own_record_is_caught() {
    let pitch = relay::record_pitch(&shape_of(&small()));
    assert!(caught(&small(), Loose::OwnFlags(pitch), "DC") > 10);
}

#[test]
fn writing_to_a_near_rank_that_has_not_entered_is_caught() {
    assert!(caught(&small(), Loose::Unentered, "DC") > 10);
}

#[test]
fn one_partition_is_caught() {
    assert!(caught(&small(), Loose::OnePartition, "DC") > 10);
}

#[test]
fn rows_done_without_quiet_are_caught() {
    assert!(caught(&small(), Loose::Quiet, "DC") > 10);
}

#[test]
fn duties_of_an_agent_that_are_left_out_are_caught() {
    let cores = Config { aiv_num: 2, ..small() };
    for (bend, config, least) in [
        (Bend::LastWordFirst, small(), 11),
        (Bend::LateWrites, small(), 11),
        // An agent must be an operator late.
        (Bend::OneMessageSlot, small(), 1),
        (Bend::OpenBarrier, cores, 11),
        (Bend::Servers(Loose::OnePartition), small(), 11),
        (Bend::Servers(Loose::Unentered), small(), 11),
    ] {
        let seen = caught_in(Stage::Two, &config, bend.clone(), "DC");
        assert!(seen >= least, "{bend:?}: {seen} of 20");
    }
}
