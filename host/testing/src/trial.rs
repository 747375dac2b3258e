//! A group that is run and judged: which rounds, in which order, on what.

use crate::tier;
use crate::twins::{Duty, Twisted};
use core::ops::Range;
use core::time::Duration;
use veriep_case::batch::Batch;
use veriep_case::case::{Case, OwnedMask};
use veriep_case::config::Config;
use veriep_case::error::Error;
use veriep_case::generate::{self, Left, Routing, generate_left};
use veriep_case::global_rank;
use veriep_case::presets::preset;
use veriep_core::layout::outputs::{capacity, ep_recv_counts_bytes};
use veriep_core::place::Tensor;
use veriep_core::shape::{Limits, Op};
use veriep_core::units::RankId;
use veriep_group::backend::lockstep::{Lockstep, Memory};
use veriep_group::backend::rank_remap::RankRemap;
use veriep_group::backend::shared::SharedMemory;
use veriep_group::backend::{Backend, Layer};
use veriep_group::driver::lockstep::Clockwork;
use veriep_group::driver::schedule::Schedule;
use veriep_group::driver::threads::{Spread, Times, Workers};
use veriep_group::driver::{self, Options, Unit};
use veriep_group::group::{self, Plan};
use veriep_group::world::World;

/// Threads that any test drives a group with, at most.
pub const WORKERS_MAX: usize = 8;

#[derive(Clone, Copy)]
pub struct Trial<'a> {
    pub case: &'a Case,
    /// The operators that all ranks run without a stop in between, over and over.
    pub schedule: &'a str,
    /// Repetitions of the schedule without a stop.
    pub chain: usize,
    /// How often that.
    pub units: usize,
    pub options: Options,
    pub traffic: Traffic<'a>,
}

/// What the rounds bring.
#[derive(Clone, Copy)]
pub enum Traffic<'a> {
    Varied,
    /// Who sends what to whom is the case's in every round; signs differ from those of the round before last.
    Same,
    /// These inputs of each round.
    Own(&'a dyn Fn(usize) -> Batch<'a>),
}

impl<'a> Traffic<'a> {
    fn of_round(self, case: &'a Case, round: usize, rounds: usize) -> Batch<'a> {
        match self {
            Self::Varied => Batch::varied(case, rounds - 1 - round),
            Self::Same => {
                let mut ranks = case.ranks.clone();
                if (round / 2) % 2 == 1 {
                    let values = ranks.iter_mut().flat_map(|rank| rank.x.as_chunks_mut::<2>().0);
                    values.for_each(|value| value[1] ^= 0x80);
                }
                Batch::with_tensors(case, ranks)
            }
            Self::Own(rounds) => rounds(round),
        }
    }
}

impl<'a> Trial<'a> {
    /// `chain` schedules without a stop.
    pub fn new(case: &'a Case, schedule: &'a str, chain: usize) -> Self {
        Self { case, schedule, chain, units: 1, options: Options::default(), traffic: Traffic::Varied }
    }

    /// With the same traffic in every round.
    pub fn steady(self) -> Self {
        Self { traffic: Traffic::Same, ..self }
    }

    fn plan(&self) -> Plan {
        let unit = Schedule::parse(self.schedule).unwrap().repeat(self.chain);
        Plan { unit, units: self.units, last: None, options: self.options, check: Some(1) }
    }

    /// Batches of a unit.
    pub fn batches(&self) -> usize {
        self.plan().unit.batches()
    }

