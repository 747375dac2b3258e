//! One core's work on [threads](super::threads): its operators in order, each a machine that is stepped. In lockstep the
//! simulated group of the core does all this itself.

use super::{Failure, Stepper, Unit, Who};
use crate::backend::{Backend, Told};
use crate::expert;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Instant;
use veriep_case::global_rank;
use veriep_case::parallel::lock;
use veriep_core::fabric::{Fabric, ProtocolError, Wait};
use veriep_core::layout::outputs::{capacity, ep_recv_counts_bytes};
use veriep_core::layout::record::Triple;
use veriep_core::layout::row_table;
use veriep_core::place::Tensor;
use veriep_core::protocol::{Agent, AgentEnv, Operator, Ran, Run};
use veriep_core::shape::Shape;
use veriep_core::sim::cluster::{Member, Planned, Returned};
use veriep_core::sync::join::Join;
use veriep_core::units::{CoreId, RankId};

/// What the cores of a rank share with each other on the host's side: the join, and what the experts returned.
#[derive(Debug, Default)]
pub struct RankState {
    /// By operator of the unit.
    joins: Vec<Join<AtomicU64>>,
    /// By batch.
    returned: Vec<RwLock<Returned>>,
    /// The rank's agent, on A2. It lives as long as the group.
    pub(super) agent: Mutex<Agent>,
    /// Tasks that it has posted.
    pub(super) tasks: AtomicU64,
    /// Steps of those of it who will stop, if any are to.
    pub(super) steps: AtomicU64,
}

impl RankState {
    /// Nothing ended yet, with room for `batches` batches.
    #[must_use]
    pub fn new(batches: usize) -> Self {
        Self {
            // A batch has two operators. Halves come with `reset`.
            joins: (0..2 * batches).map(|_| Join::default()).collect(),
            returned: (0..batches).map(|_| RwLock::default()).collect(),
            agent: Mutex::default(),
            tasks: AtomicU64::new(0),
            steps: AtomicU64::new(0),
        }
    }

    /// Rows that the experts of a batch returned, `[n, h]`.
    pub fn with_y<T>(&self, batch: usize, read: impl FnOnce(&[u8]) -> T) -> T {
        read(&self.returned[batch].read().unwrap_or_else(PoisonError::into_inner).y)
    }

    /// Forgets the operators of the unit before; the next one has so many, halves counted.
    pub fn reset(&mut self, operators: usize) {
        self.joins.clear();
        self.joins.resize_with(operators, Join::default);
        *self.steps.get_mut() = 0;
    }

    /// Tasks that the rank's agent has posted since the group began.
    pub fn tasks(&self) -> u64 {
        self.tasks.load(Ordering::Relaxed)
    }

    /// What a member of a simulated group has come to.
    pub(super) fn resume(&self, member: Member) {
        *lock(&self.agent) = member.agent;
        self.joins[..member.ended].iter().for_each(Join::open);
        for (kept, returned) in self.returned.iter().zip(member.returned) {
            *kept.write().unwrap_or_else(PoisonError::into_inner) = returned;
        }
    }

    /// Whether all cores of the rank have ended an operator of the unit.
    pub fn has_ended(&self, operator: usize) -> bool {
        self.joins[operator].is_open()
    }
}

/// Why a task stopped moving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Something is missing.
    Wait(Wait),
    /// Another core of the rank has not ended the operator before.
    Join,
    /// The operator has ended just now.
    Ended,
    /// All operators are done.
    End,
    /// It will not move again.
    Dead,
}

/// Moves the agent of `rank` on by at most `steps` steps. Returns the steps made, and what it waits for.
///
/// # Errors
/// The agent's.
pub(super) fn run_agent<B: Backend>(
    unit: &Unit<'_, B>,
    rank: RankId,
    steps: u32,
) -> Result<(u32, Option<Wait>), Failure> {
    let env = AgentEnv::new(unit.shape, rank, unit.options.choices.order);
    let mut agent = lock(&unit.ranks[rank.index()].agent);
    let mut nic = unit.backend.nic(rank);
    let steps = unit.left(rank, Who::Agent, steps);
    let Ran { steps, end } = agent.run(unit.shape, &env, &mut nic, steps);
    unit.count(rank, Who::Agent, steps);
    unit.add_tasks(rank, steps);
    match end.map_err(|error| Failure::Agent { rank, error })? {
        Run::Waiting(wait) => Ok((steps, Some(wait))),
        Run::Budget | Run::Done => Ok((steps, None)),
    }
}

/// How far a core is.
#[derive(Debug)]
enum Phase {
    /// Waits for the join.
    Between,
    /// Works on an operator.
    Runs,
    /// Was the last of its rank to end the operator; experts may be due.
    Last,
}

/// One core.
#[derive(Debug)]
pub struct Task {
    /// Its rank.
    pub rank: RankId,
    /// Its number there.
    pub core: CoreId,
    /// The next or running operator, by its number in the unit.
    pub operator: usize,
    phase: Phase,
    pub(super) stepper: Stepper,
    /// What the stand-in experts took: no operator's time.
    pub(super) experts: Duration,
}

