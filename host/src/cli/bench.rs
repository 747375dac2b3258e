//! What `veriep bench` can be asked.

use super::{ConfigArgs, ExpertsArg, number, receive};
use crate::generate::Routing;
use crate::vector::Unit;
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use veriep_core::fabric::raw::RowCopy;
use veriep_core::protocol::Receive;

/// A program to measure beside the machines, in `host/baselines`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Baseline {
    /// Permute, MPI_Alltoallv, unpermute; and back.
    #[value(name = "mpi-alltoallv", alias = "mpi")]
    MpiAlltoallv,
    /// C in processes over one shared window: counts first, then one copy of each row.
    #[value(name = "c-shared-window", alias = "c")]
    CSharedWindow,
    /// The same, with the lines of rows asked for ahead.
    #[value(name = "c-shared-window-ahead", alias = "c-ahead")]
    CSharedWindowAhead,
    /// C over one shared window in which experts write over the rows that they read.
    #[value(name = "c-one-place", alias = "c-one")]
    COnePlace,
    /// The same, with the lines of rows asked for ahead.
    #[value(name = "c-one-place-ahead", alias = "c-one-ahead")]
    COnePlaceAhead,
    /// MPI_Put of each row and of a flag, MPI_Get of each result.
    #[value(name = "mpi-put", alias = "put")]
    MpiPut,
}

/// Where the machines run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LiveArg {
    /// Worker threads of this process.
    Threads,
    /// Processes, as many as the smaller of ranks and processors (Linux).
    Processes,
}

/// How the machines' rows are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, ValueEnum)]
pub enum RowCopyArg {
    /// As is measured to be fastest before the ranks meet; if that would not pay, as it usually is on such a processor.
    Auto,
    /// Through the caches, their lines asked for ahead.
    Ahead,
    /// As the platform copies memory.
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

    /// As in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Ahead => "ahead",
            Self::Plain => "plain",
            Self::Streaming => "streaming",
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

impl Baseline {
    /// Whether it has int8 dispatch.
    #[must_use]
    pub const fn quantises(self) -> bool {
        matches!(self, Self::CSharedWindow | Self::CSharedWindowAhead)
    }

    /// The name of the program, and of the system in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::MpiAlltoallv => "mpi-alltoallv",
            Self::CSharedWindow => "c-shared-window",
            Self::CSharedWindowAhead => "c-shared-window-ahead",
            Self::COnePlace => "c-one-place",
            Self::COnePlaceAhead => "c-one-place-ahead",
            Self::MpiPut => "mpi-put",
        }
    }
}

/// `veriep bench`
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// What all measurements have in common; left out: the defaults of config.toml, with E 64, K 8, H 7168.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// ep_world_size; left out: that of the configuration if one is named or set, else 2,8.
    #[arg(long, value_name = "R,...", value_delimiter = ',')]
    pub ep: Vec<u32>,
    /// Tokens per rank; left out: those of the configuration if one is named or set, else 16,64,128.
    #[arg(long, value_name = "BS,...", value_delimiter = ',')]
    pub bs: Vec<u32>,
    /// How rows are received.
    #[arg(long, value_parser = receive(), value_delimiter = ',', default_value = "copy")]
    pub receive: Vec<Receive>,
    /// Where experts leave what they return, with direct placement; several are measured by turns.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "apart")]
    pub experts: Vec<ExpertsArg>,
    /// Where the machines run; several are measured by turns.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "threads")]
    pub backend: Vec<LiveArg>,
    /// How rows are copied; several are measured by turns.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "auto")]
    pub row_copy: Vec<RowCopyArg>,
    /// quant_mode; several are measured by turns. Left out: that of the configuration.
    #[arg(long, value_name = "MODE,...", value_delimiter = ',')]
    pub quant_mode: Vec<u32>,
    /// aiv_num; several are measured by turns. Left out: that of the configuration.
    #[arg(long, value_name = "CORES,...", value_delimiter = ',')]
    pub aiv_num: Vec<u32>,
    /// Turns of each system: all that is compared is measured in short blocks, one system after the other.
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub blocks: u32,
    /// Iterations of a block that count, in each regime.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub iters: u32,
    /// Iterations before them, that do not: rows of two partitions are cold when other systems have run.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub warm_up: u32,
    /// Measure also what machines take when rows weigh nothing: a step, a flag across threads, the share of a round.
    #[arg(long)]
    pub protocol: bool,
    /// Measure these programs too, with the same inputs, their outputs compared with the oracle.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SYSTEM,...")]
    pub against: Vec<Baseline>,
    /// Where those programs are; left out: $VERIEP_BASELINES, else `baselines` beside this program's folder.
    #[arg(long, value_name = "FOLDER")]
    pub baselines: Option<PathBuf>,
    /// Write the report, as JSON, to a file.
    #[arg(long, value_name = "FILE")]
    pub export: Option<PathBuf>,
    /// Tell what has changed since an earlier report, which --export has written.
    #[arg(long, value_name = "FILE")]
    pub compare: Option<PathBuf>,
    /// How tokens choose experts; the preset's own if left out, else uniform.
    #[arg(long, value_enum)]
    pub routing: Option<Routing>,
    /// Seed of all tensors.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// What works on rows.
    #[arg(long, value_enum, default_value_t)]
    pub vector: Unit,
    /// Worker threads; left out: one per processor.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Give up when nothing has moved for so long, or a baseline takes so long; left out: 60.
    #[arg(long, value_name = "SECONDS", value_parser = number(0.001..=1e6))]
    pub deadline: Option<f64>,
}
