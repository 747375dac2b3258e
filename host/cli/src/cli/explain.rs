//! Errors of the command line, each as one line.

use crate::report::{Format, Report, complain};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use core::error::Error as _;
use core::num::{IntErrorKind, ParseIntError};
use veriep_case::error::Error;
use veriep_mpi::launcher::launched;

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
            "missing subcommand: veriep --help lists them".to_owned()
        }
        (ErrorKind::InvalidSubcommand, _) => {
            format!("{}: veriep --help lists all", first_paragraph(&error.render().to_string()))
        }
        (ErrorKind::UnknownArgument, Some(argument)) if is_negative(&argument.to_string()) => {
            format!("unexpected argument '{argument}': every number must be 0 or more")
        }
        _ => of_number(error, first_paragraph(&error.render().to_string())),
    };
    let line = match similar(error) {
        Some(similar) => format!("{line}; a similar one is {similar}"),
        None => line,
    };
    if launched().is_some_and(|launched| launched.process != 0) {
        // The first of the processes that a launcher has started says it, before the launcher ends all.
        std::thread::sleep(core::time::Duration::from_secs(1));
        return 2;
    }
    // The arguments that were parsed are not there to be asked.
    let words: Vec<_> = std::env::args_os().collect();
    let as_json = words.windows(2).any(|two| two[0] == "--format" && two[1] == "json")
        || words.iter().any(|word| word == "--format=json");
    let format = if as_json { Format::Json } else { Format::default() };
    Report::new(format).fail(&Error::Request(line))
}

fn is_negative(argument: &str) -> bool {
    argument.parse::<f64>().is_ok_and(f64::is_sign_negative)
}

/// The line, with what a number must be in place of what Rust says of its digits.
fn of_number(error: &clap::Error, line: String) -> String {
    let Some(source) = error.source().and_then(|source| source.downcast_ref::<ParseIntError>()) else {
        return line;
    };
    let must = match source.kind() {
        IntErrorKind::PosOverflow => "is larger than any number here",
        _ => "must be a whole number from 0 on",
    };
    line.replacen(&source.to_string(), must, 1)
}

/// The subcommand or option that is most like the one that there is not.
fn similar(error: &clap::Error) -> Option<&str> {
    let suggested = [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg];
    match suggested.into_iter().find_map(|kind| error.get(kind))? {
        ContextValue::String(one) => Some(one),
        // The most similar one is the last.
        ContextValue::Strings(all) => all.last().map(String::as_str),
        _ => None,
    }
}

/// The lines before the usage, completed.
fn first_paragraph(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    let text = lines.join(" ");
    text.strip_prefix("error: ").unwrap_or(&text).to_owned()
}
