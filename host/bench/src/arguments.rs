//! The options of `veriep-bench`.

use clap::{Args, Parser, ValueEnum};
use std::path::PathBuf;
use veriep::cli::{
    BACKEND, ByName, CommonArgs, ConfigArgs, INPUT, MEASUREMENT, OUTPUT, PROTOCOL, RowCopyArg, number,
};
use veriep_case::experts::Experts;
use veriep_case::generate::Routing;
use veriep_core::protocol::Receive;
use veriep_group::vector::Unit;

/// Measure dispatch and combine over a grid of sizes, beside bare copies and baselines.
#[derive(Debug, Parser)]
#[command(name = "veriep-bench", version, disable_help_flag = true, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    #[command(flatten)]
    pub(crate) args: BenchArgs,
}

const EXAMPLES: &str = "\
Examples:
  veriep-bench --ep 2 --bs 16
      dispatch and combine beside bare copies
  veriep-bench --ep 2,8 --bs 64 --row-copy plain,streaming -o report.json
      two ways to copy, as JSON";

/// A program to measure beside the machines, in `host/bench/baselines`; its file and reports name it as the command line does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Baseline {
    /// Permute, MPI_Alltoallv, unpermute; and back.
    #[value(name = "mpi-alltoallv", alias = "mpi")]
    MpiAlltoallv,
    /// C in processes over one shared window: counts first, then one copy of each row.
    #[value(name = "c-shared-window", alias = "c")]
    CSharedWindow,
    /// The same, with the cache lines of rows prefetched.
    #[value(name = "c-shared-window-ahead", alias = "c-ahead")]
    CSharedWindowAhead,
    /// C over one shared window in which experts overwrite the rows that they read.
    #[value(name = "c-one-place", alias = "c-one")]
    COnePlace,
    /// The same, with the cache lines of rows prefetched.
    #[value(name = "c-one-place-ahead", alias = "c-one-ahead")]
    COnePlaceAhead,
    /// MPI_Put of each row and of a flag, MPI_Get of each result.
    #[value(name = "mpi-put", alias = "put")]
    MpiPut,
    /// The rows alone, by one MPI_Isend and MPI_Irecv between two processes; with --backend mpi.
    #[value(name = "mpi-isend", alias = "isend")]
    MpiIsend,
}

/// A backend on which the state machines run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, ValueEnum)]
pub(crate) enum LiveArg {
    /// Worker threads of this process.
    Threads,
    /// Processes, as many as the smaller of ranks and processors (Linux).
    Processes,
    /// The processes that a launcher has started, with all else that is measured in the same job (Linux).
    Mpi,
}

impl Baseline {
    /// Whether it has int8 dispatch.
    #[must_use]
    pub(crate) const fn quantises(self) -> bool {
        matches!(self, Self::CSharedWindow | Self::CSharedWindowAhead)
    }
}

#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// The configuration of all measurements; by default E 64, K 8, H 7168.
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// Values of ep_world_size; by default the configuration's, or 2,8 without one.
    #[arg(long, value_name = "R,...", value_delimiter = ',', help_heading = INPUT)]
    pub(crate) ep: Vec<u32>,
    /// Values of bs; by default the configuration's, or 16,64,128 without one.
    #[arg(long, value_name = "BS,...", value_delimiter = ',', help_heading = INPUT)]
    pub(crate) bs: Vec<u32>,
    /// Place of received rows: copied out, read in place, or written directly where experts read.
    #[arg(long, value_parser = Receive::parser(), value_delimiter = ',', default_value = "copy", help_heading = PROTOCOL)]
    pub(crate) receive: Vec<Receive>,
    /// Place of experts' results: apart, or over the rows that they have read (with --receive direct); several are measured alternately.
    #[arg(long, value_parser = Experts::parser(), value_delimiter = ',', default_value = "apart", help_heading = PROTOCOL)]
    pub(crate) experts: Vec<Experts>,
    /// Backends of the state machines; several are measured alternately.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "threads", help_heading = BACKEND)]
    pub(crate) backend: Vec<LiveArg>,
    /// With mpi: no process shares memory with another one, so that everything goes through the MPI.
    #[arg(long, help_heading = BACKEND)]
    pub(crate) all_far: bool,
    /// Ways to copy rows; several are measured alternately.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "auto", help_heading = BACKEND)]
    pub(crate) row_copy: Vec<RowCopyArg>,
    /// Values of quant_mode, measured alternately; by default the configuration's.
    #[arg(long, value_name = "MODE,...", value_delimiter = ',', help_heading = INPUT)]
    pub(crate) quant_mode: Vec<u32>,
    /// Values of aiv_num, measured alternately; by default the configuration's.
    #[arg(long, value_name = "CORES,...", value_delimiter = ',', help_heading = INPUT)]
    pub(crate) aiv_num: Vec<u32>,
    /// Turns of each system. Systems are measured one after the other, in short blocks.
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = MEASUREMENT)]
    pub(crate) blocks: u32,
    /// Measured iterations of a block, in each regime.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = MEASUREMENT)]
    pub(crate) iters: u32,
    /// Iterations before them that are not measured, because caches are cold after another system's turn.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=1_000_000), help_heading = MEASUREMENT)]
    pub(crate) warm_up: u32,
    /// Also measure the protocol without rows: the time of a step and of a flag, and the share of a round.
    #[arg(long, help_heading = MEASUREMENT)]
    pub(crate) protocol: bool,
    /// Also measure these programs, on the same inputs, their outputs compared with the reference.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SYSTEM,...", help_heading = MEASUREMENT)]
    pub(crate) against: Vec<Baseline>,
    /// Folder of those programs; by default $VERIEP_BASELINES, else `baselines` beside this program's folder.
    #[arg(long, value_name = "FOLDER", help_heading = MEASUREMENT)]
    pub(crate) baselines: Option<PathBuf>,
    /// Write the report to a file, as JSON.
    #[arg(short, long, alias = "export", value_name = "FILE", help_heading = OUTPUT)]
    pub(crate) out: Option<PathBuf>,
    /// Print what has changed since an earlier report, which --out has written.
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub(crate) compare: Option<PathBuf>,
    /// Distribution of tokens over experts; by default that of the preset, else uniform.
    #[arg(long, value_parser = Routing::parser(), help_heading = INPUT)]
    pub(crate) routing: Option<Routing>,
    /// Seed of all tensors.
    #[arg(long, default_value_t = 1, help_heading = INPUT)]
    pub(crate) seed: u64,
    /// Vector unit that computes on rows.
    #[arg(long, value_parser = Unit::parser(), default_value = "auto", help_heading = BACKEND)]
    pub(crate) vector: Unit,
    /// Worker threads; by default one per processor.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024), help_heading = BACKEND)]
    pub(crate) threads: Option<u32>,
    /// Give up when nothing has moved, or a baseline has not ended, for this time; 60 by default.
    #[arg(long, value_name = "SECONDS", value_parser = number(0.001..=1e6), help_heading = BACKEND)]
    pub(crate) deadline: Option<f64>,
}
