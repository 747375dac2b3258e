//! One operator of one rank: its cores, and its agent where the protocol has one, polled by the thread that calls.

use super::{Failure, Hang, Missing, Options, Rest, Stepper};
use crate::backend::Backend;
use crate::world::World;
use core::time::Duration;
use std::time::Instant;
use veriep_case::global_rank;
use veriep_core::fabric::Wait;
use veriep_core::inputs::Inputs;
use veriep_core::protocol::{self, Agent, AgentEnv, CombineInputs, Ran, Run};
use veriep_core::shape::Shape;
use veriep_core::sim::cluster::{Half, Planned};
use veriep_core::units::{CoreId, RankId};

/// Steps that a core takes in a row before another one gets its turn.
const TURN: u32 = 256;
/// Looks in vain between two looks at the clock.
const LOOKS: u32 = 64;

/// What is to be done.
pub(crate) struct Operator<'a, B> {
    pub(crate) shape: &'a Shape,
    pub(crate) options: &'a Options,
    pub(crate) backend: &'a B,
    pub(crate) world: &'a World,
    pub(crate) rank: RankId,
    pub(crate) operator: protocol::Operator,
    /// How much of it.
    pub(crate) half: Half,
    /// The outputs that it writes.
    pub(crate) batch: usize,
    pub(crate) inputs: &'a Inputs<'a>,
    pub(crate) combine_inputs: &'a CombineInputs<'a>,
}

/// What of a rank does it.
#[derive(Debug)]
pub(crate) struct Cores {
    steppers: Vec<Stepper>,
    agent: Agent,
    /// What each core waits for in the operator that they are in; nothing of one that has ended it. Empty between operators.
    waits: Vec<Option<Wait>>,
}

impl<B> Operator<'_, B> {
    const fn planned(&self) -> Planned {
        Planned { operator: self.operator, round: self.batch, half: self.half }
    }
}

impl Cores {
    /// All cores of a rank before its first operator.
    pub(crate) fn of(shape: &Shape) -> Self {
        let steppers = (0..shape.aiv_num()).map(|_| Stepper::new(shape)).collect();
        Self { steppers, agent: Agent::default(), waits: Vec::new() }
    }

    /// Whether the cores are in an operator that they have not ended.
    pub(crate) const fn are_busy(&self) -> bool {
        !self.waits.is_empty()
    }

    /// Begins an operator or a half of one. The join is given: all cores have ended the one before.
    fn begin<B: Backend>(&mut self, operator: &Operator<'_, B>) -> Result<(), Failure> {
        let Operator { shape, options, backend, rank, .. } = *operator;
        for (core, stepper) in (0..).map(CoreId).zip(&mut self.steppers) {
            let begun = stepper.begin((shape, options, backend), (rank, core), operator.planned());
            begun.map_err(|error| Failure::Protocol { rank, core, error })?;
        }
        self.waits = vec![Some(Wait::IDLE); self.steppers.len()];
        Ok(())
    }

    /// Runs an operator or a half of one to its end; goes on with it if it has begun. While no core moves, `goes_on` is asked
    /// with how long that has been so. `since` is when the cores came to a stop, if they have not moved since then: a caller that
    /// only looks keeps it from one look to the next.
    ///
    /// # Errors
    /// A machine's, or what each core misses once it does not go on.
    pub(crate) fn run<B: Backend>(
        &mut self,
        operator: &Operator<'_, B>,
        since: &mut Option<Instant>,
        goes_on: &mut dyn FnMut(Duration) -> bool,
    ) -> Result<(), Failure> {
        let rank = operator.rank;
        if !self.are_busy() {
            self.begin(operator)?;
        }
        let mut rest = Rest::new(operator.world);
        loop {
            // Before the agent's step: what is rung until then is served by it.
            let have_ended = self.waits.iter().all(Option::is_none);
            let mut has_moved = self.pass(operator)?;
            let agent = self.serve(operator, &mut has_moved)?;
            let is_idle = agent.is_none_or(|wait| have_ended && wait == Wait::IDLE);
            if is_idle && self.waits.iter().all(Option::is_none) {
                self.waits.clear();
                rest.moved();
                return Ok(());
            }
            if has_moved {
                *since = None;
                rest.moved();
                continue;
            }
            if rest.passes().is_multiple_of(LOOKS) || operator.world.is_crowded() {
                let idle = since.get_or_insert_with(Instant::now).elapsed();
                if !goes_on(idle) {
                    let of_core = |(core, wait): (u32, &Option<Wait>)| {
                        Some(Missing { rank, core: CoreId(core), operator: 0, wait: (*wait)? })
                    };
                    let mut missing: Vec<_> = (0..).zip(&self.waits).filter_map(of_core).collect();
                    missing.extend(agent.and_then(|wait| Missing::of_agent(rank, wait)));
                    return Err(Failure::Hang(Hang { after: idle, missing }));
                }
            }
            rest.in_vain();
        }
    }

    /// Polls all cores that have not ended. Whether any moved.
    fn pass<B: Backend>(&mut self, operator: &Operator<'_, B>) -> Result<bool, Failure> {
        let Operator { shape, backend, rank, batch, inputs, combine_inputs, .. } = *operator;
        let mut has_moved = false;
        let all = self.steppers.iter_mut().zip(&mut self.waits);
        for (core, (stepper, wait)) in (0..).map(CoreId).zip(all) {
            if wait.is_none() {
                continue;
            }
            let fabric = backend.fabric(rank, core, batch);
            let Ran { steps, end } = stepper.step::<B>(shape, fabric, (inputs, combine_inputs), TURN);
            stepper.keeps_to_its_plan(rank, core)?;
            let by_number = |error| global_rank::of_error(shape, rank, error);
            has_moved |= steps > 0;
            match end.map_err(by_number).map_err(|error| Failure::Protocol { rank, core, error })? {
                Run::Waiting(missing) => *wait = Some(global_rank::of_wait(shape, rank, missing)),
                Run::Done => {
                    if !operator.planned().ends() {
                        stepper.set_aside(operator.planned());
                    }
                    *wait = None;
                    has_moved = true;
                }
                Run::Budget => {}
            }
        }
        Ok(has_moved)
    }

    /// Polls the agent, if there is one. What it waits for.
    fn serve<B: Backend>(
        &mut self,
        operator: &Operator<'_, B>,
        has_moved: &mut bool,
    ) -> Result<Option<Wait>, Failure> {
        let Operator { shape, options, backend, rank, .. } = *operator;
        if !options.choices.has_agents(shape) {
            return Ok(None);
        }
        let env = AgentEnv::new(shape, rank, options.choices.order);
        let Ran { steps, end } = self.agent.run(shape, &env, &mut backend.nic(rank), TURN);
        *has_moved |= steps > 0;
        match end.map_err(|error| Failure::Agent { rank, error })? {
            Run::Waiting(wait) => Ok(Some(wait)),
            Run::Budget | Run::Done => Ok(Some(Wait::QUIET)),
        }
    }
}
