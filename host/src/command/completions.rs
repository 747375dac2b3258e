//! `veriep completions`

use crate::cli::{Cli, CompletionsArgs};
use crate::error::Error;
use crate::report::{Fields, Report};
use clap::CommandFactory;

pub(super) fn run(args: &CompletionsArgs, report: &mut Report) -> Result<(), Error> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "veriep", &mut script);
    let script = String::from_utf8_lossy(&script).trim_end().to_owned();
    let shell = args.shell.to_string();
    let told = Fields(vec![("ok", true.into()), ("shell", shell.into()), ("script", script.as_str().into())]);
    report.emit(&told, |_| script.clone())
}
