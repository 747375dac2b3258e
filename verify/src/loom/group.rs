//! A group whose cores are loom threads: every rank runs its operators in order, and when all have ended, what
//! they put out is compared with the oracle.
//!
//! Combine returns what the oracle says that the experts make of dispatch's outputs; those are compared with
//! the same oracle, so a schedule may also begin with a combine.

use super::fabric::LoomFabric;
use super::memory::{Memory, Outputs, Places};
use super::round::{Round, Traffic};
use super::twist::{Faithful, Twist, Twisted};
use ::loom::thread;
use kernel_core::fabric::{Fabric, Progress, ProtocolError};
use kernel_core::place::Tensor;
use kernel_core::protocol::{self, Choices, Context, Env, Flags, Machine, Ub, ub_bytes, ub_words};
use kernel_core::shape::{BatchSizes, CommAlg, Config, Limits, Shape};
use kernel_core::units::{CoreId, RankId};
use kernel_core::vector::Portable;
use std::rc::Rc;
use std::sync::Arc;

/// An operator of a schedule, with its round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// Dispatch.
    D(usize),
    /// Combine.
    C(usize),
}

impl Operator {
    /// Its round.
    pub(super) const fn round(self) -> usize {
        let (Self::D(round) | Self::C(round)) = self;
        round
    }

    /// The beginning of its machine.
    pub(super) fn begin(self, shape: &Shape, choices: Choices, fabric: &dyn Fabric) -> Machine {
        let kind = match self {
            Self::D(_) => protocol::Operator::Dispatch,
            Self::C(_) => protocol::Operator::Combine,
        };
        Machine::begin(kind, shape, choices, fabric.capabilities()).expect("a machine of this shape")
    }
}

/// How dispatch sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// The plain layout.
    Plain(Flags),
    /// fullmesh_v2, a block for each record.
    Blocks,
}

/// The size of a domain.
#[derive(Clone, Copy, Debug)]
pub struct Size<'a> {
    /// Cores of each rank. The protocol between ranks does not depend on it, so they may differ; a rank with
    /// several cores runs one operator, since there is no join here.
    pub cores: &'a [u32],
    /// E.
    pub experts: u32,
    /// BS.
    pub bs: u32,
    /// K.
    pub k: u32,
}

/// Ranks, their rounds and what each rank runs.
#[derive(Debug)]
pub struct Group {
    choices: Choices,
    /// By rank; equal but for their cores.
    shapes: Vec<Shape>,
    places: Vec<Places>,
    rounds: Vec<Round>,
    /// By rank.
    schedules: Vec<Vec<Operator>>,
    /// At most one effect in a step.
    one_by_one: bool,
}

impl Size<'_> {
    /// The domain as seen by a rank with `cores` cores. The product would refuse it.
    #[must_use]
    pub fn shape(&self, cores: u32, layout: Layout) -> Shape {
        let config = Config {
            ep_world_size: self.cores.len() as i64,
            moe_expert_num: self.experts.into(),
            k: self.k.into(),
            h: 2,
            comm_alg: if layout == Layout::Blocks { CommAlg::FullmeshV2 } else { CommAlg::FullmeshV1 },
            bs: BatchSizes::Uniform(self.bs.into()),
            hccl_buffsize_mb: 1,
            aiv_num: cores.into(),
            ..Config::default()
        };
        Shape::new(&config, Limits::None).expect("a valid tiny shape")
    }
}

