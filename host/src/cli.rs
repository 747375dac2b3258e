//! What can be asked on the command line.

mod bench;
mod inject;
mod plan;
mod simulate;

pub use bench::{Baseline, BenchArgs, LiveArg, RowCopyArg};
pub use plan::{PlanArgs, SharedArg};
pub use simulate::{RowsArg, SimulateArgs};
use veriep_core::protocol::{Flags, Receive};

use crate::command::From as Layout;
use crate::driver::threads::Spread;
use crate::error::{Error, one_line};
use crate::generate::{MaskKind, Routing};
use crate::presets;
use crate::report::{Format, complain};
use crate::result;
use crate::vector::Unit;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::{ContextKind, ErrorKind};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use core::ops::RangeInclusive;
use std::path::PathBuf;
use veriep_core::plan::order::SendOrder;

/// Verified Mixture-of-Experts dispatch and combine.
///
/// Exit status: 0 fine, 1 a result is wrong or a schedule unsafe, 2 the request, configuration or input is
/// invalid, 3 no progress before the deadline.
#[derive(Debug, Parser)]
#[command(name = "veriep", version)]
pub struct Cli {
    /// Form of the report on stdout.
    #[arg(long, global = true, value_enum, default_value_t)]
    pub format: Format,
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Make a case: a configuration with seeded tensors.
    Gen(GenArgs),
    /// Run dispatch, experts and combine on a live group, every round checked against the oracle.
    Run(RunArgs),
    /// Measure dispatch and combine over a grid of sizes, beside bare copies and baselines.
    Bench(BenchArgs),
    /// Tell whether ranks that run these operators can overwrite what others still read.
    #[cfg(feature = "schedule")]
    Schedule(ScheduleArgs),
    /// Print the region map of a rank: every area with offset, size and stride.
    Layout(LayoutArgs),
    /// Write where everything lies, which words tell of it and who does what, for generators of kernels.
    Export(ExportArgs),
    /// Print who sends what, where and in which order, without running anything.
    Plan(PlanArgs),
    /// Run a group in virtual time over the links of a cluster, every output checked against the oracle.
    Simulate(SimulateArgs),
    /// List every rule that a configuration or case breaks, and the sizes it needs.
    Check(CheckArgs),
    /// Compare a result with what the oracle says of its case, or with another result.
    Compare(CompareArgs),
    /// Write what the oracle says of a case, as a result file.
    Golden(GoldenArgs),
    /// Say who is gone of a group of processes and what all did last, from the record that a failed run leaves.
    #[cfg(target_os = "linux")]
    Inspect(InspectArgs),
    /// Say who owes what in a group that hangs, from dumps of its memory.
    Diagnose(DiagnoseArgs),
    /// Compile what `run --backend mpi` needs of an MPI, by that MPI's compiler.
    #[cfg(target_os = "linux")]
    MpiShim(MpiShimArgs),
    /// Tell whether a record of events keeps the contract of the memory and the guards of its reuse.
    Conform(ConformArgs),
    /// Print a script with which a shell completes verbs and options.
    Completions(CompletionsArgs),
}

impl Verb {
    /// Whether it reports what there is when it is asked to end early.
    #[must_use]
    pub const fn ends_early(&self) -> bool {
        match self {
            Self::Run(_) | Self::Bench(_) | Self::Simulate(_) => true,
            #[cfg(feature = "schedule")]
            Self::Schedule(_) => true,
            _ => false,
        }
    }

    /// Whether a launcher starts it as one process of several.
    #[must_use]
    pub const fn is_launched(&self) -> bool {
        matches!(self, Self::Run(RunArgs { backend: BackendArg::Mpi, .. }))
    }

    /// Whether it dumps memory when it is asked to.
    #[must_use]
    pub const fn dumps(&self) -> bool {
        matches!(self, Self::Run(RunArgs { dump: Some(_), .. }))
    }
}

/// Where a configuration comes from.
#[derive(Args, Clone, Debug, Default)]
pub struct ConfigArgs {
    /// A configuration file, or a case folder.
    #[arg(value_name = "CONFIG|CASE", conflicts_with_all = ["preset", "config"])]
    pub path: Option<PathBuf>,
    /// A named configuration.
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(presets::NAMES))]
    pub preset: Option<String>,
    /// A configuration file; of a case folder its config.toml alone.
    #[arg(long, value_name = "FILE", conflicts_with = "preset")]
    pub config: Option<PathBuf>,
    /// Override one key of the configuration; may be given again.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

