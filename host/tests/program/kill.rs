//! A run that is killed leaves nothing behind: its memory is anonymous, and its result is written at the end and appears
//! whole. A case that is being made again when it is killed is the old one, or the new one, or refused.
#![cfg(unix)]

use core::time::Duration;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Instant;
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

/// A run that takes about as long to write its result as for all else.
fn writing(folder: &Path) -> Command {
    let mut run = Command::new(env!("CARGO_BIN_EXE_veriep"));
    run.args(["run", "--preset", "tiny", "--rounds", "1", "--no-check", "--out", "result"]);
    run.args(["--set", "h=8192", "--set", "bs=32"]).current_dir(folder);
    run.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    run
}

#[test]
fn a_run_that_is_killed_at_any_time_leaves_the_old_result_or_the_new() {
    let folder = tempdir().unwrap();
    let result = folder.path().join("result");
    let since = Instant::now();
    assert!(writing(folder.path()).status().unwrap().success());
    let (whole, new) = (since.elapsed(), fs::read(&result).unwrap());
    let (mut killed, mut kept) = (0, 0);
    for i in 0..16_u32 {
        fs::write(&result, "old").unwrap();
        let mut run = writing(folder.path()).spawn().unwrap();
        // All over the run, and most of all near its end.
        sleep(whole.mul_f64(1.0 - (f64::from(i) / 16.0).powi(2)));
        if i % 2 == 0 {
            run.kill().unwrap();
        } else {
            let _ = Command::new("kill").arg(run.id().to_string()).status().unwrap();
        }
        killed += u32::from(!run.wait().unwrap().success());
        let seen = fs::read(&result).unwrap();
        kept += u32::from(seen == b"old");
        assert!(seen == b"old" || seen == new, "{} bytes: neither the old result nor the new", seen.len());
        assert_eq!(all(folder.path()), core::slice::from_ref(&result), "something is left behind");
    }
    assert!(killed > 2 && kept > 2, "{killed} of 16 runs were killed, {kept} old results kept");
}

/// Makes a case over the one that is there, which takes a while.
fn making(folder: &Path, seed: &str, h: &str) -> Command {
    let mut make = Command::new(env!("CARGO_BIN_EXE_veriep"));
    make.args([
        "gen",
        "--preset",
        "tiny",
        "--set",
        "bs=64",
        "--set",
        h,
        "--seed",
        seed,
        "--expected",
        "--force",
    ]);
    make.args(["--out", "case"]).current_dir(folder);
    make.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    make
}

/// The three files of a case; none for one that is not there.
fn case_in(folder: &Path) -> [Option<Vec<u8>>; 3] {
    ["config.toml", "inputs.safetensors", "expected.safetensors"].map(|name| fs::read(folder.join(name)).ok())
}

#[test]
fn a_case_whose_remaking_is_killed_is_the_old_one_or_the_new_or_refused() {
    let folder = tempdir().unwrap();
    let case = folder.path().join("case");
    assert!(making(folder.path(), "1", "h=4096").status().unwrap().success());
    let old = case_in(&case);
    let since = Instant::now();
    assert!(making(folder.path(), "2", "h=8192").status().unwrap().success());
    let (whole, new) = (since.elapsed(), case_in(&case));
    let (mut kept, mut killed) = (0, 0);
    for i in 0..12_u32 {
        fs::remove_dir_all(&case).unwrap();
        fs::create_dir(&case).unwrap();
        for (name, bytes) in ["config.toml", "inputs.safetensors", "expected.safetensors"].iter().zip(&old) {
            fs::write(case.join(name), bytes.as_ref().unwrap()).unwrap();
        }
        let mut make = making(folder.path(), "2", "h=8192").spawn().unwrap();
        sleep(whole.mul_f64(1.0 - (f64::from(i) / 12.0).powi(2)));
        make.kill().unwrap();
        killed += u32::from(!make.wait().unwrap().success());
        let seen = case_in(&case);
        kept += u32::from(seen == old);
        assert!(seen == old || seen == new || seen[0].is_none(), "round {i}: of two cases");
        let named =
            all(&case).into_iter().filter(|path| path.extension().is_some_and(|end| end != "tmp")).count();
        assert!(named == 3 || seen[0].is_none(), "round {i}: {named} files");
    }
    assert!(killed > 2 && kept > 2, "{killed} of 12 were killed, {kept} old cases kept");
}
