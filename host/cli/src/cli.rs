//! The options of the command line. Each subcommand is a variant of [`Verb`] and a struct of its options, such as [`CompareArgs`];
//! the longest ones have files of their own in `cli/`. Groups and examples of `--help` are in `cli/help.rs`.

mod explain;
mod help;
mod inject;
mod plan;
mod run;
mod simulate;

pub use explain::explain;
pub use help::command;
pub use help::{
    BACKEND, FAULTS, INPUT, JUDGEMENT, MEASUREMENT, OPTIONS, OUTPUT, PROTOCOL, SEARCH, SIMULATION,
};
pub use inject::Faults;
pub use plan::PlanArgs;
#[cfg(target_os = "linux")]
pub use run::MpiShimArgs;
pub use run::{RowCopyArg, RunArgs};
pub use simulate::{RowsArg, SimulateArgs};
use veriep_core::layout::state::Slots;
use veriep_core::protocol::{Flags, Receive};

use crate::report::{Format, Report};
use crate::signals::Answers;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use core::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use veriep_case::experts::Experts;
use veriep_case::generate::{MaskKind, Routing};
use veriep_case::padding::Padding;
use veriep_case::presets;
use veriep_case::result;
use veriep_core::plan::order::SendOrder;
use veriep_core::shape::Release;
use veriep_group::compared::Asked;
use veriep_group::driver::threads::Spread;
use veriep_group::vector::Unit;
use veriep_plan::diagnose::OperatorSource;
use veriep_plan::mode::{self, Mode};
use veriep_spread::shared::SharedSplit;

/// Run, check and debug Mixture-of-Experts dispatch and combine (Ascend A2/A3) without an NPU.
#[derive(Debug, Parser)]
#[command(name = "veriep", version, disable_help_flag = true)]
pub struct Cli {
    #[command(flatten)]
    pub common: CommonArgs,
    #[command(subcommand)]
    pub verb: Verb,
}

/// Options of every subcommand, which other programs share.
#[derive(Args, Debug)]
pub struct CommonArgs {
    /// Format of the report on stdout.
    #[arg(long, global = true, help_heading = OPTIONS, value_enum, default_value_t)]
    pub format: Format,
    /// Print the whole report of a subcommand that judges, and not its first ten lines.
    #[arg(short, long, global = true, help_heading = OPTIONS)]
    pub verbose: bool,
    /// Print no report and no notes: only errors, and the exit status.
    #[arg(short, long, global = true, help_heading = OPTIONS, conflicts_with_all = ["verbose", "format"])]
    pub quiet: bool,
    /// Print this help.
    #[arg(short, long, global = true, help_heading = OPTIONS, action = ArgAction::HelpShort)]
    help: Option<bool>,
}

impl CommonArgs {
    /// Returns the report that is asked for, of the subcommand with this name.
    #[must_use]
    pub fn report(&self, name: &str, judges: bool) -> Report {
        Report::new(self.format).of(name, judges).verbose(self.verbose).quiet(self.quiet)
    }
}

#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Make a case: a configuration with seeded tensors.
    Gen(GenArgs),
    /// Run dispatch, experts and combine on a live group, and compare every round with the reference.
    Run(RunArgs),
    /// Search whether an order of operators can overwrite what other ranks still read.
    #[cfg(feature = "schedule")]
    Schedule(ScheduleArgs),
    /// Print the region map of a rank: every area with offset, size and stride.
    Layout(LayoutArgs),
    /// Write maps of memory, events and shares of work for generators of kernels, as JSON and as a C header.
    Export(ExportArgs),
    /// Print who sends what, where and in which order, without running anything.
    Plan(PlanArgs),
    /// Run a group in virtual time over the links of a cluster, and compare its outputs with the reference.
    Simulate(SimulateArgs),
    /// List every rule that a configuration or case breaks, how to mend it, and the sizes it needs.
    Check(CheckArgs),
    /// Compare a result with the reference's answer to its case, or with another result.
    Compare(CompareArgs),
    /// Write the reference's answer to a case as a result file.
    Golden(GoldenArgs),
    /// Find the ranks that hold up a group that hangs, from dumps of its memory.
    Diagnose(DiagnoseArgs),
    /// Compile the library that connects `run --backend mpi` to this machine's MPI.
    #[cfg(target_os = "linux")]
    MpiShim(MpiShimArgs),
    /// Check whether a record of events, of any implementation, keeps the memory's contract.
    Conform(ConformArgs),
    /// Print a completion script for a shell.
    Completions(CompletionsArgs),
}

