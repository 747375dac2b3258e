//! The number of words that the cores of a combine read, with few cores and with many.

use crate::fabric::{Awaited, Fabric, Progress, Watch};
use crate::inputs::Inputs;
use crate::layout::outputs::ep_recv_counts_bytes;
use crate::place::Tensor;
use crate::protocol::{Choices, Operator, Stage};
use crate::shape::{Config, Protocol, Shape};
use crate::sim::cluster::{Answer, CoreStep, Failure, Planned, World, schedule};
use crate::sim::seeded::{Memory::Strong, Seeded};
use crate::sim::storage::group_sizes;
use crate::sim::{self, Actor, Cluster, Sparse};
use crate::testing::domain::{Dice, Domain, Tensors, shape as shape_of};
use crate::testing::group::unmasked_rounds;
use crate::units::RankId;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;

/// The work of a core in an operator.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Done {
    /// The number of words that it read, including those that had not arrived.
    words: u64,
    /// The number of steps that moved.
    steps: u64,
}

/// Random tokens, and experts that return zeros; a pending core sleeps until something lands.
struct Counted {
    tensors: Vec<Tensors>,
    /// By rank.
    operators: Vec<Operator>,
    /// The work of each core in combine.
    done: RefCell<BTreeMap<Actor, Done>>,
}

type Group<'a> = Cluster<'a, Sparse, Seeded>;

impl World<Sparse, Seeded> for Counted {
    fn inputs(&self, member: RankId, _: usize) -> Inputs<'_> {
        self.tensors[member.index()].inputs()
    }

    fn begins(&mut self, _: &mut Group<'_>, i: usize, planned: Planned) -> Result<(), Failure> {
        self.operators[i] = planned.operator;
        Ok(())
    }

    fn ended(&mut self, cluster: &mut Group<'_>, i: usize, planned: Planned) -> Result<(), Failure> {
        if planned.operator == Operator::Dispatch {
            let sums = ep_recv_counts_bytes(cluster.shape, RankId(i as u32)) as usize;
            let counts = cluster.output(i, planned.round, Tensor::EpRecvCounts)[..sums].as_chunks().0;
            let rows = u64::from(counts.last().map_or(0, |&count| u32::from_le_bytes(count)));
            let y = vec![0; (rows * cluster.shape.row_bytes()) as usize];
            cluster.members[i].returned[planned.round] = cluster.returned(i, planned.round, y);
        }
        Ok(())
    }

    fn through(&self, actor: Actor, fabric: &mut dyn Fabric, step: CoreStep<'_>) -> Answer {
        if self.operators[actor.member.index()] == Operator::Dispatch {
            return step(fabric);
        }
        let mut words = 0;
        let mut tell = |what| words += u64::from(matches!(what, Awaited::Word(_)));
        let answer = step(&mut Watch::new(fabric, &mut tell));
        let mut done = self.done.borrow_mut();
        let done = done.entry(actor).or_default();
        done.words += words;
        done.steps += u64::from(matches!(answer, Ok(Progress::Stepped | Progress::Done)));
        answer
    }
}

/// Eight servers of eight ranks, as in the preset `a2-hier-64`, with short rows.
fn servers(cores: i64) -> Shape {
    shape_of(&Config {
        comm_alg: Protocol::Hierarchy,
        ..Domain { r: 64, e: 128, s: 0, rs: 0, k: 8, h: 32, bs: 16, cores }.config()
    })
}

/// Returns the work of all cores in a combine, and that of the core that reads most words.
fn combine(stage: Stage, cores: i64) -> [Done; 2] {
    let shape = &servers(cores);
    let tensors = unmasked_rounds(shape, 1, &mut Dice(1)).swap_remove(0);
    let memory = sim::Memory::new(shape, Sparse::new(group_sizes(shape), 1 << 12), Seeded::new(Strong, 1));
    let choices = Choices { stage, ..Choices::default() };
    let mut cluster = Cluster::new(shape, choices, memory, schedule("DC", 1));
    cluster.checked = false;
    let ranks = shape.ep_world_size() as usize;
    let operators = vec![Operator::Dispatch; ranks];
    let mut world = Counted { tensors, operators, done: RefCell::default() };
    cluster.run(&mut world).unwrap();
    let done = world.done.into_inner();
    assert_eq!(done.len(), ranks * cores as usize);
    let sum = |sum: Done, done: &Done| Done { words: sum.words + done.words, steps: sum.steps + done.steps };
    [done.values().fold(Done::default(), sum), *done.values().max_by_key(|done| done.words).unwrap()]
}

/// A core must read a word of each core of its server, 320 with 40 cores. If every attempt read them again, 40 cores would
/// read several times as many.
#[test]
fn a_core_reads_few_words_more_than_it_must_with_any_number_of_cores() {
    for stage in [Stage::Two, Stage::Three] {
        for cores in [8, 40] {
            let [Done { words, .. }, most] = combine(stage, cores);
            let mean = words / (64 * cores.cast_unsigned());
            assert!(
                mean <= 900 && most.words <= 1300,
                "{stage:?}, {cores} cores: {mean} words a core, {most:?}"
            );
        }
    }
}