impl Group {
    /// All ranks run `schedule`; round `n` has `traffic[n]`.
    #[must_use]
    pub fn new(size: Size<'_>, traffic: &[Traffic<'_>], schedule: &[Operator]) -> Self {
        Self::with(Layout::Plain(Flags::Joint), size, traffic, schedule)
    }

    /// The same with another way to send.
    #[must_use]
    pub fn with(layout: Layout, size: Size<'_>, traffic: &[Traffic<'_>], schedule: &[Operator]) -> Self {
        let flags = if let Layout::Plain(flags) = layout { flags } else { Flags::Joint };
        let choices = Choices { flags, ..Choices::default() };
        let shapes: Vec<_> = size.cores.iter().map(|&cores| size.shape(cores, layout)).collect();
        let places = (0..).zip(&shapes).map(|(rank, shape)| Places::of(shape, RankId(rank), flags)).collect();
        let rounds = (0..).zip(traffic).map(|(n, traffic)| Round::new(&shapes[0], n, traffic)).collect();
        let schedules = shapes.iter().map(|_| schedule.to_vec()).collect();
        Self { choices, shapes, places, rounds, schedules, one_by_one: true }
    }

    /// The same with steps as the host takes them, of several effects in a row. There are more executions, though not more
    /// orders: who takes what has come looks once more and finds nothing.
    #[must_use]
    pub fn in_runs(mut self) -> Self {
        self.one_by_one = false;
        self
    }

    /// `rank` runs `schedule` instead.
    #[must_use]
    pub fn but(mut self, rank: RankId, schedule: &[Operator]) -> Self {
        self.schedules[rank.index()] = schedule.to_vec();
        self
    }

    /// The body of a model.
    pub fn body(self) -> impl Fn() + Send + Sync + 'static {
        self.twisted(|_, _| Faithful)
    }

    /// The body of a twin: every core has its own twist.
    pub fn twisted<T: Twist + 'static>(
        self,
        twist: impl Fn(RankId, CoreId) -> T + Send + Sync + 'static,
    ) -> impl Fn() + Send + Sync + 'static {
        let group = Arc::new(self);
        move || group.run(&twist)
    }

    /// One execution: a thread for each core, the last of them this one.
    fn run<T: Twist + 'static>(self: &Arc<Self>, twist: impl Fn(RankId, CoreId) -> T) {
        let memory = Rc::new(Memory::new(&self.places));
        let outputs: Vec<_> = self.ranks().map(|(rank, shape)| self.outputs(rank, shape)).collect();
        let core = |(rank, core)| Core {
            group: Arc::clone(self),
            rank,
            core,
            fabric: fabric(&memory, rank, core, twist(rank, core)),
            outputs: outputs[rank.index()].clone(),
        };
        let mut cores: Vec<_> = self.cores().map(core).collect();
        let last = cores.pop();
        let others: Vec<_> = cores.into_iter().map(|core| thread::spawn(move || core.run())).collect();
        last.into_iter().for_each(Core::run);
        for other in others {
            assert!(other.join().is_ok(), "a core panicked");
        }
        for (rank, _) in self.ranks() {
            self.check(rank, &outputs[rank.index()]);
        }
    }

    fn ranks(&self) -> impl Iterator<Item = (RankId, &Shape)> {
        (0..).map(RankId).zip(&self.shapes)
    }

    /// The cores that have anything to run.
    fn cores(&self) -> impl Iterator<Item = (RankId, CoreId)> {
        let busy = self.ranks().filter(|(rank, _)| !self.schedules[rank.index()].is_empty());
        busy.flat_map(|(rank, shape)| (0..shape.aiv_num()).map(move |core| (rank, CoreId(core))))
    }

    /// By round.
    fn outputs(&self, rank: RankId, shape: &Shape) -> Vec<Rc<Outputs>> {
        self.rounds.iter().map(|_| Rc::new(Outputs::new(shape, rank))).collect()
    }

    /// Compares what `rank` put out with the oracle.
    fn check(&self, rank: RankId, outputs: &[Rc<Outputs>]) {
        for &operator in &self.schedules[rank.index()] {
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

const DISPATCH: [Tensor; 5] =
    [Tensor::EpRecvCounts, Tensor::ExpertTokenNums, Tensor::AssistInfo, Tensor::ExpandX, Tensor::ExpandIdx];

fn fabric<T: Twist>(memory: &Rc<Memory>, rank: RankId, core: CoreId, twist: T) -> Twisted<T> {
    Twisted { fabric: LoomFabric::new(Rc::clone(memory), rank, core, twist.orderings()), twist }
}

/// One core on its thread.
struct Core<T> {
    group: Arc<Group>,
    rank: RankId,
    core: CoreId,
    fabric: Twisted<T>,
    /// Of its rank, by round.
    outputs: Vec<Rc<Outputs>>,
}

impl<T: Twist> Core<T> {
    /// Its operators, one after the other.
    fn run(mut self) {
        let group = Arc::clone(&self.group);
        let (shape, schedule) = (&group.shapes[self.rank.index()], &group.schedules[self.rank.index()]);
        assert!(shape.aiv_num() == 1 || schedule.len() <= 1, "several cores need a join between operators");
        let env = Env::new(shape, self.rank, self.core, group.choices, Portable);
        let env = if group.one_by_one { env.one_by_one() } else { env };
        let (mut words, mut row) = (vec![0; ub_words(shape)], vec![0; ub_bytes(shape)]);
        for &operator in schedule {
            let ub = Ub { words: &mut words, row: &mut row };
            if let Err(error) = self.operator(&env, operator, ub) {
                panic!("rank {}, core {}, {operator:?}: {error}", self.rank, self.core);
            }
        }
    }

    fn operator(&mut self, env: &Env<Portable>, operator: Operator, scratch: Ub<'_>) -> Result<(), String> {
        let (fabric, round) = (&mut self.fabric, &self.group.rounds[operator.round()]);
        fabric.fabric.begin(Rc::clone(&self.outputs[operator.round()]));
        let shape = &self.group.shapes[self.rank.index()];
        let mut machine = operator.begin(shape, self.group.choices, fabric);
        let (inputs, operands) = (&round.inputs(self.rank), &round.operands(self.rank));
        let mut cx = Context { shape, env, fabric, inputs, operands, scratch };
        drive(|| machine.step(&mut cx))?;
        let fabric = cx.fabric;
        fabric.ended().map_err(|fault| fault.to_string())
    }
}

/// Polls in vain, one after the other, after which a wait counts as endless: whoever polls lets all others run
/// until they wait, too, so a wait that ends does so after as many polls as others make waits of their own.
const POLLS_MAX: u32 = 100;

/// Steps a machine to its end; whoever is pending lets the others go on.
pub(super) fn drive(mut step: impl FnMut() -> Result<Progress, ProtocolError>) -> Result<(), String> {
    let mut polls = 0;
    loop {
        match step().map_err(|error| error.to_string())? {
            Progress::Stepped => polls = 0,
            Progress::Pending(wait) if polls == POLLS_MAX => return Err(format!("endless wait, {wait}")),
            Progress::Pending(_) => {
                polls += 1;
                thread::yield_now();
            }
            Progress::Done => return Ok(()),
        }
    }
}