impl Verb {
    /// Returns the signals that it answers.
    #[must_use]
    pub const fn answers(&self) -> Answers {
        match self {
            Self::Run(args) => Answers {
                dumps: args.dump.is_some(),
                is_launched: matches!(args.backend, BackendArg::Mpi),
                ends_early: true,
            },
            Self::Simulate(_) => Answers { ends_early: true, ..Answers::NONE },
            #[cfg(feature = "schedule")]
            Self::Schedule(_) => Answers { ends_early: true, ..Answers::NONE },
            _ => Answers::NONE,
        }
    }

    /// Returns whether its report begins with a verdict.
    #[must_use]
    pub const fn judges(&self) -> bool {
        match self {
            Self::Run(_) | Self::Check(_) | Self::Compare(_) | Self::Diagnose(_) | Self::Conform(_) => true,
            #[cfg(feature = "schedule")]
            Self::Schedule(_) => true,
            _ => false,
        }
    }
}

/// The source of a configuration.
#[derive(Args, Clone, Debug, Default)]
pub struct ConfigArgs {
    /// A case folder, the name of a preset, or a configuration file: TOML, JSON, or a pasted call of a torch_npu function.
    #[arg(value_name = "CONFIG|CASE", conflicts_with_all = ["preset", "config"])]
    pub path: Option<PathBuf>,
    /// A named configuration.
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(presets::NAMES), help_heading = INPUT)]
    pub preset: Option<String>,
    /// A configuration file, or the config.toml of a case folder.
    #[arg(long, value_name = "FILE", conflicts_with = "preset", help_heading = INPUT)]
    pub config: Option<PathBuf>,
    /// Override one key of the configuration; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE", help_heading = INPUT)]
    pub set: Vec<String>,
    /// The operators whose rules and sizes apply; by default the configuration's release, else the newest.
    #[arg(long, value_name = "NAME", ignore_case = true, value_parser = releases(), help_heading = INPUT)]
    pub release: Option<Release>,
}

/// Releases of the operators, by the names that the core has for them.
fn releases() -> impl TypedValueParser<Value = Release> {
    let value = |release: Release| {
        let value = PossibleValue::new(release.name());
        if release == Release::V9_0_0 { value.alias("9.0.1") } else { value }
    };
    PossibleValuesParser::new(Release::ALL.map(value))
        .map(|name| Release::named(&name).unwrap_or(Release::NEWEST))
}

/// Choices for generated tensors.
#[derive(Args, Clone, Debug)]
pub struct TensorArgs {
    /// Distribution of tokens over experts; by default that of the preset, else uniform.
    #[arg(long, value_parser = Routing::parser(), help_heading = INPUT)]
    pub routing: Option<Routing>,
    /// Make active masks.
    #[arg(long, value_parser = MaskKind::parser(), default_value = "none", help_heading = INPUT)]
    pub mask: MaskKind,
    /// Make smooth scales; needs quant_mode = 2.
    #[arg(long, help_heading = INPUT)]
    pub smooth_scales: bool,
    /// Make shared_expert_x on all ranks; needs shared_expert_rank_num = 0.
    #[arg(long, help_heading = INPUT)]
    pub shared_expert_x: bool,
    /// Draw values on which a wrong order of summation, fused multiply-add and wrong rounding differ.
    #[arg(long, help_heading = INPUT)]
    pub hard: bool,
    /// Make an expert_map: N logical experts, of which the physical ones are replicas.
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = INPUT)]
    pub logical_experts: Option<u32>,
    /// Make an elastic_info: a domain without these ranks, in an order drawn from the seed.
    #[arg(long, value_name = "RANKS", value_delimiter = ',', help_heading = INPUT)]
    pub dead: Vec<u32>,
}

/// The threads or processes that run a group, and their memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum BackendArg {
    /// Worker threads over shared memory.
    #[default]
    Threads,
    /// One thread, one step at a time, in an order drawn from the seed.
    Lockstep,
    /// Like lockstep, over memory that delays and reorders as much as the contract allows.
    Weak,
    /// Several processes over memory that all of them map (Linux).
    Processes,
    /// The processes that mpirun or srun has started, perhaps on several machines (Linux).
    Mpi,
}

impl BackendArg {
    /// Returns whether its time is real.
    #[must_use]
    pub const fn is_timed(self) -> bool {
        matches!(self, Self::Threads | Self::Processes | Self::Mpi)
    }
}

