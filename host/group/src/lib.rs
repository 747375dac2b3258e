//! Groups of ranks that run dispatch and combine for real, over memory of this machine.
//!
//! | you want | begin with |
//! |---|---|
//! | to run a case on all ranks, alone in one process | [`group::Plan`], [`driver::threads`] |
//! | to be one rank of a group of processes, as a server is | [`live`], [`world::join`] |
//! | to add a backend: a memory of ranks | [`backend::Backend`], then the exam in [`conformance`]; the program's names are `BackendArg` in `host/cli/src/cli.rs` |
//! | to know who holds a group up | [`driver`] judges (`driver/hang.rs`); [`world`] sees processes die |
//! | one thread, one step at a time, over memory as late as the contract allows | [`backend::lockstep`], [`driver::lockstep`] |
//! | faults | [`backend::inject`] |
//! | the outputs that a case must have, and a result file compared with them, as `veriep compare` does | [`expected`], [`compared`] |
//! | the outputs of a group that runs, compared byte by byte | [`compare`](mod@compare) |

#![allow(missing_docs, reason = "a name that says it all needs no line beside it")]

#[cfg(not(unix))]
compile_error!(
    "veriep runs on Linux, and without processes, joined groups and MPI on macOS; on Windows use WSL"
);

pub mod backend;
pub mod compare;
pub mod compared;
pub mod conformance;
pub mod driver;
pub mod dump;
pub mod expected;
pub mod expert;
pub mod group;
pub mod interrupt;
#[cfg(target_os = "linux")]
pub mod live;
pub mod roofline;
pub mod traffic;
pub mod vector;
pub mod world;
