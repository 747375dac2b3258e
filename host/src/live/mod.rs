//! One rank of a live group, for who has tensors of its own and calls operators one by one: engines, and Python.
//!
//! Members of a group are processes that have joined, or threads of one process. Each calls the same operators in the same
//! order; a call returns when the operator has ended on its rank.

mod tokens;

pub use tokens::Tokens;
use tokens::refused;

use crate::backend::shared::SharedMemory;
use crate::backend::{Backend, row_copy};
use crate::case::RankTensors;
use crate::config::Config;
use crate::driver::rank::{Cores, Operator};
use crate::driver::schedule::Schedule;
use crate::driver::{Failure, Hang, Options, keep_operands};
use crate::error::{Error, Missing};
use crate::world::join::{Joins, NotJoined, Rendezvous};
use crate::world::{Departed, Gone, GroupMemory, Peers, Phase, World};
use crate::{expert, global_rank, group, hints};
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::collections::VecDeque;
use std::io;
use std::process;
use std::sync::Arc;
use std::thread;
use std::time::Instant;
use veriep_core::inputs::Inputs;
use veriep_core::layout::outputs::capacity;
use veriep_core::place::Tensor;
use veriep_core::protocol::{self, Choices, Fingerprints, Operands};
use veriep_core::shape::{Given, Limits, Op, Shape};
use veriep_core::sim::cluster::Returned;
use veriep_core::units::{CoreId, ExpertId, RankId};
use veriep_core::vector::Any;

/// Batches in flight that two partitions of each kind are proved to bear.
pub const IN_FLIGHT_MAX: usize = 2;
/// Between two questions to the caller whether it still wants to wait.
const ASKS: Duration = Duration::from_millis(20);
/// Behind a death, until others that came with it have been seen, too.
const SETTLES: Duration = Duration::from_millis(20);

/// What all members of a group are given alike.
#[derive(Clone, Debug)]
pub struct Plan {
    config: Config,
    shape: Shape,
    options: Options,
    bytes: u64,
    /// Nobody moved for so long: give up.
    deadline: Duration,
}

/// A member of a live group.
#[derive(Debug)]
pub struct Member {
    plan: Arc<Plan>,
    rank: RankId,
    /// Not like that of any other member in this process.
    number: u64,
    world: Arc<World>,
    memory: Arc<SharedMemory>,
    peers: Option<Peers>,
    cores: Cores,
    slots: [Slot; IN_FLIGHT_MAX],
    /// Slots dispatched and not combined, the oldest first.
    in_flight: VecDeque<usize>,
    rounds: usize,
    operators: u64,
    /// Why it takes part no more.
    ended: Option<Error>,
    /// The process that it is of.
    pid: u32,
}

/// What is kept of a batch until its combine.
#[derive(Debug, Default)]
struct Slot {
    round: usize,
    tensors: RankTensors,
    returned: Returned,
}

/// A batch between its dispatch and its combine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    /// The number of its round.
    pub round: usize,
    /// Rows that the rank has received.
    pub rows: usize,
    slot: usize,
    /// Whose it is.
    member: u64,
}

/// Asks a caller that waits, now and then, whether it still wants to.
pub type GoesOn<'a> = &'a mut dyn FnMut() -> bool;

impl Plan {
    /// Checks a configuration. Unless its buffer `is_fixed`, that is as large as it must be.
    ///
    /// # Errors
    /// It breaks a rule, or needs tensors that a member is not given.
    pub fn new(mut config: Config, is_fixed: bool, vector: Any, deadline: Duration) -> Result<Self, Error> {
        if !is_fixed {
            config.raise_buffer();
        }
        let shape = hints::shape(&config, Given::empty(), Limits::Product, "Group")?;
        if shape.const_expert_num() > 0 {
            let seen = format!(" = {}", shape.const_expert_num());
            let rule = "must be 0: members have no tensors of const experts";
            return Err(refused("const_expert_num", &seen, rule));
        }
        if shape.op() != Op::Combine {
            let rule = "must be combine: members have no residual";
            return Err(refused("op", " = combine_add_rms_norm", rule));
        }
        let options = Options { choices: Choices::default(), vector, ..Options::default() };
        let bytes = SharedMemory::bytes(&shape, IN_FLIGHT_MAX).map_err(|e| of_system("memory", &e))?;
        Ok(Self { config, shape, options, bytes, deadline })
    }

    /// The valid configuration.
    #[must_use]
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The ranks of the group, each a member.
    #[must_use]
    pub const fn members(&self) -> usize {
        global_rank::count(&self.shape) as usize
    }

