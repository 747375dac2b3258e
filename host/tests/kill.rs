//! A run that is killed leaves nothing behind: its memory is anonymous and its result is written at the end.
#![cfg(unix)]

use core::time::Duration;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use tempfile::tempdir;

/// Everything below a folder.
fn all(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Kills a long run in the midst and returns what is left in its temporary folder and its working folder.
fn left_behind(more: &[&str]) -> Vec<PathBuf> {
    let (temporary, work) = (tempdir().unwrap(), tempdir().unwrap());
    let mut run = Command::new(env!("CARGO_BIN_EXE_veriep"))
        .args(["run", "--preset", "tiny", "--rounds", "1000000"])
        .args(more)
        .env("TMPDIR", temporary.path())
        .current_dir(work.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    sleep(Duration::from_millis(700));
    let during = [all(temporary.path()), all(work.path())].concat();
    run.kill().unwrap();
    assert_eq!(run.wait().unwrap().signal(), Some(9), "the run had ended by itself");
    assert_eq!(during, Vec::<PathBuf>::new(), "files during the run");
    let shared: Vec<_> = all(Path::new("/dev/shm"))
        .into_iter()
        .filter(|path| path.to_string_lossy().contains("veriep"))
        .collect();
    [all(temporary.path()), all(work.path()), shared].concat()
}

#[test]
fn a_killed_run_leaves_no_files() {
    for backend in ["threads", "lockstep", "weak"] {
        assert_eq!(left_behind(&["--backend", backend]), Vec::<PathBuf>::new());
        assert_eq!(left_behind(&["--backend", backend, "--out", "result"]), Vec::<PathBuf>::new());
    }
}
