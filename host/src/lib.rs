//! Runs the kernel-core machines for real, and everything around them that needs files and people.
//!
//! Direction of flow: [`cli`] says what can be asked, [`command`] answers with one file per verb,
//! [`report`] prints. Below them: [`config`] and [`presets`] become a [`case`] that is read from a folder
//! or made by [`generate`]; results are written by [`result`]. Every failure is an [`error::Error`].

#![allow(missing_docs, reason = "a name that says it all needs no line beside it")]
#![cfg_attr(
    not(feature = "commands"),
    allow(dead_code, unused_imports, reason = "commands use it, and builds with them refuse what is dead")
)]

#[cfg(not(unix))]
compile_error!(
    "veriep runs on Linux, and without processes, joined groups and MPI on macOS; on Windows use WSL"
);

pub mod atomic_file;
pub mod backend;
pub mod batch;
pub mod case;
mod clashes;
#[cfg(feature = "commands")]
pub mod cli;
#[cfg(feature = "commands")]
pub mod command;
pub mod compare;
pub mod config;
#[cfg(feature = "commands")]
pub mod conform;
pub mod conformance;
pub mod driver;
pub mod dump;
pub mod error;
pub mod events;
pub mod expected;
pub mod expert;
pub mod generate;
pub mod global_rank;
pub mod group;
pub mod hints;
pub mod interrupt;
pub mod launcher;
#[cfg(target_os = "linux")]
pub mod live;
mod memory;
pub mod padding;
mod parallel;
pub mod presets;
pub mod queue;
#[cfg(test)]
#[path = "../../kernel-core/src/tests/random.rs"]
mod random;
#[cfg(feature = "commands")]
pub mod report;
pub mod result;
pub mod roofline;
#[cfg(feature = "commands")]
pub mod simulate;
pub mod stderr;
pub mod store;
pub mod tolerance;
pub mod vector;
pub mod verdict;
pub mod world;
