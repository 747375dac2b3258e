//! A run that is killed leaves nothing behind: its memory is anonymous, and its result is written at the end and appears
//! whole. A case that is being made again when it is killed is the old one, or the new one, or refused.
#![cfg(unix)]

use crate::common::let_work;
use core::time::Duration;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
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
    let_work(run.id(), Duration::from_millis(200), Duration::from_millis(700));
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
    for backend in ["threads", "lockstep", "weak", "processes"] {
        let run = ["--backend", backend];
        assert_eq!(left_behind(&run), Vec::<PathBuf>::new());
        assert_eq!(left_behind(&[&run[..], &["--out", "result"]].concat()), Vec::<PathBuf>::new());
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
    // Without the comparison there is no verdict.
    assert_eq!(writing(folder.path()).status().unwrap().code(), Some(4));
    let (mut whole, new) = (since.elapsed(), fs::read(&result).unwrap());
    let (mut killed, mut kept) = (0, 0);
    for i in 0..80_u32 {
        if i >= 16 && killed > 2 && kept > 2 {
            break;
        }
        fs::write(&result, "old").unwrap();
        let mut run = writing(folder.path()).spawn().unwrap();
        // All over the run, and most of all near its end.
        sleep(whole.mul_f64(1.0 - (f64::from(i % 16) / 16.0).powi(2)));
        if i % 2 == 0 {
            run.kill().unwrap();
        } else {
            let _ = Command::new("kill").arg(run.id().to_string()).status().unwrap();
        }
        killed += u32::from(!run.wait().unwrap().success());
        let seen = fs::read(&result).unwrap();
        kept += u32::from(seen == b"old");
        if seen == new {
            // Too late: the first run was slower.
            whole = whole.mul_f64(0.95);
        }
        assert!(seen == b"old" || seen == new, "{} bytes: neither the old result nor the new", seen.len());
        // A process that is killed while it writes leaves a part of the new one under a name of its own.
        let left = all(folder.path()).into_iter().filter(|path| *path != result);
        for path in left {
            let name = path.file_name().unwrap().to_string_lossy();
            assert!(name.starts_with(".veriep-") && name.ends_with(".tmp"), "{name} is left behind");
            assert!(new.starts_with(&fs::read(&path).unwrap()), "{name} is no part of the new result");
            fs::remove_file(path).unwrap();
        }
    }
    fs::write(&result, "old").unwrap();
    // Without the comparison there is no verdict.
    assert_eq!(writing(folder.path()).status().unwrap().code(), Some(4));
    assert_eq!(all(folder.path()), [result], "the next run leaves something behind");
    assert!(killed > 2 && kept > 2, "{killed} runs were killed, {kept} old results kept");
}

/// Makes a case, over one that is there.
fn making(folder: &Path, sizes: &str) -> Command {
    let mut make = Command::new(env!("CARGO_BIN_EXE_veriep"));
    make.args(["gen", "--preset", "tiny", "--seed", "1", "--force", "--out", "case"]).args(sizes.split(' '));
    make.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    make
}

type Files = [Option<Vec<u8>>; 3];

/// The files of a case, as far as they are there.
const FILES: [&str; 3] = ["config.toml", "inputs.safetensors", "expected.safetensors"];

fn case_in(folder: &Path) -> Files {
    FILES.map(|name| fs::read(folder.join("case").join(name)).ok())
}

/// What a kill leaves of an old case that is being made again.
fn killed_over(folder: &Path, old: &Files, sizes: &str, when: impl FnOnce(&Child)) -> Files {
    let case = folder.join("case");
    fs::remove_dir_all(&case).unwrap();
    fs::create_dir(&case).unwrap();
    for (name, bytes) in FILES.iter().zip(old) {
        fs::write(case.join(name), bytes.as_ref().unwrap()).unwrap();
    }
    let mut make = making(folder, sizes).spawn().unwrap();
    when(&make);
    make.kill().unwrap();
    make.wait().unwrap();
    case_in(folder)
}

#[test]
fn a_case_whose_remaking_is_killed_is_the_old_one_or_the_new_or_refused() {
    let folder = tempdir().unwrap();
    let folder = folder.path();
    assert!(making(folder, "--expected").status().unwrap().success());
    let old = case_in(folder);
    let sizes = "--set bs=64 --set h=8192 --expected";
    let since = Instant::now();
    assert!(making(folder, sizes).status().unwrap().success());
    let (mut whole, new) = (since.elapsed(), case_in(folder));
    let mut kept = 0;
    for i in 0..50_u32 {
        if i >= 10 && kept > 2 {
            break;
        }
        let at = whole.mul_f64(1.0 - (f64::from(i % 10) / 10.0).powi(2));
        let seen = killed_over(folder, &old, sizes, |_| sleep(at));
        assert!(seen == old || seen == new || seen[0].is_none(), "round {i}: of two cases");
        kept += u32::from(seen == old);
        if seen == new {
            whole = whole.mul_f64(0.95);
        }
    }
    assert!(kept > 2, "{kept} old cases kept");
}

/// Whether a process has a file in `case` open, or is no more.
#[cfg(target_os = "linux")]
fn writes(process: &Child) -> bool {
    let Ok(files) = fs::read_dir(format!("/proc/{}/fd", process.id())) else { return true };
    let opened: Vec<_> = files.flatten().filter_map(|file| fs::read_link(file.path()).ok()).collect();
    opened.is_empty() || opened.iter().any(|file| file.to_string_lossy().contains("/case/"))
}

#[cfg(target_os = "linux")]
#[test]
fn a_case_is_whole_while_another_is_written_over_it() {
    let folder = tempdir().unwrap();
    let folder = folder.path();
    assert!(making(folder, "--expected").status().unwrap().success());
    let old = case_in(folder);
    let when = |make: &Child| {
        let since = Instant::now();
        while !writes(make) && since.elapsed() < Duration::from_secs(20) {
            core::hint::spin_loop();
        }
    };
    // One that is seen in time is enough: writing takes longer than to look.
    let is_kept = |_| killed_over(folder, &old, "--set bs=512 --set h=8192", when) == old;
    assert!((0..8).any(is_kept), "the old case is gone while the new one is written");
}