/// How tensors are made.
#[derive(Args, Clone, Debug)]
pub struct TensorArgs {
    /// How tokens choose experts; the preset's own if left out, else uniform.
    #[arg(long, value_enum)]
    pub routing: Option<Routing>,
    /// Make active masks.
    #[arg(long, value_enum, default_value_t)]
    pub mask: MaskKind,
    /// Make smooth scales (quant_mode = 2).
    #[arg(long)]
    pub smooth_scales: bool,
    /// Make shared_expert_x on all ranks (no rank holds shared experts).
    #[arg(long)]
    pub shared_expert_x: bool,
    /// Draw values that tell wrong orders of summation, fused multiply-add and wrong rounding apart.
    #[arg(long)]
    pub hard: bool,
    /// Make so many logical experts, of which the physical ones are replicas: expert_map, drawn from the seed.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub logical_experts: Option<u32>,
    /// Make an elastic domain without these ranks: elastic_info, in an order drawn from the seed.
    #[arg(long, value_name = "RANKS", value_delimiter = ',')]
    pub dead: Vec<u32>,
}

/// Whose threads and memory run the group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum BackendArg {
    /// Worker threads over shared memory.
    #[default]
    Threads,
    /// One thread, one step at a time, in an order drawn from the seed.
    Lockstep,
    /// The same over memory that delays and reorders whatever the fabric's contract allows.
    Weak,
    /// Processes of their own for parts of the ranks, over memory that all of them map (Linux).
    Processes,
    /// The processes that mpirun or srun has started, perhaps on several machines (Linux).
    Mpi,
}

impl BackendArg {
    /// Whether its time is real.
    #[must_use]
    pub const fn is_timed(self) -> bool {
        matches!(self, Self::Threads | Self::Processes | Self::Mpi)
    }

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::Lockstep => "lockstep",
            Self::Weak => "weak",
            Self::Processes => "processes",
            Self::Mpi => "mpi",
        }
    }
}

/// Order of sending.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum OrderArg {
    /// First to last.
    Plain,
    /// Rotated by the rank, so that ranks do not all send to the same peer first.
    #[default]
    Staggered,
    /// Combine: rotated by the rank over the ranks to which rows go. Dispatch: as staggered.
    Destinations,
    /// Rotated by the rank, and then every n-th, so that neighbours do not follow each other.
    Stride,
}

impl OrderArg {
    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Staggered => "staggered",
            Self::Destinations => "destinations",
            Self::Stride => "stride",
        }
    }
}

impl From<OrderArg> for SendOrder {
    fn from(order: OrderArg) -> Self {
        match order {
            OrderArg::Plain => Self::Plain,
            OrderArg::Staggered => Self::Staggered,
            OrderArg::Destinations => Self::Destinations,
            OrderArg::Stride => Self::Stride,
        }
    }
}

/// How dispatch tells of records and of their number.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum FlagsArg {
    /// Flag and count in one word, behind the records.
    #[default]
    Joint,
    /// Counts ahead of the records, a flag of their own behind them.
    Separate,
}

impl From<FlagsArg> for Flags {
    fn from(flags: FlagsArg) -> Self {
        match flags {
            FlagsArg::Joint => Self::Joint,
            FlagsArg::Separate => Self::Separate,
        }
    }
}

/// How rows are received, by the names that the core has for it.
fn receive() -> impl TypedValueParser<Value = Receive> {
    let value = |mode: Receive| PossibleValue::new(mode.name()).help(mode.about());
    let named = |name: String| Receive::MODES.into_iter().find(|mode| mode.name() == name);
    PossibleValuesParser::new(Receive::MODES.map(value)).map(move |name| named(name).unwrap_or_default())
}

/// Where experts leave what they return.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ExpertsArg {
    /// In memory of its own.
    #[default]
    Apart,
    /// In the place of the row that it came from (direct placement, unquantised).
    Overwrite,
}

impl ExpertsArg {
    /// Those of a way to receive, by their name on the command line.
    #[must_use]
    pub const fn name(receive: Receive) -> &'static str {
        if receive.overwrites() { "overwrite" } else { "apart" }
    }

    /// A way to receive with such experts.
    ///
    /// # Errors
    /// There are none.
    pub fn of(self, receive: Receive) -> Result<Receive, Error> {
        match (self, receive) {
            (Self::Apart, _) => Ok(receive),
            (Self::Overwrite, Receive::Direct { areas } | Receive::Overwrite { areas }) => {
                Ok(Receive::Overwrite { areas })
            }
            (Self::Overwrite, _) => Err(Error::Request(format!(
                "--experts overwrite: only --receive direct has it, not {}; hint: --receive direct",
                receive.name()
            ))),
        }
    }
}

