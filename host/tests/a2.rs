//! The A2 full mesh: every backend gives the bytes of the oracle, agents included.

mod common;

use common::trial::{Trial, make, small};
use common::{fails, json};
use host::backend::lockstep::Memory;
use host::config::Config;
use host::driver::threads::Spread;
use host::generate::{MaskKind, Options};

fn a2(ranks: i64, local: i64, k: i64, bs: i64, cores: i64) -> Config {
    Config { product: "a2".to_owned(), hccl_buffsize_mb: 8, ..small(ranks, ranks * local, k, bs, cores) }
}

/// A few shapes, quantised and not, with masks and special experts.
fn configs() -> Vec<(Config, Options)> {
    let plain = Options::default();
    let specials = Config { zero_expert_num: 1, copy_expert_num: 2, ..a2(3, 2, 3, 3, 2) };
    vec![
        (a2(2, 1, 1, 2, 1), plain),
        (a2(4, 2, 2, 3, 3), Options { mask: MaskKind::Pairs, ..plain }),
        (Config { quant_mode: 2, h: 64, ..a2(3, 3, 4, 3, 4) }, Options { smooth_scales: true, ..plain }),
        (Config { dtype: "f16".to_owned(), ..specials }, Options { mask: MaskKind::Tokens, ..plain }),
    ]
}

#[test]
fn every_backend_gives_the_bytes_of_the_oracle() {
    for (number, (config, options)) in (0..).zip(configs()) {
        let case = make(config, Options { seed: number, ..options });
        for schedule in ["DC", "DDCC", "DDDCCC"] {
            let trial = Trial { units: 2, ..Trial::new(&case, schedule, 2) };
            let expected = trial.in_lockstep(Memory::Strong, number).unwrap();
            for seed in 0..6 {
                let seen = trial.in_lockstep(Memory::Weak, seed).unwrap();
                assert!(seen == expected, "{schedule}, case {number}, weak memory, seed {seed}");
            }
            for (workers, spread) in [(2, Spread::Ranks), (3, Spread::Cores)] {
                let seen = trial.on_threads(workers, spread).unwrap();
                assert!(seen == expected, "{schedule}, case {number}, {workers} threads");
            }
        }
    }
}

/// The smallest group of the product with narrow rows.
const SMALL: [&str; 14] = [
    "run",
    "--preset",
    "a2-64",
    "--set",
    "ep_world_size=16",
    "--set",
    "moe_expert_num=32",
    "--set",
    "h=64",
    "--set",
    "bs=2",
    "--set",
    "hccl_buffsize_mb=16",
    "--rounds=3",
];

#[test]
fn a_run_tells_how_many_tasks_an_agent_posts_in_an_operator() {
    for backend in ["threads", "lockstep", "weak"] {
        let seen = json(0, &[&SMALL[..], &["--backend", backend]].concat());
        assert_eq!(seen["tasks_per_operator"], 15.0, "one for each peer, on {backend}");
        assert_eq!(seen["rounds"], 3);
    }
}

#[test]
fn a_rank_whose_agent_is_silent_is_named() {
    let silent = ["--inject", "silent=5", "--deadline", "2"];
    let line = fails(3, &[&SMALL[..], &silent].concat());
    assert!(line.contains("waiting for rank 5 ") && line.contains("missing: counts of rank 5"), "{line}");
    let silent = ["--inject", "silent=5", "--backend", "weak"];
    let line = fails(3, &[&SMALL[..], &silent].concat());
    assert!(line.contains("missing: counts of rank 5"), "{line}");
}
