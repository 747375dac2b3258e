//! Ranks that have no tokens and take part all the same: with a batch of 0, or with a mask that leaves none.

use veriep_case::case::Case;
use veriep_case::config::{Bs, Config};
use veriep_core::protocol::{Choices, Flags, Receive, Stage};
use veriep_core::shape::Protocol;
use veriep_group::backend::lockstep::Memory;
use veriep_group::driver::Options;
use veriep_group::driver::threads::Spread;
use veriep_testing::trial::{Trial, idle, seeded, small};

/// Four ranks with two experts each, in every protocol.
fn groups() -> Vec<(Config, Choices)> {
    let plain = Choices::default();
    let four = || small(4, 8, 3, 3, 2);
    let v2 = Config { comm_alg: "fullmesh_v2".to_owned(), h: 210, quant_mode: 2, ..four() };
    let shared =
        Config { shared_expert_rank_num: 1, shared_expert_num: Some(1), moe_expert_num: 6, ..four() };
    let tp = Config { tp_world_size: 2, moe_expert_num: 4, ..four() };
    let a2 = Config { product: "a2".to_owned(), hccl_buffsize_mb: 8, ..four() };
    let hierarchy = Config {
        comm_alg: "hierarchy".to_owned(),
        server_ranks: 2,
        hccl_buffsize_mb: 106,
        comm_quant_mode: 2,
        ..a2.clone()
    };
    let norm = Config { op: "combine_add_rms_norm".to_owned(), ..four() };
    let received = |receive| Choices { receive, ..plain };
    vec![
        (four(), plain),
        (norm, Choices { flags: Flags::Separate, ..plain }),
        (shared.clone(), received(Receive::InPlace)),
        (four(), received(Receive::Direct { areas: 2 })),
        (shared, received(Receive::Overwrite { areas: 2 })),
        (v2, plain),
        (tp, plain),
        (a2, plain),
        (hierarchy.clone(), plain),
        (hierarchy, Choices { stage: Stage::Two, ..plain }),
    ]
}

/// On every backend the bytes are the reference's.
fn assert_agrees(case: &Case, choices: Choices) {
    for schedule in ["DC", "DDCC"] {
        let options = Options { choices, ..Options::default() };
        let trial = Trial { options, ..Trial::new(case, schedule, 4) };
        let expected = trial.in_lockstep(Memory::Strong, 1).unwrap();
        for seed in 0..3 {
            assert!(
                trial.in_lockstep(Memory::Weak, seed).unwrap() == expected,
                "{schedule}, {:?}",
                case.config
            );
        }
        assert!(trial.on_threads(2, Spread::Cores).unwrap() == expected, "{schedule}, {:?}", case.config);
    }
}

#[test]
fn batches_of_no_tokens_give_the_bytes_of_the_oracle() {
    for (config, choices) in groups() {
        for bs in [[3, 0, 2, 1], [0, 0, 0, 3], [2, 0, 0, 0]] {
            let global_bs = 4 * bs.iter().max().unwrap();
            let case = seeded(Config { bs: Bs::PerRank(bs.to_vec()), global_bs, ..config.clone() }, 1);
            assert_agrees(&case, choices);
        }
    }
}

/// The hierarchy has no masks.
#[test]
fn ranks_whose_tokens_are_all_masked_give_the_bytes_of_the_oracle() {
    for (config, choices) in groups() {
        for masked in [&[1][..], &[0, 2, 3], &[0, 1, 2, 3]] {
            let mut case = seeded(config.clone(), 1);
            if case.shape.protocol() == Protocol::Hierarchy {
                continue;
            }
            masked.iter().for_each(|&rank| idle(&mut case, rank));
            assert_agrees(&case, choices);
        }
    }
}
