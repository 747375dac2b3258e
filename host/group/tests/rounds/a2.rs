//! The A2 full mesh: every backend gives the bytes of the reference, agents included.

use crate::audit::{self, Redundant};
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::sync::OnceLock;
use std::time::Instant;
use veriep_case::config::{Bs, Config};
use veriep_case::generate::{MaskKind, Options};
use veriep_core::fabric::nic::{Nic, Post, Transfer};
use veriep_core::fabric::{Fabric, Fault};
use veriep_core::place::Place;
use veriep_core::units::{CoreId, RankId};
use veriep_group::backend::Layer;
use veriep_group::backend::lockstep::Memory;
use veriep_group::backend::shared::SharedMemory;
use veriep_group::driver;
use veriep_group::driver::threads::{Spread, Workers};
use veriep_testing::trial::{Trial, make, small, workers};

fn a2(ranks: i64, local: i64, k: i64, bs: i64, cores: i64) -> Config {
    Config { product: "a2".to_owned(), hccl_buffsize_mb: 8, ..small(ranks, ranks * local, k, bs, cores) }
}

/// A few shapes, quantised and not, with masks and special experts.
fn configs() -> Vec<(Config, Options)> {
    let plain = Options::default();
    let uneven = Config { bs: Bs::PerRank(vec![3, 1, 0, 2]), global_bs: 16, ..a2(4, 2, 2, 3, 3) };
    let below_capacity = Config { global_bs: 12, ..a2(3, 2, 2, 2, 2) };
    let specials = Config { zero_expert_num: 1, copy_expert_num: 2, ..a2(3, 2, 3, 3, 2) };
    vec![
        (a2(2, 1, 1, 2, 1), plain),
        (a2(4, 2, 2, 3, 3), Options { mask: MaskKind::Pairs, ..plain }),
        (Config { quant_mode: 2, h: 64, ..a2(3, 3, 4, 3, 4) }, Options { smooth_scales: true, ..plain }),
        (Config { dtype: "f16".to_owned(), ..specials }, Options { mask: MaskKind::Tokens, ..plain }),
        (uneven.clone(), Options { mask: MaskKind::Pairs, ..plain }),
        (uneven, Options { mask: MaskKind::Tokens, ..plain }),
        (below_capacity, Options { mask: MaskKind::Tokens, ..plain }),
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

#[test]
fn every_window_has_the_rows_of_the_plan() {
    for (number, (config, options)) in (0..).zip(configs()) {
        let case = make(config, Options { seed: number, ..options });
        for schedule in ["DC", "DDCC"] {
            let trial = Trial { units: 2, ..Trial::new(&case, schedule, 2) };
            for memory in [Memory::Strong, Memory::Weak] {
                let moved = audit::in_lockstep(&trial, memory, Redundant::default()).unwrap();
                assert_eq!(moved.iter().map(Vec::len).collect::<Vec<_>>(), [2 * schedule.len(); 2]);
            }
            audit::on_threads(&trial, &workers(2, Spread::Ranks), Redundant::default()).unwrap();
            audit::on_threads(&trial, &workers(3, Spread::Cores), Redundant::default()).unwrap();
        }
    }
}

/// Rank 0's agent finds no room for its combine until its rank's cores have long ended.
#[derive(Debug)]
struct Late {
    tasks: u32,
    posted: AtomicU32,
    since: OnceLock<Instant>,
}

impl Layer for Late {
    fn fabric<'b, F: Fabric + 'b>(&'b self, _rank: RankId, _core: CoreId, inner: F) -> impl Fabric {
        inner
    }

    fn nic<'b, N: Nic + 'b>(&'b self, rank: RankId, inner: N) -> impl Nic {
        LateNic { late: (rank == RankId(0)).then_some(self), inner }
    }
}

struct LateNic<'l, N> {
    late: Option<&'l Late>,
    inner: N,
}

impl<N: Nic> Nic for LateNic<'_, N> {
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        self.inner.observe(at)
    }

    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault> {
        let Some(late) = self.late else { return self.inner.post(transfer) };
        if late.posted.load(Ordering::Relaxed) >= late.tasks
            && late.since.get_or_init(Instant::now).elapsed() < Duration::from_millis(100)
        {
            return Ok(Post::Busy);
        }
        late.posted.fetch_add(1, Ordering::Relaxed);
        self.inner.post(transfer)
    }
}

#[test]
fn a_unit_lasts_until_its_agents_have_served_all() {
    let case = make(a2(2, 1, 1, 2, 1), Options { seed: 3, ..Options::default() });
    // Two cores and two agents, each with a worker of its own.
    let workers = Workers { deadline: Duration::from_secs(2), ..workers(4, Spread::Cores) };
    let late = Late { tasks: 1, posted: AtomicU32::new(0), since: OnceLock::new() };
    let trial = Trial::new(&case, "DC", 1);
    let backend = late.over(SharedMemory::new(&case, trial.batches()).unwrap());
    trial.run(&backend, |unit| driver::threads::run(unit, &workers)).unwrap();
    assert!(backend.layer.since.get().is_some(), "the agent was never late");
}
