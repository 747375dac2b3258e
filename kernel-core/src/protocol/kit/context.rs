//! The context of a step: as a driver passes it, and as the machines take it.

use super::{Operands, Scratch};
use crate::fabric::{Fabric, Progress, ProtocolError, Result};
use crate::inputs::Inputs;
use crate::shape::Shape;
use crate::vector::Vector;
use core::marker::PhantomData;
use core::ops::Deref;

/// Everything that a step works with. It stays the same from the first step of an operator to its last, except for the
/// fabric, which may be another view of the same memory. `E` is the type of the core's constants: [`Env`](super::Env), or
/// those of one protocol.
#[derive(Debug)]
pub struct Context<'c, E, F: ?Sized> {
    /// The shape that `env` was made for.
    pub shape: &'c Shape,
    /// The core's constants.
    pub env: &'c E,
    /// The core's view of the memory of all ranks.
    pub fabric: &'c mut F,
    /// The rank's inputs of the round.
    pub inputs: &'c Inputs<'c>,
    /// The further inputs of combine. Dispatch reads none of them.
    pub operands: &'c Operands<'c>,
    /// The core's scratch.
    pub scratch: Scratch<'c>,
}

impl<E, F: Fabric + ?Sized> Context<'_, E, F> {
    /// Returns the context of a machine with these `constants`: `env`, or the part of it that belongs to one protocol.
    /// Refuses constants that were made for a shape with another `fingerprint`.
    #[inline(always)]
    pub(crate) fn bind<'s, P, V: Vector>(
        &'s mut self,
        constants: &'s P,
        fingerprint: u64,
    ) -> Result<Cx<'s, P, With<F, V>>> {
        let Self { shape, fabric, inputs, operands, scratch, .. } = self;
        let env = Bound::new(shape, constants, fingerprint)?;
        Ok(Cx { env, fabric, inputs, operands, scratch: Scratch { words: scratch.words, row: scratch.row } })
    }
}

/// The constants of a core together with the shape that they were made for.
#[derive(Debug)]
pub(crate) struct Bound<'s, E> {
    pub(crate) shape: &'s Shape,
    constants: &'s E,
}

impl<E> Clone for Bound<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E> Copy for Bound<'_, E> {}

impl<E> Deref for Bound<'_, E> {
    type Target = E;

    #[inline(always)]
    fn deref(&self) -> &E {
        self.constants
    }
}

impl<'s, E> Bound<'s, E> {
    /// Refuses constants that were made for a shape with another `fingerprint`.
    #[inline(always)]
    pub(crate) fn new(shape: &'s Shape, constants: &'s E, fingerprint: u64) -> Result<Self> {
        if shape.fingerprint() != fingerprint {
            return Err(ProtocolError::OtherShape { made_for: fingerprint, given: shape.fingerprint() });
        }
        Ok(Self { shape, constants })
    }
}

/// The outcome of a step.
pub(crate) type Outcome = Result<Progress>;

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

/// A context whose constants have been checked against the shape. Each field can be borrowed on its own.
pub(crate) struct Cx<'s, E, T: Types> {
    pub(crate) env: Bound<'s, E>,
    pub(crate) fabric: &'s mut T::Fabric,
    pub(crate) inputs: &'s Inputs<'s>,
    pub(crate) operands: &'s Operands<'s>,
    pub(crate) scratch: Scratch<'s>,
}
