//! One file per subcommand.

mod check;
mod compare;
mod completions;
mod conform;
mod diagnose;
mod export;
mod generate;
mod golden;
mod layout;
#[cfg(target_os = "linux")]
mod mpi_shim;
mod notes;
mod plan;
pub mod quantiles;
mod record;
mod run;
#[cfg(feature = "schedule")]
mod schedule;
mod simulate;
mod sizes;
pub mod source;

use crate::cli::Verb;
use crate::report::Report;
use veriep_case::error::Error;

/// Does what `verb` asks.
pub fn dispatch(verb: Verb, report: &mut Report) -> Result<(), Error> {
    match verb {
        Verb::Run(args) => run::run(&args, report),
        #[cfg(feature = "schedule")]
        Verb::Schedule(args) => schedule::run(&args, report),
        Verb::Layout(args) => layout::run(&args, report),
        Verb::Export(args) => export::run(&args, report),
        Verb::Plan(args) => plan::run(&args, report),
        Verb::Simulate(args) => simulate::run(&args, report),
        #[cfg(target_os = "linux")]
        Verb::MpiShim(args) => mpi_shim::run(&args, report),
        Verb::Gen(args) => generate::run(&args, report),
        Verb::Check(args) => check::run(&args, report),
        Verb::Compare(args) => compare::run(&args, report),
        Verb::Completions(args) => completions::run(&args, report),
        Verb::Conform(args) => conform::run(&args, report),
        Verb::Diagnose(args) => diagnose::run(&args, report),
        Verb::Golden(args) => golden::run(&args, report),
    }
}
