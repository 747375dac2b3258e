//! Operators in two halves: everything is sent, and later the rest follows. Other operators may begin between.
//!
//! | protocol | a core has sent | its sending half awaits |
//! |---|---|---|
//! | A3, joint flags; fullmesh_v2 | when its flags and counts are published | quiet and the other cores of its rank |
//! | A3, separate flags | when its token flags are published | the counts of all ranks, then as above |
//! | direct placement | when its token flags are published | counts and grants of all ranks, then as above |
//! | A3 combine, pull combine | when its rows' flags or its ready words are published | nothing |
//! | A2 full mesh | when the doorbell is rung | quiet and the other cores of its rank |
//! | A2 hierarchy, dispatch | when it has sent its tokens and forwarded those of others | the records of all relays |
//! | A2 hierarchy, combine | when it has ended | everything, since a relay must receive to forward |
//!
//! Each half ends with the join, as an operator does: no core of a rank begins anything before all its cores have ended the half.
//! All cores of a rank take halves in one order. A half that is begun keeps its scratch and its inputs until the operator ends.
//! [`Gates`](super::Gates) says which halves may begin.

use super::kit::given;
use super::{Context, Core, Machine, Ran, Run};
use crate::fabric::{Fabric, ProtocolError};
use crate::sync::barrier;

pub(super) const IN_TP_DOMAIN: ProtocolError = given("operators of a TP domain have no halves");

impl Machine {
    /// Returns whether the core has sent everything that other ranks await of it in this operator, or has ended.
    #[must_use]
    pub fn has_sent(&self, core: Core<'_>) -> bool {
        match self {
            Self::A3Dispatch(machine) => machine.has_sent(core),
            Self::A3Combine(machine) => machine.has_sent(),
            #[cfg(feature = "a3-v2")]
            Self::V2Dispatch(machine) => machine.has_sent(),
            #[cfg(feature = "direct")]
            Self::DirectDispatch(machine) => machine.has_sent(),
            #[cfg(feature = "direct")]
            Self::DirectCombine(machine) => machine.has_sent(),
            #[cfg(feature = "a2")]
            Self::A2Dispatch(machine) => machine.has_sent(),
            #[cfg(feature = "a2")]
            Self::A2Combine(machine) => machine.has_sent(),
            #[cfg(feature = "hierarchy")]
            Self::HierarchyDispatch(machine) => machine.has_sent(),
            #[cfg(feature = "hierarchy")]
            Self::HierarchyCombine(machine) => machine.has_ended(),
        }
    }

    /// Takes at most `budget` steps of the sending half, like [`run`](Self::run). The half has ended when this returns
    /// [`Run::Done`].
    ///
    /// The other half is [`resume`](Self::resume) and [`run`](Self::run).
    #[inline(never)]
    pub fn send<F: Fabric + ?Sized>(&mut self, cx: &mut Context<'_, F>, budget: u32) -> Ran {
        if cx.core.shape.tp_world_size() > 1 {
            return Ran::failed(IN_TP_DOMAIN);
        }
        for steps in 0..budget {
            if self.has_sent(cx.core) {
                return Ran { steps, end: Ok(Run::Done) };
            }
            // A step by way of `run` takes no more stack than in a whole operator.
            match self.run(cx, 1) {
                Ran { end: Ok(Run::Budget), .. } => {}
                ran => return Ran { steps, ..ran },
            }
        }
        Ran { steps: budget, end: Ok(Run::Budget) }
    }

    /// Prepares the receiving half, once for each core: it reads again at which barrier the core is, since other operators may
    /// have passed some. All cores of the rank must have ended what they did before.
    ///
    /// # Errors
    /// The core's own words hold what no core writes, or the fabric refuses.
    pub fn resume<F: Fabric + ?Sized>(&mut self, core: Core<'_>, fabric: &F) -> Result<(), ProtocolError> {
        let epoch = match self {
            Self::A3Dispatch(machine) => machine.epoch_mut(),
            #[cfg(feature = "a3-v2")]
            Self::V2Dispatch(machine) => machine.epoch_mut(),
            #[cfg(feature = "direct")]
            Self::DirectCombine(machine) => machine.epoch_mut(),
            #[cfg(feature = "a2")]
            Self::A2Dispatch(machine) => machine.epoch_mut(),
            #[cfg(feature = "a2")]
            Self::A2Combine(machine) => machine.epoch_mut(),
            // What is left of these meets no other core.
            Self::A3Combine(_) => return Ok(()),
            #[cfg(feature = "direct")]
            Self::DirectDispatch(_) => return Ok(()),
            #[cfg(feature = "hierarchy")]
            Self::HierarchyDispatch(_) | Self::HierarchyCombine(_) => return Ok(()),
        };
        *epoch = barrier::current_epoch(fabric, core.id)?;
        Ok(())
    }
}
