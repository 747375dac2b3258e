//! The files of `fuzz/seeds`: each is kept by a test that asserts what it does.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// What tests have kept in this process. While one does, no other writes.
static KEPT: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Returns the folder that holds the seeds of a target.
pub(crate) fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../seeds").join(target)
}

/// Holds a seed that was just asserted against the file, or writes it.
pub(crate) fn keep(target: &str, name: &str, bytes: &[u8]) {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let path = folder(target).join(name);
    if std::env::var_os("VERIEP_WRITE_SEEDS").is_some() {
        std::fs::create_dir_all(folder(target)).unwrap();
        std::fs::write(&path, bytes).unwrap();
    }
    let seen = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(seen, bytes, "{} is not what its test asserts", path.display());
    kept.insert(path);
}

/// Fails for files that no target has kept. To be asked when all who keep seeds of that target have run.
pub(crate) fn assert_all_kept(target: &str) {
    let files = folder(target).read_dir().unwrap().map(|entry| entry.unwrap().path());
    let kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let left: Vec<_> = files.filter(|file| !kept.contains(file)).collect();
    assert!(left.is_empty(), "no test asserts what these do: {left:?}");
}
