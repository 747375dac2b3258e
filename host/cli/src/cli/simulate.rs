//! The options of `veriep simulate`.

use super::help::{FAULTS, INPUT, OUTPUT, PROTOCOL, SIMULATION};
use super::{ByName, ConfigArgs, ModeArgs, RecordArgs, TensorArgs, number};
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use veriep_core::plan::order::SendOrder;
use veriep_spread::shared::SharedSplit;

/// Rows of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RowsArg {
    /// Rows are kept, and outputs are compared with the reference.
    Real,
    /// Rows take their time on links and cores but are not kept, and outputs are not compared.
    Timing,
}

#[derive(Args, Clone, Debug)]
pub struct SimulateArgs {
    /// A case, or a configuration, of which a case is made in memory.
    #[command(flatten)]
    pub config: ConfigArgs,
    #[command(flatten)]
    pub tensors: TensorArgs,
    /// Links and costs: a built-in cluster or a TOML file.
    #[arg(long, value_name = "a2|a3|FILE", help_heading = SIMULATION)]
    pub cluster: String,
    /// Override a key of the cluster's links; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", help_heading = SIMULATION)]
    pub link: Vec<String>,
    /// Override a key of the cluster's costs; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", help_heading = SIMULATION)]
    pub cost: Vec<String>,
    /// Bandwidth only: all latencies and costs are 0.
    #[arg(long, help_heading = SIMULATION)]
    pub free: bool,
    /// Order in which a core sends its items.
    #[arg(long, value_parser = SendOrder::parser(), default_value = "staggered", help_heading = PROTOCOL)]
    pub order: SendOrder,
    #[command(flatten)]
    pub mode: ModeArgs,
    /// Distribution of tokens over the replicas of a shared expert; `even` redirects links only.
    #[arg(long, value_parser = SharedSplit::parser(), default_value = "all-in", help_heading = PROTOCOL)]
    pub shared: SharedSplit,
    /// Operators of a round, DC or DDCC.
    #[arg(long, value_name = "SEQ", default_value = "DC", help_heading = SIMULATION)]
    pub schedule: String,
    /// Number of rounds; times are those of the last one.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000), help_heading = SIMULATION)]
    pub rounds: u32,
    /// Ranks begin up to this many microseconds late, drawn from the seed.
    #[arg(long, value_name = "US", default_value_t = 0.0, value_parser = number(0.0..=1e6), help_heading = FAULTS)]
    pub skew: f64,
    /// A rank begins this many microseconds late; may be repeated.
    #[arg(long, value_name = "RANK:US", help_heading = FAULTS)]
    pub straggler: Vec<String>,
    /// Multiply all costs of a rank; may be repeated.
    #[arg(long, value_name = "RANK:FACTOR", help_heading = FAULTS)]
    pub slow: Vec<String>,
    /// Each step takes longer by up to this many percent, drawn from the seed.
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = number(0.0..=1000.0), help_heading = FAULTS)]
    pub jitter: f64,
    /// Seed of a case made in memory, of skew and of jitter.
    #[arg(long, default_value_t = 1, allow_negative_numbers = true, help_heading = INPUT)]
    pub seed: u64,
    /// Repeat with N seeds, from --seed on, and print quartiles.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000), help_heading = SIMULATION)]
    pub seeds: u32,
    /// Repeat with each of these values of a key of the links, the costs or the configuration. Several sweeps are combined.
    #[arg(long, value_name = "KEY=A,B,C", help_heading = SIMULATION)]
    pub sweep: Vec<String>,
    /// Repeat on another cluster, with bandwidth only, or with the AllGather and AllToAllV that the operators replace (baseline), and compare the times.
    #[arg(long, value_name = "a2|a3|FILE|free|baseline", help_heading = SIMULATION)]
    pub against: Option<String>,
    /// Rows: real ones are kept and compared, the others only take time; by default real if they fit 1 GiB.
    #[arg(long, value_enum, help_heading = SIMULATION)]
    pub rows: Option<RowsArg>,
    /// The number of events after which the simulation gives up, and says which ports have carried most.
    #[arg(long, alias = "events-max", value_name = "N", default_value_t = 1_000_000_000, value_parser = clap::value_parser!(u64).range(1..), help_heading = SIMULATION)]
    pub limit: u64,
    /// Write a table of when each rank began and ended each operator, of all runs.
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub csv: Option<PathBuf>,
    #[command(flatten)]
    pub record: RecordArgs,
}