    /// Joins a group of processes as one of its ranks, and waits for the others as long as that.
    ///
    /// # Errors
    /// Not all came in time, somebody was given something else, or the system refuses.
    pub fn join(
        self,
        rank: RankId,
        rendezvous: Rendezvous<'_>,
        patience: Duration,
        goes_on: GoesOn<'_>,
    ) -> Result<Member, Error> {
        let joins = Joins {
            process: rank.index(),
            processes: self.members(),
            bytes: self.bytes,
            fingerprints: Fingerprints::new(&self.shape, self.options.choices),
            patience,
        };
        let joined = joins.join(rendezvous, goes_on).map_err(|error| match error {
            NotJoined::Interrupted => Error::Interrupted("while others were waited for".to_owned()),
            NotJoined::Missing { ref processes, .. } => {
                let missing = |&process: &usize| Missing {
                    rank: rank.0,
                    operator: "join",
                    what: "process",
                    source_rank: Some(process as u32),
                    ..Missing::default()
                };
                let missing = processes.iter().map(missing).collect();
                Error::NoProgress { line: error.to_string(), missing }
            }
            _ => Error::Request(error.to_string()),
        })?;
        let memory = Arc::new(self.memory(&joined.memory)?);
        Ok(Member::new(Arc::new(self), rank, memory, (joined.world, Some(joined.peers))))
    }

    /// All members of a group whose ranks are threads of this process.
    ///
    /// # Errors
    /// The system refuses memory.
    pub fn local(self) -> Result<Vec<Member>, Error> {
        let (processes, workers) = (self.members(), 1);
        let mapping =
            GroupMemory::new(processes, workers, self.bytes).map_err(|e| of_system("memory", &e))?;
        let memory = Arc::new(self.memory(&mapping)?);
        let plan = Arc::new(self);
        let member = |process| {
            let ranks = global_rank::count(&plan.shape);
            let world = World::seated(&mapping, (process, processes), workers, ranks);
            world.sit();
            Member::new(plan.clone(), RankId(process as u32), memory.clone(), (world, None))
        };
        Ok((0..processes).map(member).collect())
    }

    fn memory(&self, mapping: &GroupMemory) -> Result<SharedMemory, Error> {
        let start = GroupMemory::start(self.members(), 1);
        let memory = SharedMemory::within(mapping.map(), start, &self.shape, IN_FLIGHT_MAX)
            .map_err(|e| of_system("memory", &e))?;
        // Rows as they come and as experts take them.
        let tokens = self.members() as u64 * u64::from(self.shape.bs_max());
        let bytes = 2 * tokens * u64::from(self.shape.combine_columns()) * self.shape.row_bytes();
        Ok(memory.with_row_copy(row_copy::usual(bytes)))
    }
}

fn of_system(what: &str, e: &io::Error) -> Error {
    Error::Request(format!("{what} of the group: {e}"))
}

impl Member {
    fn new(
        plan: Arc<Plan>,
        rank: RankId,
        memory: Arc<SharedMemory>,
        (world, peers): (Arc<World>, Option<Peers>),
    ) -> Self {
        static MEMBERS: AtomicU64 = AtomicU64::new(0);
        let cores = Cores::of(&plan.shape);
        Self {
            plan,
            rank,
            number: MEMBERS.fetch_add(1, Ordering::Relaxed),
            world,
            memory,
            peers,
            cores,
            slots: Default::default(),
            in_flight: VecDeque::new(),
            rounds: 0,
            operators: 0,
            ended: None,
            pid: process::id(),
        }
    }

