//! The A2 hierarchy: every backend gives the bytes of the oracle.

use crate::common::trial::{Trial, make, small};
use crate::common::{fails, json};
use veriep::backend::lockstep::Memory;
use veriep::config::{Bs, Config};
use veriep::driver;
use veriep::driver::threads::Spread;
use veriep::generate::Options;
use veriep_core::protocol::{Choices, Stage};

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

/// Every case with every schedule, in either stage.
fn trials(mut try_one: impl FnMut(&Trial<'_>, &str)) {
    for (number, config) in (0..).zip(configs()) {
        // The last one has redundant experts.
        let logical_experts = (number == 3).then_some(5);
        let case = make(config, Options { seed: number, logical_experts, ..Options::default() });
        for (schedule, stage) in
            ["DC", "DDCC", "DDDCCC"].into_iter().flat_map(|s| [(s, Stage::Two), (s, Stage::Three)])
        {
            let options = driver::Options {
                choices: Choices { stage, ..Choices::default() },
                ..driver::Options::default()
            };
            let trial = Trial { units: 2, options, ..Trial::new(&case, schedule, 2) };
            try_one(&trial, &format!("{schedule}, {stage:?}, case {number}"));
        }
    }
}

// A trial's outputs are compared with the oracle's as it runs; what it gives is all of them.
#[test]
fn weak_memory_gives_the_bytes_of_the_oracle() {
    trials(|trial, name| {
        let expected = trial.in_lockstep(Memory::Strong, 0).unwrap();
        for seed in 0..4 {
            let seen = trial.in_lockstep(Memory::Weak, seed).unwrap();
            assert!(seen == expected, "{name}, seed {seed}");
        }
    });
}

#[test]
fn every_arrangement_of_threads_gives_the_bytes_of_the_oracle() {
    trials(|trial, name| {
        let seen = trial.on_threads(2, Spread::Ranks).unwrap();
        assert!(seen == trial.on_threads(3, Spread::Cores).unwrap(), "{name}");
    });
}

/// The smallest group of the product with narrow rows.
const SMALL: [&str; 8] =
    ["run", "--preset", "a2-hier-16", "--set", "h=64", "--set", "aiv_num=2", "--rounds=3"];

#[test]
fn a_run_tells_what_crosses_servers_and_what_the_full_mesh_would_send() {
    for (backend, stage) in [("threads", 3), ("lockstep", 3), ("weak", 3), ("threads", 2), ("weak", 2)] {
        let seen = json(0, &[&SMALL[..], &["--backend", backend, "--stage", &stage.to_string()]].concat());
        assert_eq!((&seen["rounds"], &seen["stage"]), (&3.into(), &stage.into()));
        // One namesake, one task.
        assert_eq!(seen["tasks_per_operator"].as_f64(), (stage == 2).then_some(1.0));
        for operator in seen["operators"].as_array().unwrap() {
            let servers = &operator["servers"];
            let of = |name: &str| servers[name].as_u64().unwrap();
            // Two servers: a token crosses to the other one at most once, of 256 tokens of 128 B.
            assert!(of("across_bytes") <= 256 * 128 && of("across_bytes") > 0, "{servers}");
            assert!(of("fullmesh_across_bytes") > 2 * of("across_bytes"), "{servers}");
            // What is written holds these rows, and flags.
            assert!(of("across_written_bytes") > of("across_bytes"), "{servers}");
            assert!(of("inside_written_bytes") > of("inside_bytes"), "{servers}");
        }
    }
}

#[test]
fn the_full_mesh_counts_what_the_hierarchy_says_that_it_would_send() {
    let small = ["--set", "h=64", "--rounds=1", "--backend=lockstep", "--seed=7"];
    let run = |preset: &[&str]| json(0, &[&["run"], preset, &small[..]].concat());
    let hierarchy = run(&["--preset", "a2-hier-16"]);
    let routing = ["--preset", "a2-64", "--set", "ep_world_size=16", "--routing", "node-limited"];
    let mesh = run(&[&routing[..], &["--set", "hccl_buffsize_mb=80"]].concat());
    for operator in 0..2 {
        let of = |seen: &serde_json::Value, name: &str| {
            seen["operators"][operator]["servers"][name].as_u64().unwrap()
        };
        assert_eq!(of(&mesh, "across_bytes"), of(&hierarchy, "fullmesh_across_bytes"));
        assert_eq!(of(&mesh, "inside_bytes"), of(&hierarchy, "fullmesh_inside_bytes"));
        assert!(of(&mesh, "across_bytes") > 2 * of(&hierarchy, "across_bytes"));
    }
}

#[test]
fn a_token_that_crosses_twice_and_a_row_for_nobody_are_wrong_though_every_output_is_right() {
    for (stage, backend) in [("2", "threads"), ("3", "lockstep")] {
        let run = |fault: &str| {
            let line = ["--inject", fault, "--backend", backend, "--stage", stage];
            fails(1, &[&SMALL[..7], &["--rounds=1"], &line].concat())
        };
        let twice = run("twice=5");
        let says = if stage == "2" { "agent of rank 5 has posted" } else { "crossed to server 1 twice" };
        assert!(twice.contains(says), "{twice}");
        let astray = run("astray=5");
        assert!(astray.contains("to rank 6, which needs it not"), "{astray}");
    }
    assert!(fails(2, &[&SMALL[..], &["--inject", "twice=16"]].concat()).contains("rank in [0, 15]"));
    let line = fails(2, &["run", "--preset", "tiny", "--inject", "astray=0"]);
    assert!(line.contains("only comm_alg = hierarchy has relays"), "{line}");
}

#[test]
fn a_silent_rank_is_named_and_stages_are_those_of_the_hierarchy() {
    let line = fails(3, &[&SMALL[..], &["--inject", "silent=5", "--backend", "weak"]].concat());
    assert!(line.contains("rank 5 "), "{line}");
    for only in [&[][..], &["--stage", "2"]] {
        let line = ["--inject", "silent=5", "--backend", "threads", "--deadline", "2"];
        let line = fails(3, &[&SMALL[..], &line, only].concat());
        assert!(line.contains("rank 5"), "{line}");
    }
    assert!(fails(2, &["run", "--preset", "tiny", "--stage", "3"]).contains("only comm_alg = hierarchy"));
}
