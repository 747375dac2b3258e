//! Runs the program of a crate, which its tests name as `PROGRAM`.
#![allow(dead_code, reason = "each test file uses its part")]

use core::time::Duration;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Instant;
use veriep_case::store::{Tensor, TensorFile};

/// All tensors of a file.
pub(crate) fn all_of(path: &Path) -> Vec<Tensor<'static>> {
    let mut file = TensorFile::open(path).unwrap();
    let names = file.names();
    let read = |name: String| {
        let (data, info) = (file.read(&name).unwrap().into(), file.info(&name).unwrap());
        Tensor { dtype: info.dtype, shape: info.shape.clone(), name, data }
    };
    names.into_iter().map(read).collect()
}

pub(crate) fn veriep(args: &[&str]) -> Output {
    Command::new(crate::PROGRAM).args(args).stdin(Stdio::null()).output().unwrap()
}

/// Runs, demands `status` and that stderr has exactly one line, and returns that line.
pub(crate) fn fails(status: i32, args: &[&str]) -> String {
    let lines = fails_with_lines(status, args);
    assert_eq!(lines.len(), 1, "{args:?}: {lines:?}");
    lines[0].clone()
}

pub(crate) fn fails_with_lines(status: i32, args: &[&str]) -> Vec<String> {
    let output = veriep(args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{args:?}: {stderr}");
    let lines: Vec<_> = stderr.lines().map(str::to_owned).collect();
    assert!(lines.iter().all(|line| line.starts_with("error: ")), "{args:?}: {stderr}");
    lines
}

/// Runs with `--format json`, demands `status` and one object on stdout, and returns it.
pub(crate) fn json(status: i32, args: &[&str]) -> Value {
    let output = veriep(&[args, &["--format", "json"]].concat());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{args:?}: {stderr}");
    let value: Value = serde_json::from_slice(&output.stdout).expect("stdout is one JSON value");
    assert!(value.is_object());
    value
}

/// Waits until a process has worked for so long, on one processor or several. Where others do the work, or the system does
/// not say, it waits for `at_most`.
pub(crate) fn let_work(pid: u32, time: Duration, at_most: Duration) {
    let worked = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // Hundredths of a second, in the program and in the kernel.
        let fields = stat.rsplit(')').next()?.split_whitespace().skip(11).take(2);
        fields.map(|ticks| ticks.parse::<u64>().ok()).sum::<Option<u64>>()
    };
    let begin = Instant::now();
    while begin.elapsed() < at_most && worked().is_none_or(|ticks| Duration::from_millis(10 * ticks) < time) {
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Writes a configuration of that text and returns its path.
pub(crate) fn config_file(folder: &Path, name: &str, content: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, content).unwrap();
    text(&path).to_owned()
}
