//! Every option of every subcommand with values that mean nothing: one line and status 2, or an answer; never a panic, a signal
//! or a hang.

use clap::CommandFactory;
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::tempdir;
use veriep::cli::Cli;

const VALUES: [&str; 9] =
    ["", "-1", "nan", "1e400", "99999999999999999999", "0x10", "a=b=c", "\u{1f980}\u{1b}[31m\n", "no/such"];

/// What a subcommand needs to do its work at all.
fn usual(verb: &str) -> Option<&'static str> {
    Some(match verb {
        "gen" => "--preset tiny --seed 1 --force --out made",
        "run" => "--preset tiny --rounds 1",
        "schedule" => "DC --rounds 1",
        "layout" | "plan" | "check" => "--preset tiny",
        "export" | "golden" => "--preset tiny --out made",
        "simulate" => "--preset tiny --cluster a3",
        "compare" => "case result",
        "diagnose" => "dump --preset tiny",
        "mpi-shim" => "--mpicc mpicc --out made",
        "completions" => "bash",
        "conform" => "trace",
        _ => return None,
    })
}

fn tried(folder: &Path, arguments: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_veriep"));
    let output = command.args(arguments).current_dir(folder).stdin(Stdio::null()).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    match output.status.code() {
        Some(0) => {}
        Some(2) => {
            let lines: Vec<_> = stderr.lines().filter(|line| !line.starts_with("note: ")).collect();
            assert!(matches!(lines[..], [line] if line.starts_with("error: ")), "{arguments:?}: {stderr}");
            assert!(!stderr.contains('\u{1b}'), "{arguments:?}: {stderr:?}");
        }
        other => panic!("{arguments:?}: {other:?}: {stderr}"),
    }
}

#[test]
fn every_option_survives_values_that_mean_nothing() {
    for verb in Cli::command().get_subcommands() {
        let name = verb.get_name();
        let usual = usual(name).unwrap_or_else(|| panic!("{name}: no arguments to begin with"));
        let folder = tempdir().unwrap();
        for option in verb.get_arguments().filter(|option| option.get_action().takes_values()) {
            for value in VALUES {
                let given = option.get_long().map(|long| format!("--{long}={value}"));
                let mut arguments = vec![name];
                // An option that is given twice is another error.
                let twice =
                    |word: &&str| given.as_ref().is_some_and(|_| *word == format!("--{}", option.get_id()));
                let mut words = usual.split_whitespace();
                while let Some(word) = words.next() {
                    if twice(&word) {
                        words.next();
                    } else {
                        arguments.push(word);
                    }
                }
                match &given {
                    Some(given) => arguments.push(given),
                    None => arguments.extend(["--", value]),
                }
                tried(folder.path(), &arguments);
            }
        }
    }
}
