//! Proof: the machines that run are the machines that are checked.
//!
//! [`explorer`] visits every state of tiny groups of real machines.

pub mod explorer;
