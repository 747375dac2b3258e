//! The options of `veriep simulate`.

use super::{ConfigArgs, FlagsArg, OrderArg, PortArgs, RecordArgs, SharedArg, TensorArgs, number, receive};
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use veriep_core::protocol::Receive;

/// Whether a simulation keeps rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RowsArg {
    /// They are kept, and outputs are compared with the oracle.
    Real,
    /// They take their time on links and cores, but only their ends are kept.
    Weightless,
}

/// `veriep simulate`
#[derive(Args, Clone, Debug)]
pub struct SimulateArgs {
    /// A case, or a configuration, of which a case is made in memory.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// The tensors of a case in memory.
    #[command(flatten)]
    pub tensors: TensorArgs,
    /// Links and costs: a2, a3 or a TOML file.
    #[arg(long, value_name = "a2|a3|FILE")]
    pub cluster: String,
    /// Override a key of the cluster's links; may be given again.
    #[arg(long, value_name = "KEY=VALUE")]
    pub link: Vec<String>,
    /// Override a key of the cluster's costs; may be given again.
    #[arg(long, value_name = "KEY=VALUE")]
    pub cost: Vec<String>,
    /// Bandwidth alone: all latencies and costs are 0.
    #[arg(long)]
    pub free: bool,
    /// In which order cores send.
    #[arg(long, value_enum, default_value_t)]
    pub order: OrderArg,
    /// How rows are received: copy or in-place.
    #[arg(long, value_parser = receive(), default_value = "copy")]
    pub receive: Receive,
    /// How dispatch of the plain layout tells of records and of their number; left out: joint.
    #[arg(long, value_enum)]
    pub flags: Option<FlagsArg>,
    /// Who issues what goes to other servers, in the hierarchy: 2 an agent, 3 the cores; left out: 3.
    #[arg(long, value_name = "STAGE", value_parser = clap::value_parser!(u32).range(2..=3))]
    pub stage: Option<u32>,
    /// How tokens are spread over the replicas of a shared expert; `even` redirects links alone.
    #[arg(long, value_enum, default_value_t)]
    pub shared: SharedArg,
    /// Bytes added per rank.
    #[command(flatten)]
    pub port: PortArgs,
    /// Operators of a round, DC or DDCC.
    #[arg(long, value_name = "SEQ", default_value = "DC")]
    pub schedule: String,
    /// Rounds of that; times are those of the last one.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Ranks begin at times up to so many microseconds, drawn from the seed.
    #[arg(long, value_name = "US", default_value_t = 0.0, value_parser = number(0.0..=1e6))]
    pub skew: f64,
    /// A rank begins so many microseconds late; may be given again.
    #[arg(long, value_name = "RANK:US")]
    pub straggler: Vec<String>,
    /// All costs of a rank are multiplied; may be given again.
    #[arg(long, value_name = "RANK:FACTOR")]
    pub slow: Vec<String>,
    /// Each step takes longer by up to so many percent, drawn from the seed.
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = number(0.0..=1000.0))]
    pub jitter: f64,
    /// Seed of the case in memory, of skew and of jitter.
    #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
    pub seed: u64,
    /// The same with so many seeds from this one on, for quartiles.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub seeds: u32,
    /// The same with each of these values of a key of the links, the costs or the configuration; given again, with all of their
    /// combinations.
    #[arg(long, value_name = "KEY=A,B,C")]
    pub sweep: Vec<String>,
    /// The same on another cluster, or with bandwidth alone, and how much longer it takes there.
    #[arg(long, value_name = "a2|a3|FILE|free")]
    pub against: Option<String>,
    /// Whether rows are kept; left out: while they fit 1 GiB.
    #[arg(long, value_enum)]
    pub rows: Option<RowsArg>,
    /// When each rank has begun and ended each operator, as a table, of all runs.
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// The record of events.
    #[command(flatten)]
    pub record: RecordArgs,
}
