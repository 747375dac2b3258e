//! What the system refuses: threads and memory.
#![cfg(target_os = "linux")]

use crate::common::{text, veriep};
use std::fs;
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
    for verb in ["run", "bench"] {
        let output = without_threads(&[verb, "--preset", "tiny"]);
        let line = String::from_utf8(output.stderr).unwrap();
        assert!(line.starts_with("error: cannot start a worker thread: "), "{line}");
        assert!(line.ends_with(": --threads decides how many\n"), "{line}");
        assert_eq!((line.lines().count(), output.status.code()), (1, Some(2)), "{verb}");
    }
}

/// Runs the program in so many KiB of address space.
fn within(kib: u32, folder: &std::path::Path, request: &str) -> Output {
    let script = format!("ulimit -v {kib}; exec {} {request}", env!("CARGO_BIN_EXE_veriep"));
    Command::new("bash").args(["-c", &script]).current_dir(folder).output().unwrap()
}

#[test]
fn out_of_memory_is_one_line_and_leaves_nothing_behind() {
    let folder = tempdir().unwrap();
    for request in [
        "gen --preset a3-288 --seed 1 --out case",
        "schedule DDDCCCDC --ranks 3",
        "plan --preset deepseek-v3-decode --set ep_world_size=768 --set moe_expert_num=768 --set hccl_buffsize_mb=4000 --seed 1",
    ] {
        let output = within(20_000, folder.path(), request);
        let line = String::from_utf8(output.stderr).unwrap();
        assert!(line.starts_with("error: out of memory: the system refuses "), "{request}: {line}");
        assert_eq!((line.lines().count(), output.status.code()), (1, Some(2)), "{request}: {line}");
        assert!(output.stdout.is_empty());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{request}: something is left behind");
    }
}
