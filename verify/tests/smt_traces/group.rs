//! A group of real machines that a seeded driver takes through a schedule, and the model's instance of it.

use crate::memory::{Core, Memory, STRONG, Twin};
use crate::random::Random;
use half::bf16;
use kernel_core::fabric::{Progress, ProtocolError};
use kernel_core::inputs::{Inputs, Mask};
use kernel_core::place::Tensor;
use kernel_core::plan::order::SendOrder;
use kernel_core::protocol::a3::{Combine, Dispatch, Env, ub_bytes, ub_words};
use kernel_core::protocol::{Choices, Operands, Ub};
use kernel_core::shape::{BatchSizes, Config, Limits, Shape};
use kernel_core::units::{CoreId, RankId};
use kernel_core::vector::Portable;
use verify::smt::model::Step;
use verify::smt::schedule::{Kind, Schedule};
use verify::smt::trace::{Event, Expected, Instance};

/// What to run.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) schedule: Schedule,
    /// How often the word is gone through.
    pub(crate) times: u32,
    pub(crate) ranks: u32,
    pub(crate) k: u32,
    pub(crate) cores: u32,
    pub(crate) twin: Twin,
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

/// What happened.
pub(crate) struct Outcome {
    pub(crate) instance: Instance,
    pub(crate) trace: Vec<Event>,
    /// Whether all ranks came to the end with the right result.
    pub(crate) good: bool,
}

const BS: u32 = 2;
const H: u32 = 2;
/// Steps without progress after which somebody asks whether anything can still move.
const IDLE: u32 = 64;

enum Machine {
    Between,
    Dispatch(Dispatch),
    Combine(Combine),
}

struct Task<'a> {
    env: Env<'a, Portable>,
    rank: RankId,
    core: CoreId,
    n: u32,
    machine: Machine,
    words: Vec<u32>,
    row: Vec<u8>,
}

struct Group<'a> {
    case: Case,
    shape: &'a Shape,
    batches: Vec<Vec<Batch>>,
    memory: Memory<'a>,
    /// Cores that have begun and ended, by rank and operator.
    begun: Vec<Vec<u32>>,
    ended: Vec<Vec<u32>>,
}

