//! Operations and expected results for fuzzing. Each of the modules named like a target has a `run` that takes any bytes, does
//! what they mean and panics where something is wrong. The thin programs in `fuzz/fuzz_targets` hand it what libFuzzer
//! makes up; the tests hand it the seeds, on any toolchain.
//!
//! `docs/doubt/fuzzing.md` tells how to run the targets.

#![allow(missing_docs, reason = "a name that says it all needs no line beside it")]

#[cfg(feature = "files")]
pub mod case_files;
#[cfg(feature = "files")]
pub mod config_file;
pub mod domain;
pub mod group;
pub mod guard;
pub mod hostile;
pub mod inputs;
pub mod memory;
pub mod plan;
pub mod round;
pub mod shape_layout;
pub mod spec;
pub mod tape;
pub mod vector;
mod view;
