//! Golden texts. `SNAPSHOTS=overwrite cargo test` rewrites them; review the difference.

use snapbox::Data;
use snapbox::data::DataFormat;
use std::path::Path;

/// Compares `text` with the committed file of that name.
pub(crate) fn check(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    snapbox::assert_data_eq!(text, Data::read_from(&path, Some(DataFormat::Text)).raw());
}
