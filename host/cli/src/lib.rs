//! The program `veriep`: [`cli`] has the options of each subcommand, [`command`] answers with one file for each, [`report`]
//! prints.
//!
//! Nothing is worked out here: `veriep_case` has configurations and tensors, `veriep_plan` sizes, layouts and plans,
//! `veriep_group` runs groups and compares results, `veriep_trace` records and judges events, `veriep_sim` has virtual time,
//! `veriep_mpi` the jobs of an MPI. This library is for this program and `veriep-bench`; it promises nothing to others.

#![allow(missing_docs, reason = "a name that says it all needs no line beside it")]

pub mod cli;
pub mod command;
pub mod report;
pub mod signals;