    /// Every output byte of the last unit.
    pub fn run<B: Backend>(
        &self,
        backend: &B,
        drive: impl FnMut(&Unit<'_, B>) -> Result<Times, driver::Failure>,
    ) -> Result<Vec<u8>, Error> {
        let plan = self.plan();
        let rounds = |round| {
            let batch = self.traffic.of_round(self.case, round, plan.rounds());
            for rank in global_rank::all(&self.case.shape) {
                let legal =
                    batch.inputs(rank).check(&self.case.shape, global_rank::ep_rank(&self.case.shape, rank));
                assert_eq!(legal, Ok(()), "round {round}, rank {rank}");
            }
            batch
        };
        let world = World::alone(global_rank::count(&self.case.shape), WORKERS_MAX);
        group::run(&self.case.shape, &plan, rounds, (&world, backend), drive, &|| ())?;
        let mut all = Vec::new();
        for rank in global_rank::all(&self.case.shape) {
            // Of received rows only so many are outputs; that they are right is the verdict's. `sent_rows` there are with
            // direct placement alone.
            let has_norm = self.case.config.operator() == Op::CombineAddRmsNorm;
            let is_written = |tensor: &Tensor| {
                !tensor.is_of_received_rows()
                    && *tensor != Tensor::SentRows
                    && (has_norm || !tensor.is_of_norm())
            };
            for tensor in Tensor::ALL.into_iter().filter(is_written) {
                let ep_rank = global_rank::ep_rank(&self.case.shape, rank);
                let len = match tensor {
                    // What follows the counts has no owner.
                    Tensor::EpRecvCounts => ep_recv_counts_bytes(&self.case.shape, ep_rank),
                    _ => capacity(&self.case.shape, ep_rank, tensor),
                } as usize;
                (0..plan.unit.batches()).for_each(|batch| {
                    backend.read_output(rank, batch, tensor, len, &mut |bytes| {
                        all.extend_from_slice(bytes);
                    });
                });
            }
        }
        Ok(all)
    }

    pub fn stepped<B: Clockwork>(&self, backend: &B) -> Result<Vec<u8>, Error> {
        self.run(backend, |unit| {
            let steps = driver::lockstep::run(unit)?;
            Ok(Times { steps, ..Times::default() })
        })
    }

    pub fn in_lockstep(&self, memory: Memory, seed: u64) -> Result<Vec<u8>, Error> {
        let batches = self.plan().unit.batches();
        let memory = Lockstep::new(self.case, batches, memory, seed).expect("memory");
        self.stepped(&RankRemap::of(self.case).over(memory))
    }

    pub fn on_threads(&self, count: usize, spread: Spread) -> Result<Vec<u8>, Error> {
        let memory = SharedMemory::new(self.case, self.plan().unit.batches()).unwrap();
        self.threaded(&RankRemap::of(self.case).over(memory), count, spread)
    }

    pub fn threaded<B: Backend>(&self, backend: &B, count: usize, spread: Spread) -> Result<Vec<u8>, Error> {
        self.run(backend, |unit| driver::threads::run(unit, &workers(count, spread)))
    }

    /// The first seed on which the twin fails, and how. A seed on which it does not must end well.
    pub fn caught(&self, twin: &Duty, memory: Memory, seeds: Range<u64>) -> Option<(u64, Error)> {
        seeds.into_iter().find_map(|seed| {
            let batches = self.plan().unit.batches();
            let inner = Lockstep::new(&self.case.shape, batches, memory, seed).expect("memory");
            let twisted = Twisted::new(twin.clone(), self.case.shape.clone());
            self.stepped(&twisted.over(inner.breaking(twin.broken()))).err().map(|error| (seed, error))
        })
    }

    /// Demands that the twin fails on some seed and the protocol itself on none, and prints the seed.
    pub fn must_catch(&self, twin: &Duty, memory: Memory, seeds: Range<u64>) {
        self.must_hold(memory, seeds.clone());
        match self.caught(twin, memory, seeds.clone()) {
            Some((seed, error)) => eprintln!("{twin:?} on {memory:?} memory, seed {seed}: {error}"),
            None => panic!("{twin:?} on {memory:?} memory survives {} in seeds {seeds:?}", self.schedule),
        }
    }

    /// Demands that the twin fails on no seed: these conditions cannot show it.
    pub fn cannot_catch(&self, twin: &Duty, memory: Memory, seeds: Range<u64>) {
        if let Some((seed, error)) = self.caught(twin, memory, in_tier(seeds)) {
            panic!("{twin:?} on {memory:?} memory, seed {seed}: {error}");
        }
    }

    /// Demands that the protocol itself ends well on every seed.
    pub fn must_hold(&self, memory: Memory, seeds: Range<u64>) {
        for seed in in_tier(seeds) {
            self.in_lockstep(memory, seed).unwrap_or_else(|error| {
                panic!("{} on {memory:?} memory, seed {seed}: {error}", self.schedule)
            });
        }
    }
}

/// The seeds that are tried where none may fail.
fn in_tier(seeds: Range<u64>) -> Range<u64> {
    let all = seeds.end - seeds.start;
    seeds.start..seeds.start + tier(all.div_ceil(8), all)
}

/// So many workers with the deadline of tests.
pub fn workers(count: usize, spread: Spread) -> Workers {
    Workers { count, spread, pinned: false, deadline: Duration::from_secs(60) }
}

/// A configuration without the product's limits: narrow rows, small window.
pub fn small(ranks: i64, experts: i64, k: i64, bs: i64, cores: i64) -> Config {
    Config {
        ep_world_size: ranks,
        moe_expert_num: experts,
        k,
        h: 8,
        bs: veriep_case::config::Bs::Uniform(bs),
        aiv_num: cores,
        hccl_buffsize_mb: 1,
        ..Config::default()
    }
}

/// Returns the configuration and the routing of a preset with these assignments.
pub fn preset_with(name: &str, set: &[&str]) -> (Config, Routing) {
    let (mut config, routing) = preset(name).unwrap();
    set.iter().for_each(|assignment| config.set(assignment).unwrap());
    (config, routing)
}

/// Makes a case of a configuration that may break the limits of products.
pub fn make(config: Config, options: generate::Options) -> Case {
    make_left(config, options, Left::All)
}

/// The same of those who are left.
pub fn make_left(config: Config, options: generate::Options, left: Left<'_>) -> Case {
    generate_left(config, generate::Options { limits: Limits::None, ..options }, left, "test").unwrap()
}

pub fn seeded(config: Config, seed: u64) -> Case {
    make(config, generate::Options { seed, ..generate::Options::default() })
}

/// Switches all tokens of a rank off.
pub fn idle(case: &mut Case, rank: u32) {
    let tokens = case.shape.bs(global_rank::ep_rank(&case.shape, RankId(rank))) as usize;
    case.ranks[rank as usize].mask = OwnedMask::Tokens(vec![false; tokens]);
}

/// Sends every token of a rank to the first experts of `to`.
pub fn send_all(case: &mut Case, rank: u32, to: u32) {
    let (k, local) = (case.shape.k() as usize, case.shape.local_expert_num());
    assert!(k <= local as usize, "rank {to} holds fewer than K experts");
    for ids in case.ranks[rank as usize].expert_ids.chunks_exact_mut(k) {
        (to * local..).zip(ids).for_each(|(e, id)| *id = e as i32);
    }
}
