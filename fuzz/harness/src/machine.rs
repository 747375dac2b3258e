//! The machines of every protocol, behind one face.

use crate::domain::{Domain, Feature, Numbers, Protocol};
use crate::group::{Operator, Returned};
use crate::view::View;
use kernel_core::fabric::survivors::Survivors;
use kernel_core::fabric::{Progress, ProtocolError};
use kernel_core::inputs::Inputs;
use kernel_core::plan::order::SendOrder;
use kernel_core::protocol::a2;
use kernel_core::protocol::a3;
use kernel_core::protocol::a3_v2;
use kernel_core::protocol::direct;
use kernel_core::protocol::hierarchy;
use kernel_core::protocol::{Choices, Flags, Operands, Ub};
use kernel_core::shape::Shape;
use kernel_core::units::{CoreId, RankId};
use kernel_core::vector::Portable;

/// A machine of any protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Machine {
    A3(a3::Dispatch),
    V2(a3_v2::Dispatch),
    A3Combine(a3::Combine),
    Direct(direct::Dispatch),
    Pull(direct::Combine),
    A2(a2::Dispatch),
    A2Combine(a2::Combine),
    Hierarchy(hierarchy::Dispatch),
    HierarchyCombine(hierarchy::Combine),
    /// Between operators, or failed.
    None,
}

/// Which core of whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Who {
    pub(crate) ep: RankId,
    pub(crate) tp: RankId,
    pub(crate) core: CoreId,
}

impl Who {
    /// Whether its steps have one effect at most: there are both kinds in a group.
    const fn is_one_by_one(self) -> bool {
        !self.ep.0.is_multiple_of(2)
    }
}

impl Machine {
    /// The most effects that a step may have.
    pub(crate) const fn most_effects(&self, who: Who) -> usize {
        match self {
            Self::A3(_) | Self::V2(_) | Self::Direct(_) | Self::A3Combine(_) | Self::Pull(_)
                if !who.is_one_by_one() =>
            {
                16
            }
            _ => 1,
        }
    }

    /// A machine that begins that operator.
    pub(crate) const fn new(protocol: Protocol, operator: Operator) -> Self {
        match (protocol, operator) {
            (Protocol::A2Fullmesh, Operator::Dispatch(_)) => Self::A2(a2::Dispatch::new()),
            (Protocol::A2Fullmesh, Operator::Combine(_)) => Self::A2Combine(a2::Combine::new()),
            (Protocol::A2Hierarchy, Operator::Dispatch(_)) => Self::Hierarchy(hierarchy::Dispatch::new()),
            (Protocol::A2Hierarchy, Operator::Combine(_)) => {
                Self::HierarchyCombine(hierarchy::Combine::new())
            }
            (Protocol::A3Direct, Operator::Dispatch(_)) => Self::Direct(direct::Dispatch::new()),
            (Protocol::A3Direct, Operator::Combine(_)) => Self::Pull(direct::Combine::new()),
            (Protocol::A3FullmeshV2, Operator::Dispatch(_)) => Self::V2(a3_v2::Dispatch::new()),
            (_, Operator::Dispatch(_)) => Self::A3(a3::Dispatch::new()),
            (_, Operator::Combine(_)) => Self::A3Combine(a3::Combine::new()),
        }
    }

    /// A step.
    pub(crate) fn step(
        &mut self,
        domain: &Domain,
        who: Who,
        fabric: &mut Survivors<'_, View<'_, '_>>,
        inputs: &Inputs<'_>,
        returned: &Returned,
        ub: &mut Ub<'_>,
    ) -> Result<Progress, ProtocolError> {
        let (shape, Who { ep, tp, core }) = (&domain.shape, who);
        let Returned { y, assist_info, ep_recv_counts, expand_idx, .. } = returned;
        let Returned { expand_scales, sent_rows, row_table, .. } = returned;
        let a3 = || {
            let env = a3::Env::new(shape, ep, core, choices(&domain.numbers), Portable).with_tp_rank(tp);
            if who.is_one_by_one() { env.one_by_one() } else { env }
        };
        let a2 = || a2::Env::new(shape, ep, core, Portable);
        let stage = domain.numbers.stage();
        let hierarchy = || hierarchy::Env::new(shape, ep, core, Portable).with_stage(stage);
        match self {
            Self::A3(machine) => machine.step(&a3(), fabric, inputs, ub),
            Self::V2(machine) => machine.step(&a3(), fabric, inputs, ub),
            Self::A3Combine(machine) => {
                let operands = Operands { y, assist_info, ep_recv_counts, ..Operands::default() };
                machine.step(&a3(), fabric, inputs, &operands, ub)
            }
            Self::Direct(machine) => machine.step(&a3(), fabric, inputs, ub),
            Self::Pull(machine) => machine.step(
                &a3(),
                fabric,
                inputs,
                &Operands { sent_rows, row_table, ..Operands::default() },
                ub,
            ),
            Self::A2(machine) => machine.step(&a2(), fabric, inputs, ub),
            Self::A2Combine(machine) => {
                let operands = Operands { y, ep_recv_counts, expand_idx, ..Operands::default() };
                machine.step(&a2(), fabric, inputs, &operands, ub)
            }
            Self::Hierarchy(machine) => machine.step(&hierarchy(), fabric, inputs, ub),
            Self::HierarchyCombine(machine) => {
                let operands =
                    Operands { y, assist_info, expand_scales, ep_recv_counts, ..Operands::default() };
                machine.step(&hierarchy(), fabric, inputs, &operands, ub)
            }
            Self::None => Ok(Progress::Done),
        }
    }
}

/// The choices of a domain.
fn choices(numbers: &Numbers) -> Choices {
    Choices {
        order: order(numbers),
        flags: numbers.flags(),
        receive: numbers.receive(),
        ..Choices::default()
    }
}

/// The order in which cores and agents send.
pub(crate) const fn order(numbers: &Numbers) -> SendOrder {
    if numbers.has(Feature::PlainOrder) { SendOrder::Plain } else { SendOrder::Staggered }
}

/// Words and bytes of scratch of a core.
pub(crate) fn scratch(protocol: Protocol, shape: &Shape) -> (usize, usize) {
    match protocol {
        Protocol::A2Fullmesh => (a2::ub_words(shape), a2::ub_bytes(shape)),
        Protocol::A2Hierarchy => (hierarchy::ub_words(shape), hierarchy::ub_bytes(shape)),
        _ => (a3::ub_words(shape), a3::ub_bytes(shape)),
    }
}

impl Numbers {
    /// How dispatch tells of records.
    #[must_use]
    pub const fn flags(&self) -> Flags {
        match self.protocol() {
            Protocol::A3Separate | Protocol::A3InPlaceSeparate => Flags::Separate,
            _ => Flags::Joint,
        }
    }
}
