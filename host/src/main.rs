//! `veriep`: parse, dispatch, and turn errors into exit status.

#[cfg(unix)]
mod unix;

use clap::Parser;
use std::process::ExitCode;
use veriep::cli::{self, Cli};
use veriep::command;
use veriep::report::Report;

fn main() -> ExitCode {
    #[cfg(unix)]
    unix::refuse_by_errors();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return ExitCode::from(cli::explain(&error)),
    };
    #[cfg(unix)]
    if cli.verb.ends_early() {
        unix::note_interrupts();
    }
    // The terminal tells all processes of a group; the parent decides.
    #[cfg(target_os = "linux")]
    if veriep::world::is_seated() {
        unix::ignore_interrupts();
    }
    #[cfg(target_os = "linux")]
    if cli.verb.is_launched() {
        unix::heed_launcher();
    }
    #[cfg(unix)]
    if cli.verb.dumps() {
        unix::note_dumps();
    }
    let mut report = Report::new(cli.format).of(cli.verbose, cli.verb.judges());
    match command::dispatch(cli.verb, &mut report) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => ExitCode::from(report.fail(&error)),
    }
}
