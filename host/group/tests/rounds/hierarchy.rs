//! The A2 hierarchy: every backend gives the bytes of the reference.

use crate::audit::{self, Astray, Redundant};
use veriep_case::case::Case;
use veriep_case::config::{Bs, Config};
use veriep_case::error::Error;
use veriep_case::generate::Options;
use veriep_core::layout::relay;
use veriep_core::protocol::{Choices, Stage};
use veriep_core::units::RankId;
use veriep_group::backend::lockstep::Memory;
use veriep_group::driver;
use veriep_group::driver::threads::Spread;
use veriep_testing::trial::{Trial, make, preset_with, small, workers};

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

// A trial's outputs are compared with the reference's as it runs; what it gives is all of them.
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

#[test]
fn every_transfer_is_that_of_the_plan() {
    trials(|trial, name| {
        for memory in [Memory::Strong, Memory::Weak] {
            let moved = audit::in_lockstep(trial, memory, Redundant::default())
                .unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(moved.len(), trial.units, "{name}");
        }
        for workers in [workers(2, Spread::Ranks), workers(3, Spread::Cores)] {
            audit::on_threads(trial, &workers, Redundant::default())
                .unwrap_or_else(|e| panic!("{name}: {e}"));
        }
    });
}

/// A group of 16 ranks in two servers, by the preset of one protocol.
fn sixteen(name: &str, set: &[&str]) -> Case {
    let (config, _) = preset_with(name, &[&["h=64"], set].concat());
    let (_, routing) = preset_with("a2-hier-16", &[]);
    make(config, Options { routing, seed: 7, ..Options::default() })
}

#[test]
fn the_hierarchy_sends_less_than_half_of_what_the_full_mesh_sends_across_servers() {
    let moved = |case: &Case| {
        let trial = Trial::new(case, "DC", 1);
        audit::in_lockstep(&trial, Memory::Strong, Redundant::default()).unwrap().remove(0)
    };
    let hierarchy = moved(&sixteen("a2-hier-16", &[]));
    let mesh = moved(&sixteen("a2-64", &["ep_world_size=16", "hccl_buffsize_mb=80"]));
    for (hierarchy, mesh) in hierarchy.iter().zip(&mesh) {
        // Two servers: a token crosses to the other one at most once, of 256 tokens of 128 B.
        assert!(hierarchy.across.row_bytes > 0 && hierarchy.across.row_bytes <= 256 * 128, "{hierarchy:?}");
        assert!(hierarchy.across.row_bytes == 128 * hierarchy.across.rows, "{hierarchy:?}");
        assert!(mesh.across.row_bytes > 2 * hierarchy.across.row_bytes, "{hierarchy:?} {mesh:?}");
        for way in [hierarchy.across, hierarchy.inside, mesh.across, mesh.inside] {
            // What is written holds these rows, and flags.
            assert!(way.bytes > way.row_bytes, "{way:?}");
        }
    }
}

#[test]
fn redundant_traffic_is_refused_though_every_output_is_right() {
    let case = sixteen("a2-hier-16", &["aiv_num=2"]);
    let rank = RankId(5);
    let (shape, to) = (&case.shape, RankId(6));
    // The last of all: only a source that sends that expert its whole batch uses it.
    let slot = relay::dispatch_slot(shape, shape.local_expert_num() - 1, RankId(15), shape.bs_max() - 1);
    let at = relay::behind(slot, relay::ROW);
    for (stage, crossed) in [
        (Stage::Two, "the agent of rank 5 has posted 4 tasks in all operators, not 2"),
        (Stage::Three, " crossed to server 1 twice"),
    ] {
        let choices = Choices { stage, ..Choices::default() };
        let options = driver::Options { choices, ..driver::Options::default() };
        let trial = Trial { options, ..Trial::new(&case, "DC", 1) };
        let line = |ran: Result<_, Error>| ran.expect_err("it is redundant").lines().remove(0);
        let both = |redundant| {
            let stepped = line(audit::in_lockstep(&trial, Memory::Strong, redundant));
            [stepped, line(audit::on_threads(&trial, &workers(2, Spread::Ranks), redundant))]
        };
        for twice in both(Redundant { twice: Some(rank), ..Redundant::default() }) {
            assert!(twice.contains(crossed), "{twice}");
        }
        for astray in both(Redundant { astray: Some(Astray { rank, to, at }), ..Redundant::default() }) {
            assert!(astray.contains("to rank 6, which needs it not"), "{astray}");
        }
    }
}