/// Which worker polls which core.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum SpreadArg {
    /// All cores of a rank on one worker.
    #[default]
    Ranks,
    /// The cores of a rank on all workers.
    Cores,
}

impl From<SpreadArg> for Spread {
    fn from(spread: SpreadArg) -> Self {
        match spread {
            SpreadArg::Ranks => Self::Ranks,
            SpreadArg::Cores => Self::Cores,
        }
    }
}

/// `veriep run`
#[derive(Args, Debug)]
pub struct RunArgs {
    /// A case, or a configuration, of which a case is made in memory.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// The tensors of a case in memory.
    #[command(flatten)]
    pub tensors: TensorArgs,
    /// Write the last round's result.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Write what all ranks have in memory when the run hangs or ends, and on SIGUSR2: for diagnose.
    #[arg(long, value_name = "FOLDER")]
    pub dump: Option<PathBuf>,
    /// Who runs it.
    #[arg(long, value_enum, default_value_t)]
    pub backend: BackendArg,
    /// Rounds, rounded up to whole schedules.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub rounds: u32,
    /// Operators in order; a C combines the oldest dispatch not yet combined.
    #[arg(long, value_name = "SEQ", default_value = "DC")]
    pub schedule: String,
    /// Schedules run back to back between two checks; left out: 1 where time is measured, as many as memory allows else.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub chain: Option<u32>,
    /// Seed of the case in memory and of the lockstep scheduler.
    #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
    pub seed: u64,
    /// Give up when nothing has moved for so long; left out: 60 (threads, processes, mpi).
    #[arg(long, value_name = "SECONDS", value_parser = number(0.001..=1e6), allow_negative_numbers = true)]
    pub deadline: Option<f64>,
    /// Do not ask the oracle.
    #[arg(long)]
    pub no_check: bool,
    /// In which order cores send.
    #[arg(long, value_enum, default_value_t)]
    pub order: OrderArg,
    /// How dispatch of the plain layout tells of records and of their number; left out: joint.
    #[arg(long, value_enum)]
    pub flags: Option<FlagsArg>,
    /// Who issues what goes to other servers, in the hierarchy: 2 an agent, 3 the cores; left out: 3.
    #[arg(long, value_name = "STAGE", value_parser = clap::value_parser!(u32).range(2..=3))]
    pub stage: Option<u32>,
    /// How rows are received.
    #[arg(long, value_parser = receive(), default_value = "copy")]
    pub receive: Receive,
    /// Where experts leave what they return.
    #[arg(long, value_enum, default_value_t)]
    pub experts: ExpertsArg,
    /// Bytes added per source rank.
    #[command(flatten)]
    pub port: PortArgs,
    /// What works on rows; results are the same.
    #[arg(long, value_enum, default_value_t)]
    pub vector: Unit,
    /// How rows are copied (threads, processes, mpi); left out: auto.
    #[arg(long, value_enum)]
    pub row_copy: Option<RowCopyArg>,
    /// Processes, each for neighbouring ranks; left out: the smaller of ranks and processors (processes), or as many as were
    /// started (mpi).
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub processes: Option<u32>,
    /// Share no memory with any other process, also on one machine (mpi).
    #[arg(long)]
    pub all_far: bool,
    /// Worker threads of each process; left out: one per processor in all.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Which worker polls which core; left out: ranks.
    #[arg(long, value_enum)]
    pub spread: Option<SpreadArg>,
    /// Make a rank misbehave, to see the report: silent=RANK never publishes to another rank; silent=RANK:WHAT loses
    /// only its counts, tokens, grants, blocks, rows, tp or ends. In a hierarchy also twice=RANK: all that it sends to
    /// other servers goes twice; astray=RANK: what it forwards goes to a near rank, too, that does not need it. Over processes
    /// killed=RANK:N: its process dies behind so many writes of the rank. Where time is real slow=RANK:SECONDS: its experts take so
    /// long more.
    #[arg(long, value_name = "FAULT")]
    pub inject: Option<String>,
    /// The record of events (lockstep, weak).
    #[command(flatten)]
    pub record: RecordArgs,
    /// Record what all cores did last (threads, processes, mpi), in a folder that is kept, or none. Left out: over processes and
    /// mpi in a folder of its own among the temporary files, removed when all ends well.
    #[arg(long = "record", value_name = "FOLDER|none")]
    pub flight: Option<PathBuf>,
}

