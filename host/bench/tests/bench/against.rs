//! `veriep-bench --against` whose mpirun is not what it should be: a script, found before any other.
#![cfg(target_os = "linux")]

use crate::common::text;
use core::time::Duration;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Instant;
use tempfile::tempdir;
use veriep_case::generate::{Options, generate};
use veriep_case::presets::preset;
use veriep_core::place::Tensor;
use veriep_core::units::RankId;
use veriep_group::expected::Expected;

/// What an mpirun says that works.
const VERSION: &str = "if [ $1 = --version ]; then echo fake; exit; fi\n";

fn program(folder: &Path, name: &str, script: &str) {
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Measures against a baseline that this script starts, and demands that nothing of it is left behind.
fn against(folder: &Path, mpirun: &str) -> (Option<i32>, String) {
    program(folder, "mpirun", mpirun);
    program(folder, "mpi-alltoallv", "exit 1");
    let path = format!("{}:{}", text(folder), std::env::var("PATH").unwrap());
    let since = Instant::now();
    let Output { status, stderr, .. } = Command::new(crate::PROGRAM)
        .args(["--preset", "tiny", "--iters", "2", "--blocks", "1", "--deadline", "0.5"])
        .args(["--against", "mpi", "--baselines", text(folder)])
        .env("PATH", path)
        // By this a process is known as one of this test.
        .env("VERIEP_TEST", text(folder))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(since.elapsed() < Duration::from_secs(20), "{:?}", since.elapsed());
    let is_mine = |folder_of: &Path| {
        let own = format!("VERIEP_TEST={}\0", text(folder)).into_bytes();
        let env = fs::read(folder_of.join("environ")).unwrap_or_default();
        env.windows(own.len()).any(|seen| seen == own)
    };
    let left = || -> Vec<_> {
        let all = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
        all.filter(|path| is_mine(path)).collect()
    };
    // On a busy machine a process that was killed may take a moment to go.
    let since = Instant::now();
    while !left().is_empty() {
        assert!(since.elapsed() < Duration::from_secs(5), "still there: {:?}", left());
        thread::sleep(Duration::from_millis(10));
    }
    (status.code(), String::from_utf8(stderr).unwrap())
}

#[test]
fn an_mpirun_that_never_answers_is_given_up_at_the_deadline() {
    let folder = tempdir().unwrap();
    let (status, line) = against(folder.path(), "exec sleep 1000");
    assert_eq!(line, "error: --against mpi-alltoallv: mpirun --version: not done after 0.5 s\n");
    assert_eq!(status, Some(3));
}

#[test]
fn an_mpirun_that_closes_its_output_and_stays_is_given_up_at_the_deadline() {
    let folder = tempdir().unwrap();
    let (status, line) = against(folder.path(), &format!("{VERSION}exec 1>&-; sleep 1000"));
    let rest = "takes no orders and does not end within 0.5 s\n";
    assert_eq!(line, format!("error: mpi-alltoallv: ep_world_size = 2, bs = 4: {rest}"));
    assert_eq!(status, Some(3));
}

#[test]
fn an_mpirun_that_ends_is_not_waited_for_because_of_whom_it_leaves_behind() {
    let folder = tempdir().unwrap();
    let left_behind = "sleep 1000 >/dev/null </dev/null & echo 'no such luck' >&2; exit 7";
    let (status, line) = against(folder.path(), &format!("{VERSION}{left_behind}"));
    assert_eq!(line, "error: mpi-alltoallv: ep_world_size = 2, bs = 4: exit status: 7: no such luck\n");
    assert_eq!(status, Some(2));
}

#[test]
fn a_line_without_an_end_is_read_in_pieces() {
    let folder = tempdir().unwrap();
    let (status, line) = against(folder.path(), &format!("{VERSION}tr '\\0' x </dev/zero & cat >/dev/null"));
    let rest = "check: printed no times: expected value at line 1 column 1\n";
    assert_eq!(line, format!("error: mpi-alltoallv: ep_world_size = 2, bs = 4: {rest}"));
    assert_eq!(status, Some(2));
}

/// A script that puts out what the reference says, and answers orders so.
fn right(folder: &Path, check: &str, single: &str, chain: &str) -> String {
    let (config, routing) = preset("tiny").unwrap();
    let options = Options { routing, seed: 1, ..Options::default() };
    let case = generate(config, options, "test").unwrap();
    let expected = Expected::of(&case);
    let outputs = [Tensor::EpRecvCounts, Tensor::ExpandX, Tensor::DynamicScales, Tensor::XOut];
    let of_rank = |rank| outputs.map(|tensor| expected.output(RankId(rank), tensor)).concat();
    let (first, second) = (of_rank(0), of_rank(1));
    let slot = 8 + first.len().max(second.len());
    let mut slots = [&first.len().to_ne_bytes()[..], &first].concat();
    slots.resize(slot, 0);
    slots.extend_from_slice(&second.len().to_ne_bytes());
    slots.extend_from_slice(&second);
    fs::write(folder.join("slots"), slots).unwrap();
    let of_rank = |rank: &veriep_case::case::RankTensors| {
        rank.x.len() + 4 * (rank.expert_ids.len() + rank.expert_scales.len())
    };
    let slots_at = 4 * case.expert_gain.len() + case.ranks.iter().map(of_rank).sum::<usize>();
    let write = format!(
        "dd if={}/slots of=$file oflag=seek_bytes seek={slots_at} conv=notrunc status=none",
        text(folder)
    );
    format!(
        "{VERSION}for word; do case $word in /proc/*) file=$word ;; esac; done
        while read order more; do case $order in
        check) {write}; echo '{check}' ;; single) echo '{single}' ;; chain) echo '{chain}' ;;
        esac; done"
    )
}

#[test]
fn a_baseline_that_prints_no_times_or_too_few_is_an_error() {
    let (single, chain) = (r#"{"dispatch_ns": [1, 2], "combine_ns": [3, 4]}"#, r#"{"round_ns": [5]}"#);
    let folder = tempdir().unwrap();
    let answer = |single, chain| against(folder.path(), &right(folder.path(), "{}", single, chain));
    assert_eq!(answer(single, chain), (Some(0), String::new()), "nothing is wrong with these answers");
    for (single, chain, why) in [
        ("{}", chain, "single 3 2: dispatch_ns has 0 times: must be 2"),
        (
            r#"{"dispatch_ns": [1, 2], "combine_ns": [3]}"#,
            chain,
            "single 3 2: combine_ns has 1 times: must be 2",
        ),
        (single, "{}", "chain 2: round_ns has 0 times: must be 1"),
    ] {
        let line = format!("error: mpi-alltoallv: ep_world_size = 2, bs = 4: {why}\n");
        assert_eq!(answer(single, chain), (Some(2), line));
    }
}
