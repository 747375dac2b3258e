//! Bad input, row by row of docs/BAD_INPUT.md: what is wrong, what the user reads, the exit status.
//!
//! A row without a test fails, and so does a test without its row or with another message. With `VERIEP_ROWS=1` in the
//! environment the tests print the rows that they would agree with (`--show-output`).
#![cfg(target_os = "linux")]

mod arguments;
mod configurations;
mod headers;
mod results;
mod room;
mod tensors;

use room::Room;
use std::collections::BTreeSet;
use std::process::Output;

const PAGE: &str = include_str!("../../../../docs/BAD_INPUT.md");

/// A test for each row, named by what is wrong.
macro_rules! rows {
    ($($name:ident: $make:expr;)*) => {
        $(#[test]
        fn $name() {
            super::judge(stringify!($name), $make);
        })*
        pub(crate) const ROWS: &[&str] = &[$(stringify!($name)),*];
    };
}
pub(crate) use rows;

/// A row of the page.
struct Row {
    what: String,
    /// The lines on stderr, if there are any.
    lines: String,
    status: String,
}

/// All rows of the page's tables.
fn page() -> impl Iterator<Item = Row> {
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    rows.filter_map(|row| {
        let (what, rest) = row.split_once(" | ")?;
        let (lines, status) = rest.rsplit_once(" | ")?;
        let is_head = what == "what is wrong";
        (!is_head).then(|| Row { what: what.to_owned(), lines: lines.to_owned(), status: status.to_owned() })
    })
}

/// Holds what comes of bad input against its row.
fn judge(name: &str, make: impl FnOnce(&Room) -> Output) {
    let room = Room::new();
    let output = make(&room);
    let stderr = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<_> = stderr.lines().map(|line| format!("``{}``", line.replace('|', "\\|"))).collect();
    let (lines, status) = (lines.join("<br>"), output.status.code().map_or(String::new(), |s| s.to_string()));
    let what = name.replace('_', " ");
    if std::env::var_os("VERIEP_ROWS").is_some() {
        println!("| {what} | {lines} | {status} |");
        return;
    }
    let row = page().find(|row| row.what == what).unwrap_or_else(|| panic!("no row: {what}"));
    assert_eq!((lines, status), (row.lines, row.status), "{what}");
}

#[test]
fn every_row_has_a_test_and_every_test_a_row() {
    let tests = [headers::ROWS, tensors::ROWS, configurations::ROWS, arguments::ROWS, results::ROWS];
    let tests: Vec<_> = tests.concat().iter().map(|name| name.replace('_', " ")).collect();
    let rows: Vec<_> = page().map(|row| row.what).collect();
    let (tested, told): (BTreeSet<_>, BTreeSet<_>) = (tests.iter().collect(), rows.iter().collect());
    assert_eq!(tested.len(), tests.len());
    assert_eq!(told.len(), rows.len(), "a row that stands twice");
    let without: Vec<_> = told.symmetric_difference(&tested).collect();
    assert!(without.is_empty(), "row or test alone: {without:?}");
}
