//! A run ends when it must, whichever rank is silent and in whatever state it is: at its deadline, and behind SIGTERM.
#![cfg(target_os = "linux")]

use super::processes::signal;
use core::time::Duration;
use serde_json::Value;
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::thread::{self, sleep};
use std::time::Instant;

/// How much later than its deadline a run may end, its start included.
const MORE: Duration = Duration::from_secs(1);
/// A machine that is busy may be late by chance, but not so often.
const TRIALS: usize = 4;
/// A run that takes longer does not end.
const EVER: Duration = Duration::from_secs(20);

/// When a run is to end.
#[derive(Clone, Copy, Debug)]
enum When {
    /// At its deadline.
    Deadline(Duration),
    /// After a SIGTERM that comes so long after its start.
    Term(Duration),
}

/// Runs until it ends. `None` if it does not; else also how long it took longer than it may without [`MORE`].
fn run(args: &[String], when: When) -> Option<(Output, Duration)> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_veriep"));
    command.args(["run", "--preset", "tiny", "--format", "json"]).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let since = Instant::now();
    let run = command.spawn().unwrap();
    let pid = run.id();
    let (say, said) = channel();
    thread::spawn(move || say.send(run.wait_with_output().unwrap()));
    if let When::Term(behind) = when {
        sleep(behind);
        signal("-TERM", pid);
    }
    let output = said.recv_timeout(EVER).map_err(|_| signal("-KILL", pid)).ok()?;
    let deadline = match when {
        When::Deadline(deadline) => deadline,
        // A run that is asked waits no longer than that for a rank that does not move.
        When::Term(behind) => behind + Duration::from_secs(1),
    };
    Some((output, since.elapsed().saturating_sub(deadline)))
}

/// What is wrong with how a run ends that must name a rank.
fn wrong(args: &[String], when: When, rank: u32) -> Option<String> {
    let mut late = Duration::ZERO;
    for _ in 0..TRIALS {
        let Some((output, over)) = run(args, when) else {
            return Some(format!("{args:?}, {when:?}: it does not end"));
        };
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let line = report["errors"][0].as_str().unwrap_or_default();
        if output.status.code() != Some(3) || !line.contains(&format!(": waiting for rank {rank} (")) {
            return Some(format!("{args:?}, {when:?}: {output:?}"));
        }
        if over <= MORE {
            return None;
        }
        late = over;
    }
    Some(format!("{args:?}, {when:?}: it ends {late:?} later than it must, {TRIALS} times"))
}

/// Cores of a rank, workers of a process, and processes: each worker polls one core, two, or all.
fn groups() -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for cores in ["1", "2"] {
        for threads in ["1", "2", "4"] {
            let set = format!("aiv_num={cores}");
            let threads = ["--set", &set, "--threads", threads, "--spread", "cores"].map(str::to_owned);
            for backend in
                [&["threads"][..], &["processes", "--processes", "1"], &["processes", "--processes", "2"]]
            {
                let backend = ["--backend"].iter().chain(backend).map(|&word| word.to_owned());
                all.push(threads.iter().cloned().chain(backend).collect());
            }
        }
    }
    all
}

/// All cells of a matrix, several at once: they sleep most of the time.
fn all_end(cells: Vec<(Vec<String>, When, u32)>) {
    let (cells, bad) = (Mutex::new(cells.into_iter()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                loop {
                    let cell = cells.lock().unwrap().next();
                    // A run that does not end would slow down all others.
                    let Some((args, when, rank)) = cell.filter(|_| bad.lock().unwrap().is_empty()) else {
                        break;
                    };
                    bad.lock().unwrap().extend(wrong(&args, when, rank));
                }
            });
        }
    });
    let bad = bad.into_inner().unwrap();
    assert!(bad.is_empty(), "{}: {:#?}", bad.len(), &bad[..bad.len().min(8)]);
}

fn silent(group: &[String], rank: u32, word: &str, deadline: &str) -> Vec<String> {
    let fault = format!("silent={rank}{word}");
    let more = ["--inject", &fault, "--deadline", deadline].map(str::to_owned);
    [group, &more].concat()
}

#[test]
fn a_silent_rank_is_named_at_the_deadline_on_every_backend() {
    let mut cells = Vec::new();
    for group in groups() {
        for (rank, word) in
            [0, 1].into_iter().flat_map(|rank| ["", ":counts", ":rows"].map(|word| (rank, word)))
        {
            let when = When::Deadline(Duration::from_millis(300));
            cells.push((silent(&group, rank, word, "0.3"), when, rank));
        }
    }
    all_end(cells);
}

#[test]
fn a_term_ends_a_run_that_hangs_long_before_its_deadline() {
    let mut cells = Vec::new();
    for (nth, group) in groups().into_iter().enumerate() {
        let (rank, word) = (nth as u32 % 2, [":counts", ":rows"][nth / 2 % 2]);
        cells.push((silent(&group, rank, word, "1000"), When::Term(Duration::from_millis(600)), rank));
    }
    all_end(cells);
}

/// Nothing else comes to look while the experts run. The system's clock does.
#[test]
fn a_term_ends_a_run_whose_experts_do_not_end() {
    thread::scope(|scope| {
        for backend in [&["threads", "--threads", "1"][..], &["threads"], &["processes", "--processes", "2"]]
        {
            scope.spawn(move || {
                let args = ["--inject", "slow=0:1000000", "--backend"].iter().chain(backend);
                let args: Vec<_> = args.map(|&word| word.to_owned()).collect();
                let Some((output, _)) = run(&args, When::Term(Duration::from_millis(600))) else {
                    panic!("{args:?}: it does not end");
                };
                let stderr = String::from_utf8_lossy(&output.stderr);
                assert_eq!(output.status.code(), Some(130), "{args:?}: {output:?}");
                let line = "error: interrupted: no round has ended for 10 s, so there is no report\n";
                assert!(stderr.ends_with(line), "{args:?}: {stderr}");
            });
        }
    });
}

#[test]
fn a_second_interrupt_ends_a_run_immediately() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_veriep"));
    command.args(["run", "--preset", "tiny", "--inject", "slow=0:1000000"]);
    let run = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = run.id();
    sleep(Duration::from_millis(600));
    signal("-INT", pid);
    sleep(Duration::from_millis(300));
    let since = Instant::now();
    signal("-TERM", pid);
    let output = run.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    // By itself it would end 10 s after the first one.
    assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        stderr.lines().filter(|line| line.starts_with("note: the report of what")).count(),
        1,
        "{stderr}"
    );
    assert!(!stderr.contains("error"), "{stderr}");
}

/// Before it begins, in a round, between two, and while it compares: a run of endless rounds.
#[test]
fn a_term_ends_a_run_at_any_time() {
    for backend in [&["threads"][..], &["processes", "--processes", "2"]] {
        for wait in (0..12).map(|nth| Duration::from_millis(25 * nth)) {
            let args = ["--rounds", "1000000", "--backend"].iter().chain(backend);
            let args: Vec<_> = args.map(|&word| word.to_owned()).collect();
            let Some((output, _)) = run(&args, When::Term(wait)) else {
                panic!("{args:?}, {wait:?}: it does not end");
            };
            // A run that has not yet set up its answer to the signal dies of it, without a status.
            assert!(matches!(output.status.code(), None | Some(4)), "{args:?}, {wait:?}: {output:?}");
        }
    }
}
