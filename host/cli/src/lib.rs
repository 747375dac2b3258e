//! The program `veriep`: [`cli`] says what can be asked, [`command`] answers with one file for each subcommand, [`report`] prints.
//!
//! Nothing is worked out here: `veriep_case` has configurations and tensors, `veriep_group` runs them, `veriep_trace` records and
//! judges events, `veriep_sim` has virtual time. This library is for this program and `veriep-bench`; it promises nothing to
//! others.

#![allow(missing_docs, reason = "a name that says it all needs no line beside it")]

pub mod cli;
pub mod command;
pub mod report;
pub mod signals;