/// The name of a value on the command line.
pub fn name_of(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// A value that the command line calls by the name that its library gives it.
pub trait ByName: Copy + Send + Sync + 'static {
    /// Every value.
    const VALUES: &'static [Self];
    /// The name, and one sentence about the value.
    fn named(self) -> (&'static str, &'static str);

    /// Parses the names.
    fn parser() -> impl TypedValueParser<Value = Self> {
        let value = |value: &Self| match value.named() {
            (name, "") => PossibleValue::new(name),
            (name, about) => PossibleValue::new(name).help(about),
        };
        let values: Vec<_> = Self::VALUES.iter().map(value).collect();
        PossibleValuesParser::new(values).try_map(|name| {
            let found = Self::VALUES.iter().copied().find(|value| value.named().0 == name);
            found.ok_or_else(|| format!("{name}: must be one of the values"))
        })
    }
}

macro_rules! by_name {
    ($($value:ty: $all:expr;)*) => {
        $(impl ByName for $value {
            const VALUES: &'static [Self] = &$all;

            fn named(self) -> (&'static str, &'static str) {
                (self.name(), self.about())
            }
        })*
    };
}

impl ByName for SendOrder {
    const VALUES: &'static [Self] = &Self::ALL;

    fn named(self) -> (&'static str, &'static str) {
        let about = match self {
            Self::Plain => "From the first item to the last",
            Self::Staggered => "Rotated by the rank, so that ranks do not all send to the same peer first",
            Self::Destinations => {
                "In combine, rotated over the ranks to which rows go; in dispatch as staggered"
            }
            Self::Stride => {
                "Rotated by the rank, then every n-th, so that neighbours do not follow each other"
            }
        };
        (mode::order_name(self), about)
    }
}

impl ByName for SharedSplit {
    const VALUES: &'static [Self] = &[Self::AllIn, Self::Even];

    fn named(self) -> (&'static str, &'static str) {
        let about = match self {
            Self::AllIn => "All tokens of a rank go to one replica, as the operators do it",
            Self::Even => "Evenly over all replicas, the older rule; it can be planned, not run",
        };
        (mode::split_name(self), about)
    }
}

impl ByName for Flags {
    const VALUES: &'static [Self] = &Self::ALL;

    fn named(self) -> (&'static str, &'static str) {
        let about = match self {
            Self::Joint => "Count and flag in one word, after the records",
            Self::Separate => "Counts ahead of the records, and a flag of their own after them",
        };
        (self.name(), about)
    }
}

impl ByName for Slots {
    const VALUES: &'static [Self] = &Self::ALL;

    fn named(self) -> (&'static str, &'static str) {
        let about = match self {
            Self::Shipped => "As the shipped operators have them: two ranks publish into one line",
            Self::Lines => "Each in a line of its own, so half as many fit",
        };
        (self.name(), about)
    }
}

by_name! {
    Routing: Self::ALL;
    MaskKind: Self::ALL;
    Receive: Self::MODES;
    Experts: Self::ALL;
    OperatorSource: Self::ALL;
    Spread: Self::ALL;
    Unit: Self::ALL;
}

/// A number in a range.
pub fn number(range: RangeInclusive<f64>) -> impl Fn(&str) -> Result<f64, String> + Clone {
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

/// The product whose protocol `veriep schedule` searches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ProductArg {
    /// Dispatch and combine have partitions of their own.
    #[default]
    A3,
    /// Both operators share one sequence of halves; agents send.
    A2,
}

/// Most states that a search of `veriep schedule` may visit.
pub const STATES_MAX: u32 = 100_000_000;

/// The model that `veriep schedule` searches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModelArg {
    /// The machines themselves; on A2 with agents and transfers, or with messages.
    Machines,
    /// An abstract model of the windows of the A2 full mesh.
    Windows,
}

