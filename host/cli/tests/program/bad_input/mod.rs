//! Bad input, row by row of tests/errors.md: what is wrong, what the user reads, the exit status.
//!
//! What a machine does not let a test make (a mount, a user without rights) is left out there, which the test says.
//! A row without a test fails, and so does a test without its row or with another message. `SNAPSHOTS=overwrite` writes the rows: a
//! new one goes to the end of the table that has the other tests of its file.
#![cfg(target_os = "linux")]

mod arguments;
mod configurations;
mod headers;
mod results;
mod room;
mod tensors;

use room::Room;
use std::collections::BTreeSet;
use std::fs;
use std::process::Output;
use std::sync::{Mutex, PoisonError};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/errors.md");

/// Held while a row is written.
static WRITER: Mutex<()> = Mutex::new(());

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

struct Row {
    what: String,
    /// The lines on stderr, if there are any.
    lines: String,
    status: String,
}

fn row(line: &str) -> Option<Row> {
    let (what, rest) = line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | ")?;
    let (lines, status) = rest.rsplit_once(" | ")?;
    let is_head = what == "what is wrong";
    (!is_head).then(|| Row { what: what.to_owned(), lines: lines.to_owned(), status: status.to_owned() })
}

/// All rows of the page's tables.
fn page() -> Vec<Row> {
    let _guard = WRITER.lock().unwrap_or_else(PoisonError::into_inner);
    fs::read_to_string(PAGE).unwrap().lines().filter_map(row).collect()
}

/// The tests of each file.
const FILES: [&[&str]; 5] =
    [headers::ROWS, tensors::ROWS, configurations::ROWS, arguments::ROWS, results::ROWS];

/// Writes the row of a test, in place of the old one or after the last one of its file.
fn write(name: &str, line: String) {
    let _guard = WRITER.lock().unwrap_or_else(PoisonError::into_inner);
    let text = fs::read_to_string(PAGE).unwrap();
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    let file = FILES.into_iter().find(|file| file.contains(&name)).unwrap();
    let of_test = |line: &String| row(line).map(|row| row.what.replace(' ', "_"));
    if let Some(old) = lines.iter_mut().find(|line| of_test(line).is_some_and(|test| test == name)) {
        *old = line;
    } else {
        let last = lines.iter().rposition(|line| of_test(line).is_some_and(|test| file.contains(&&*test)));
        lines.insert(last.unwrap() + 1, line);
    }
    fs::write(PAGE, lines.join("\n") + "\n").unwrap();
}

/// Holds what comes of bad input against its row.
fn judge<O: Into<Option<Output>>>(name: &str, make: impl FnOnce(&Room) -> O) {
    if let Some(output) = make(&Room::new()).into() {
        judge_output(name, output);
    }
}

/// Compares an output with its row. It is not generic, since `judge` has hundreds of instances.
fn judge_output(name: &str, output: Output) {
    let stderr = String::from_utf8(output.stderr).unwrap();
    // A machine that stands still for a while has a search tell that it goes on.
    let said = stderr.lines().filter(|line| !line.starts_with("note: searching states for "));
    let lines: Vec<_> = said.map(|line| format!("``{}``", line.replace('|', "\\|"))).collect();
    let (lines, status) = (lines.join("<br>"), output.status.code().map_or(String::new(), |s| s.to_string()));
    let what = name.replace('_', " ");
    if std::env::var_os("SNAPSHOTS").is_some_and(|action| action == "overwrite") {
        write(name, format!("| {what} | {lines} | {status} |"));
    }
    let row = page().into_iter().find(|row| row.what == what).unwrap_or_else(|| panic!("no row: {what}"));
    assert_eq!((lines, status), (row.lines, row.status), "{what}");
}

#[test]
fn every_row_has_a_test_and_every_test_a_row() {
    let tests: Vec<_> = FILES.concat().iter().map(|name| name.replace('_', " ")).collect();
    let rows: Vec<_> = page().into_iter().map(|row| row.what).collect();
    let (tested, told): (BTreeSet<_>, BTreeSet<_>) = (tests.iter().collect(), rows.iter().collect());
    assert_eq!(tested.len(), tests.len());
    assert_eq!(told.len(), rows.len(), "a row that stands twice");
    let without: Vec<_> = told.symmetric_difference(&tested).collect();
    assert!(without.is_empty(), "row or test alone: {without:?}");
}

/// Where the rules of a configuration, of `elastic_info` and of `expert_map` stand.
const RULES: [&str; 3] = [
    include_str!("../../../../../kernel-core/src/shape/rules.rs"),
    include_str!("../../../../../kernel-core/src/shape/elastic.rs"),
    include_str!("../../../../../kernel-core/src/inputs/expert_map.rs"),
];

/// What is in quotes there and not on the page, and why.
const NOT_ON_THE_PAGE: [(&str, &str); 3] = [
    (
        "must leave a combine status slot per (token, k or shared expert)",
        "the product's ranges fill it to the last slot and no further",
    ),
    (
        "must be that of a rank below ep_world_size",
        "configurations of the program have a batch size for every rank",
    ),
    (
        "must be given for every rank in a TP domain",
        "configurations of the program have a batch size for every rank",
    ),
];

#[test]
fn every_rule_of_a_configuration_and_of_its_tables_stands_on_the_page() {
    let rows: String = page().into_iter().map(|row| row.lines).collect();
    let mut texts = BTreeSet::new();
    for source in RULES {
        assert!(!source.contains("\\\"") && !source.contains("'\"'"), "quotes that are no ends of a text");
        let code: Vec<_> = source.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        let code = code.join("\n");
        texts.extend(code.split('"').skip(1).step_by(2).filter(|text| text.contains(' ')).map(str::to_owned));
    }
    assert!(texts.len() > 40, "{texts:?}");
    let excepted: BTreeSet<_> = NOT_ON_THE_PAGE.iter().map(|(text, _)| (*text).to_owned()).collect();
    let missing: BTreeSet<_> = texts.into_iter().filter(|text| !rows.contains(text)).collect();
    assert_eq!(missing, excepted);
}
