//! The options of `veriep run`.

use super::help::{BACKEND, FAULTS, INPUT, OUTPUT, PROTOCOL};
use super::{BackendArg, ByName, ConfigArgs, ModeArgs, RecordArgs, TensorArgs, number};
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use veriep_core::fabric::raw::RowCopy;
use veriep_core::plan::order::SendOrder;
use veriep_group::driver::threads::Spread;
use veriep_group::vector::Unit;

#[derive(Args, Debug)]
pub struct RunArgs {
    /// A case, or a configuration, of which a case is made in memory.
    #[command(flatten)]
    pub config: ConfigArgs,
    #[command(flatten)]
    pub tensors: TensorArgs,
    /// Write the result of the last round.
    #[arg(short, long, value_name = "FILE", help_heading = OUTPUT)]
    pub out: Option<PathBuf>,
    /// Write the memory of all ranks when the run hangs or ends, and on SIGUSR2; `diagnose` reads it (Linux).
    #[arg(long, value_name = "FOLDER", help_heading = OUTPUT)]
    pub dump: Option<PathBuf>,
    /// Backend of the ranks: threads, processes, MPI, or a scheduler in one thread.
    #[arg(long, value_enum, default_value_t, help_heading = BACKEND)]
    pub backend: BackendArg,
    /// Number of rounds, rounded up to whole schedules.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = INPUT)]
    pub rounds: u32,
    /// Order of operators; a C combines the oldest D that has no C of its own. Ds and Dr, Cs and Cr are halves of an operator: all
    /// is sent, the rest. Batches may have numbers, as in "Ds1 Cs0 Dr1 Cr0".
    #[arg(long, value_name = "SEQ", default_value = "DC", help_heading = INPUT)]
    pub schedule: String,
    /// Schedules run back to back between two checks. By default 1 where time is measured, else as many as memory allows.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000), help_heading = INPUT)]
    pub chain: Option<u32>,
    /// Seed of a case made in memory, and of the scheduler of lockstep and weak.
    #[arg(long, default_value_t = 1, allow_negative_numbers = true, help_heading = INPUT)]
    pub seed: u64,
    /// Give up when nothing has moved for this time; 60 by default (threads, processes, mpi).
    #[arg(long, value_name = "SECONDS", value_parser = number(0.001..=1e6), allow_negative_numbers = true, help_heading = BACKEND)]
    pub deadline: Option<f64>,
    /// Do not compare with the reference.
    #[arg(long, help_heading = OUTPUT)]
    pub no_check: bool,
    /// Order in which a core sends its items.
    #[arg(long, value_parser = SendOrder::parser(), default_value = "staggered", help_heading = PROTOCOL)]
    pub order: SendOrder,
    #[command(flatten)]
    pub mode: ModeArgs,
    /// Vector unit that computes on rows; results are the same.
    #[arg(long, value_parser = Unit::parser(), default_value = "auto", help_heading = BACKEND)]
    pub vector: Unit,
    /// Way to copy rows (threads, processes, mpi); auto measures, and is the default.
    #[arg(long, value_enum, help_heading = BACKEND)]
    pub row_copy: Option<RowCopyArg>,
    /// Number of processes, each for neighbouring ranks. By default the smaller of ranks and processors (processes), or as
    /// many as were started (mpi).
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u32).range(1..=1024), help_heading = BACKEND)]
    pub processes: Option<u32>,
    /// Leave the numbers of calls out of flags and counts, words as the shipped operators write them; and run an order that a rank's
    /// gates refuse.
    #[arg(long, help_heading = PROTOCOL)]
    pub unchecked: bool,
    /// Share no memory between processes, even on one machine (mpi).
    #[arg(long, help_heading = BACKEND)]
    pub all_far: bool,
    /// Worker threads of each process; by default one per processor in all.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024), help_heading = BACKEND)]
    pub threads: Option<u32>,
    /// Assignment of cores to workers; ranks by default.
    #[arg(long, value_parser = Spread::parser(), help_heading = BACKEND)]
    pub spread: Option<Spread>,
    /// Make a rank misbehave: silent=RANK loses all that it publishes, silent=RANK:WHAT only its counts, tokens, grants, blocks,
    /// rows, tp or ends; killed=RANK:N ends its process at write N; skips=RANK:N leaves out round N; wrong-batch=RANK:N gives the
    /// combine of round N another batch; absent-core=RANK:CORE never comes; slow=RANK:SECONDS delays its experts, late=RANK:SECONDS
    /// the begin of each of its operators; twice=RANK, in a hierarchy, sends everything to other servers twice.
    #[arg(long, value_name = "FAULT", help_heading = FAULTS)]
    pub inject: Option<String>,
    #[command(flatten)]
    pub record: RecordArgs,
}

#[cfg(target_os = "linux")]
#[derive(Args, Debug)]
pub struct MpiShimArgs {
    /// The MPI's C compiler; by default mpicc.openmpi and mpicc.mpich, as far as they exist, else mpicc.
    #[arg(long, value_name = "PROGRAM")]
    pub mpicc: Option<PathBuf>,
    /// Folder of the library; by default ~/.local/share/veriep, where run looks for it.
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
}

/// A way to copy rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, ValueEnum)]
pub enum RowCopyArg {
    /// The way that is measured to be fastest before the ranks meet; for short runs the usual one of the processor.
    Auto,
    /// Through the caches, with lines prefetched.
    Ahead,
    /// By the platform's memcpy.
    Plain,
    /// Past the caches: non-temporal stores, and a fence before each flag.
    Streaming,
}

impl RowCopyArg {
    /// The way that is named, if one is.
    #[must_use]
    pub const fn named(self) -> Option<RowCopy> {
        match self {
            Self::Auto => None,
            Self::Ahead => Some(RowCopy::Ahead),
            Self::Plain => Some(RowCopy::Plain),
            Self::Streaming => Some(RowCopy::Streaming),
        }
    }
}

impl From<RowCopy> for RowCopyArg {
    fn from(row_copy: RowCopy) -> Self {
        match row_copy {
            RowCopy::Ahead => Self::Ahead,
            RowCopy::Plain => Self::Plain,
            RowCopy::Streaming => Self::Streaming,
        }
    }
}
