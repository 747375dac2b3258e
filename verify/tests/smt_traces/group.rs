//! A simulated group that a seed takes through a schedule, and the model's instance of it.

use crate::memory::{Log, Logged, Shared, Traced, one_partition};
use crate::random::Random;
use crate::windows::Windows;
use core::cell::RefCell;
use half::bf16;
use std::collections::BTreeMap;
use veriep_core::fabric::{Fabric, Progress};
use veriep_core::inputs::{Inputs, Mask};
use veriep_core::place::Tensor;
use veriep_core::plan::order::SendOrder;
use veriep_core::protocol::{Choices, Flags, Operator};
use veriep_core::shape::{BatchSizes, Config, Limits, Protocol, Shape};
use veriep_core::sim::cluster::{Answer, Cluster, CoreStep, Failure, Planned, World, schedule};
use veriep_core::sim::duty::{Duty, Faulty, Held};
use veriep_core::sim::seeded::{self, Seeded};
use veriep_core::sim::storage::region_sizes;
use veriep_core::sim::{Actor, Dense, Memory};
use veriep_core::units::RankId;
use veriep_verify::smt::model::Step;
use veriep_verify::smt::obligation::Clears;
use veriep_verify::smt::schedule::Schedule;
use veriep_verify::smt::slots;
use veriep_verify::smt::trace::{Event, Expected, Instance};

#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) a2: bool,
    pub(crate) flags: Flags,
    pub(crate) schedule: Schedule,
    /// How often the word is gone through.
    pub(crate) times: u32,
    pub(crate) ranks: u32,
    pub(crate) k: u32,
    pub(crate) cores: u32,
    pub(crate) duty: Option<Duty>,
    /// Whether cores do not wait for each other between operators.
    pub(crate) joinless: bool,
}

/// One rank's inputs of one batch.
struct Batch {
    x: Vec<u8>,
    ids: Vec<i32>,
    scales: Vec<f32>,
    mask: Vec<bool>,
    /// What comes back: each token as often as it has active pairs.
    x_out: Vec<u8>,
}

pub(crate) struct Outcome {
    pub(crate) instance: Instance,
    pub(crate) trace: Vec<Event>,
    /// Whether all ranks came to the end with the right result.
    pub(crate) good: bool,
}

const BS: u32 = 2;

impl Case {
    /// Elements of a row. On A2 a flag behind no row must be in none.
    const fn h(&self) -> u32 {
        if self.a2 { 24 } else { 2 }
    }

    fn choices(&self) -> Choices {
        Choices { flags: self.flags, ..Choices::default() }
    }

    /// The number of an operator among those of its kind.
    fn nth(&self, n: u32) -> usize {
        (0..n).filter(|&m| self.schedule.operator(m) == self.schedule.operator(n)).count()
    }
}

fn shape(case: &Case) -> Shape {
    let config = Config {
        ep_world_size: case.ranks.into(),
        // Two experts on each rank, so that a rank pair has more than one slot.
        moe_expert_num: (2 * case.ranks).into(),
        k: case.k.into(),
        comm_alg: if case.a2 { Protocol::Fullmesh } else { Protocol::FullmeshV1 },
        h: case.h().into(),
        bs: BatchSizes::Uniform(BS.into()),
        hccl_buffsize_mb: if case.a2 { 16 } else { 1 },
        aiv_num: case.cores.into(),
        ..Config::default()
    };
    Shape::new(&config, Limits::None).unwrap_or_else(|violations| panic!("{violations:?}"))
}

