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
use veriep_core::sim::cluster::{Half, Open, Planned};
use veriep_core::units::{CoreId, RankId};

/// One core. It knows neither join nor experts: its driver must add them.
#[derive(Debug)]
pub(crate) struct Stepper {
    env: Option<Env<RowUnit>>,
    /// Steps of this operator, and how many it can have.
    steps: u64,
    steps_max: u64,
    machine: Option<Machine>,
    /// How much of the operator it takes.
    half: Half,
    /// Scratch.
    words: Vec<u32>,
    row: Vec<u8>,
    /// Operators that are sent and not ended.
    open: Vec<Open>,
}

impl Stepper {
    /// A core before its first operator.
    pub(crate) fn new(shape: &Shape) -> Self {
        Self {
            env: None,
            steps: 0,
            steps_max: u64::MAX,
            machine: None,
            half: Half::Whole,
            words: vec![0; protocol::scratch_words(shape)],
            row: vec![0; protocol::scratch_bytes(shape)],
            open: Vec::new(),
        }
    }

    /// The phase of its machine; none before its first operator.
    pub(crate) const fn phase(&self) -> &'static str {
        match &self.machine {
            Some(machine) => machine.phase(),
            None => "",
        }
    }

    /// Begins an operator, or a half of one: a receiving half goes on with the operator of the sending half before.
    ///
    /// # Errors
    /// The shape or the memory does not have what the options ask for, which should have been seen before; a receiving half
    /// without a sending half.
    #[inline]
    pub(crate) fn begin<B: Backend>(
        &mut self,
        (shape, options, backend): (&Shape, &Options, &B),
        (rank, core): (RankId, CoreId),
        planned: Planned,
    ) -> Result<(), ProtocolError> {
        self.half = planned.half;
        if !planned.begins() {
            return self.resume(shape, &backend.fabric(rank, core, planned.round), planned);
        }
        backend.hears(rank, core, Told::Begins(planned));
        let env = match self.env.take() {
            Some(env) => env,
            None => {
                let Options { choices, vector, rows_idle, one_by_one, .. } = *options;
                let vector = RowUnit((!rows_idle).then_some(vector));
                let terms = backend.fabric(rank, core, 0).terms();
                let ep_rank = global_rank::ep_rank(shape, rank);
                let env = Env::new(shape, ep_rank, core, choices, terms, vector);
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

    /// Goes on with an operator that has been set aside, in the scratch that it had.
    fn resume(&mut self, shape: &Shape, fabric: &impl Fabric, planned: Planned) -> Result<(), ProtocolError> {
        let (Some(mut open), Some(env)) = (Open::take(&mut self.open, planned), &self.env) else {
            return Err(ProtocolError::Given("a receiving half begins without its sending half"));
        };
        open.machine.resume(env.on(shape)?, fabric)?;
        (self.steps, self.machine) = (0, Some(open.machine));
        (self.words, self.row) = (open.words, open.row);
        Ok(())
    }

    /// Sets an operator aside whose sending half has ended. The next one has a scratch of its own.
    pub(crate) fn set_aside(&mut self, sent: Planned) {
        let Some(machine) = self.machine.take() else { return };
        let words = core::mem::take(&mut self.words);
        let row = core::mem::take(&mut self.row);
        (self.words, self.row) = (vec![0; words.len()], vec![0; row.len()]);
        self.open.push(Open { sent, machine, words, row });
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
        let ran = if B::INLINED && self.half != Half::Send {
            let fabric = &mut fabric;
            machine.run(&mut Context { core, fabric, inputs, combine_inputs, scratch }, budget)
        } else {
            let fabric: &mut dyn Fabric = &mut fabric;
            let cx = &mut Context { core, fabric, inputs, combine_inputs, scratch };
            if self.half == Half::Send { machine.send(cx, budget) } else { run_on_any(machine, cx, budget) }
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
