//! Tests against the reference, over messages that arrive late, in pieces, and in any order within a message.

mod corrupt;
mod slow;
mod words;

use crate::protocol::Stage;
use crate::shape::{BatchSizes, Config, Dtype, Protocol, Shape};
use crate::sim::duty::{Double, Duty, Words};
use crate::sim::seeded::Memory::Weak;
use crate::testing::domain::{Dice, Domain, Tensors, not_all_idle, result_row, row, shape as shape_of};
use crate::testing::group::{Group, unmasked_rounds as random_rounds};
use crate::testing::random;
use alloc::vec::Vec;
use proptest::prelude::*;

/// Two servers of two ranks.
fn small() -> Config<'static> {
    Config {
        comm_alg: Protocol::Hierarchy,
        server_ranks: 2,
        ..Domain { r: 4, e: 8, s: 0, rs: 0, k: 3, h: 8, bs: 3, cores: 1 }.config()
    }
}

/// A group in that stage.
fn group(stage: Stage, shape: &Shape, rounds: Vec<Vec<Tensors>>, letters: &str) -> Group {
    let result = |shape: &Shape, _, source, token, k| result_row(shape, source, token, k);
    Group { near: Weak, ..Group::of(shape, rounds, result).by(letters).in_stage(stage) }
}

fn run(stage: Stage, shape: &Shape, letters: &str, rounds: usize, seed: u64) {
    let mut dice = Dice(seed);
    let rounds = random_rounds(shape, rounds, &mut dice);
    group(stage, shape, rounds, letters).play(Weak, seed).unwrap();
}

#[test]
fn a_token_goes_over_relays_and_back_as_the_oracle_has_it() {
    for (seed, letters) in (0..).zip(["DC", "DC", "DDCC", "DDDCCC"]) {
        for (stage, cores) in [Stage::Two, Stage::Three].into_iter().flat_map(|s| [(s, 1), (s, 2), (s, 3)]) {
            run(stage, &shape_of(&Config { aiv_num: cores, ..small() }), letters, 6, seed);
        }
    }
}

#[test]
fn more_tokens_than_a_word_has_bits_come_back_as_the_oracle_has_them() {
    // 40 tokens: a stream's bitmap of sent sums has two words.
    let domain = Domain { r: 4, e: 8, s: 0, rs: 0, k: 3, h: 8, bs: 40, cores: 2 };
    for stage in [Stage::Two, Stage::Three] {
        run(
            stage,
            &shape_of(&Config { comm_alg: Protocol::Hierarchy, server_ranks: 2, ..domain.config() }),
            "DC",
            1,
            1,
        );
    }
}

#[test]
fn the_rows_of_a_server_are_added_in_the_order_of_k() {
    // 2^24 + 1 - 2^24 is 0 in f32, and from the other end 1.
    let result = |shape: &Shape, _, _, _, k| {
        row(shape.dtype(), shape.h(), |_| [16_777_216.0, 1.0, -16_777_216.0][k as usize])
    };
    let shape = shape_of(&small());
    let mut rounds = random_rounds(&shape, 1, &mut Dice(1));
    for tensors in &mut rounds[0] {
        tensors.ids = [0, 1, 2].repeat(3);
        tensors.weights.fill(1.0);
    }
    Group::of(&shape, rounds, result).by("DC").play(Weak, 1).unwrap();
}

proptest! {
    #![proptest_config(random::config(48))]

    #[test]
    fn every_hierarchy_agrees_with_the_oracle(
        (servers, near, local, k, cores) in (1i64..=3, 1i64..=3, 1i64..=3, 1i64..=4, 1i64..=5),
        (h, quant_mode, comm_quant_mode, f16) in (1i64..=3, any::<bool>(), any::<bool>(), any::<bool>()),
        (letters, types) in (prop::sample::select(&["DC", "DDCC", "DDDCCC"]), 0i64..2),
        (bs, uneven, seed) in (prop::collection::vec(0i64..=5, 9), any::<bool>(), any::<u64>()),
        agent in any::<bool>(),
    ) {
        let r = servers * near;
        let sizes = not_all_idle(&bs[..r as usize]);
        let max = *sizes.iter().max().unwrap();
        let shape = shape_of(&Config {
            server_ranks: near,
            bs: if uneven { BatchSizes::PerRank(&sizes) } else { BatchSizes::Uniform(max) },
            global_bs: max * r,
            quant_mode: if quant_mode { 2 } else { 0 },
            comm_quant_mode: if comm_quant_mode { 2 } else { 0 },
            dtype: if f16 { Dtype::F16 } else { Dtype::Bf16 },
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

/// Returns how many seeds detect that the duty is left out.
fn caught(config: &Config<'_>, duty: Duty, letters: &str) -> usize {
    caught_in(Stage::Three, config, duty, letters)
}

fn caught_in(stage: Stage, config: &Config<'_>, duty: Duty, letters: &str) -> usize {
    let shape = shape_of(config);
    let fails = |&seed: &u64| {
        let mut dice = Dice(seed);
        let rounds = random_rounds(&shape, 6, &mut dice);
        group(stage, &shape, rounds, letters).without(duty.clone()).play(Weak, seed).is_err()
    };
    (0..20).filter(fails).count()
}

#[test]
fn messages_that_overtake_each_other_are_caught() {
    assert!(caught(&small(), Duty::MessageOrder, "DC") > 10);
}

#[test]
fn a_flag_that_is_trusted_for_its_own_record_is_caught() {
    assert!(caught(&small(), Duty::NextFlag, "DC") > 10);
}

#[test]
fn writing_to_a_near_rank_that_has_not_entered_is_caught() {
    assert!(caught(&small(), Duty::Wait(Words::Entered), "DC") > 10);
}

#[test]
fn one_partition_is_caught() {
    assert!(caught(&small(), Duty::Second(Double::Relay), "DC") > 10);
}

#[test]
fn rows_done_without_quiet_are_caught() {
    assert!(caught(&small(), Duty::Quiet, "DC") > 10);
}

#[test]
fn duties_of_an_agent_that_are_left_out_are_caught() {
    let cores = Config { aiv_num: 2, ..small() };
    for (duty, config, least) in [
        (Duty::LastWordLast, small(), 11),
        (Duty::InTime(Words::WindowsOut), small(), 11),
        // The agent must be late by a whole operator.
        (Duty::Second(Double::MessageSlot), small(), 1),
        (Duty::Barrier { even: true, odd: true }, cores, 11),
        (Duty::Second(Double::Relay), small(), 11),
        (Duty::Wait(Words::Entered), small(), 11),
    ] {
        let seen = caught_in(Stage::Two, &config, duty.clone(), "DC");
        assert!(seen >= least, "{duty:?}: {seen} of 20");
    }
}
