//! Runs a solver: `z3`, or `cvc5` where a proof is to have two.

use core::time::Duration;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Instant;

/// A program that reads SMT-LIB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Solver {
    Z3,
    Cvc5,
}

impl Solver {
    /// Its name, which is that of its Debian package as well.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Z3 => "z3",
            Self::Cvc5 => "cvc5",
        }
    }

    fn command(self) -> Command {
        let mut command = Command::new(self.name());
        match self {
            Self::Z3 => command.args(["-smt2", "-in", &format!("-T:{TIMEOUT}")]),
            // An answer that takes long is *unknown*, and the next question is asked.
            Self::Cvc5 => command.args(["--lang=smt2", "--incremental", "--tlimit-per=3000", "-"]),
        };
        command
    }
}

/// Seconds after which z3 gives up on a script.
const TIMEOUT: u32 = 60;

/// What a solver says to a `check-sat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is no model: a proof.
    Unsat,
    /// There is a model.
    Sat,
    Unknown,
}

/// What a solver printed, and how long it took.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Lines, without the verdicts.
    pub text: String,
    /// One per `check-sat`.
    pub verdicts: Vec<Verdict>,
    /// Wall time.
    pub took: Duration,
}

/// Runs a script by z3.
pub fn run(script: &str) -> Result<Answer, String> {
    run_by(Solver::Z3, script)
}

/// Runs a script.
pub fn run_by(solver: Solver, script: &str) -> Result<Answer, String> {
    let (start, name) = (Instant::now(), solver.name());
    let mut child = solver
        .command()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|_| format!("missing: {name} (Debian package {name})"))?;
    let mut input = child.stdin.take().ok_or("a solver takes no input")?;
    let text = script.to_owned();
    // From a thread of its own: a solver answers while it reads.
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let output = child.wait_with_output().map_err(|error| format!("{name}: {error}"))?;
    writer.join().map_err(|_| "writer panicked")?.map_err(|error| format!("{name}: {error}"))?;
    let all = String::from_utf8_lossy(&output.stdout);
    // A `get-value` after an unsat has nothing to say.
    let complains = |line: &&str| line.contains("(error") && !line.contains("model is not available");
    if let Some(error) = all.lines().find(complains) {
        return Err(format!("{name}: {error}"));
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
