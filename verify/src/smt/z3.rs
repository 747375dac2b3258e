//! Runs the `z3` binary.

use core::time::Duration;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Seconds after which z3 gives up on a script.
const TIMEOUT: u32 = 60;

/// What z3 says to a `check-sat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is no model: a proof.
    Unsat,
    /// There is a model.
    Sat,
    Unknown,
}

/// What z3 printed, and how long it took.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Lines, without the verdicts.
    pub text: String,
    /// One per `check-sat`.
    pub verdicts: Vec<Verdict>,
    /// Wall time.
    pub took: Duration,
}

/// Runs a script.
pub fn run(script: &str) -> Result<Answer, String> {
    let start = Instant::now();
    let mut child = Command::new("z3")
        .args(["-smt2", "-in", &format!("-T:{TIMEOUT}")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|_| "missing: z3 (Debian package z3)".to_owned())?;
    let mut input = child.stdin.take().ok_or("z3 takes no input")?;
    let text = script.to_owned();
    // From a thread of its own: z3 answers while it reads.
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let output = child.wait_with_output().map_err(|error| format!("z3: {error}"))?;
    writer.join().map_err(|_| "z3: writer panicked")?.map_err(|error| format!("z3: {error}"))?;
    let all = String::from_utf8_lossy(&output.stdout);
    // A `get-value` behind an unsat has nothing to say.
    let complains = |line: &&str| line.contains("(error") && !line.contains("model is not available");
    if let Some(error) = all.lines().find(complains) {
        return Err(format!("z3: {error}"));
    }
    let mut answer = Answer { text: String::new(), verdicts: Vec::new(), took: start.elapsed() };
    for line in all.lines() {
        match line {
            "unsat" => answer.verdicts.push(Verdict::Unsat),
            "sat" => answer.verdicts.push(Verdict::Sat),
            "unknown" | "timeout" => answer.verdicts.push(Verdict::Unknown),
            other => {
                answer.text.push_str(other);
                answer.text.push('\n');
            }
        }
    }
    Ok(answer)
}
