//! One operator of a member, and what ends its group: a death, a deadline, an interruption, or calls that differ.

use super::{GoesOn, Member, outputs_of};
use crate::backend::Backend;
use crate::driver::rank::Operator;
use crate::driver::schedule::Schedule;
use crate::driver::{Failure, Hang};
use crate::group;
use crate::world::{Announced, Called, Departed, Phase, World};
use core::time::Duration;
use std::sync::Arc;
use std::thread;
use std::time::Instant;
use veriep_case::error::{Error, Gone, Missing};
use veriep_core::inputs::Inputs;
use veriep_core::protocol::{self, CombineInputs};
use veriep_core::sim::cluster::Half;

/// Between two questions to the caller whether it still wants to wait.
const ASKS: Duration = Duration::from_millis(20);
/// Between two looks at ranks that are far behind.
const TICK: Duration = Duration::from_millis(1);
/// After a death, until others that came with it have been seen, too.
const SETTLES: Duration = Duration::from_millis(20);

/// An operator of a batch or a half of one, and what it reads.
#[derive(Clone, Copy)]
pub(super) struct Run<'a> {
    pub(super) operator: protocol::Operator,
    pub(super) half: Half,
    pub(super) layer: usize,
    pub(super) slot: usize,
    pub(super) batch: usize,
    /// The number by which ranks compare it.
    pub(super) called: usize,
    /// A number of the tensors that all ranks give alike.
    pub(super) common: u64,
    pub(super) inputs: &'a Inputs<'a>,
    pub(super) combine_inputs: &'a CombineInputs<'a>,
}

impl Run<'_> {
    /// The operator as calls are compared.
    const fn call(&self) -> Called {
        match (self.operator, self.half) {
            (protocol::Operator::Dispatch, Half::Whole) => Called::Dispatch,
            (protocol::Operator::Dispatch, Half::Send) => Called::DispatchSend,
            (protocol::Operator::Dispatch, Half::Receive) => Called::DispatchFinish,
            (protocol::Operator::Combine, Half::Whole) => Called::Combine,
            (protocol::Operator::Combine, Half::Send) => Called::CombineSend,
            (protocol::Operator::Combine, Half::Receive) => Called::CombineFinish,
        }
    }

    /// Its number among those of its batch.
    const fn nth(&self) -> usize {
        match self.operator {
            protocol::Operator::Dispatch => 0,
            protocol::Operator::Combine => 1,
        }
    }
}

/// Why an operator was given up.
/// Polls that have been in vain.
#[derive(Debug)]
pub(super) struct Still {
    /// The moment from which the deadline counts.
    since: Instant,
    /// The last poll.
    looked: Instant,
}

impl Still {
    /// Returns the moment from which the deadline counts for a poll now. While the caller did something else it has not looked, so the time
    /// between two polls counts for half the deadline at most.
    fn since(self, deadline: Duration) -> Instant {
        self.since + self.looked.elapsed().saturating_sub(deadline / 2)
    }
}

enum Why {
    Mismatch(String),
    Gone,
    Late,
    Interrupted,
}

/// Looks, while a member waits, for a reason to give up.
struct Look<'a> {
    world: Arc<World>,
    deadline: Duration,
    /// The number of the operator that the member is in.
    operator: u64,
    /// Its call, once others can see that.
    announced: Option<Announced>,
    /// Asks the caller whether it still wants to wait; nothing of a caller that does not wait.
    goes_on: Option<GoesOn<'a>>,
    /// When the caller was asked last.
    asked: Instant,
    why: Option<Why>,
}

impl Look<'_> {
    /// Whether the member goes on waiting, after such a time in which no rank has moved.
    fn goes_on(&mut self, idle: Duration) -> bool {
        let mismatch = self.announced.as_ref().and_then(Announced::mismatch);
        if let Some(line) = mismatch {
            self.why = Some(Why::Mismatch(line));
        } else if !self.world.gone_before(self.operator).is_empty() {
            self.why = Some(Why::Gone);
        } else if self.world.is_stopped() {
            self.why = Some(Why::Late);
        }
        if self.why.is_none() && idle >= self.deadline {
            self.why = Some(Why::Late);
        }
        if self.why.is_some() {
            return false;
        }
        let Some(goes_on) = &mut self.goes_on else { return false };
        if self.asked.elapsed() >= ASKS {
            self.asked = Instant::now();
            self.why = (!goes_on()).then_some(Why::Interrupted);
        }
        self.why.is_none()
    }
}

/// The operators of a batch, for names.
fn round_trip() -> Schedule {
    Schedule::parse("DC").unwrap_or_else(|_| unreachable!("a dispatch and its combine"))
}

impl Member {
    pub(super) fn run<B: Backend>(
        &mut self,
        backend: &B,
        run: &Run<'_>,
        goes_on: GoesOn<'_>,
    ) -> Result<(), Error> {
        self.try_run(backend, run, Some(goes_on)).map(drop)
    }