impl Task {
    /// A core before its first operator.
    #[must_use]
    pub fn new(shape: &Shape, rank: RankId, core: CoreId) -> Self {
        Self {
            rank,
            core,
            operator: 0,
            phase: Phase::Between,
            stepper: Stepper::new(shape),
            experts: Duration::ZERO,
        }
    }

    /// Moves on by at most `steps` steps, within one operator. Returns the steps made and, if it could not go
    /// on, why.
    ///
    /// # Errors
    /// The machine's.
    pub fn run<B: Backend>(
        &mut self,
        unit: &Unit<'_, B>,
        steps: u32,
    ) -> Result<(u32, Option<Stop>), ProtocolError> {
        if matches!(self.phase, Phase::Between)
            && let Some(stop) = self.begin(unit)?
        {
            return Ok((0, Some(stop)));
        }
        if matches!(self.phase, Phase::Last) {
            return self.close(unit).map(|()| (0, Some(self.blocked(unit).unwrap_or(Stop::Ended))));
        }
        let (rank, who) = (self.rank, Who::Core(self.core));
        let left = unit.left(rank, who, steps);
        if left == 0 {
            return Ok((0, Some(Stop::Dead)));
        }
        let by_number = |error| global_rank::of_error(unit.shape, rank, error);
        let Ran { mut steps, end } = self.step(unit, left);
        let stop = match end.map_err(by_number)? {
            Run::Waiting(wait) => Some(Stop::Wait(global_rank::of_wait(unit.shape, rank, wait))),
            Run::Done => {
                if let Some(sent) = self.current(unit).filter(|planned| !planned.ends()) {
                    self.stepper.set_aside(sent);
                }
                self.end(unit)?;
                steps += 1;
                Some(Stop::Ended)
            }
            Run::Budget => None,
        };
        unit.count(rank, who, steps);
        Ok((steps, stop))
    }

    /// The operator that the task works on or waits to begin.
    #[must_use]
    pub fn current<B: Backend>(&self, unit: &Unit<'_, B>) -> Option<Planned> {
        unit.operators.get(self.operator).copied()
    }

    /// Why the task cannot begin its next operator: the cores of its rank, or with
    /// [`in_step`](super::Options::in_step) those of all ranks, have not ended the one before. `None` if it can,
    /// or has.
    #[must_use]
    pub fn blocked<B: Backend>(&self, unit: &Unit<'_, B>) -> Option<Stop> {
        match self.phase {
            Phase::Last => return self.must_meet(unit).then_some(Stop::Join),
            Phase::Between => {}
            Phase::Runs => return None,
        }
        if self.current(unit).is_none() {
            return Some(Stop::End);
        }
        let before = self.operator.checked_sub(1);
        let joined = before.is_none_or(|before| unit.ranks[self.rank.index()].has_ended(before));
        let in_step = !unit.options.in_step || unit.world.all_ranks_ended(self.operator);
        (!joined || !in_step).then_some(Stop::Join)
    }

    /// Begins the next operator.
    fn begin<B: Backend>(&mut self, unit: &Unit<'_, B>) -> Result<Option<Stop>, ProtocolError> {
        if let Some(stop) = self.blocked(unit) {
            return Ok(Some(stop));
        }
        let Some(planned) = self.current(unit) else { return Ok(Some(Stop::End)) };
        if unit.skips(self.rank, planned.round) {
            self.end(unit)?;
            return Ok(Some(Stop::Ended));
        }
        let over = (unit.shape, &unit.options, unit.backend);
        self.stepper.begin(over, (self.rank, self.core), planned)?;
        self.phase = Phase::Runs;
        Ok(None)
    }

    /// Steps the machine at most `budget` times.
    fn step<B: Backend>(&mut self, unit: &Unit<'_, B>, budget: u32) -> Ran {
        let Some(planned) = self.current(unit) else { return Ran { steps: 0, end: Ok(Run::Done) } };
        let Planned { round, .. } = planned;
        let (rank, core) = (self.rank, self.core);
        let Ok(returned) = unit.ranks[rank.index()].returned[round].read() else {
            return Ran::failed(ProtocolError::Internal("a core of this rank panicked"));
        };
        let given = (&unit.inputs(round, rank), &returned.combine_inputs());
        if !B::STEPS {
            let fabric = unit.backend.fabric(rank, core, round);
            return self.stepper.step::<B>(unit.shape, fabric, given, budget);
        }
        // The phase is known between two steps only.
        for steps in 0..budget {
            unit.backend.hears(rank, core, Told::Steps(planned, self.stepper.phase()));
            let fabric = unit.backend.fabric(rank, core, round);
            let ran = self.stepper.step::<B>(unit.shape, fabric, given, 1);
            if ran.steps == 0 {
                return Ran { steps, ..ran };
            }
        }
        Ran { steps: budget, end: Ok(Run::Budget) }
    }

    /// Ends the operator, or a half of it.
    fn end<B: Backend>(&mut self, unit: &Unit<'_, B>) -> Result<(), ProtocolError> {
        unit.backend.hears(self.rank, self.core, Told::Ends);
        if !unit.ranks[self.rank.index()].joins[self.operator].arrive(unit.shape.aiv_num()) {
            self.leave();
            return Ok(());
        }
        unit.world.rank_has_ended();
        self.phase = Phase::Last;
        self.close(unit)
    }

