//! One operator of a member, and what ends its group: a death, a deadline, an interruption, or calls that differ.

use super::{GoesOn, Member, outputs_of};
use crate::backend::Backend;
use crate::driver::rank::Operator;
use crate::driver::schedule::Schedule;
use crate::driver::{Failure, Hang};
use crate::error::Error;
use crate::group;
use crate::world::{Called, Departed, Gone, Phase};
use core::time::Duration;
use std::thread;
use std::time::Instant;
use veriep_core::inputs::Inputs;
use veriep_core::protocol::{self, Operands};

/// Between two questions to the caller whether it still wants to wait.
const ASKS: Duration = Duration::from_millis(20);
/// Between two looks at ranks that are far behind.
const TICK: Duration = Duration::from_millis(1);
/// Behind a death, until others that came with it have been seen, too.
const SETTLES: Duration = Duration::from_millis(20);

/// An operator of a batch.
pub(super) struct Run {
    pub(super) operator: protocol::Operator,
    pub(super) layer: usize,
    pub(super) slot: usize,
    pub(super) batch: usize,
    /// The number by which ranks compare it.
    pub(super) called: usize,
    /// A number of the tensors that all ranks give alike.
    pub(super) common: u64,
}

/// Why an operator was given up.
enum Why {
    Mismatch(String),
    Gone,
    Late,
    Interrupted,
}

/// The operators of a batch, for names.
fn round_trip() -> Schedule {
    Schedule::parse("DC").unwrap_or_else(|_| unreachable!("a dispatch and its combine"))
}

impl Member {
    pub(super) fn run<B: Backend>(
        &mut self,
        backend: &B,
        run: &Run,
        (inputs, operands): (&Inputs<'_>, &Operands<'_>),
        goes_on: GoesOn<'_>,
    ) -> Result<(), Error> {
        let Run { operator, layer, slot, batch, called: number, common } = *run;
        let (called, nth) = match operator {
            protocol::Operator::Dispatch => (Called::Dispatch, 0),
            protocol::Operator::Combine => (Called::Combine, 1),
        };
        self.wait_for_room(goes_on)?;
        let announced = self.calls.announce(self.plan.call(called, layer, number, common));
        self.world.begin_operator(batch, nth);
        let (mut why, mut asked) = (None, Instant::now());
        let Self { plan, world, cores, rank, operators, .. } = self;
        let next = *operators + 1;
        let mut look = |idle| {
            if let Some(line) = announced.mismatch() {
                why = Some(Why::Mismatch(line));
            } else if !world.gone_before(next).is_empty() {
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
            shape: plan.shape_of(layer),
            options: &plan.options,
            backend,
            world,
            rank: *rank,
            operator,
            batch: outputs_of(layer, slot),
            inputs,
            operands,
        };
        let ran = if look(Duration::ZERO) { cores[layer].run(&work, &mut look) } else { Ok(()) };
        match (why, ran) {
            (None, Ok(())) => {
                self.operators = next;
                self.world.end_operator();
                Ok(())
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
            (Some(Why::Late), Err(Failure::Hang(hang))) => Err(self.late((nth, batch), hang)),
            (Some(Why::Late), _) => Err(self.late((nth, batch), Hang::default())),
            (None, Err(failure)) => {
                Err(self.fails(group::of_failure(batch, &round_trip(), &failure), Phase::Ended))
            }
        }
    }

    /// Waits until all ranks are near enough to compare the next call.
    fn wait_for_room(&mut self, goes_on: GoesOn<'_>) -> Result<(), Error> {
        let since = Instant::now();
        while !self.calls.have_room() {
            let gone = self.world.gone_before(self.operators + 1);
            if !gone.is_empty() {
                return Err(self.gone(gone));
            }
            if !goes_on() {
                let interrupted = Error::Interrupted("while others were waited for".to_owned());
                return Err(self.fails(interrupted, Phase::Ended));
            }
            if self.world.is_stopped() || since.elapsed() >= self.plan.deadline {
                return Err(self.late((0, self.batches), Hang::default()));
            }
            thread::sleep(TICK);
        }
        Ok(())
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
    pub(super) fn fails(&mut self, error: Error, phase: Phase) -> Error {
        self.world.enter(phase);
        self.world.ring();
        self.ended = Some(error.clone());
        error
    }
}
