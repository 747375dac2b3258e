//! `veriep-bench`: measures dispatch and combine over a grid of sizes, beside bare copies and baselines. For those who work on
//! this repository; `docs/reference/performance.md` says what it has measured.

mod against;
mod arguments;
mod blocks;
mod child;
mod entry;
#[cfg(target_os = "linux")]
mod exchanged;
mod history;
mod live;
mod load;
mod machine;
mod measure;
#[cfg(target_os = "linux")]
mod mpi;
#[cfg(not(target_os = "linux"))]
#[path = "no_mpi.rs"]
mod mpi;
#[cfg(target_os = "linux")]
mod processes;
mod table;

use arguments::{Cli, LiveArg};
use clap::Parser;
use std::process::ExitCode;
use veriep::signals::Answers;

fn main() -> ExitCode {
    let Cli { common, args } = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return ExitCode::from(veriep::cli::explain(&error)),
    };
    let mut report = common.report("bench", false);
    // Processes of an MPI would not all end after the same turn.
    let answers = Answers { ends_early: !args.backend.contains(&LiveArg::Mpi), ..Answers::NONE };
    match answers.prepare().and_then(|()| measure::run(&args, &mut report)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => ExitCode::from(report.fail(&error)),
    }
}