#[derive(Args, Debug)]
pub struct ScheduleArgs {
    /// Order of operators, as D and C, or Ds, Dr, Cs, Cr for sending and receiving halves, as in "Ds1 Cs0 Dr1 Cr0"; for ranks with orders of their own one for each, separated by |.
    #[arg(value_name = "SEQ")]
    pub operators: String,
    /// Product whose protocol is searched.
    #[arg(long, value_enum, default_value_t, help_heading = SEARCH)]
    pub product: ProductArg,
    /// Partitions of each kind, or of dispatch and of combine (A3); halves of the windows (A2).
    #[arg(long, value_name = "P|P,Q", value_delimiter = ',', num_args = 1..=2, default_value = "2", value_parser = clap::value_parser!(u32).range(1..=8), help_heading = SEARCH)]
    pub partitions: Vec<u32>,
    /// Number of ranks, with one core each.
    #[arg(long = "ep", alias = "ranks", value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=4), help_heading = SEARCH)]
    pub ranks: u32,
    /// Search the A2 hierarchy instead of the full mesh.
    #[arg(long, help_heading = SEARCH)]
    pub hierarchy: bool,
    /// Ranks of a server in the hierarchy; by default half of the ranks, or 1 if their number is odd.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4), help_heading = SEARCH)]
    pub server_ranks: Option<u32>,
    /// Number of times that the order runs. By default without bound, or once if it leaves a dispatch uncombined.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000), help_heading = SEARCH)]
    pub rounds: Option<u32>,
    /// Subject of the search: the state machines by default, the windows for three or more ranks of the A2 full mesh.
    #[arg(long, value_enum, help_heading = SEARCH)]
    pub model: Option<ModelArg>,
    /// Place of received rows: copied out, read in place, or written directly where experts read.
    #[arg(long, value_parser = Receive::parser(), default_value = "copy", help_heading = PROTOCOL)]
    pub receive: Receive,
    /// Place of experts' results: apart, or over the rows that they have read (with --receive direct).
    #[arg(long, value_parser = Experts::parser(), default_value = "apart", help_heading = PROTOCOL)]
    pub experts: Experts,
    /// Place of a dispatch's counts: in its flags, or in words that are sent before (plain layout); joint by default.
    #[arg(long, value_parser = Flags::parser(), help_heading = PROTOCOL)]
    pub flags: Option<Flags>,
    /// Stop the search after this many states (about 1 KiB each).
    #[arg(long, value_name = "N", default_value_t = 3_000_000, value_parser = clap::value_parser!(u32).range(1..=i64::from(STATES_MAX)), help_heading = SEARCH)]
    pub states: u32,
    /// Write the calls of the shortest counterexample as JSON lines, after a header line.
    #[arg(long, value_name = "FILE.jsonl", help_heading = OUTPUT)]
    pub events: Option<PathBuf>,
    /// Draw the shortest counterexample as messages between ranks and memories, as a page for any browser.
    #[arg(long, value_name = "FILE.html", help_heading = OUTPUT)]
    pub html: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct LayoutArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Rank whose memory is printed.
    #[arg(long, default_value_t = 0, help_heading = OUTPUT)]
    pub rank: u32,
    #[command(flatten)]
    pub mode: ModeArgs,
}

#[derive(Args, Debug)]
pub struct ExportArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Folder to write.
    #[arg(short, long, value_name = "FOLDER", help_heading = OUTPUT)]
    pub out: PathBuf,
    /// Ranks whose shares are written: all, or a list.
    #[arg(long, value_name = "all|RANK,...", default_value = "all", help_heading = OUTPUT)]
    pub ranks: String,
    /// Prefix of the names in the header.
    #[arg(long, value_name = "NAME", default_value = "veriep", value_parser = identifier, help_heading = OUTPUT)]
    pub prefix: String,
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
    /// Place of received rows: copied out, read in place, or written directly where experts read.
    #[arg(long, value_parser = Receive::parser(), default_value = "copy", help_heading = PROTOCOL)]
    pub receive: Receive,
    /// Place of experts' results: apart, or over the rows that they have read (with --receive direct).
    #[arg(long, value_parser = Experts::parser(), default_value = "apart", help_heading = PROTOCOL)]
    pub experts: Experts,
    /// Place of a dispatch's counts: in its flags, or in words that are sent before (plain layout); joint by default.
    #[arg(long, value_parser = Flags::parser(), help_heading = PROTOCOL)]
    pub flags: Option<Flags>,
    /// Sender of messages to other servers in the hierarchy: 2 the agent, 3 the cores; 3 by default.
    #[arg(long, value_name = "STAGE", value_parser = clap::value_parser!(u32).range(2..=3), help_heading = PROTOCOL)]
    pub stage: Option<u32>,
    /// Bytes from one status slot to the next: 64 for a memory that writes back whole lines (plain layout).
    #[arg(long, value_parser = Slots::parser(), default_value = "32", help_heading = PROTOCOL)]
    pub slots: Slots,
    /// Shift each block of records by BYTES x (source rank + owner rank), a multiple of 512 (balances ports; needs space).
    #[arg(long, value_name = "BYTES", default_value_t = 0, allow_negative_numbers = true, help_heading = PROTOCOL)]
    pub port_offset: i64,
}

