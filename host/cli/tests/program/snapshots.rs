//! Snapshots of everything that the program prints: tables, JSON, help, and errors that are no row of errors.md.
//!
//! Each file in `snapshots/` holds commands with their output. They run one after the other in one new folder, which
//! begins as a copy of `NAME.in`. `TRYCMD=overwrite cargo test -p veriep --test program snapshots` writes new output; numbers that
//! differ from run to run are `[..]`. A commit that changes output says so.

use clap::CommandFactory;
use core::time::Duration;
use veriep::cli::Cli;

#[test]
fn every_command_prints_what_its_snapshot_holds() {
    trycmd::TestCases::new().case("tests/snapshots/*.trycmd").timeout(Duration::from_secs(120));
}

/// JSON of the program begins with both; what a user's own command prints does not come from it.
#[test]
fn every_report_in_json_has_schema_and_verdict() {
    let mut reports = 0;
    for file in std::fs::read_dir("tests/snapshots").unwrap().map(|entry| entry.unwrap().path()) {
        if file.extension().is_none_or(|extension| extension != "trycmd") {
            continue;
        }
        let text = std::fs::read_to_string(&file).unwrap();
        let lines: Vec<_> = text.lines().collect();
        for (at, _) in lines.iter().enumerate().filter(|(_, line)| **line == "{") {
            let head = &lines[at + 1..at + 3];
            let has = head[0].starts_with("  \"schema\": \"veriep.report.")
                && head[1].starts_with("  \"verdict\": ");
            assert!(has, "{}: line {}: {head:?}", file.display(), at + 1);
            reports += 1;
        }
    }
    assert!(reports > 10, "{reports}");
}

#[test]
fn every_command_has_its_help_in_a_snapshot() {
    let help = include_str!("../snapshots/help.trycmd");
    let command = Cli::command();
    let missing: Vec<_> = command
        .get_subcommands()
        .map(clap::Command::get_name)
        .filter(|name| !help.contains(&format!("$ veriep {name} --help\n")))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}
