//! Left out of this build: a feature of the crate has these machines. Here they stand for themselves in [`Machine`], and
//! [`begin`](Machine::begin) makes none.
//!
//! [`Machine`]: super::Machine
//! [`Machine::begin`]: super::Machine::begin
#![allow(missing_docs, reason = "there is nothing to document")]

use super::{Choices, Operands, Stage, Ub, internal};
use crate::fabric::{Fabric, Progress, ProtocolError};
use crate::inputs::Inputs;
use crate::shape::Shape;
use crate::units::{CoreId, RankId};
use core::marker::PhantomData;

#[derive(Clone, Debug)]
pub struct Env<'a, V>(PhantomData<(&'a Shape, V)>);

impl<'a, V> Env<'a, V> {
    #[must_use]
    pub fn new(_shape: &'a Shape, _rank: RankId, _core: CoreId, _vector: V) -> Self {
        Self(PhantomData)
    }

    #[must_use]
    pub const fn with_stage(self, _stage: Stage) -> Self {
        self
    }
}

macro_rules! left_out {
    ($($machine:ident($($operands:ident: $type:ty)?))*) => {$(
        #[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $machine(());

        impl $machine {
            #[must_use]
            pub const fn new() -> Self {
                Self(())
            }

            #[must_use]
            pub const fn phase(&self) -> &'static str {
                "LeftOut"
            }

            pub fn step<E, F: Fabric + ?Sized>(
                &mut self,
                _env: &E,
                _fabric: &mut F,
                _inputs: &Inputs<'_>,
                $(_operands: $type,)?
                _ub: &mut Ub<'_>,
            ) -> Result<Progress, ProtocolError> {
                Err(internal("left out"))
            }

            pub(crate) fn advance<C>(&mut self, _cx: &mut C) -> Result<Progress, ProtocolError> {
                Err(internal("left out"))
            }
        }
    )*};
}

left_out! { Dispatch() Combine(operands: &Operands<'_>) }

#[must_use]
pub const fn ub_words(_shape: &Shape) -> usize {
    0
}

#[must_use]
pub const fn ub_bytes(_shape: &Shape) -> usize {
    0
}
