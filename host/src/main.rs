//! `veriep`: parse, dispatch, and turn errors into exit status.

#[cfg(unix)]
mod unix;

use clap::FromArgMatches;
use std::process::ExitCode;
use veriep::cli::{self, Cli};
use veriep::command;
use veriep::report::Report;

fn main() -> ExitCode {
    #[cfg(unix)]
    unix::refuse_by_errors();
    let matches = match cli::command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return ExitCode::from(cli::explain(&error)),
    };
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => return ExitCode::from(cli::explain(&error)),
    };
    #[cfg(unix)]
    if cli.verb.ends_early() {
        unix::note_interrupts();
    }
    // The terminal tells all processes of a group; the parent decides.
    #[cfg(target_os = "linux")]
    if veriep::world::is_child() {
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
    let name = matches.subcommand_name().unwrap_or_default();
    let report = Report::new(cli.format).of(name, cli.verb.judges());
    let mut report = report.verbose(cli.verbose).quiet(cli.quiet);
    match command::dispatch(cli.verb, &mut report) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => ExitCode::from(report.fail(&error)),
    }
}
