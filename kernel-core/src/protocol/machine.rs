//! The machine of any protocol.

#[cfg(feature = "a2")]
use super::a2;
#[cfg(feature = "a3-v2")]
use super::a3_v2;
#[cfg(feature = "direct")]
use super::direct;
#[cfg(feature = "hierarchy")]
use super::hierarchy;
use super::kit::Family;
use super::run::{Ran, drive};
use super::{Context, Env, Operator, Scratch, a3};
use crate::fabric::{Awaited, Fabric, Progress, ProtocolError, Watch};

/// One core's machine of one operator, of any protocol. A plain value: it can be copied, compared and hashed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Machine {
    /// Dispatch of A3: rows are copied out or received in place.
    A3Dispatch(a3::Dispatch),
    /// Combine of A3, also of fullmesh_v2.
    A3Combine(a3::Combine),
    /// Dispatch of fullmesh_v2.
    #[cfg(feature = "a3-v2")]
    V2Dispatch(a3_v2::Dispatch),
    /// Dispatch with direct placement.
    #[cfg(feature = "direct")]
    DirectDispatch(direct::Dispatch),
    /// Pull combine.
    #[cfg(feature = "direct")]
    DirectCombine(direct::Combine),
    /// Dispatch of the A2 full mesh.
    #[cfg(feature = "a2")]
    A2Dispatch(a2::Dispatch),
    /// Combine of the A2 full mesh.
    #[cfg(feature = "a2")]
    A2Combine(a2::Combine),
    /// Dispatch of the A2 hierarchy.
    #[cfg(feature = "hierarchy")]
    HierarchyDispatch(hierarchy::Dispatch),
    /// Combine of the A2 hierarchy.
    #[cfg(feature = "hierarchy")]
    HierarchyCombine(hierarchy::Combine),
}

impl Machine {
    /// Creates the machine that carries out `operator` on the core with these constants.
    #[must_use]
    pub const fn begin<V>(operator: Operator, env: &Env<V>) -> Self {
        match (operator, env.family()) {
            (Operator::Dispatch, Family::A3) => Self::A3Dispatch(a3::Dispatch::new()),
            #[cfg(feature = "a3-v2")]
            (Operator::Dispatch, Family::V2) => Self::V2Dispatch(a3_v2::Dispatch::new()),
            (Operator::Combine, Family::A3) => Self::A3Combine(a3::Combine::new()),
            #[cfg(feature = "a3-v2")]
            (Operator::Combine, Family::V2) => Self::A3Combine(a3::Combine::new()),
            #[cfg(feature = "direct")]
            (Operator::Dispatch, Family::Direct) => Self::DirectDispatch(direct::Dispatch::new()),
            #[cfg(feature = "direct")]
            (Operator::Combine, Family::Direct) => Self::DirectCombine(direct::Combine::new()),
            #[cfg(feature = "a2")]
            (Operator::Dispatch, Family::A2) => Self::A2Dispatch(a2::Dispatch::new()),
            #[cfg(feature = "a2")]
            (Operator::Combine, Family::A2) => Self::A2Combine(a2::Combine::new()),
            #[cfg(feature = "hierarchy")]
            (Operator::Dispatch, Family::Hierarchy) => Self::HierarchyDispatch(hierarchy::Dispatch::new()),
            #[cfg(feature = "hierarchy")]
            (Operator::Combine, Family::Hierarchy) => Self::HierarchyCombine(hierarchy::Combine::new()),
        }
    }

