//! A group of A2 whose cores and agents are loom threads. Every rank runs the same operators; what comes out is compared
//! with the oracle.
//!
//! Combine returns what the oracle says that the experts make of dispatch's outputs, which are compared with the same
//! oracle; so a schedule may also begin with a combine.

use super::Bend;
use super::fabric::{AgentNic, CoreFabric, Seat};
use super::memory::{Memory, Places};
use crate::loom::group::{Operator, drive};
use crate::loom::memory::Outputs;
use crate::loom::round::{Round, Traffic};
use ::loom::thread;
use kernel_core::fabric::{Progress, ProtocolError};
use kernel_core::layout::a2_window::{FLAG1, tail_flag, window_in};
use kernel_core::layout::state::{Kind, Partition};
use kernel_core::place::{Place, Tensor};
use kernel_core::plan::order::SendOrder;
use kernel_core::protocol::{Agent, AgentEnv, Choices, Context, Env, Ub, ub_bytes, ub_words};
use kernel_core::shape::{BatchSizes, CommAlg, Config, Limits, Shape};
use kernel_core::units::{CoreId, RankId};
use kernel_core::vector::Portable;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

/// Where the agent of a rank runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agency {
    /// On a thread of its own.
    Thread,
    /// On that of core 0, whenever that waits.
    Folded,
    /// As `Folded`; its transfers are delivered by twos, the second first.
    Late,
}

/// The size of a domain.
#[derive(Clone, Copy, Debug)]
pub struct Size<'a> {
    /// Cores of each rank. A rank with several runs one operator, since there is no join here.
    pub cores: &'a [u32],
    /// E.
    pub experts: u32,
    /// BS.
    pub bs: u32,
    /// Elements of a row, a multiple of 8.
    pub h: u32,
}

/// Ranks, their rounds and what they run.
#[derive(Debug)]
pub struct Group {
    shapes: Vec<Arc<Shape>>,
    places: Vec<Places>,
    rounds: Vec<Round>,
    /// By round and source: rows for each expert.
    sent: Vec<Vec<Vec<u32>>>,
    schedule: Vec<Operator>,
    agencies: Vec<Agency>,
    bend: Bend,
}

impl Size<'_> {
    /// The domain as seen by a rank with `cores` cores. The product would refuse it.
    #[must_use]
    pub fn shape(&self, cores: u32) -> Shape {
        let config = Config {
            comm_alg: CommAlg::Fullmesh,
            ep_world_size: self.cores.len() as i64,
            moe_expert_num: self.experts.into(),
            k: 1,
            h: self.h.into(),
            bs: BatchSizes::Uniform(self.bs.into()),
            hccl_buffsize_mb: 8,
            aiv_num: cores.into(),
            ..Config::default()
        };
        Shape::new(&config, Limits::None).expect("a valid tiny shape")
    }
}

