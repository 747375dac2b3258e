//! Groups that `mpirun` or `srun` starts. Linux alone has them; a launcher is known everywhere.
//!
//! [`launcher`] reads what a launcher leaves in the environment, [`wire`] carries bytes through any MPI by a small library that
//! is loaded when it is asked for, and [`start`] brings the processes of a job together, of which the first speaks for all.

#![allow(missing_docs, reason = "a name that says it all needs no line beside it")]

pub mod launcher;
#[cfg(target_os = "linux")]
pub mod start;
#[cfg(target_os = "linux")]
pub mod wire;
