//! `veriep`: parse, dispatch, and turn errors into exit status.

use clap::FromArgMatches;
use std::process::ExitCode;
use veriep::cli::{self, Cli};
use veriep::command;

fn main() -> ExitCode {
    let matches = match cli::command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return ExitCode::from(cli::explain(&error)),
    };
    let Cli { common, verb } = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => return ExitCode::from(cli::explain(&error)),
    };
    let name = matches.subcommand_name().unwrap_or_default();
    let mut report = common.report(name, verb.judges());
    let done = verb.answers().prepare().and_then(|()| command::dispatch(verb, &mut report));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => ExitCode::from(report.fail(&error)),
    }
}