impl ModeArgs {
    /// Returns them as the library has them.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        let Self { receive, experts, flags, stage, slots, port_offset } = *self;
        Mode { receive, experts, flags, stage, slots, port_offset, checked: false }
    }
}

#[derive(Args, Debug)]
pub struct GenArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    #[command(flatten)]
    pub tensors: TensorArgs,
    /// Seed of all random values.
    #[arg(long, allow_negative_numbers = true, help_heading = INPUT)]
    pub seed: u64,
    /// Folder to write.
    #[arg(short, long, value_name = "CASE", help_heading = OUTPUT)]
    pub out: PathBuf,
    /// Replace a case that is there, or write beside other files.
    #[arg(long, help_heading = OUTPUT)]
    pub force: bool,
    /// Also write expected.safetensors: the reference's answer.
    #[arg(long, help_heading = OUTPUT)]
    pub expected: bool,
}

#[derive(Args, Debug)]
pub struct CompareArgs {
    /// A case folder, whose result the reference computes, or a result file: safetensors, .npz or .npy.
    #[arg(value_name = "CASE|EXPECTED")]
    pub expected: PathBuf,
    /// The result file to judge, in either form.
    #[arg(value_name = "RESULT")]
    pub result: PathBuf,
    /// Override one key of the case's configuration; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE", help_heading = INPUT)]
    pub set: Vec<String>,
    /// Tensors without a rank in their names are of this one, and it alone is judged.
    #[arg(long, value_name = "RANK", conflicts_with = "ranks", help_heading = INPUT)]
    pub rank: Option<u32>,
    #[command(flatten)]
    pub asked: AskedArgs,
}

/// Tensors and ranks to compare, and the tolerance.
#[derive(Args, Clone, Debug, Default)]
pub struct AskedArgs {
    /// Steps of its type by which a value may be off; leave it out for a case made by gen --hard.
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = JUDGEMENT)]
    pub ulp: u64,
    /// A value may differ by X * abs(expected), plus the --atol.
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = number(0.0..=f64::MAX), help_heading = JUDGEMENT)]
    pub rtol: f64,
    /// A value may differ by Y, plus the --rtol.
    #[arg(long, value_name = "Y", default_value_t = 0.0, value_parser = number(0.0..=f64::MAX), help_heading = JUDGEMENT)]
    pub atol: f64,
    /// Judge only these ranks, as far as the file has them.
    #[arg(long, value_name = "RANK,...", value_delimiter = ',', help_heading = JUDGEMENT)]
    pub ranks: Vec<u32>,
    /// Judge only these tensors, as far as the file has them.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = PossibleValuesParser::new(result::names()), help_heading = JUDGEMENT)]
    pub tensors: Vec<String>,
    /// Ignore rows after the received ones: tensors may be as long as their capacity.
    #[arg(long, help_heading = JUDGEMENT)]
    pub padded: bool,
    /// Rows after the received ones must hold this value throughout, a number or nan; what the operators leave there may be
    /// anything.
    #[arg(long, value_name = "VALUE", conflicts_with = "padded", allow_negative_numbers = true, help_heading = JUDGEMENT)]
    pub padded_with: Option<Padding>,
}

impl AskedArgs {
    /// Returns them as the library has them.
    #[must_use]
    pub fn asked(&self) -> Asked {
        let Self { ulp, rtol, atol, ranks, tensors, padded, padded_with } = self.clone();
        Asked { ulp, rtol, atol, ranks, tensors, padded, padded_with }
    }
}

