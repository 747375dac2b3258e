//! The A2 hierarchy: every backend gives the bytes of the oracle.

use crate::common::trial::{Trial, make, small};
use crate::common::{fails, json};
use host::backend::lockstep::Memory;
use host::config::{Bs, Config};
use host::driver::threads::Spread;
use host::generate::Options;

/// Servers of so many ranks.
fn servers(number: i64, near: i64, local: i64, k: i64, cores: i64) -> Config {
    let ranks = number * near;
    Config {
        product: "a2".to_owned(),
        comm_alg: "hierarchy".to_owned(),
        server_ranks: near,
        hccl_buffsize_mb: 106,
        ..small(ranks, ranks * local, k, 3, cores)
    }
}

/// A few shapes, quantised in dispatch and in combine, with uneven batches.
fn configs() -> Vec<Config> {
    let uneven = Config { bs: Bs::PerRank(vec![1, 4, 2, 3]), global_bs: 16, ..servers(2, 2, 2, 3, 2) };
    vec![
        servers(2, 2, 1, 2, 1),
        Config { quant_mode: 2, h: 24, ..servers(3, 2, 2, 4, 3) },
        Config { comm_quant_mode: 2, dtype: "f16".to_owned(), h: 24, ..servers(2, 3, 2, 4, 2) },
        Config { quant_mode: 2, comm_quant_mode: 2, ..uneven },
    ]
}

#[test]
fn every_backend_gives_the_bytes_of_the_oracle() {
    for (number, config) in (0..).zip(configs()) {
        let case = make(config, Options { seed: number, ..Options::default() });
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
const SMALL: [&str; 8] =
    ["run", "--preset", "a2-hier-16", "--set", "h=64", "--set", "aiv_num=2", "--rounds=3"];

#[test]
fn a_run_tells_what_crosses_servers_and_what_the_full_mesh_would_send() {
    for backend in ["threads", "lockstep", "weak"] {
        let seen = json(0, &[&SMALL[..], &["--backend", backend]].concat());
        assert_eq!(seen["rounds"], 3);
        for operator in seen["operators"].as_array().unwrap() {
            let servers = &operator["servers"];
            let of = |name: &str| servers[name].as_u64().unwrap();
            // Two servers: a token crosses to the other one at most once, of 256 tokens of 128 B.
            assert!(of("across_bytes") <= 256 * 128 && of("across_bytes") > 0, "{servers}");
            assert!(of("fullmesh_across_bytes") > 2 * of("across_bytes"), "{servers}");
        }
    }
}

#[test]
fn a_silent_rank_is_named_and_stages_are_those_of_the_hierarchy() {
    let line = fails(3, &[&SMALL[..], &["--inject", "silent=5", "--backend", "weak"]].concat());
    assert!(line.contains("rank 5 "), "{line}");
    assert!(fails(2, &[&SMALL[..], &["--stage", "2"]].concat()).contains("this version runs 3"));
    assert!(fails(2, &["run", "--preset", "tiny", "--stage", "3"]).contains("only comm_alg = hierarchy"));
}
