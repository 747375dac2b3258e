//! Searches of the state machines that run, and a proof over a model of them.
//!
//! [`explorer`] visits every state of tiny groups of real state machines. [`loom`] runs a few of their operators under the orders
//! that C11 allows; in larger models only with some preemptions. [`smt`] proves over a model without cores that partitions may
//! be used again, for any number of ranks. [`defects`] has a row for all that is broken in
//! negative tests. `docs/doubt/verified.md` has the bounds.

#![allow(missing_docs, reason = "a name that says it all needs no line beside it")]

pub mod a2_window_model;
pub mod argument;
pub mod defects;
pub mod explorer;
#[cfg(feature = "loom")]
pub mod loom;
pub mod order;
pub mod orders;
pub mod report;
pub mod schedule;
pub mod smt;