#[derive(Args, Debug)]
pub struct DiagnoseArgs {
    /// Folder with rank0.state, rank1.state and so on, and with config.toml unless another option names one. `run --dump`
    /// writes such a folder.
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
    /// Operators that the group ran: the shipped ones, or those of VeriEP.
    #[arg(long, value_parser = OperatorSource::parser(), default_value = "veriep", help_heading = INPUT)]
    pub from: OperatorSource,
    /// A configuration file.
    #[arg(long, value_name = "FILE", conflicts_with = "preset", help_heading = INPUT)]
    pub config: Option<PathBuf>,
    /// A named configuration.
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(presets::NAMES), help_heading = INPUT)]
    pub preset: Option<String>,
    /// Give a key that config.toml in the folder leaves out; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE", help_heading = INPUT)]
    pub set: Vec<String>,
    /// A case with the batch that hangs, whose expert_ids say which rank returns which result.
    #[arg(long, value_name = "CASE", help_heading = INPUT)]
    pub case: Option<PathBuf>,
    /// Place of received rows. This option and those below are needed only where options.toml in the folder does
    /// not say it.
    #[arg(long, value_parser = Receive::parser(), help_heading = PROTOCOL)]
    pub receive: Option<Receive>,
    /// Place of a dispatch's counts: in its flags, or in words that were sent before (plain layout).
    #[arg(long, value_parser = Flags::parser(), help_heading = PROTOCOL)]
    pub flags: Option<Flags>,
    /// Sender of messages to other servers in the hierarchy: 2 the agent, 3 the cores.
    #[arg(long, value_name = "STAGE", value_parser = clap::value_parser!(u32).range(2..=3), help_heading = PROTOCOL)]
    pub stage: Option<u32>,
    /// Bytes from one status slot to the next (plain layout).
    #[arg(long, value_parser = Slots::parser(), help_heading = PROTOCOL)]
    pub slots: Option<Slots>,
    /// Shift each block of records by BYTES x (source rank + owner rank).
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, help_heading = PROTOCOL)]
    pub port_offset: Option<i64>,
    /// Place of experts' results.
    #[arg(long, value_parser = Experts::parser(), help_heading = PROTOCOL)]
    pub experts: Option<Experts>,
    /// Batches in flight: N dispatches, then their combines.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = PROTOCOL)]
    pub in_flight: Option<u32>,
    /// The group took operators in two halves.
    #[arg(long, help_heading = PROTOCOL)]
    pub halves: bool,
}

#[derive(Args, Debug)]
pub struct GoldenArgs {
    /// A case, or a configuration, of which a case is made in memory.
    #[command(flatten)]
    pub config: ConfigArgs,
    #[command(flatten)]
    pub tensors: TensorArgs,
    /// Seed of a case in memory.
    #[arg(long, default_value_t = 1, allow_negative_numbers = true, help_heading = INPUT)]
    pub seed: u64,
    /// The result file to write.
    #[arg(short, long, value_name = "FILE", help_heading = OUTPUT)]
    pub out: PathBuf,
}

#[derive(Args, Debug)]
pub struct ConformArgs {
    /// A record of events, as --events writes it.
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,
}

#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// Name of the shell.
    pub shell: clap_complete::Shell,
}

#[derive(Args, Debug)]
pub struct CheckArgs {
    /// Configuration files, case folders or names of presets; several are layers of a model that share one group.
    #[arg(required_unless_present_any = ["preset", "config"], conflicts_with_all = ["preset", "config"], value_name = "CONFIG|CASE")]
    pub paths: Vec<PathBuf>,
    /// A configuration file, or the config.toml of a case folder.
    #[arg(long, value_name = "FILE", conflicts_with = "preset", help_heading = INPUT)]
    pub config: Option<PathBuf>,
    /// A named configuration.
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(presets::NAMES), help_heading = INPUT)]
    pub preset: Option<String>,
    /// Override one key of every configuration; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE", help_heading = INPUT)]
    pub set: Vec<String>,
    /// The operators whose rules and sizes apply; by default the configuration's release, else the newest.
    #[arg(long, value_name = "NAME", ignore_case = true, value_parser = releases(), help_heading = INPUT)]
    pub release: Option<Release>,
    #[command(flatten)]
    pub mode: ModeArgs,
    /// Batches in flight; 2 (DDCC) demands more of several layers.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=2), help_heading = PROTOCOL)]
    pub in_flight: u32,
}

/// The files to which the record of events goes.
#[derive(Args, Clone, Debug, Default)]
pub struct RecordArgs {
    /// Write the events as JSON lines, after a header line. On threads times are then those of the recording.
    #[arg(long, value_name = "FILE.jsonl", help_heading = OUTPUT)]
    pub events: Option<PathBuf>,
    /// Write the events as Chrome trace-event JSON, for Perfetto and chrome://tracing.
    #[arg(long, value_name = "FILE.json", help_heading = OUTPUT)]
    pub trace: Option<PathBuf>,
    /// Write a timeline as one page for any browser.
    #[arg(long, value_name = "FILE.html", help_heading = OUTPUT)]
    pub html: Option<PathBuf>,
}

impl RecordArgs {
    /// The files, with the options that ask for them.
    #[must_use]
    pub fn files(&self) -> [(&'static str, Option<&Path>); 3] {
        [("--events", &self.events), ("--trace", &self.trace), ("--html", &self.html)]
            .map(|(option, file)| (option, file.as_deref()))
    }
}