    /// Runs an operator or a half of one to its end; goes on with it if it has begun. Whether it has ended: a caller that does
    /// not wait gets `false` when no core can move.
    pub(super) fn try_run<B: Backend>(
        &mut self,
        backend: &B,
        run: &Run<'_>,
        goes_on: Option<GoesOn<'_>>,
    ) -> Result<bool, Error> {
        let next = self.operators + 1;
        let waits = goes_on.is_some();
        let mut look = Look {
            world: self.world.clone(),
            deadline: self.plan.deadline,
            operator: next,
            announced: self.announced.take(),
            goes_on,
            asked: Instant::now(),
            why: None,
        };
        // A caller that waits begins to do so now; one that polls did with the first poll in vain.
        let still = self.still.take().filter(|_| !waits);
        let mut since = still.map(|still| still.since(self.plan.deadline));
        let has_room = look.announced.is_some()
            || loop {
                if self.calls.have_room() {
                    break true;
                }
                let idle = since.get_or_insert_with(Instant::now).elapsed();
                if !look.goes_on(idle) {
                    break false;
                }
                thread::sleep(TICK);
            };
        let ran = if has_room { self.run_announced(backend, run, &mut look, &mut since) } else { Ok(false) };
        match (look.why, ran) {
            (None, Ok(true)) => {
                self.operators = next;
                self.world.end_operator();
                Ok(true)
            }
            (None, Ok(false) | Err(Failure::Hang(_))) if !waits => {
                self.announced = look.announced;
                self.still = since.map(|since| Still { since, looked: Instant::now() });
                Ok(false)
            }
            (Some(Why::Mismatch(line)), _) => Err(self.fails(Error::Mismatch(line), Phase::GivenUp)),
            (Some(Why::Gone), _) => {
                thread::sleep(SETTLES);
                let gone = self.world.gone_before(next);
                Err(self.gone(gone))
            }
            (Some(Why::Interrupted), _) => {
                Err(self.fails(Error::Interrupted("while others were waited for".to_owned()), Phase::Ended))
            }
            (Some(Why::Late), Err(Failure::Hang(hang))) => Err(self.late(run, hang)),
            (Some(Why::Late), _) => Err(self.late(run, Hang::default())),
            (None, Err(failure)) => {
                Err(self.fails(group::of_failure(run.batch, &round_trip(), &failure), Phase::Ended))
            }
            (None, Ok(false)) => Ok(false),
        }
    }

    /// Announces the call, unless that has been done, and steps the cores. Whether they have ended.
    fn run_announced<B: Backend>(
        &mut self,
        backend: &B,
        run: &Run<'_>,
        look: &mut Look<'_>,
        since: &mut Option<Instant>,
    ) -> Result<bool, Failure> {
        let Self { plan, world, cores, rank, calls, .. } = self;
        look.announced.get_or_insert_with(|| {
            // Others have made room.
            *since = None;
            world.begin_operator(run.batch, run.nth());
            calls.announce(plan.call(run.call(), run.layer, run.called, run.common))
        });
        let work = Operator {
            shape: plan.shape_of(run.layer),
            options: &plan.options,
            backend,
            world,
            rank: *rank,
            operator: run.operator,
            half: run.half,
            batch: outputs_of(run.layer, run.slot),
            inputs: run.inputs,
            combine_inputs: run.combine_inputs,
        };
        look.goes_on(Duration::ZERO);
        if look.why.is_some() {
            return Ok(false);
        }
        cores[run.layer].run(&work, since, &mut |idle| look.goes_on(idle)).map(|()| true)
    }

    /// No rank has moved for the deadline: some do not run, or all wait for something.
    fn late(&mut self, run: &Run<'_>, mut hang: Hang) -> Error {
        let was_stopped = self.world.is_stopped();
        let silent = if self.watch.is_some() && !was_stopped { self.world.silent() } else { Vec::new() };
        self.world.stop();
        if !silent.is_empty() {
            return self.gone(silent);
        }
        if !hang.missing.is_empty() {
            hang.missing.iter_mut().for_each(|missing| missing.operator = run.nth());
            let failure = group::of_failure(run.batch, &round_trip(), &Failure::Hang(hang));
            return self.fails(failure, Phase::GivenUp);
        }
        if was_stopped {
            let line = "the group has ended: another rank has waited for its deadline".to_owned();
            return self.fails(Error::NoProgress { line, missing: Vec::new() }, Phase::GivenUp);
        }
        let behind = self.calls.behind();
        let line = format!(
            "no progress for {} s: ranks {behind:?} have not made a call that rank {} is far ahead of",
            self.plan.deadline.as_secs_f64(),
            self.rank
        );
        let missing = |&rank: &usize| Missing {
            rank: self.rank.0,
            round: run.batch,
            operator: run.operator.name(),
            what: "call",
            source_rank: Some(rank as u32),
            ..Missing::default()
        };
        let missing = behind.iter().map(missing).collect();
        self.fails(Error::NoProgress { line, missing }, Phase::GivenUp)
    }

    fn gone(&mut self, departed: Vec<Departed>) -> Error {
        let told = |one: &Departed| one.told(&self.world, &|rank| rank, self.world.round_of(one.process));
        let gone: Vec<_> = departed.iter().map(told).collect();
        let lines = gone.iter().map(Gone::line).collect::<Vec<_>>().join("; ");
        let line = gone.first().map(Gone::place).unwrap_or_default() + &lines;
        self.fails(Error::Gone { line, gone, missing: Vec::new() }, Phase::GivenUp)
    }

    /// The group has ended for this member.
    pub(super) fn fails(&mut self, error: Error, phase: Phase) -> Error {
        self.world.enter(phase);
        self.world.notify();
        self.ended = Some(error.clone());
        error
    }
}