/// `veriep mpi-shim`
#[cfg(target_os = "linux")]
#[derive(Args, Debug)]
pub struct MpiShimArgs {
    /// The MPI's C compiler; left out: all of mpicc.openmpi and mpicc.mpich that there are, else mpicc.
    #[arg(long, value_name = "PROGRAM")]
    pub mpicc: Option<PathBuf>,
    /// Where the library goes; left out: ~/.local/share/veriep, where run looks for it.
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
}

/// A number in a range.
fn number(range: RangeInclusive<f64>) -> impl Fn(&str) -> Result<f64, String> + Clone {
    let (start, end) = range.into_inner();
    let must = if end == f64::MAX {
        format!("a number from {start} on")
    } else {
        format!("a number in [{start}, {end}]")
    };
    move |text| match text.parse() {
        Ok(number) if (start..=end).contains(&number) => Ok(number),
        _ => Err(format!("must be {must}")),
    }
}

/// Whose protocol `veriep schedule` asks about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ProductArg {
    /// Dispatch and combine with partitions of their own.
    #[default]
    A3,
    /// One sequence of halves for both, agents that send.
    A2,
}

/// What `veriep schedule` searches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModelArg {
    /// The real machines; on A2 with agents and transfers, or messages.
    Machines,
    /// An abstract model of the windows of A2's full mesh.
    Windows,
}

/// `veriep schedule`
#[derive(Args, Debug)]
pub struct ScheduleArgs {
    /// Operators that every rank runs, D and C in order; a C combines the oldest dispatch not yet combined.
    #[arg(value_name = "SEQ")]
    pub operators: String,
    /// Whose protocol.
    #[arg(long, value_enum, default_value_t)]
    pub product: ProductArg,
    /// Partitions: P of each kind, or of dispatch and combine apart (A3); of the windows (A2).
    #[arg(long, value_name = "P|P,Q", value_delimiter = ',', num_args = 1..=2, default_value = "2", value_parser = clap::value_parser!(u32).range(1..=8))]
    pub partitions: Vec<u32>,
    /// Ranks, one core each.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=4))]
    pub ranks: u32,
    /// A2's hierarchy in place of its full mesh.
    #[arg(long)]
    pub hierarchy: bool,
    /// Ranks of a server in the hierarchy; left out: half of the ranks, or 1 if they are odd.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4))]
    pub server_ranks: Option<u32>,
    /// How often the operators run; left out: for ever, or once if not every dispatch is combined.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,
    /// What is searched; left out: the machines, but the windows for three and more ranks of A2's full mesh.
    #[arg(long, value_enum)]
    pub model: Option<ModelArg>,
    /// How rows are received.
    #[arg(long, value_parser = receive(), default_value = "copy")]
    pub receive: Receive,
    /// Where experts leave what they return.
    #[arg(long, value_enum, default_value_t)]
    pub experts: ExpertsArg,
    /// Stop looking beyond so many states (about 1 KiB each).
    #[arg(long, value_name = "N", default_value_t = 3_000_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub states: u32,
}

/// `veriep layout`
#[derive(Args, Debug)]
pub struct LayoutArgs {
    /// Configuration.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Whose map.
    #[arg(long, default_value_t = 0)]
    pub rank: u32,
    /// Choices of the group.
    #[command(flatten)]
    pub mode: ModeArgs,
}

/// `veriep export`
#[derive(Args, Debug)]
pub struct ExportArgs {
    /// Configuration.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Folder to write.
    #[arg(long, value_name = "FOLDER")]
    pub out: PathBuf,
    /// Whose part of the plan is written: all, or a list.
    #[arg(long, value_name = "all|RANK,...", default_value = "all")]
    pub ranks: String,
    /// Begins the names in the header.
    #[arg(long, value_name = "NAME", default_value = "veriep", value_parser = identifier)]
    pub prefix: String,
    /// Choices of the group.
    #[command(flatten)]
    pub mode: ModeArgs,
}