impl Group {
    /// All ranks run `schedule`; round `n` has `traffic[n]`, K = 1.
    #[must_use]
    pub fn new(size: Size<'_>, traffic: &[Traffic<'_>], schedule: &[Operator]) -> Self {
        let shapes: Vec<_> = size.cores.iter().map(|&cores| Arc::new(size.shape(cores))).collect();
        let places = (0..).zip(&shapes).map(|(rank, shape)| Places::of(shape, RankId(rank))).collect();
        let rounds = (0..).zip(traffic).map(|(n, traffic)| Round::new(&shapes[0], n, traffic)).collect();
        let by_expert = |tokens: &&[&[i32]]| {
            let mut rows = vec![0; size.experts as usize];
            tokens.iter().copied().flatten().for_each(|&expert| rows[expert as usize] += 1);
            rows
        };
        let sent = traffic.iter().map(|ranks| ranks.iter().map(by_expert).collect()).collect();
        let agencies = vec![Agency::Thread; shapes.len()];
        Self { shapes, places, rounds, sent, schedule: schedule.to_vec(), agencies, bend: Bend::None }
    }

    /// The ranks' agents run there.
    #[must_use]
    pub fn agents(mut self, agencies: &[Agency]) -> Self {
        self.agencies = agencies.to_vec();
        self
    }

    /// Tokens of these rounds, and results for them, that are flags from end to end.
    #[must_use]
    pub fn flags(mut self, rounds: &[usize]) -> Self {
        for &round in rounds {
            self.rounds[round].fill_with_flags(&self.shapes[0]);
        }
        self
    }

    /// The body of a model.
    pub fn body(self) -> impl Fn() + Send + Sync + 'static {
        let group = Arc::new(self);
        move || Self::run(&group)
    }

    /// The body of a twin.
    pub fn bent(self, bend: Bend) -> impl Fn() + Send + Sync + 'static {
        Self { bend, ..self }.body()
    }

    /// One execution: a thread for each core and each agent that has one, the last core on this.
    fn run(group: &Arc<Self>) {
        let memory = Rc::new(Memory::new(&group.shapes[0], &group.places));
        let mut runs: Vec<Box<dyn FnOnce()>> = Vec::new();
        let mut outputs = Vec::new();
        for (rank, shape) in group.ranks() {
            let seat = Seat { memory: Rc::clone(&memory), shape: Arc::clone(shape), rank, bend: group.bend };
            let of_rank: Vec<_> = group.rounds.iter().map(|_| Rc::new(Outputs::new(shape, rank))).collect();
            let agency = group.agencies[rank.index()];
            let mut agent = (shape.ep_world_size() > 1).then(|| Serving {
                group: Arc::clone(group),
                rank,
                agent: Agent::new(),
                nic: AgentNic::new(seat.clone(), agency == Agency::Late),
            });
            if agency == Agency::Thread
                && let Some(agent) = agent.take()
            {
                runs.push(Box::new(move || agent.run()));
            }
            for core in (0..shape.aiv_num()).map(CoreId) {
                let core = Core {
                    group: Arc::clone(group),
                    rank,
                    core,
                    fabric: CoreFabric::new(seat.clone(), core),
                    outputs: of_rank.clone(),
                    agent: agent.take(),
                };
                runs.push(Box::new(move || core.run()));
            }
            outputs.push(of_rank);
        }
        let last = runs.pop();
        let others: Vec<_> = runs.into_iter().map(|run| thread::spawn(run)).collect();
        last.into_iter().for_each(|run| run());
        for other in others {
            assert!(other.join().is_ok(), "a core or an agent panicked");
        }
        for ((rank, _), outputs) in group.ranks().zip(&outputs) {
            group.check(rank, outputs);
        }
    }

    fn ranks(&self) -> impl Iterator<Item = (RankId, &Arc<Shape>)> {
        (0..).map(RankId).zip(&self.shapes)
    }

    /// Tasks that an agent posts.
    fn tasks(&self) -> usize {
        self.schedule.len() * (self.shapes.len() - 1)
    }

    /// Rows that `from` sends to `to` in a round's dispatch.
    fn rows(&self, round: usize, from: RankId, to: RankId) -> u32 {
        let own = self.shapes[0].local_expert_num() as usize;
        self.sent[round][from.index()].iter().skip(to.index() * own).take(own).sum()
    }

    /// The flags that a rank waits for in operator number `n`.
    fn awaited(&self, rank: RankId, n: usize) -> BTreeSet<Place> {
        let half = if n.is_multiple_of(2) { Partition::P0 } else { Partition::P1 };
        let of_peer = |(peer, shape): (RankId, &Arc<Shape>)| {
            let at = |at| window_in(shape, half, peer, at);
            match self.schedule[n] {
                Operator::D(round) => {
                    vec![at(FLAG1), at(tail_flag(shape, Kind::Dispatch, self.rows(round, peer, rank)))]
                }
                Operator::C(round) => {
                    vec![at(tail_flag(shape, Kind::Combine, self.rows(round, rank, peer)))]
                }
            }
        };
        self.ranks().flat_map(of_peer).collect()
    }

    /// Compares what `rank` put out with the oracle.
    fn check(&self, rank: RankId, outputs: &[Rc<Outputs>]) {
        for &operator in &self.schedule {
            let (round, tensors) = match operator {
                Operator::D(round) => (round, &DISPATCH[..]),
                Operator::C(round) => (round, &[Tensor::XOut][..]),
            };
            for &tensor in tensors {
                let expected = self.rounds[round].expected(rank, tensor);
                let seen = outputs[round].tensor(tensor).read(0, expected.len() as u64);
                assert_eq!(
                    seen.as_deref(),
                    Some(expected),
                    "{} of rank {rank}, {operator:?}, is wrong",
                    tensor.name()
                );
            }
        }
    }
}

