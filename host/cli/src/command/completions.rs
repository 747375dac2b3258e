//! `veriep completions`

use crate::cli::{Cli, CompletionsArgs};
use crate::report::Report;
use clap::CommandFactory;
use serde::Serialize;
use veriep_case::error::Error;

#[derive(Debug, Serialize)]
struct Completions {
    ok: bool,
    shell: String,
    script: String,
}

pub(super) fn run(args: &CompletionsArgs, report: &mut Report) -> Result<(), Error> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "veriep", &mut script);
    let script = String::from_utf8_lossy(&script).trim_end().to_owned();
    let completions = Completions { ok: true, shell: args.shell.to_string(), script };
    report.emit(&completions, |completions| completions.script.clone())
}
