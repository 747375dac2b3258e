//! Seeded bugs, which `.ci/seeded` makes again, still fit the sources, and `docs/doubt/seeded.md` lists them.

use snapbox::Data;
use snapbox::data::DataFormat;
use std::fs;
use std::path::Path;

/// The parts of the page that are made of rows: how it begins, and whether it has those of the C interface.
const TABLES: [(&str, bool); 2] = [
    ("<!-- seeded in C: made of .ci/seeded.rows, SNAPSHOTS=overwrite writes them -->\n", true),
    ("<!-- seeded elsewhere: made of .ci/seeded.rows, SNAPSHOTS=overwrite writes them -->\n", false),
];
const END: &str = "<!-- end of seeded -->\n";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The rows, without the comment at the head of the file.
fn rows() -> Vec<String> {
    let text = fs::read_to_string(root().join(".ci/seeded.rows")).unwrap();
    text.split("\n\n").skip(1).map(str::to_owned).collect()
}

fn field<'r>(row: &'r str, name: &str) -> &'r str {
    let value = row.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    value.unwrap_or_else(|| panic!("a row without {name}: {row}"))
}

#[test]
fn each_bug_fits_its_source() {
    let mut wrong = Vec::new();
    for row in rows() {
        let file = field(&row, "file");
        let source = fs::read_to_string(root().join(file)).unwrap();
        let texts = row.lines().filter_map(|line| line.strip_prefix("from: "));
        for text in texts.map(|text| text.replace("\\n", "\n")) {
            if source.matches(&text).count() != 1 {
                wrong.push(format!("{}: not once in {file}: {text}", field(&row, "bug")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn table(rows: &[String], is_of_c: bool) -> String {
    let mut table = String::from("| seeded | file | s | at first | seen by |\n|---|---|---|---|---|\n");
    for row in rows.iter().filter(|row| field(row, "file").starts_with("kernel-core/capi/") == is_of_c) {
        let [seeded, file, seconds, first, test] =
            ["planted", "file", "seconds", "first", "test"].map(|name| field(row, name));
        let name = file.strip_prefix("kernel-core/capi/src/").unwrap_or(file);
        let test = test.rsplit(' ').next().unwrap_or(test);
        table += &format!("| {seeded} | `{name}` | {seconds} | {first} | `{test}` |\n");
    }
    table
}

#[test]
fn the_page_lists_them() {
    let (path, rows) = (root().join("docs/doubt/seeded.md"), rows());
    let mut page = fs::read_to_string(&path).unwrap();
    for (begin, is_of_c) in TABLES {
        let (before, rest) = page.split_once(begin).unwrap_or_else(|| panic!("without {begin}"));
        let (_, after) = rest.split_once(END).unwrap();
        page = [before, begin, &table(&rows, is_of_c), END, after].concat();
    }
    snapbox::assert_data_eq!(page, Data::read_from(&path, Some(DataFormat::Text)).raw());
}