    /// The valid configuration.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.plan.shape
    }

    /// The MoE experts that it holds; none where it holds a shared one.
    pub fn experts(&self) -> impl Iterator<Item = ExpertId> {
        let (shape, own) = (&self.plan.shape, self.ep_rank());
        (0..shape.moe_expert_num()).map(ExpertId).filter(move |&expert| shape.moe_home(expert).rank == own)
    }

    /// Its rank.
    #[must_use]
    pub const fn rank(&self) -> RankId {
        self.rank
    }

    /// The EP rank that it is of.
    fn ep_rank(&self) -> RankId {
        global_rank::ep_rank(&self.plan.shape, self.rank)
    }

    /// Bytes of what combine puts out.
    #[must_use]
    pub fn x_out_bytes(&self) -> usize {
        capacity(&self.plan.shape, self.ep_rank(), Tensor::XOut) as usize
    }

    /// The address of an output of a batch and the bytes of it that hold something: from the batch's dispatch until its
    /// combine begins nobody else writes them.
    #[must_use]
    pub fn output(&self, of: Handle, tensor: Tensor) -> (*mut u8, usize) {
        let (shape, ep_rank) = (&self.plan.shape, self.ep_rank());
        let all = capacity(shape, ep_rank, tensor);
        let rows_max = shape.rows_max(ep_rank) * u64::from(shape.tp_world_size());
        let len = match tensor.is_of_received_rows() {
            true => all.checked_div(rows_max).unwrap_or(0) * of.rows as u64,
            false => all,
        };
        (self.memory.output(self.rank, of.slot, tensor).base(), len as usize)
    }

    /// Sends tokens to their experts, and takes the rows of those that are here.
    ///
    /// # Errors
    /// The tokens break a rule, or two batches are in flight: nothing has happened. Or the group cannot go on, which is then
    /// so for good.
    pub fn dispatch(&mut self, tokens: &Tokens<'_>, goes_on: GoesOn<'_>) -> Result<Handle, Error> {
        self.is_open()?;
        let Some(slot) = (0..IN_FLIGHT_MAX).find(|slot| !self.in_flight.contains(slot)) else {
            return Err(Error::Request(format!(
                "{IN_FLIGHT_MAX} batches in flight: a third must not be dispatched before the oldest is combined, or a fast \
                 rank overwrites what a slow one still reads: veriep schedule DDDCCC"
            )));
        };
        let plan = self.plan.clone();
        let tensors = tokens.padded(&plan.config, &plan.shape, self.ep_rank())?;
        let x = if tensors.x.is_empty() { tokens.x } else { &tensors.x };
        let inputs = Inputs { x, ..tensors.inputs() };
        tokens::check(&inputs, &plan.shape, self.ep_rank())?;
        let round = self.rounds;
        let memory = self.memory.clone();
        let given = (&inputs, &Operands::default());
        self.run(&*memory, (protocol::Operator::Dispatch, slot, round), given, goes_on)?;
        let fabric = memory.fabric(self.rank, CoreId(0), slot);
        let read = expert::reading(&*memory, &fabric, self.rank, slot);
        let ends = expert::expert_ends(&plan.shape, self.ep_rank(), &read);
        let rows = match ends {
            Ok(ends) => ends.last().copied().unwrap_or(0),
            Err(error) => return Err(self.fails(Error::Wrong(error.to_string()), Phase::Ended)),
        };
        let kept = &mut self.slots[slot];
        keep_operands(&plan.shape, &*memory, (self.rank, slot), rows as u64, &mut kept.returned);
        (kept.round, kept.tensors) = (round, tensors);
        self.in_flight.push_back(slot);
        self.rounds += 1;
        Ok(Handle { round, rows, slot, member: self.number })
    }

    /// Returns what experts made of the rows of the oldest batch, one row `[h]` of `y` for each, and sums for every token of
    /// that batch what comes back into `x_out`, of [`x_out_bytes`](Self::x_out_bytes).
    ///
    /// # Errors
    /// It is not the oldest batch, or `y` and `x_out` have not its size: nothing has happened. Or the group cannot go on, which
    /// is then so for good.
    pub fn combine(
        &mut self,
        of: Handle,
        y: &[u8],
        x_out: &mut [u8],
        goes_on: GoesOn<'_>,
    ) -> Result<(), Error> {
        self.is_open()?;
        let Handle { round, rows, slot, member } = of;
        let refused = |why: String| Err(Error::Request(why));
        if member != self.number {
            return refused(format!("handle of round {round}: is of another rank or group"));
        }
        match self.in_flight.front() {
            Some(&oldest) if self.slots[oldest].round == round => {}
            Some(&oldest) if round > self.slots[oldest].round && round < self.rounds => {
                let oldest = self.slots[oldest].round;
                return refused(format!(
                    "handle of round {round}: must be of round {oldest}: combines come in the order of dispatches"
                ));
            }
            _ => return refused(format!("handle of round {round}: has been combined already")),
        }
        let row = self.plan.shape.row_bytes() as usize;
        if y.len() != rows * row {
            let (seen, rest) = (y.len() / row, y.len() % row);
            return refused(format!("y: {seen} rows and {rest} bytes: must be {rows} rows of {row} bytes"));
        }
        if x_out.len() != self.x_out_bytes() {
            return refused(format!("x_out: {} bytes: must be {}", x_out.len(), self.x_out_bytes()));
        }
        let Slot { tensors, mut returned, .. } = core::mem::take(&mut self.slots[slot]);
        let inputs = tensors.inputs();
        let operands = Operands { y, ..returned.operands() };
        let memory = self.memory.clone();
        let memory = memory.with_output(Tensor::XOut, x_out);
        let ran =
            self.run(&memory, (protocol::Operator::Combine, slot, round), (&inputs, &operands), goes_on);
        // Kept for its room.
        returned.y.clear();
        self.slots[slot].returned = returned;
        self.in_flight.pop_front();
        ran
    }

    fn is_open(&self) -> Result<(), Error> {
        if process::id() != self.pid {
            let pid = self.pid;
            return Err(Error::Request(format!(
                "this member is of process {pid}: a copy made by fork must join a group of its own"
            )));
        }
        self.ended.clone().map_or(Ok(()), Err)
    }

    fn run<B: Backend>(
        &mut self,
        backend: &B,
        (operator, slot, round): (protocol::Operator, usize, usize),
        (inputs, operands): (&Inputs<'_>, &Operands<'_>),
        goes_on: GoesOn<'_>,
    ) -> Result<(), Error> {
        let nth = usize::from(operator == protocol::Operator::Combine);
        self.world.begin_operator(round, nth);
        let (mut why, mut asked) = (None, Instant::now());
        let Self { plan, world, cores, rank, operators, .. } = self;
        let next = *operators + 1;
        let mut look = |idle| {
            if !world.gone_before(next).is_empty() {
                why = Some(Why::Gone);
            } else if world.is_stopped() || idle >= plan.deadline {
                why = Some(Why::Late);
            } else if asked.elapsed() >= ASKS {
                asked = Instant::now();
                why = (!goes_on()).then_some(Why::Interrupted);
            }
            why.is_none()
        };
        let work = Operator {
            shape: &plan.shape,
            options: &plan.options,
            backend,
            world,
            rank: *rank,
            operator,
            batch: slot,
            inputs,
            operands,
        };
        let ran = if look(Duration::ZERO) { cores.run(&work, &mut look) } else { Ok(()) };
        match (why, ran) {
            (None, Ok(())) => {
                self.operators = next;
                self.world.end_operator();
                Ok(())
            }
            (Some(Why::Gone), _) => {
                thread::sleep(SETTLES);
                let gone = self.world.gone_before(next);
                Err(self.gone(gone))
            }
            (Some(Why::Interrupted), _) => {
                Err(self.fails(Error::Interrupted("while others were waited for".to_owned()), Phase::Ended))
            }
            (Some(Why::Late), Err(Failure::Hang(hang))) => Err(self.late((nth, round), hang)),
            (Some(Why::Late), _) => Err(self.late((nth, round), Hang::default())),
            (None, Err(failure)) => {
                Err(self.fails(group::of_failure(round, &round_trip(), &failure), Phase::Ended))
            }
        }
    }

    /// Nobody has moved for the deadline, here or on another rank: some do not run, or all wait for something.
    fn late(&mut self, (nth, round): (usize, usize), mut hang: Hang) -> Error {
        let silent =
            if self.peers.is_some() && !self.world.is_stopped() { self.world.silent() } else { Vec::new() };
        self.world.stop();
        if !silent.is_empty() {
            return self.gone(silent);
        }
        if hang.missing.is_empty() {
            let line = "the group has ended: another rank has waited for its deadline".to_owned();
            return self.fails(Error::NoProgress { line, missing: Vec::new() }, Phase::GivenUp);
        }
        hang.missing.iter_mut().for_each(|missing| missing.operator = nth);
        self.fails(group::of_failure(round, &round_trip(), &Failure::Hang(hang)), Phase::GivenUp)
    }

    fn gone(&mut self, departed: Vec<Departed>) -> Error {
        let told = |one: &Departed| one.told(&self.world, &|rank| rank, self.world.round_of(one.process));
        let gone: Vec<_> = departed.iter().map(told).collect();
        let lines = gone.iter().map(Gone::line).collect::<Vec<_>>().join("; ");
        let line = gone.first().map(Gone::place).unwrap_or_default() + &lines;
        self.fails(Error::Gone { line, gone, missing: Vec::new() }, Phase::GivenUp)
    }

    /// The group has ended for this member.
    fn fails(&mut self, error: Error, phase: Phase) -> Error {
        self.world.enter(phase);
        self.world.ring();
        self.ended = Some(error.clone());
        error
    }

    /// Leaves the group. Others go on as far as they do not need it.
    pub fn close(&mut self) {
        if self.ended.is_none() && process::id() == self.pid {
            self.world.enter(Phase::Ended);
            self.world.ring();
            self.ended = Some(Error::Request("the group has been closed".to_owned()));
        }
        self.peers = None;
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.close();
    }
}

/// Why an operator was given up.
#[derive(Clone, Copy)]
enum Why {
    Gone,
    Late,
    Interrupted,
}

/// The operators of a batch, for names.
fn round_trip() -> Schedule {
    Schedule::parse("DC").unwrap_or_else(|_| unreachable!("a dispatch and its combine"))
}