fn batch(case: &Case, random: &mut Random, number: u32) -> Batch {
    let experts = 2 * case.ranks;
    // Idle, narrow (all to few experts) and wide traffic.
    let active = random.of(&[0, 128, 256]);
    let narrow = random.of(&[case.k, experts]);
    let first = random.below(experts);
    let (mut ids, mut mask, mut x, mut x_out) = (vec![], vec![], vec![], vec![]);
    for token in 0..BS {
        let mut row: Vec<i32> = Vec::new();
        while row.len() < case.k as usize {
            let id = ((first + random.below(narrow)) % experts) as i32;
            if !row.contains(&id) {
                row.push(id);
            }
        }
        ids.extend(row);
        let pairs: Vec<_> = (0..case.k).map(|_| random.below(256) < active).collect();
        let value = 1 + (number * BS + token) % 100;
        let copies = pairs.iter().filter(|&&pair| pair).count();
        for _ in 0..case.h() {
            x.extend(bf16::from_f32(value as f32).to_le_bytes());
            x_out.extend(bf16::from_f32(value as f32 * copies as f32).to_le_bytes());
        }
        mask.extend(pairs);
    }
    Batch { x, ids, scales: vec![1.0; (BS * case.k) as usize], mask, x_out }
}

impl Batch {
    fn inputs(&self) -> Inputs<'_> {
        Inputs {
            x: &self.x,
            expert_ids: &self.ids,
            expert_scales: &self.scales,
            mask: Mask::Pairs(&self.mask),
            ..Inputs::default()
        }
    }

    /// The rank that pair `i` goes to, said anew: two experts on each rank.
    fn home(&self, i: usize) -> Option<usize> {
        self.mask[i].then(|| self.ids[i] as usize / 2)
    }
}

/// The rows of each window: by operator, rank, source.
fn windows(case: &Case, batches: &[Vec<Batch>]) -> Windows {
    let rows = |n: u32, rank: usize, source: usize| {
        let (sender, home) = match case.schedule.operator(n) {
            Operator::Dispatch => (source, rank),
            Operator::Combine => (rank, source),
        };
        let batch = &batches[case.nth(n)][sender];
        (0..batch.ids.len()).filter(|&i| batch.home(i) == Some(home)).count() as u32
    };
    let (ranks, operators) = (0..case.ranks as usize, 0..case.times * case.schedule.word_len());
    let of =
        |n| ranks.clone().map(|rank| ranks.clone().map(|source| rows(n, rank, source)).collect()).collect();
    Windows::new(operators.filter(|_| case.a2).map(of).collect())
}

/// The model's instance of a traffic: by batch and rank.
fn instance(case: &Case, shape: &Shape, batches: &[Vec<Batch>]) -> Instance {
    let ranks = case.ranks as usize;
    let of = |n: u32, rank: usize| -> Vec<Option<Expected>> {
        let batch = &batches[case.nth(n)];
        match case.schedule.operator(n) {
            kind if case.a2 => slots::a2_window(kind, ranks),
            Operator::Dispatch => {
                let rows = |expert: u32, source: usize| {
                    let expert = (2 * rank as u32 + expert).cast_signed();
                    let sent = batch[source].ids.iter().zip(&batch[source].mask);
                    sent.filter(|(id, active)| **active && **id == expert).count() as u32
                };
                slots::a3_dispatch(shape, case.choices(), RankId(rank as u32), rows)
            }
            Operator::Combine => (0..(BS * case.k) as usize)
                .map(|i| {
                    batch[rank].home(i).map(|source| Expected {
                        source,
                        carries: true,
                        ..Expected::default()
                    })
                })
                .collect(),
        }
    };
    let operators = case.times * case.schedule.word_len();
    let expected = (0..operators).map(|n| (0..ranks).map(|rank| of(n, rank)).collect());
    Instance { schedule: case.schedule, clears: Clears::Late, expected: expected.collect() }
}

/// What stands around the machines.
struct Scene<'s> {
    /// By round, then rank.
    batches: Vec<Vec<Batch>>,
    log: Shared<'s>,
    held: RefCell<BTreeMap<Actor, Held>>,
}

