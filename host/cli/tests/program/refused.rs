//! Threads and memory that the system refuses.
#![cfg(target_os = "linux")]

use crate::common::{text, veriep};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};
use tempfile::tempdir;

/// Runs the program where no thread can have its stack.
fn without_threads(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_veriep"))
        .args(args)
        .env("RUST_MIN_STACK", (1_u64 << 50).to_string())
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn what_needs_no_threads_does_without() {
    let folder = tempdir().unwrap();
    let at = |name: &str| text(&folder.path().join(name)).to_owned();
    let (with, without) = (at("with"), at("without"));
    let generate = |out| ["gen", "--preset", "tiny", "--seed", "1", "--expected", "--out", out];
    assert!(veriep(&generate(&with)).status.success());
    let output = without_threads(&generate(&without));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert!(output.status.success());
    for file in ["inputs.safetensors", "expected.safetensors"] {
        assert!(
            fs::read(format!("{with}/{file}")).unwrap() == fs::read(format!("{without}/{file}")).unwrap()
        );
    }
    let expected = format!("{with}/expected.safetensors");
    assert!(without_threads(&["compare", &without, &expected]).status.success());
    assert!(without_threads(&["run", &without, "--backend", "lockstep", "--rounds", "1"]).status.success());
}

#[test]
fn a_group_whose_threads_do_not_start_is_one_line() {
    let output = without_threads(&["run", "--preset", "tiny"]);
    let line = String::from_utf8(output.stderr).unwrap();
    assert!(line.starts_with("error: cannot start a worker thread: "), "{line}");
    assert!(line.ends_with(": --threads decides how many\n"), "{line}");
    assert_eq!((line.lines().count(), output.status.code()), (1, Some(2)));
}

/// The signal by which the runtime ends a program that has no more memory.
const SIGABRT: i32 = 6;

/// Runs the program in an address space that has 4 MiB besides the program's file.
fn with_little_memory(folder: &std::path::Path, request: &str) -> Output {
    let program = env!("CARGO_BIN_EXE_veriep");
    let kib = (fs::metadata(program).unwrap().len() >> 10) + 4096;
    let script = format!("ulimit -v {kib}; exec {program} {request}");
    let mut command = Command::new("bash");
    command.args(["-c", &script]).current_dir(folder).output().unwrap()
}

#[test]
fn tensors_that_do_not_fit_the_memory_are_one_line() {
    let folder = tempdir().unwrap();
    let output = with_little_memory(folder.path(), "gen --preset a3-288 --seed 1 --out case");
    let line = String::from_utf8(output.stderr).unwrap();
    assert!(line.ends_with(" bytes, which this machine does not have\n"), "{line}");
    assert_eq!((line.lines().count(), output.status.code()), (1, Some(2)), "{line}");
    assert!(output.stdout.is_empty());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "something is left behind");
}

#[test]
fn out_of_memory_is_reported_by_the_runtime_and_leaves_nothing_behind() {
    let folder = tempdir().unwrap();
    for request in [
        "schedule DDDCCCDC --ranks 3",
        "plan --preset deepseek-v3-decode --set ep_world_size=768 --set moe_expert_num=768 --set hccl_buffsize_mb=4000 --seed 1",
    ] {
        let output = with_little_memory(folder.path(), request);
        let line = String::from_utf8(output.stderr).unwrap();
        assert!(line.starts_with("memory allocation of "), "{request}: {line}");
        assert_eq!(output.status.signal(), Some(SIGABRT), "{request}: {line}");
        assert!(output.stdout.is_empty());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{request}: something is left behind");
    }
}
