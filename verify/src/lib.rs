//! Proof: the machines that run are the machines that are checked.
//!
//! [`explorer`] visits every state of tiny groups of real machines. [`loom`] runs them under every order that C11
//! allows. [`smt`] proves the reuse of partitions for any number of ranks. `docs/doubt/protocol.md` has the claims,
//! with their bounds.

#![allow(missing_docs, reason = "a name that says it all needs no line beside it")]

pub mod a2_window_model;
pub mod explorer;
#[cfg(feature = "loom")]
pub mod loom;
pub mod order;
pub mod report;
pub mod schedule;
pub mod smt;
