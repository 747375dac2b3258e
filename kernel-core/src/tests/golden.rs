//! Golden texts. `SNAPSHOTS=overwrite cargo test` rewrites them; review the difference. By hand, since these tests are compiled for
//! WebAssembly too, where snapbox is not.

use alloc::string::String;
use std::path::Path;
use std::{env, fs, println};

/// Compares `text` with the committed file of that name.
pub(crate) fn check(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if env::var_os("SNAPSHOTS").is_some_and(|action| action == "overwrite") {
        fs::write(&path, text).unwrap();
        return;
    }
    let golden = fs::read_to_string(&path).map_or(String::new(), |golden| golden.replace("\r\n", "\n"));
    if golden == text {
        return;
    }
    println!("{text}");
    let line = (1..).zip(golden.lines().zip(text.lines())).find(|(_, (old, new))| old != new);
    panic!("{name} differs, first at {line:?}; the new text stands above, SNAPSHOTS=overwrite takes it");
}