/// Runs a case with the choices of a seed.
pub(crate) fn run(case: &Case, seed: u64) -> Outcome {
    let shape = shape(case);
    let random = &mut Random(seed);
    let operators = schedule(case.schedule.word, case.times as usize);
    let batches: Vec<Vec<_>> = (0..operators.len() as u32 / 2)
        .map(|b| (0..case.ranks).map(|r| batch(case, random, b * case.ranks + r)).collect())
        .collect();
    let mut instance = instance(case, &shape, &batches);
    if case.duty == Some(one_partition(Operator::Dispatch)) {
        instance.schedule = Schedule::a3(case.schedule.word, 1, 2);
    } else if case.duty == Some(one_partition(Operator::Combine)) {
        instance.schedule = Schedule::a3(case.schedule.word, 2, 1);
    }
    let log = Log::new(&shape, case.choices(), case.schedule, case.duty.clone(), windows(case, &batches));
    let weak = seeded::Memory::Weak;
    let lands = random.of(&[seeded::Memory::Strong, weak, weak, weak, weak]);
    let chooser = Traced { inner: Seeded::new(lands, seed), log: log.clone(), issued: BTreeMap::new() };
    let sizes = (0..case.ranks).map(|rank| region_sizes(&shape, Some(RankId(rank)), batches.len()));
    let mut memory = Memory::new(&shape, Dense::new(sizes), chooser);
    memory.broken = case.duty.as_ref().map(Duty::broken).unwrap_or_default();
    memory.rewrites = true;
    let order = random.of(&[SendOrder::Plain, SendOrder::Staggered]);
    let mut cluster = Cluster::new(&shape, Choices { order, ..case.choices() }, memory, operators);
    (cluster.batches, cluster.joinless) = (batches.len(), case.joinless);
    // Several effects in a step, as the host takes them.
    (cluster.checked, cluster.one_by_one) = (false, |_| false);
    let mut scene = Scene { batches, log: log.clone(), held: RefCell::default() };
    let ran = cluster.run(&mut scene).is_ok();
    // What is still in flight belongs to the evidence, also where a machine has refused to go on.
    cluster.memory.settle();
    let right = |(round, ranks): (usize, &Vec<Batch>)| {
        ranks.iter().enumerate().all(|(i, batch)| cluster.output(i, round, Tensor::XOut) == batch.x_out)
    };
    let good = ran && scene.batches.iter().enumerate().all(right);
    let trace = core::mem::take(&mut log.borrow_mut().trace);
    Outcome { instance, trace, good }
}

impl<'s> World<Dense, Traced<'s>> for Scene<'s> {
    fn inputs(&self, member: RankId, round: usize) -> Inputs<'_> {
        self.batches[round][member.index()].inputs()
    }

    fn begins(
        &mut self,
        cluster: &mut Cluster<'_, Dense, Traced<'s>>,
        i: usize,
        planned: Planned,
    ) -> Result<(), Failure> {
        let n = cluster.operators.iter().position(|&other| other == planned).unwrap_or(0);
        self.log.borrow_mut().whole(Step::Begin, RankId(i as u32), n as u32);
        Ok(())
    }

    /// The experts return what they got.
    fn ended(
        &mut self,
        cluster: &mut Cluster<'_, Dense, Traced<'s>>,
        i: usize,
        planned: Planned,
    ) -> Result<(), Failure> {
        let n = cluster.members[i].ended as u32;
        self.log.borrow_mut().whole(Step::End, RankId(i as u32), n);
        if planned.operator == Operator::Dispatch {
            let y = cluster.output(i, planned.round, Tensor::ExpandX).to_vec();
            cluster.members[i].returned[planned.round] = cluster.returned(i, planned.round, y);
        }
        Ok(())
    }

    fn through(&self, core: Actor, fabric: &mut dyn Fabric, step: CoreStep<'_>) -> Answer {
        let (duty, shape) = {
            let log = self.log.borrow();
            (log.duty.clone(), log.shape)
        };
        let mut held = self.held.borrow_mut();
        let answer = match &duty {
            None => step(&mut Logged { inner: fabric, log: &self.log, core }),
            Some(duty) => {
                let mut faulty = Faulty::new(fabric, duty, shape, core, held.entry(core).or_default());
                step(&mut Logged { inner: &mut faulty, log: &self.log, core })
            }
        };
        if answer == Ok(Progress::Done) {
            *self.log.borrow_mut().at.entry(core).or_default() += 1;
        }
        answer
    }
}