fn identifier(text: &str) -> Result<String, String> {
    let is_name = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if is_name { Ok(text.to_owned()) } else { Err("must be a letter, then letters, digits and _".to_owned()) }
}

/// Choices of a group that decide where things lie.
#[derive(Args, Clone, Copy, Debug)]
pub struct ModeArgs {
    /// How rows are received.
    #[arg(long, value_parser = receive(), default_value = "copy")]
    pub receive: Receive,
    /// Where experts leave what they return.
    #[arg(long, value_enum, default_value_t)]
    pub experts: ExpertsArg,
    /// How dispatch of the plain layout tells of records and of their number; left out: joint.
    #[arg(long, value_enum)]
    pub flags: Option<FlagsArg>,
    /// Who issues what goes to other servers, in the hierarchy: 2 an agent, 3 the cores; left out: 3.
    #[arg(long, value_name = "STAGE", value_parser = clap::value_parser!(u32).range(2..=3))]
    pub stage: Option<u32>,
    /// Bytes added per source rank.
    #[command(flatten)]
    pub port: PortArgs,
}

/// `veriep gen`
#[derive(Args, Debug)]
pub struct GenArgs {
    /// Configuration.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Tensors.
    #[command(flatten)]
    pub tensors: TensorArgs,
    /// Seed of all random values.
    #[arg(long, allow_negative_numbers = true)]
    pub seed: u64,
    /// Folder to write.
    #[arg(long, value_name = "CASE")]
    pub out: PathBuf,
    /// Write into a non-empty folder even if it is not a case.
    #[arg(long)]
    pub force: bool,
    /// Also write expected.safetensors: the result, by the oracle alone.
    #[arg(long)]
    pub expected: bool,
}

/// `veriep compare`
#[derive(Args, Debug)]
pub struct CompareArgs {
    /// A case folder, of which the oracle is asked, or a result file.
    #[arg(value_name = "CASE|EXPECTED")]
    pub expected: PathBuf,
    /// The result file to judge.
    #[arg(value_name = "RESULT")]
    pub result: PathBuf,
    /// Override one key of the case's configuration; may be given again.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Steps of its type that a value may be off.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub ulp: u64,
    /// How much of the expected magnitude a value may be off.
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = number(0.0..=f64::MAX))]
    pub rtol: f64,
    /// How much a value may be off, beside that.
    #[arg(long, value_name = "Y", default_value_t = 0.0, value_parser = number(0.0..=f64::MAX))]
    pub atol: f64,
    /// Judge these ranks alone, as far as the file has them.
    #[arg(long, value_name = "RANK,...", value_delimiter = ',')]
    pub ranks: Vec<u32>,
    /// Judge these tensors alone, as far as the file has them.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = PossibleValuesParser::new(result::names()))]
    pub tensors: Vec<String>,
    /// Do not look at rows behind those received: tensors may be as long as their capacity.
    #[arg(long)]
    pub padded: bool,
}

/// `veriep diagnose`
#[derive(Args, Debug)]
pub struct DiagnoseArgs {
    /// The folder with rank0.state, rank1.state and so on, and with config.toml unless another option names one; run --dump
    /// writes such a folder.
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
    /// Whose operators the group ran.
    #[arg(long, value_enum, default_value_t)]
    pub from: Layout,
    /// A configuration file.
    #[arg(long, value_name = "FILE", conflicts_with = "preset")]
    pub config: Option<PathBuf>,
    /// A named configuration.
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(presets::NAMES))]
    pub preset: Option<String>,
    /// Override one key of the configuration; may be given again.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// A case with the batch that hangs: its expert_ids say which rank returns which result.
    #[arg(long, value_name = "CASE")]
    pub case: Option<PathBuf>,
    /// How rows were received; left out, as the folder's options.toml says, like the options below.
    #[arg(long, value_parser = receive())]
    pub receive: Option<Receive>,
    /// How dispatch of the plain layout told of records and of their number.
    #[arg(long, value_enum)]
    pub flags: Option<FlagsArg>,
    /// Who issued what goes to other servers, in the hierarchy: 2 an agent, 3 the cores.
    #[arg(long, value_name = "STAGE", value_parser = clap::value_parser!(u32).range(2..=3))]
    pub stage: Option<u32>,
    /// Bytes added in front of a block of records for each rank before its source and before its owner.
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true)]
    pub port_offset: Option<i64>,
    /// Where experts left what they returned.
    #[arg(long, value_enum)]
    pub experts: Option<ExpertsArg>,
    /// How many batches may be in flight: so many dispatches, then their combines.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub in_flight: Option<u32>,
}

