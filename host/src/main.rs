//! `veriep`: parse, dispatch, and turn errors into exit status.

#[cfg(unix)]
mod unix;

use clap::FromArgMatches;
use std::process::ExitCode;
use veriep::cli::{self, Cli, Verb};
use veriep::command;
use veriep::error::Error;
use veriep::report::Report;

fn main() -> ExitCode {
    let matches = match cli::command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return ExitCode::from(cli::explain(&error)),
    };
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => return ExitCode::from(cli::explain(&error)),
    };
    let name = matches.subcommand_name().unwrap_or_default();
    let report = Report::new(cli.format).of(name, cli.verb.judges());
    let mut report = report.verbose(cli.verbose).quiet(cli.quiet);
    let done = answer_signals(&cli.verb).and_then(|()| command::dispatch(cli.verb, &mut report));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => ExitCode::from(report.fail(&error)),
    }
}

/// Prepares the answers to signals.
#[cfg(unix)]
fn answer_signals(verb: &Verb) -> Result<(), Error> {
    let prepared = || {
        unix::refuse_by_errors()?;
        if verb.dumps() {
            unix::note_dumps()?;
        }
        // The terminal signals all processes of a group; the parent decides.
        #[cfg(target_os = "linux")]
        if veriep::world::is_child() {
            return unix::ignore_interrupts();
        }
        #[cfg(target_os = "linux")]
        if verb.is_launched() {
            return unix::heed_launcher();
        }
        if verb.ends_early() { unix::note_interrupts() } else { Ok(()) }
    };
    prepared().map_err(|e: std::io::Error| Error::Request(format!("cannot answer signals: {e}")))
}

#[cfg(not(unix))]
fn answer_signals(_verb: &Verb) -> Result<(), Error> {
    Ok(())
}
