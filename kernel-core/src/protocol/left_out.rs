//! Stand-ins for the machines of a feature that this build lacks. They fill their variants of [`Machine`];
//! [`begin`](Machine::begin) never creates one.
//!
//! [`Machine`]: super::Machine
//! [`Machine::begin`]: super::Machine::begin
#![allow(missing_docs, reason = "there is nothing to document")]

use super::Outcome;
use super::kit::internal;
use crate::shape::Shape;

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

        machine! { $machine of A3 }
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
