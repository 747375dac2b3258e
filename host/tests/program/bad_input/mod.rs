//! Bad input, row by row of docs/reference/errors.md: what is wrong, what the user reads, the exit status.
//!
//! What a machine does not let a test make (a mount, a user without rights) is left out there, which the test says.
//! A row without a test fails, and so does a test without its row or with another message. With `VERIEP_ROWS=1` in the
//! environment the tests print the rows that they would agree with (`--show-output`), and fail all the same where the page has
//! others.
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

const PAGE: &str = include_str!("../../../../docs/reference/errors.md");

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
fn judge<O: Into<Option<Output>>>(name: &str, make: impl FnOnce(&Room) -> O) {
    let room = Room::new();
    let Some(output) = make(&room).into() else { return };
    let stderr = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<_> = stderr.lines().map(|line| format!("``{}``", line.replace('|', "\\|"))).collect();
    let (lines, status) = (lines.join("<br>"), output.status.code().map_or(String::new(), |s| s.to_string()));
    let what = name.replace('_', " ");
    if std::env::var_os("VERIEP_ROWS").is_some() {
        println!("| {what} | {lines} | {status} |");
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

/// Where the rules of a configuration, of `elastic_info` and of `expert_map` stand.
const RULES: [&str; 3] = [
    include_str!("../../../../kernel-core/src/shape/rules.rs"),
    include_str!("../../../../kernel-core/src/shape/elastic.rs"),
    include_str!("../../../../kernel-core/src/inputs/expert_map.rs"),
];

/// What stands in quotes there and not on the page, and why.
const NOT_ON_THE_PAGE: [(&str, &str); 3] = [
    (
        "must leave a combine status slot per (token, k or shared expert)",
        "the product's ranges fill it to the last slot and no further",
    ),
    ("must leave the tokens of all servers room in the relay area", "the product's ranges cannot fill it"),
    ("bytes of the area", "a number of that rule"),
];

#[test]
fn every_rule_of_a_configuration_and_of_its_tables_stands_on_the_page() {
    let rows: String = page().map(|row| row.lines).collect();
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
