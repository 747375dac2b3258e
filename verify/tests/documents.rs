//! Documents name tests, and a test that is renamed or gone must not go on being claimed.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The names of all functions below `folder`.
fn functions(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            if !path.ends_with("target") {
                functions(&path, names);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let after = text.split("fn ").skip(1);
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
            names.extend(after.map(|rest| rest.chars().take_while(|&c| is_name(c)).collect::<String>()));
        }
    }
}

#[test]
fn tests_that_documents_name_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut known = BTreeSet::new();
    for folder in ["kernel-core", "host", "verify", "fuzz"] {
        functions(&root.join(folder), &mut known);
    }
    let (mut claimed, mut missing) = (0, Vec::new());
    for document in ["PROTOCOL.md", "MUTANTS.md", "BUG_CLASSES.md", "FUZZING.md", "../CONTRIBUTING.md"] {
        let text = fs::read_to_string(root.join("docs").join(document)).unwrap();
        // In backticks stand the words of a command; a test is `file::beginning_of_its_name`, or a long name alone.
        let words = text.split('`').skip(1).step_by(2).flat_map(str::split_whitespace);
        for word in words {
            let (file, name) = word.rsplit_once("::").unwrap_or(("", word));
            let is_test = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
                && (name.matches('_').count() > 3 || !file.is_empty() && name.contains('_'));
            let is_known = known.range(name.to_owned()..).next().is_some_and(|next| next.starts_with(name));
            claimed += usize::from(is_test);
            if is_test && !is_known {
                missing.push(format!("{document}: {word}"));
            }
        }
    }
    assert!(missing.is_empty(), "no such tests: {missing:#?}");
    assert!(claimed > 150, "only {claimed} names were found");
}
