//! What a core runs: the machine of its operator, and some steps of it.

use super::schedule::Operator;
use crate::vector::RowUnit;
use kernel_core::fabric::{Fabric, Progress, ProtocolError};
use kernel_core::inputs::Inputs;
use kernel_core::protocol::a2;
use kernel_core::protocol::a3::{self, Receive, Ub};
use kernel_core::protocol::a3_v2;
use kernel_core::protocol::direct;
use kernel_core::protocol::hierarchy;
use kernel_core::shape::CommAlg;

/// The inputs of combine besides the case.
#[derive(Debug, Default)]
pub(super) struct Rows {
    pub(super) y: Vec<u8>,
    pub(super) assist_info: Vec<u8>,
    pub(super) expand_scales: Vec<u8>,
    pub(super) ep_recv_counts: Vec<u8>,
    pub(super) expand_idx: Vec<u8>,
    pub(super) sent_rows: Vec<u8>,
    pub(super) row_table: Vec<u8>,
}

#[derive(Debug)]
pub(super) enum Machine {
    /// Waits for the join.
    Between,
    /// Was the last of its rank to end the operator; experts may be due.
    Last,
    A3Dispatch(a3::Dispatch),
    A3V2Dispatch(a3_v2::Dispatch),
    A3Combine(a3::Combine),
    DirectDispatch(direct::Dispatch),
    PullCombine(direct::Combine),
    A2Dispatch(a2::Dispatch),
    A2Combine(a2::Combine),
    HierarchyDispatch(hierarchy::Dispatch),
    HierarchyCombine(hierarchy::Combine),
}

impl Machine {
    /// The machine of an operator.
    pub(super) fn new(env: &Env<'_>, operator: Operator, comm_alg: CommAlg, receive: Receive) -> Self {
        let direct = matches!(receive, Receive::Direct { .. });
        match (env, operator) {
            (Env::A3(_), Operator::Dispatch(_)) if direct => Self::DirectDispatch(direct::Dispatch::new()),
            (Env::A3(_), Operator::Combine(_)) if direct => Self::PullCombine(direct::Combine::new()),
            (Env::A3(_), Operator::Dispatch(_)) if comm_alg == CommAlg::FullmeshV2 => {
                Self::A3V2Dispatch(a3_v2::Dispatch::new())
            }
            (Env::A3(_), Operator::Dispatch(_)) => Self::A3Dispatch(a3::Dispatch::new()),
            (Env::A3(_), Operator::Combine(_)) => Self::A3Combine(a3::Combine::new()),
            (Env::A2(_), Operator::Dispatch(_)) => Self::A2Dispatch(a2::Dispatch::new()),
            (Env::A2(_), Operator::Combine(_)) => Self::A2Combine(a2::Combine::new()),
            (Env::Hierarchy(_), Operator::Dispatch(_)) => Self::HierarchyDispatch(hierarchy::Dispatch::new()),
            (Env::Hierarchy(_), Operator::Combine(_)) => Self::HierarchyCombine(hierarchy::Combine::new()),
        }
    }
}

/// A core's constants, by the protocol.
#[derive(Debug)]
pub(super) enum Env<'a> {
    A3(a3::Env<'a, RowUnit>),
    A2(a2::Env<'a, RowUnit>),
    Hierarchy(hierarchy::Env<'a, RowUnit>),
}

/// Some steps of a core's machine.
pub(super) struct Turn<'t> {
    pub(super) machine: &'t mut Machine,
    pub(super) env: &'t Env<'t>,
    pub(super) inputs: Inputs<'t>,
    pub(super) ub: Ub<'t>,
    pub(super) returned: &'t Rows,
    /// At most so many.
    pub(super) steps: u32,
    /// How many it took.
    pub(super) done: &'t mut u32,
}

impl Turn<'_> {
    /// On any fabric, by calls that are found at run time: compiled once for all of them.
    #[inline(never)]
    pub(super) fn run_on_any(self, fabric: &mut dyn Fabric) -> Result<Option<Progress>, ProtocolError> {
        self.run(fabric)
    }

    /// On a fabric that machines are compiled for. Until the machine is pending or done; `None` when the steps are used up.
    #[inline(always)]
    pub(super) fn run<F: Fabric + ?Sized>(
        mut self,
        fabric: &mut F,
    ) -> Result<Option<Progress>, ProtocolError> {
        let (inputs, ub, steps, done) = (&self.inputs, &mut self.ub, self.steps, self.done);
        let Rows { y, assist_info, expand_scales, ep_recv_counts, expand_idx, sent_rows, row_table } =
            self.returned;
        match (self.machine, self.env) {
            (Machine::A3Dispatch(machine), Env::A3(env)) => {
                drive(steps, done, || machine.step(env, fabric, inputs, ub))
            }
            (Machine::A3V2Dispatch(machine), Env::A3(env)) => {
                drive(steps, done, || machine.step(env, fabric, inputs, ub))
            }
            (Machine::A3Combine(machine), Env::A3(env)) => {
                let returned = a3::Returned { y, assist_info, ep_recv_counts };
                drive(steps, done, || machine.step(env, fabric, inputs, &returned, ub))
            }
            (Machine::DirectDispatch(machine), Env::A3(env)) => {
                drive(steps, done, || machine.step(env, fabric, inputs, ub))
            }
            (Machine::PullCombine(machine), Env::A3(env)) => {
                let pulled = direct::Pulled { sent_rows, row_table };
                drive(steps, done, || machine.step(env, fabric, inputs, &pulled, ub))
            }
            (Machine::A2Dispatch(machine), Env::A2(env)) => {
                drive(steps, done, || machine.step(env, fabric, inputs, ub))
            }
            (Machine::A2Combine(machine), Env::A2(env)) => {
                let returned = a2::Returned { y, ep_recv_counts, expand_idx };
                drive(steps, done, || machine.step(env, fabric, inputs, &returned, ub))
            }
            (Machine::HierarchyDispatch(machine), Env::Hierarchy(env)) => {
                drive(steps, done, || machine.step(env, fabric, inputs, ub))
            }
            (Machine::HierarchyCombine(machine), Env::Hierarchy(env)) => {
                let returned = hierarchy::Returned { y, assist_info, expand_scales, ep_recv_counts };
                drive(steps, done, || machine.step(env, fabric, inputs, &returned, ub))
            }
            _ => Err(ProtocolError::Internal("no machine of this protocol")),
        }
    }
}

/// Steps until something else than a step comes back.
pub(super) fn drive(
    steps: u32,
    done: &mut u32,
    mut step: impl FnMut() -> Result<Progress, ProtocolError>,
) -> Result<Option<Progress>, ProtocolError> {
    for n in *done..steps {
        match step() {
            Ok(Progress::Stepped) => {}
            // Errors and waits are looked at outside, so a step costs one comparison.
            other => {
                *done = n;
                return other.map(Some);
            }
        }
    }
    *done = steps;
    Ok(None)
}
