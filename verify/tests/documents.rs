//! Documents name tests, and a test that is renamed or gone must not go on being claimed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A function and the file that has it.
type Function = (PathBuf, String);

/// All functions below `folder`.
fn functions(folder: &Path, all: &mut Vec<Function>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            if !path.ends_with("target") {
                functions(&path, all);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let names =
                text.split("fn ").skip(1).map(|rest| rest.chars().take_while(|&c| is_name(c)).collect());
            all.extend(names.map(|name| (path.clone(), name)));
        }
    }
}

/// Those of the whole project.
fn known() -> Vec<Function> {
    let mut all = Vec::new();
    for folder in ["kernel-core", "host", "verify", "fuzz"] {
        functions(&root().join(folder), &mut all);
    }
    all
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The tests that `text` names, each with whether it exists. In backticks stand the words of a command; a test is
/// `file::beginning_of_its_name`, or a long name alone. A file that ends in `.rs` must be the one that has it.
fn tests<'t>(text: &'t str, known: &[Function]) -> Vec<(&'t str, bool)> {
    let words = text.split('`').skip(1).step_by(2).flat_map(str::split_whitespace);
    let test = |word: &'t str| {
        let (file, name) = word.rsplit_once("::").unwrap_or(("", word));
        let is_test = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
            && (name.matches('_').count() > 3 || !file.is_empty() && name.contains('_'));
        let has_it = |(path, function): &Function| {
            function.starts_with(name) && (!file.ends_with(".rs") || path.ends_with(file))
        };
        is_test.then(|| (word, known.iter().any(has_it)))
    };
    words.filter_map(test).collect()
}

#[test]
fn tests_that_documents_name_exist() {
    let known = known();
    let (mut claimed, mut missing) = (0, Vec::new());
    for document in [
        "doubt/protocol.md",
        "doubt/bug-classes.md",
        "operate/schedule.md",
        "doubt/fuzzing.md",
        "doubt/seeded.md",
        "internals/sources.md",
        "../CONTRIBUTING.md",
        "doubt/explorer.md",
        "doubt/litmus.md",
        "doubt/threat-model.md",
    ] {
        let text = fs::read_to_string(root().join("docs").join(document)).unwrap();
        let tests = tests(&text, &known);
        claimed += tests.len();
        missing.extend(
            tests.iter().filter(|(_, exists)| !exists).map(|(word, _)| format!("{document}: {word}")),
        );
    }
    assert!(missing.is_empty(), "no such tests: {missing:#?}");
    assert!(claimed > 100, "only {claimed} names were found");
}

/// What the sources say is shown by a test, or the row says why not.
#[test]
fn every_claim_of_the_sources_has_a_test_or_a_reason() {
    const REASONS: [&str; 4] = ["not done", "an obligation", "closed formula", "ours are documented"];
    const DOCUMENTS: [&str; 5] =
        ["A2 design", "A2 stages article", "A3 slides", "V2 reference", "910C guide"];
    let known = known();
    let text = fs::read_to_string(root().join("docs/internals/sources.md")).unwrap();
    let (mut rows, mut without) = (0, Vec::new());
    let is_of_document = |section: &&str| DOCUMENTS.iter().any(|name| section.starts_with(name));
    for section in text.split("\n## ").filter(is_of_document) {
        for row in section.lines().filter(|line| line.starts_with("| ")).skip(1) {
            let last = row.trim_end_matches(" |").rsplit(" | ").next().unwrap();
            rows += 1;
            if tests(last, &known).is_empty()
                && !last.contains("all outputs")
                && !REASONS.iter().any(|reason| last.starts_with(reason))
            {
                without.push(row);
            }
        }
    }
    assert!(without.is_empty(), "neither a test nor a reason: {without:#?}");
    assert!(rows > 60, "only {rows} rows were found");
}

/// The litmus programs that the contract's pages name, in quotation marks.
fn litmuses() -> String {
    let suites = ["suite", "again_suite", "nic_suite", "far_suite"]
        .map(|suite| format!("kernel-core/src/conformance/{suite}.rs"));
    suites.iter().map(|path| fs::read_to_string(root().join(path)).unwrap()).collect()
}

/// The rows of a page of the specification that begin with a number, each without it.
fn numbered(page: &str) -> Vec<(String, Vec<String>)> {
    let text = fs::read_to_string(root().join(format!("docs/spec/{page}.md"))).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| "));
    let cells = rows.map(|row| row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()));
    let is_number =
        |cell: &str| cell.split_once('-').is_some_and(|(_, number)| number.parse::<u32>().is_ok());
    cells.filter_map(|mut row| Some((row.next().filter(|cell| is_number(cell))?, row.collect()))).collect()
}

/// Each numbered requirement has a test that sees it kept and a twin that breaks it, or a reason why there is none.
#[test]
fn every_requirement_has_a_test_and_a_twin() {
    let (known, litmuses) = (known(), litmuses());
    let (mut numbers, mut wrong) = (BTreeSet::new(), Vec::new());
    for (number, cells) in ["memory", "README", "a3", "a2", "hierarchy"].into_iter().flat_map(numbered) {
        let [requirement] = &cells[..] else { panic!("{number}: {cells:?}") };
        assert!(requirement.contains(" **must") && requirement.ends_with('.'), "{number}: {requirement}");
        assert!(numbers.insert(number.clone()), "{number} stands twice");
    }
    assert!(numbers.len() > 45, "only {} requirements were found", numbers.len());
    for (number, cells) in numbered("tests") {
        let [test, twin] = &cells[..] else { panic!("{number}: {cells:?}") };
        assert!(numbers.remove(&number), "{number} is no requirement, or stands twice");
        for (cell, may_lack) in [(test, false), (twin, true)] {
            let named = tests(cell, &known);
            let quoted: Vec<_> = cell.split('"').skip(1).step_by(2).collect();
            let missing = named.iter().filter(|(_, exists)| !exists).map(|(name, _)| *name);
            let unknown = quoted.iter().copied().filter(|name| !litmuses.contains(&format!("\"{name}\"")));
            wrong.extend(missing.chain(unknown).map(|name| format!("{number}: no such test: {name}")));
            if named.is_empty() && quoted.is_empty() && !(may_lack && cell.starts_with("none: ")) {
                wrong.push(format!("{number}: neither a test nor a reason: {cell}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(numbers.is_empty(), "without a test: {numbers:?}");
}
