//! What can be asked on the command line.

use crate::error::one_line;
use crate::generate::{MaskKind, Routing};
use crate::presets;
use crate::report::{Format, note};
use clap::builder::PossibleValuesParser;
use clap::error::{ContextKind, ErrorKind};
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

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
    /// List every rule that a configuration or case breaks, and the sizes it needs.
    Check(CheckArgs),
}

/// Where a configuration comes from.
#[derive(Args, Clone, Debug)]
pub struct ConfigArgs {
    /// A named configuration.
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(presets::NAMES))]
    pub preset: Option<String>,
    /// A configuration file.
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
    #[arg(long)]
    pub seed: u64,
    /// Folder to write.
    #[arg(long, value_name = "CASE")]
    pub out: PathBuf,
    /// Write into a non-empty folder even if it is not a case.
    #[arg(long)]
    pub force: bool,
}

/// `veriep check`
#[derive(Args, Debug)]
pub struct CheckArgs {
    /// Configuration files or case folders; several are layers that share one group.
    #[arg(required = true, value_name = "CONFIG|CASE")]
    pub paths: Vec<PathBuf>,
    /// Bytes between the records of different source ranks, as for the option of `run`; needs room.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub port_offset: u64,
}

/// Prints a parse error as one line (help and version as they are) and returns the exit status.
#[must_use]
pub fn explain(error: &clap::Error) -> u8 {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        // A closed stdout is no error.
        let _ = error.print();
        return 0;
    }
    let line = match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::MissingRequiredArgument, Some(arguments)) => format!("missing argument: {arguments}"),
        (ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand, _) => {
            "missing verb: veriep --help lists them".to_owned()
        }
        _ => first_paragraph(&error.render().to_string()),
    };
    note(&format!("error: {}", one_line(&line)));
    2
}

/// The lines before the usage, joined.
fn first_paragraph(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    let text = lines.join(" ");
    text.strip_prefix("error: ").unwrap_or(&text).to_owned()
}