fn shape(case: &Case) -> Shape {
    let config = Config {
        ep_world_size: case.ranks.into(),
        // Two experts on each rank, so that a rank pair has more than one slot.
        moe_expert_num: (2 * case.ranks).into(),
        k: case.k.into(),
        h: H.into(),
        bs: BatchSizes::Uniform(BS.into()),
        hccl_buffsize_mb: 1,
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
        for _ in 0..H {
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

/// The model's instance of a traffic: by batch and rank.
fn instance(case: &Case, batches: &[Vec<Batch>]) -> Instance {
    let ranks = case.ranks as usize;
    let of = |n: u32, rank: usize| -> Vec<Option<Expected>> {
        let batch = &batches[case.schedule.ordinal(n) as usize];
        match case.schedule.kind(n) {
            Kind::Dispatch => (0..2 * ranks)
                .map(|slot| {
                    let (expert, source) = ((rank * 2 + slot / ranks) as i32, slot % ranks);
                    let sent = batch[source].ids.iter().zip(&batch[source].mask);
                    let carries = sent.into_iter().any(|(&id, &active)| active && id == expert);
                    Some(Expected { source, carries })
                })
                .collect(),
            Kind::Combine => (0..(BS * case.k) as usize)
                .map(|i| batch[rank].home(i).map(|source| Expected { source, carries: true }))
                .collect(),
        }
    };
    let operators = case.times * case.schedule.len();
    let expected = (0..operators).map(|n| (0..ranks).map(|rank| of(n, rank)).collect());
    Instance { schedule: case.schedule, expected: expected.collect() }
}

/// Runs a case with the choices of a seed.
pub(crate) fn run(case: Case, seed: u64) -> Outcome {
    let shape = shape(&case);
    let random = &mut Random(seed);
    let operators = case.times * case.schedule.len();
    let dispatches = (0..operators).filter(|&n| case.schedule.kind(n) == Kind::Dispatch).count();
    let batches: Vec<Vec<_>> = (0..dispatches as u32)
        .map(|b| (0..case.ranks).map(|r| batch(&case, random, b * case.ranks + r)).collect())
        .collect();
    let eagerness = random.of(&[0, 8, 60, 200, STRONG]);
    let mut instance = instance(&case, &batches);
    if let Twin::OnePartition(kind) = case.twin {
        instance.schedule = match kind {
            Kind::Dispatch => Schedule::a3(case.schedule.word, 1, 2),
            Kind::Combine => Schedule::a3(case.schedule.word, 2, 1),
        };
    }
    let cores = |_| vec![0; operators as usize];
    let mut group = Group {
        case,
        shape: &shape,
        memory: Memory::new(&shape, case.schedule, dispatches, case.twin, eagerness),
        begun: (0..case.ranks).map(cores).collect(),
        ended: (0..case.ranks).map(cores).collect(),
        batches,
    };
    let good = group.run(random, operators).unwrap_or(false) && group.results_are_right();
    // What is still in flight belongs to the evidence, also where a machine has refused to go on.
    while group.memory.land_one(random) {}
    Outcome { instance, trace: group.memory.trace.into_inner(), good }
}

impl<'a> Group<'a> {
    fn tasks(&self, random: &mut Random) -> Vec<Task<'a>> {
        let order = random.of(&[SendOrder::Plain, SendOrder::Staggered]);
        let choices = Choices { order, ..Choices::default() };
        let ranks = (0..self.case.ranks).map(RankId);
        let all = ranks.flat_map(|rank| (0..self.case.cores).map(move |core| (rank, CoreId(core))));
        all.map(|(rank, core)| Task {
            env: Env::new(self.shape, rank, core, choices, Portable),
            rank,
            core,
            n: 0,
            machine: Machine::Between,
            words: vec![0; ub_words(self.shape)],
            row: vec![0; ub_bytes(self.shape)],
        })
        .collect()
    }

    /// Whether all came to the end. `None` when a machine refused what it saw.
    fn run(&mut self, random: &mut Random, operators: u32) -> Option<bool> {
        let mut tasks = self.tasks(random);
        let (mut idle, mut slow, mut streak) = (0, RankId(0), 0);
        while tasks.iter().any(|task| task.n < operators) {
            if streak == 0 {
                // For a while one rank hardly moves.
                (slow, streak) = (RankId(random.below(self.case.ranks + 1)), 50 + random.below(400));
            }
            streak -= 1;
            let task = random.below(tasks.len() as u32) as usize;
            let task = &mut tasks[task];
            if task.n == operators || (task.rank == slow && idle < IDLE && random.below(64) > 0) {
                idle += 1;
            } else {
                self.memory.tick(random);
                idle = if self.step(task).ok()? { 0 } else { idle + 1 };
            }
            if idle > 2 * IDLE {
                idle = IDLE;
                if !self.memory.land_one(random) && !self.somebody_moves(&mut tasks, operators)? {
                    return Some(false);
                }
            }
        }
        Some(true)
    }

    fn somebody_moves(&mut self, tasks: &mut [Task<'_>], operators: u32) -> Option<bool> {
        for task in tasks.iter_mut().filter(|task| task.n < operators) {
            if self.step(task).ok()? {
                return Some(true);
            }
        }
        Some(false)
    }

    /// One step of a core. Whether it moved.
    fn step(&mut self, task: &mut Task<'_>) -> Result<bool, ProtocolError> {
        let (rank, n) = (task.rank.index(), task.n as usize);
        let batch = self.case.schedule.ordinal(task.n) as usize;
        let whole = |step| Event { step, rank, slot: 0, n: task.n };
        if matches!(task.machine, Machine::Between) {
            let joined = n == 0 || self.ended[rank][n - 1] == self.case.cores;
            if !joined && self.case.twin != Twin::NoJoin {
                return Ok(false);
            }
            task.machine = match self.case.schedule.kind(task.n) {
                Kind::Dispatch => Machine::Dispatch(Dispatch::new()),
                Kind::Combine => Machine::Combine(Combine::new()),
            };
            self.begun[rank][n] += 1;
            if self.begun[rank][n] == 1 {
                self.memory.record(whole(Step::Begin));
            }
        }
        let Task { env, machine, words, row, .. } = task;
        let mut ub = Ub { words, row };
        let inputs = self.batches[batch][rank].inputs();
        let assist_info = self.memory.output(task.rank, batch, Tensor::AssistInfo).to_vec();
        let counts = self.memory.output(task.rank, batch, Tensor::EpRecvCounts).to_vec();
        // The experts return what they got.
        let y = self.memory.output(task.rank, batch, Tensor::ExpandX).to_vec();
        let operands =
            Operands { y: &y, assist_info: &assist_info, ep_recv_counts: &counts, ..Operands::default() };
        let memory = &mut self.memory;
        let mut fabric = Core { memory, rank: task.rank, core: task.core, batch, n: task.n };
        let progress = match machine {
            Machine::Dispatch(dispatch) => dispatch.step(env, &mut fabric, &inputs, &mut ub)?,
            Machine::Combine(combine) => combine.step(env, &mut fabric, &inputs, &operands, &mut ub)?,
            Machine::Between => return Ok(false),
        };
        if progress == Progress::Done {
            self.ended[rank][n] += 1;
            if self.ended[rank][n] == self.case.cores {
                self.memory.record(whole(Step::End));
            }
            task.machine = Machine::Between;
            task.n += 1;
        }
        Ok(!matches!(progress, Progress::Pending(_)))
    }

    fn results_are_right(&self) -> bool {
        let all = self.batches.iter().enumerate();
        let mut all =
            all.flat_map(|(b, ranks)| (0..).map(RankId).zip(ranks).map(move |(r, batch)| (b, r, batch)));
        all.all(|(b, rank, batch)| self.memory.output(rank, b, Tensor::XOut) == batch.x_out)
    }
}
