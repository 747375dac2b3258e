//! The program from outside, a file for each command, and the files that it reads and writes.

#[path = "../common/mod.rs"]
mod common;
#[path = "../../../../kernel-core/src/tests/random.rs"]
mod random;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_veriep");

mod a2;
mod bad_input;
mod cannot_tell;
mod case_files;
mod check;
mod compare;
mod configurations;
mod conform;
mod contradictions;
mod deaths;
mod diagnose;
mod dumps;
mod elastic;
mod events;
mod expected;
mod export;
mod r#gen;
mod generated_cases;
mod hangs;
mod hierarchy;
mod idle;
mod kill;
#[cfg(target_os = "linux")]
mod mpi;
mod nonsense;
mod pictures;
mod plan;
mod plan_and_run;
mod processes;
mod receive;
mod reference;
mod refused;
#[cfg(feature = "schedule")]
mod replay;
mod run;
#[cfg(feature = "schedule")]
mod schedule;
mod simulate;
mod simulate_measured;
mod snapshots;
mod terminal;
mod tp;
#[cfg(unix)]
mod verdicts;
