//! Stand-ins for the machines of a feature that this build lacks. They fill their variants of [`Machine`];
//! [`begin`](Machine::begin) never creates one.
//!
//! [`Machine`]: super::Machine
//! [`Machine::begin`]: super::Machine::begin
#![allow(missing_docs, reason = "there is nothing to document")]

use super::kit::internal;
use super::{Choices, Outcome, Stage};
use crate::shape::Shape;
use crate::units::{CoreId, RankId};

#[derive(Clone, Debug)]
pub struct Env<V> {
    pub(crate) fingerprint: u64,
    pub(crate) vector: V,
}

impl<V> Env<V> {
    #[must_use]
    pub fn new(shape: &Shape, _rank: RankId, _core: CoreId, vector: V) -> Self {
        Self { fingerprint: shape.fingerprint(), vector }
    }

    #[must_use]
    pub fn with_stage(self, _stage: Stage) -> Self {
        self
    }
}

macro_rules! left_out {
    ($($machine:ident)*) => {$(
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
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

            pub(crate) fn advance<C>(&mut self, _cx: &mut C) -> Outcome {
                Err(internal("left out"))
            }
        }

        machine! { $machine }
    )*};
}

left_out! { Dispatch Combine }

#[must_use]
pub const fn scratch_words(_shape: &Shape) -> usize {
    0
}

#[must_use]
pub const fn scratch_bytes(_shape: &Shape) -> usize {
    0
}
