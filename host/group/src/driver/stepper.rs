//! A core and what it needs to step the machine of an operator.

use super::budget::steps_max;
use super::{Failure, Options};
use crate::backend::{Backend, Told};
use crate::vector::RowUnit;
use veriep_case::global_rank;
use veriep_core::fabric::{Fabric, ProtocolError};
use veriep_core::inputs::Inputs;
use veriep_core::protocol::{self, CombineInputs, Context, Env, Machine, Ran, Run, Scratch};
use veriep_core::shape::Shape;
use veriep_core::sim::cluster::Planned;
use veriep_core::units::{CoreId, RankId};

/// One core. It knows neither join nor experts: whoever steps it owes them.
#[derive(Debug)]
pub(crate) struct Stepper {
    env: Option<Env<RowUnit>>,
    /// Steps of this operator, and how many it can have.
    steps: u64,
    steps_max: u64,
    machine: Option<Machine>,
    /// Scratch.
    words: Vec<u32>,
    row: Vec<u8>,
}

impl Stepper {
    /// A core before its first operator.
    pub(crate) fn new(shape: &Shape) -> Self {
        Self {
            env: None,
            steps: 0,
            steps_max: u64::MAX,
            machine: None,
            words: vec![0; protocol::scratch_words(shape)],
            row: vec![0; protocol::scratch_bytes(shape)],
        }
    }

    /// The phase of its machine; none before its first operator.
    pub(crate) const fn phase(&self) -> &'static str {
        match &self.machine {
            Some(machine) => machine.phase(),
            None => "",
        }
    }

    /// Begins an operator.
    ///
    /// # Errors
    /// The shape or the memory does not have what the options ask for, which should have been seen before.
    #[inline]
    pub(crate) fn begin<B: Backend>(
        &mut self,
        (shape, options, backend): (&Shape, &Options, &B),
        (rank, core): (RankId, CoreId),
        planned: Planned,
    ) -> Result<(), ProtocolError> {
        backend.hears(rank, core, Told::Begins(planned));
        let env = match self.env.take() {
            Some(env) => env,
            None => {
                let Options { choices, vector, rows_idle, one_by_one, .. } = *options;
                let vector = RowUnit((!rows_idle).then_some(vector));
                let capabilities = backend.fabric(rank, core, 0).capabilities();
                let ep_rank = global_rank::ep_rank(shape, rank);
                let env = Env::new(shape, ep_rank, core, choices, capabilities, vector);
                let env = env.map_err(|_| ProtocolError::Internal("refused in the middle of a unit"))?;
                let env = env.with_tp_rank(global_rank::tp_rank(shape, rank));
                if one_by_one { env.one_by_one() } else { env }
            }
        };
        let of_plan = || steps_max(shape, global_rank::ep_rank(shape, rank));
        (self.steps, self.steps_max) = (0, options.steps_max.unwrap_or_else(of_plan));
        self.machine = Some(Machine::begin(planned.operator, self.env.insert(env)));
        Ok(())
    }

    /// Steps the machine over the fabric of a core at most `budget` times. Before its first operator a core takes no step.
    pub(crate) fn step<B: Backend>(
        &mut self,
        shape: &Shape,
        mut fabric: impl Fabric,
        (inputs, combine_inputs): (&Inputs<'_>, &CombineInputs<'_>),
        budget: u32,
    ) -> Ran {
        let (Some(machine), Some(env)) = (&mut self.machine, &self.env) else {
            return Ran { steps: 0, end: Ok(Run::Budget) };
        };
        let scratch = Scratch { words: &mut self.words, row: &mut self.row };
        let core = match env.on(shape) {
            Ok(core) => core,
            Err(error) => return Ran::failed(error),
        };
        let ran = if B::INLINED {
            let fabric = &mut fabric;
            machine.run(&mut Context { core, fabric, inputs, combine_inputs, scratch }, budget)
        } else {
            let fabric: &mut dyn Fabric = &mut fabric;
            run_on_any(machine, &mut Context { core, fabric, inputs, combine_inputs, scratch }, budget)
        };
        self.steps += u64::from(ran.steps);
        ran
    }

    /// The failure of a core that has taken more steps than its operator can have.
    ///
    /// # Errors
    /// It has.
    pub(crate) fn keeps_to_its_plan(&self, rank: RankId, core: CoreId) -> Result<(), Failure> {
        let steps = self.steps;
        if steps > self.steps_max { Err(Failure::Polls { rank, core, steps }) } else { Ok(()) }
    }
}

/// Steps over a fabric whose calls are found at run time: compiled once for all of them.
#[inline(never)]
fn run_on_any(machine: &mut Machine, cx: &mut Context<'_, dyn Fabric + '_>, budget: u32) -> Ran {
    machine.run(cx, budget)
}
