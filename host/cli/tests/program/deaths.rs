//! Deaths and ends of groups of processes: what is reported, and that nothing is left, whichever process dies.
#![cfg(target_os = "linux")]

use super::processes::{LIMIT, Long, SMALL, agrees, children, files, is_running, signal, until};
use core::time::Duration;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Instant;
use tempfile::tempdir;

const PROCESSES: [&str; 4] = ["--backend", "processes", "--processes", "2"];

#[test]
fn whoever_is_killed_nothing_is_left() {
    // More by `VERIEP_KILLS=200 cargo test -p veriep --test program whoever_is_killed`.
    let kills = std::env::var("VERIEP_KILLS").map_or(4, |kills| kills.parse().unwrap());
    let mut random = ChaCha8Rng::seed_from_u64(72);
    for nth in 0..kills {
        let work = tempdir().unwrap();
        let mut long = Long::start(work.path(), 3, [&[][..], &["--receive", "direct"]][nth % 2]);
        let (parent, all) = (long.run.id(), children(long.run.id()));
        sleep(Duration::from_micros(random.random_range(0..200_000)));
        // All, only the parent, or a process and at once its parent.
        let killed = match nth % 4 {
            0 => [&all[..], &[parent]].concat(),
            1 => vec![all[random.random_range(0..3)], parent],
            _ => vec![parent],
        };
        // One call for all of them.
        let pids: Vec<_> = killed.iter().map(u32::to_string).collect();
        let _ = Command::new("kill").arg("-9").args(&pids).status().unwrap();
        long.run.wait().unwrap();
        until("all processes end", || all.iter().all(|&pid| !is_running(pid)));
        assert_eq!(files(work.path()), Vec::<PathBuf>::new(), "{nth}");
    }
    agrees(&SMALL, &["3"]);
}

/// A terminal and batch systems ask all processes of a group, in any order and however young they are.
#[test]
fn who_is_asked_to_end_while_it_starts_has_not_died() {
    // More by `VERIEP_KILLS=200 cargo test -p veriep --test program who_is_asked`.
    let times = std::env::var("VERIEP_KILLS").map_or(12, |kills| kills.parse().unwrap());
    let mut random = ChaCha8Rng::seed_from_u64(73);
    for nth in 0..times {
        let work = tempdir().unwrap();
        let long = Long::start(work.path(), 3, &[]);
        let asked = ["-TERM", "-INT"][nth % 2];
        sleep(Duration::from_micros(random.random_range(0..3_000)));
        children(long.run.id()).into_iter().for_each(|pid| signal(asked, pid));
        sleep(Duration::from_millis(50));
        signal(asked, long.run.id());
        let (output, _) = long.end(Instant::now());
        assert_eq!(output.status.code(), Some(4), "{nth}: {output:?}");
    }
}

/// Where the system cannot tell of a process, it is asked in another way: at this limit of open files `/proc` cannot be read.
#[test]
fn a_process_of_which_the_system_does_not_tell_has_not_died() {
    let program = env!("CARGO_BIN_EXE_veriep");
    let mut ended = 0;
    // How many are open before the first one of the program is the caller's affair.
    for files in (8..20).chain([64, 256]) {
        let run =
            format!("ulimit -n {files}; exec {program} run tiny --backend processes -n 4 --deadline 20");
        let output = Command::new("sh").args(["-c", &run]).stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_ne!(output.status.code(), Some(3), "{files}: {said}");
        ended += usize::from(output.status.success());
    }
    assert!(ended > 0, "no run ended at any limit");
}

#[test]
fn of_two_groups_at_once_one_dies_alone() {
    let work = tempdir().unwrap();
    let [dies, lives] = [0, 1].map(|_| Long::start(work.path(), 2, &[]));
    let (all, others) = (children(dies.run.id()), children(lives.run.id()));
    sleep(Duration::from_millis(100));
    signal("-9", all[0]);
    let (output, _) = dies.end(Instant::now());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [gone] = &report["gone"].as_array().unwrap()[..] else { panic!("{report}") };
    assert_eq!(gone["pid"], all[0], "{report}");
    assert!(others.iter().all(|&pid| is_running(pid)), "the other group has ended");
    signal("-TERM", lives.run.id());
    let (output, _) = lives.end(Instant::now());
    assert_eq!(output.status.code(), Some(4), "{output:?}");
}

#[test]
fn who_is_asked_to_end_while_all_are_stuck_says_what_is_missing() {
    for backend in [&["--backend", "threads"][..], &PROCESSES] {
        let work = tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_veriep"));
        command.args(["run", "--preset", "tiny", "--inject", "silent=1", "--format", "json"]).args(backend);
        let run =
            command.env("TMPDIR", work.path()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        sleep(Duration::from_millis(500));
        let since = Instant::now();
        signal("-TERM", run.id());
        let output = run.wait_with_output().unwrap();
        // Its deadline is a minute.
        assert!(since.elapsed() < LIMIT / 2, "{:?}", since.elapsed());
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(
            report["errors"][0].as_str().unwrap().contains("no progress for 1 s: waiting for rank 1"),
            "{report}"
        );
        assert!(!report["missing"].as_array().unwrap().is_empty(), "{report}");
    }
}

#[test]
fn a_term_ends_a_run_between_two_rounds_with_its_report() {
    for backend in [&["--backend", "threads"][..], &PROCESSES] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_veriep"));
        command.args(["run", "--preset", "tiny", "--rounds", "1000000", "--format", "json"]).args(backend);
        let run = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        sleep(Duration::from_millis(500));
        // A batch system tells all of a job.
        [children(run.id()), vec![run.id()]].concat().into_iter().for_each(|pid| signal("-TERM", pid));
        let output = run.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(4), "{output:?}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["interrupted"], true, "{report}");
    }
}

const SLOW: [&str; 8] = ["--preset", "tiny", "--rounds", "1", "--inject", "slow=1:2", "--deadline", "0.7"];

#[test]
fn experts_that_take_long_are_not_silent_as_long_as_their_process_beats() {
    // Without the beat it would be silent at the deadline, as in `who_has_not_run_since_the_last_move_is_silent`.
    let mut run = Command::new(env!("CARGO_BIN_EXE_veriep"));
    let ran = run.arg("run").args(SLOW).args(PROCESSES).args(["--format", "json"]).output().unwrap();
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
}