const DISPATCH: [Tensor; 4] =
    [Tensor::EpRecvCounts, Tensor::ExpertTokenNums, Tensor::ExpandX, Tensor::ExpandIdx];

/// An agent.
struct Serving {
    group: Arc<Group>,
    rank: RankId,
    agent: Agent,
    nic: AgentNic,
}

impl Serving {
    fn step(&mut self) -> Result<Progress, ProtocolError> {
        if self.nic.posted == self.group.tasks() {
            self.nic.flush();
            return Ok(Progress::Done);
        }
        let shape = &self.group.shapes[self.rank.index()];
        let env = AgentEnv::new(shape, self.rank, SendOrder::Staggered);
        self.agent.step(shape, &env, &mut self.nic)
    }

    /// Serves to the end.
    fn run(mut self) {
        if let Err(error) = drive(|| self.step()) {
            panic!("agent of rank {}: {error}", self.rank);
        }
    }
}

/// One core, perhaps with the agent.
struct Core {
    group: Arc<Group>,
    rank: RankId,
    core: CoreId,
    fabric: CoreFabric,
    outputs: Vec<Rc<Outputs>>,
    agent: Option<Serving>,
}

impl Core {
    /// Its operators, one after the other; then its agent's duties.
    fn run(mut self) {
        let group = Arc::clone(&self.group);
        let shape = &group.shapes[self.rank.index()];
        assert!(
            shape.aiv_num() == 1 || group.schedule.len() <= 1,
            "several cores need a join between operators"
        );
        let env = Env::new(shape, self.rank, self.core, Choices::default(), Portable);
        let (mut words, mut row) = (vec![0; ub_words(shape)], vec![0; ub_bytes(shape)]);
        for (n, &operator) in group.schedule.iter().enumerate() {
            let ub = Ub { words: &mut words, row: &mut row };
            if let Err(error) = self.operator(&env, n, operator, ub) {
                panic!("rank {}, core {}, {operator:?}: {error}", self.rank, self.core);
            }
        }
        self.agent.into_iter().for_each(Serving::run);
    }

    fn operator(
        &mut self,
        env: &Env<Portable>,
        n: usize,
        operator: Operator,
        scratch: Ub<'_>,
    ) -> Result<(), String> {
        let Self { group, rank, fabric, outputs, agent, .. } = self;
        let round = operator.round();
        let inputs = &group.rounds[round].inputs(*rank);
        let operands = &group.rounds[round].operands(*rank);
        fabric.begin(Rc::clone(&outputs[round]), group.awaited(*rank, n));
        // Who waits lets his agent go on.
        let mut served = |progress| match (progress, agent.as_mut()) {
            (Progress::Pending(wait), Some(agent)) => Ok(match agent.step()? {
                Progress::Stepped => Progress::Stepped,
                Progress::Pending(_) | Progress::Done => Progress::Pending(wait),
            }),
            _ => Ok(progress),
        };
        let shape = &group.shapes[rank.index()];
        let mut machine = operator.begin(shape, Choices::default(), fabric);
        let mut cx = Context { shape, env, fabric, inputs, operands, scratch };
        drive(|| machine.step(&mut cx).and_then(&mut served))
    }
}