    /// Returns the name of the machine's phase, for reports and traces. A part's phase follows the name of the part:
    /// `Exchange.Await`. Machines with several roles return the phase of the one that moved last.
    #[must_use]
    pub const fn phase(&self) -> &'static str {
        match self {
            Self::A3Dispatch(machine) => machine.phase(),
            Self::A3Combine(machine) => machine.phase(),
            #[cfg(feature = "a3-v2")]
            Self::V2Dispatch(machine) => machine.phase(),
            #[cfg(feature = "direct")]
            Self::DirectDispatch(machine) => machine.phase(),
            #[cfg(feature = "direct")]
            Self::DirectCombine(machine) => machine.phase(),
            #[cfg(feature = "a2")]
            Self::A2Dispatch(machine) => machine.phase(),
            #[cfg(feature = "a2")]
            Self::A2Combine(machine) => machine.phase(),
            #[cfg(feature = "hierarchy")]
            Self::HierarchyDispatch(machine) => machine.phase(),
            #[cfg(feature = "hierarchy")]
            Self::HierarchyCombine(machine) => machine.phase(),
        }
    }

    /// Advances the operator by at most [`effects_max`](Env::effects_max) effects that others can see.
    ///
    /// # Errors
    /// A value read from the fabric or from the inputs contradicts the shape, the fabric refuses, a token cannot be
    /// quantised, or the core runs the machines of another protocol.
    pub fn step<F: Fabric + ?Sized>(&mut self, cx: &mut Context<'_, F>) -> Result<Progress, ProtocolError> {
        self.run(cx, 1).progress()
    }

    /// Takes a step like [`step`](Self::step) and reports everything that it reads to `tell`. A pending step changes
    /// nothing, so this can be called on a pending machine: it tries once more. If it is still pending, only a change of a
    /// reported word or byte, or of quiet's answer, lets it move, and its driver may sleep until then. If it moves, the
    /// reports have no meaning.
    ///
    /// # Errors
    /// Fails like [`step`](Self::step).
    pub fn awaits<F: Fabric + ?Sized>(
        &mut self,
        cx: &mut Context<'_, F>,
        tell: &mut dyn FnMut(Awaited),
    ) -> Result<Progress, ProtocolError> {
        let scratch = Scratch { words: cx.scratch.words, row: cx.scratch.row };
        let Context { core, inputs, combine_inputs, .. } = *cx;
        let fabric: &mut dyn Fabric = &mut Watch::new(&mut *cx.fabric, tell);
        self.step(&mut Context { core, fabric, inputs, combine_inputs, scratch })
    }

    /// Takes at most `budget` steps, until the machine waits, has ended or fails. It is faster than a loop around
    /// [`step`](Self::step), and fails like it.
    #[inline(always)]
    pub fn run<F: Fabric + ?Sized>(&mut self, cx: &mut Context<'_, F>, budget: u32) -> Ran {
        match (self, cx.core.family) {
            (Self::A3Dispatch(machine), Family::A3) => drive(budget, || machine.advance(cx)),
            (Self::A3Combine(machine), Family::A3) => drive(budget, || machine.advance(cx)),
            #[cfg(feature = "a3-v2")]
            (Self::A3Combine(machine), Family::V2) => drive(budget, || machine.advance(cx)),
            #[cfg(feature = "a3-v2")]
            (Self::V2Dispatch(machine), Family::V2) => drive(budget, || machine.advance(cx)),
            #[cfg(feature = "direct")]
            (Self::DirectDispatch(machine), Family::Direct) => drive(budget, || machine.advance(cx)),
            #[cfg(feature = "direct")]
            (Self::DirectCombine(machine), Family::Direct) => drive(budget, || machine.advance(cx)),
            #[cfg(feature = "a2")]
            (Self::A2Dispatch(machine), Family::A2) => drive(budget, || machine.advance(cx)),
            #[cfg(feature = "a2")]
            (Self::A2Combine(machine), Family::A2) => drive(budget, || machine.advance(cx)),
            #[cfg(feature = "hierarchy")]
            (Self::HierarchyDispatch(machine), Family::Hierarchy) => drive(budget, || machine.advance(cx)),
            #[cfg(feature = "hierarchy")]
            (Self::HierarchyCombine(machine), Family::Hierarchy) => drive(budget, || machine.advance(cx)),
            #[allow(unreachable_patterns, reason = "a build may have one family")]
            _ => Ran::failed(ProtocolError::OtherMachine),
        }
    }
}

static_assertions::const_assert!(size_of::<Machine>() <= 256);
static_assertions::const_assert!(size_of::<Env<crate::vector::Portable>>() <= 256);
