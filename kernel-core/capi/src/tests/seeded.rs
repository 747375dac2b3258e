//! Seeded bugs, which `.ci/seeded` makes again, still fit the sources, and `docs/doubt/planted.md` lists them.

use std::path::Path;
use std::string::String;
use std::vec::Vec;
use std::{env, format, fs};

const FROM: &str = "<!-- seeded: made of .ci/seeded.rows, UPDATE_GOLDEN=1 writes them -->\n";
const TO: &str = "<!-- seeded end -->\n";

fn field<'r>(row: &'r str, name: &str) -> &'r str {
    let value = row.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    value.unwrap_or_else(|| panic!("a row without {name}: {row}"))
}

/// With `UPDATE_GOLDEN` in the environment the page is written.
#[test]
fn seeded_bugs_fit_the_sources_and_stand_on_their_page() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let rows = fs::read_to_string(root.join(".ci/seeded.rows")).unwrap();
    let mut made = String::from("| seeded | file | s | first model |\n|---|---|---|---|\n");
    let mut wrong = Vec::new();
    for row in rows.split("\n\n").skip(1).filter(|row| field(row, "file").starts_with("kernel-core/capi/")) {
        let file = field(row, "file");
        let source = fs::read_to_string(root.join(file)).unwrap();
        let texts = row.lines().filter_map(|line| line.strip_prefix("from: "));
        for text in texts.map(|text| text.replace("\\n", "\n")) {
            if source.matches(&text).count() != 1 {
                wrong.push(format!("{}: not once in {file}: {text}", field(row, "bug")));
            }
        }
        let name = file.rsplit('/').next().unwrap_or(file);
        let [seeded, seconds, first] = ["planted", "seconds", "first"].map(|name| field(row, name));
        made += &format!("| {seeded} | `{name}` | {seconds} | {first} |\n");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));

    let path = root.join("docs/doubt/planted.md");
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(FROM).unwrap();
    let (there, after) = rest.split_once(TO).unwrap();
    if env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, [before, FROM, &made, TO, after].concat()).unwrap();
        return;
    }
    assert!(
        there == made,
        "docs/doubt/planted.md is not what .ci/seeded.rows says; UPDATE_GOLDEN=1 writes it"
    );
}
