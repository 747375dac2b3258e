//! What the functions of a machine work with in a step.

use super::{Operands, Ub};
use crate::fabric::{Fabric, Progress, ProtocolError};
use crate::inputs::Inputs;
use crate::vector::Vector;
use core::marker::PhantomData;

/// What comes of a step.
pub(crate) type Outcome = Result<Progress, ProtocolError>;

/// The types that a driver chooses.
pub(crate) trait Types {
    /// A core's view of the memory of all ranks.
    type Fabric: Fabric + ?Sized;
    /// The vector unit.
    type Vector: Vector;
}

/// The choice of `F` and `V`.
pub(crate) struct With<F: ?Sized, V>(PhantomData<(V, *const F)>);

impl<F: Fabric + ?Sized, V: Vector> Types for With<F, V> {
    type Fabric = F;
    type Vector = V;
}

/// The constants of a core, which are `E` in its protocol, and what the step was given. Each field is borrowed by itself.
pub(crate) struct Cx<'s, E, T: Types> {
    pub(crate) env: &'s E,
    pub(crate) fabric: &'s mut T::Fabric,
    pub(crate) inputs: &'s Inputs<'s>,
    pub(crate) operands: &'s Operands<'s>,
    pub(crate) ub: Ub<'s>,
}

impl<'s, E, T: Types> Cx<'s, E, T> {
    #[inline(always)]
    pub(crate) fn new(
        env: &'s E,
        fabric: &'s mut T::Fabric,
        inputs: &'s Inputs<'s>,
        operands: &'s Operands<'s>,
        ub: &'s mut Ub<'_>,
    ) -> Self {
        Self { env, fabric, inputs, operands, ub: Ub { words: ub.words, row: ub.row } }
    }
}