/// `veriep golden`
#[derive(Args, Debug)]
pub struct GoldenArgs {
    /// A case, or a configuration, of which a case is made in memory.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// The tensors of a case in memory.
    #[command(flatten)]
    pub tensors: TensorArgs,
    /// Seed of a case in memory.
    #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
    pub seed: u64,
    /// The result file to write.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

/// `veriep conform`
#[derive(Args, Debug)]
pub struct ConformArgs {
    /// A record of events, as --events writes it.
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,
}

/// `veriep completions`
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// Which shell.
    pub shell: clap_complete::Shell,
}

/// `veriep check`
#[derive(Args, Debug)]
pub struct CheckArgs {
    /// Configuration files or case folders; several are layers that share one group.
    #[arg(required_unless_present = "preset", conflicts_with = "preset", value_name = "CONFIG|CASE")]
    pub paths: Vec<PathBuf>,
    /// A named configuration.
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(presets::NAMES))]
    pub preset: Option<String>,
    /// Override one key of every configuration; may be given again.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Choices of the group.
    #[command(flatten)]
    pub mode: ModeArgs,
    /// Batches that layers have in flight: 2 asks more of their layouts (DDCC).
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=2))]
    pub in_flight: u32,
}

/// `veriep inspect`
#[derive(Args, Debug)]
pub struct InspectArgs {
    /// The folder of the record.
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
    /// How many of the last events are told.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub last: usize,
    /// All events that the record has.
    #[command(flatten)]
    pub record: RecordArgs,
}

/// Where the record of events goes.
#[derive(Args, Clone, Debug, Default)]
pub struct RecordArgs {
    /// Write what happens as JSON lines: a header, then an event in each.
    #[arg(long, value_name = "FILE.jsonl")]
    pub events: Option<PathBuf>,
    /// Draw what happens as Chrome trace-event JSON, for Perfetto and chrome://tracing.
    #[arg(long, value_name = "FILE.json")]
    pub trace: Option<PathBuf>,
    /// Draw what happens as a page of its own, for any browser.
    #[arg(long, value_name = "FILE.html")]
    pub html: Option<PathBuf>,
}

/// An option of the layout that is no key of a configuration.
#[derive(Args, Clone, Copy, Debug)]
pub struct PortArgs {
    /// Bytes added in front of a block of records for each rank before its source and before its owner, a multiple of 512
    /// (port balancing); needs room.
    #[arg(long, value_name = "BYTES", default_value_t = 0, allow_negative_numbers = true)]
    pub port_offset: i64,
}

/// Prints a parse error as one line (help and version as they are) and returns the exit status.
#[must_use]
pub fn explain(error: &clap::Error) -> u8 {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return match error.print() {
            Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
                complain(&format!("stdout: cannot write: {e}"));
                2
            }
            // A closed stdout is no error.
            _ => 0,
        };
    }
    let line = match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::MissingRequiredArgument, Some(arguments)) => format!("missing argument: {arguments}"),
        (ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand, _) => {
            "missing verb: veriep --help lists them".to_owned()
        }
        (ErrorKind::InvalidSubcommand, _) => {
            format!("{}: veriep --help lists all", first_paragraph(&error.render().to_string()))
        }
        _ => first_paragraph(&error.render().to_string()),
    };
    let verb = error.get(ContextKind::InvalidSubcommand).map(ToString::to_string);
    let similar = verb.as_deref().and_then(similar_verb);
    let line = match similar.or_else(|| error.get(ContextKind::SuggestedArg).map(ToString::to_string)) {
        Some(similar) => format!("{line}; a similar one is {similar}"),
        None => line,
    };
    complain(&one_line(&line));
    2
}

/// The verb that a word was meant to be: one that takes less changes than half of its letters.
fn similar_verb(word: &str) -> Option<String> {
    let command = Cli::command();
    let verbs = command.get_subcommands().map(clap::Command::get_name);
    let changes = |verb: &&str| strsim::osa_distance(verb, word);
    verbs.filter(|verb| 2 * changes(verb) < verb.len()).min_by_key(changes).map(str::to_owned)
}

/// The lines before the usage, completed.
fn first_paragraph(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    let text = lines.join(" ");
    text.strip_prefix("error: ").unwrap_or(&text).to_owned()
}