    /// Whether the experts must still wait for other ranks.
    fn must_meet<B: Backend>(&self, unit: &Unit<'_, B>) -> bool {
        unit.options.in_step && !unit.world.all_cores_ended(self.operator + 1)
    }

    /// The last core of the rank runs the experts, as soon as they may, then lets all go on.
    fn close<B: Backend>(&mut self, unit: &Unit<'_, B>) -> Result<(), ProtocolError> {
        if self.must_meet(unit) {
            return Ok(());
        }
        let state = &unit.ranks[self.rank.index()];
        if let Some(batch) = self.experts_due(unit) {
            let start = Instant::now();
            unit.world.with_experts(|| {
                let ran = self.run_experts(unit, batch, &state.returned[batch]);
                unit.backend.hears(self.rank, self.core, Told::Experts);
                ran
            })?;
            self.experts += start.elapsed();
        }
        state.joins[self.operator].open();
        unit.world.rank_is_open();
        self.leave();
        Ok(())
    }

    /// Goes on to the next operator.
    fn leave(&mut self) {
        self.operator += 1;
        self.phase = Phase::Between;
    }

    /// The batch whose experts run at the end of the operator. Where they read rows in shared memory, as late as may
    /// be, just before its combine: a row that comes too early must not find them done.
    fn experts_due<B>(&self, unit: &Unit<'_, B>) -> Option<usize> {
        let late = unit.options.choices.receive.keeps_rows();
        let due = if late { Operator::Combine } else { Operator::Dispatch };
        let planned = unit.operators.get(self.operator + usize::from(late))?;
        let is_due = planned.operator == due && if late { planned.begins() } else { planned.ends() };
        (is_due && !unit.skips(self.rank, planned.round)).then_some(planned.round)
    }

    /// The stand-in experts of the rank.
    fn run_experts<B: Backend>(
        &self,
        unit: &Unit<'_, B>,
        batch: usize,
        returned: &RwLock<Returned>,
    ) -> Result<(), ProtocolError> {
        let mut rows =
            returned.write().map_err(|_| ProtocolError::Internal("a core of this rank panicked"))?;
        let receive = unit.options.choices.receive;
        // Experts have no core of their own: they read through core 0's fabric.
        let mut fabric = unit.backend.fabric(self.rank, CoreId(0), batch);
        if unit.options.returned_before {
            // Rows have come over what stood there.
            let results = receive.results(&rows.row_table).filter(|_| receive.overwrites());
            return results.map_or(Ok(()), |at| fabric.write(at, &rows.y).map_err(Into::into));
        }
        let stretches = {
            let (shape, y) = (unit.shape, &mut rows.y);
            let read = expert::reading(unit.backend, &fabric, self.rank, batch);
            if unit.options.experts_idle {
                expert::return_zeros(shape, self.rank, &read, y)?;
                Vec::new()
            } else {
                expert::run(shape, &unit.batches[batch], (self.rank, receive), &read, y)?
            }
        };
        let n = rows.y.len() as u64 / unit.shape.row_bytes();
        if !unit.options.rows_unseen {
            expert::keep_rows(&mut fabric, &stretches)?;
        }
        keep_combine_inputs(unit.shape, unit.backend, (self.rank, batch), n, &mut rows);
        if let Some(results) = receive.results(&rows.row_table) {
            fabric.write(results, &rows.y)?;
        }
        Ok(())
    }
}

/// Keeps what a batch's combine needs of what its dispatch has put out, `n` rows.
pub(crate) fn keep_combine_inputs<B: Backend>(
    shape: &Shape,
    backend: &B,
    (rank, batch): (RankId, usize),
    n: u64,
    returned: &mut Returned,
) {
    const TABLE: usize = 2 * row_table::ENTRY as usize;
    let Returned {
        assist_info, expand_scales, ep_recv_counts, expand_idx, sent_rows, row_table: table, ..
    } = returned;
    let ep_rank = global_rank::ep_rank(shape, rank);
    let whole = |tensor| capacity(shape, ep_rank, tensor) as usize;
    let counts = ep_recv_counts_bytes(shape, ep_rank) as usize;
    let triples = whole(Tensor::AssistInfo).min((n * Triple::BYTES) as usize);
    let weights = whole(Tensor::ExpandScales).min((n * 4) as usize);
    for (tensor, len, to) in [
        (Tensor::AssistInfo, triples, assist_info),
        (Tensor::ExpandScales, weights, expand_scales),
        (Tensor::EpRecvCounts, counts, ep_recv_counts),
        (Tensor::ExpandIdx, whole(Tensor::ExpandIdx), expand_idx),
        (Tensor::SentRows, whole(Tensor::SentRows), sent_rows),
        (Tensor::RowTable, whole(Tensor::RowTable).min(TABLE), table),
    ] {
        to.clear();
        backend.read_output(rank, batch, tensor, len, &mut |bytes| to.extend_from_slice(bytes));
    }
}
