//! The progress of a core, and one step of its state machine over any memory model.

use super::oracle::Expected;
use super::protocol::{Outcome, View};
use super::setup::Setup;
use veriep_core::fabric::middleware::Middleware;
use veriep_core::fabric::rank_remap::RankRemap;
use veriep_core::fabric::{Fabric, Progress};
use veriep_core::inputs::Inputs;
use veriep_core::protocol::{CombineInputs, Context, Machine, Operator, Run, Scratch};
use veriep_core::sim::order::Half;

/// How far a core is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// Waits for the join.
    Between,
    /// Runs the experts of the rank's next batch, where they read rows in the window: the rank's first core.
    Experts {
        /// Moves that they have made.
        moves: u32,
    },
    /// Works on an operator.
    Runs(Machine),
    /// Has sent, and is set aside.
    Sent {
        machine: Machine,
        /// Output bytes that its rank has written until then; 0 of all cores but the last.
        written: u32,
    },
    /// Is about to go on with an operator that it has sent.
    Resumes(Machine),
}

/// The core that steps, by its number in the group, and how much of its operator it takes.
#[derive(Clone, Copy)]
pub(super) struct At {
    pub(super) core: usize,
    pub(super) half: Half,
}

impl Setup<'_> {
    /// The beginning of an operator of core number `core` of the group.
    pub(super) fn begin(&self, core: usize, operator: Operator) -> Phase {
        Phase::Runs(Machine::begin(operator, &self.envs[core]))
    }

    /// A step of a core, if it is at an operator.
    pub(super) fn step(
        &self,
        at: At,
        phase: &mut Phase,
        view: &mut dyn View,
        inputs: &Inputs<'_>,
        expected: Option<&Expected>,
        scratch: Scratch<'_>,
    ) -> Outcome {
        let At { core, half } = at;
        let (shape, env) = (self.shape, &self.envs[core]);
        let machine = match phase {
            Phase::Between | Phase::Sent { .. } => return Ok(Progress::Stepped),
            Phase::Experts { moves } => {
                let came = view.experts(*moves)?;
                match came {
                    Progress::Stepped => *moves += 1,
                    Progress::Done => *phase = self.begin(core, Operator::Combine),
                    Progress::Pending(_) => return Ok(came),
                }
                return Ok(Progress::Stepped);
            }
            Phase::Resumes(machine) => {
                if self.model.defect.resumes() {
                    machine.resume(env.on(shape)?, &*view)?;
                }
                *phase = Phase::Runs(machine.clone());
                return Ok(Progress::Stepped);
            }
            Phase::Runs(machine) => machine,
        };
        let combine_inputs = &expected.map(Expected::combine_inputs).unwrap_or_default();
        let left = self.left.as_ref().filter(|_| self.model.defect.maps_ids());
        let mut run = |fabric: &mut dyn Fabric| {
            let fabric = &mut RankRemap { inner: Lent(fabric), left };
            let scratch = Scratch { words: &mut *scratch.words, row: &mut *scratch.row };
            let cx = &mut Context { core: env.on(shape)?, fabric, inputs, combine_inputs, scratch };
            match half {
                Half::Send => machine.send(cx, 1).end.map(|end| match end {
                    Run::Done => Progress::Done,
                    Run::Waiting(wait) => Progress::Pending(wait),
                    Run::Budget => Progress::Stepped,
                }),
                Half::Whole | Half::Receive => machine.step(cx),
            }
        };
        match self.witness() {
            Some(witness) => witness.through(self.actor(core), view, &mut run),
            None => run(view),
        }
    }
}

/// A view as a fabric that others can wrap.
struct Lent<'v, F: ?Sized>(&'v mut F);

impl<F: Fabric + ?Sized> Middleware for Lent<'_, F> {
    veriep_core::around! { 0: F, its capabilities }
}

impl Expected {
    fn combine_inputs(&self) -> CombineInputs<'_> {
        CombineInputs::of(&self.y, |tensor| self.output(tensor))
    }
}
