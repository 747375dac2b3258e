//! The program from outside, a file for each command, and the files that it reads and writes.

#[path = "../common/mod.rs"]
mod common;

mod against;
mod bad_input;
mod bench;
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
mod events;
mod expected;
mod export;
mod r#gen;
mod generated_cases;
mod hangs;
mod kill;
#[cfg(target_os = "linux")]
mod mpi;
mod nonsense;
mod pictures;
mod plan;
mod processes;
mod receive;
mod reference;
mod refused;
mod run;
#[cfg(feature = "schedule")]
mod schedule;
mod simulate;
mod terminal;
#[cfg(unix)]
mod verdicts;
