//! The flight record of a group: what it says behind a death, and what becomes of it otherwise.
#![cfg(target_os = "linux")]

use super::processes::{LIMIT, Long, SMALL, agrees, children, files, is_running, signal, until};
use crate::common::{fails, json, text};
use core::time::Duration;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::Instant;
use tempfile::tempdir;

/// What `inspect` says of a folder.
pub(super) fn inspected(status: i32, record: &Path) -> Value {
    json(status, &["inspect", text(record), "--last", "8"])
}

const PROCESSES: [&str; 4] = ["--backend", "processes", "--processes", "2"];

#[test]
fn a_record_goes_when_all_is_well_unless_somebody_has_named_it() {
    let work = tempdir().unwrap();
    let run = |more: &[&str]| {
        let mut run = Command::new(env!("CARGO_BIN_EXE_veriep"));
        run.arg("run").args(SMALL).args(more).env("TMPDIR", work.path()).output().unwrap()
    };
    assert!(run(&PROCESSES).status.success());
    assert_eq!(files(work.path()), Vec::<PathBuf>::new());
    let record = work.path().join("record");
    let named = [&PROCESSES[..], &["--record", text(&record), "--rounds", "3"]].concat();
    assert!(run(&named).status.success());
    let seen = inspected(0, &record);
    let states: Vec<_> = seen["processes"].as_array().unwrap().iter().map(|one| &one["state"]).collect();
    assert_eq!(states, ["ended", "ended"]);
    assert_eq!((&seen["first"], &seen["waits"]), (&Value::Array(vec![]), &Value::Array(vec![])), "{seen}");
    let last = seen["last"].as_array().unwrap();
    assert_eq!(last.len(), 8);
    let end = last.last().unwrap();
    assert_eq!(
        (&end["kind"], &end["operator"], &end["batch"]),
        (&"end".into(), &"combine".into(), &2.into())
    );
    // It is not written over.
    let again = run(&named);
    assert_eq!(again.status.code(), Some(2), "{again:?}");
    let line = String::from_utf8(again.stderr).unwrap();
    assert!(
        line.ends_with(": has a record already, and none is written over: name another folder\n"),
        "{line}"
    );
    assert_eq!(inspected(0, &record), seen);
    // Threads have one if they are asked for it.
    let threads = work.path().join("threads");
    assert!(run(&["--record", text(&threads)]).status.success());
    assert_eq!(inspected(0, &threads)["processes"][0]["ranks"].as_array().unwrap().len(), 4);
    let line = fails(2, &["run", "--preset", "tiny", "--backend", "weak", "--record", text(&threads)]);
    assert_eq!(
        line,
        "error: --record: only --backend threads, processes and mpi have it, not weak; hint: --events"
    );
}

#[test]
fn a_record_has_the_words_of_an_operator_as_lines_of_events() {
    let work = tempdir().unwrap();
    let [record, lines, trace] = ["record", "lines.jsonl", "trace.json"].map(|name| work.path().join(name));
    let run = ["run", "--preset", "tiny", "--rounds", "1", "--record", text(&record)];
    json(0, &[&run[..], &PROCESSES].concat());
    json(0, &["inspect", text(&record), "--events", text(&lines), "--trace", text(&trace)]);
    let lines = fs::read_to_string(lines).unwrap();
    let mut lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let header = lines.next().unwrap();
    assert_eq!((&header["schema"], &header["unit"]), (&"veriep.events/1".into(), &"ns".into()));
    let lines: Vec<_> = lines.collect();
    let time = |line: &Value| line["time"].as_u64().unwrap();
    assert!(lines.windows(2).all(|pair| time(&pair[0]) <= time(&pair[1])));
    // A word that ends somebody's wait was published by the rank that was waited for.
    let of = |kind: &str| {
        lines.iter().filter(|line| line["kind"] == kind && line["operator"] == "dispatch").collect::<Vec<_>>()
    };
    let told: Vec<_> = of("publish").into_iter().filter(|line| line["peer"] != line["rank"]).collect();
    assert!(told.len() >= 4, "{} publishes to another rank", told.len());
    let is_seen = |line: &Value, seen: &Value| {
        let key = |key: &str| seen[key] == line[key];
        seen["rank"] == line["peer"] && key("region") && key("offset") && key("word")
    };
    let awaited = of("await").into_iter().filter(|line| line["awaited"] == "dispatch_flag").count();
    let seen = of("observe").iter().filter(|seen| told.iter().any(|line| is_seen(line, seen))).count();
    assert!(awaited == 0 || seen > 0, "{awaited} waits for flags, {seen} were seen to come");
    assert_eq!(lines.iter().filter(|line| line["kind"] == "experts").count(), 2);
    let trace: Value = serde_json::from_str(&fs::read_to_string(trace).unwrap()).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().len() > 50);
}

#[test]
fn whoever_is_killed_the_record_says_what_is_true() {
    // More by `VERIEP_KILLS=200 cargo test -p veriep --test program whoever_is_killed`.
    let kills = std::env::var("VERIEP_KILLS").map_or(4, |kills| kills.parse().unwrap());
    let mut random = ChaCha8Rng::seed_from_u64(72);
    for nth in 0..kills {
        let work = tempdir().unwrap();
        let mut long = Long::start(work.path(), 3, [&[][..], &["--receive", "direct"]][nth % 2]);
        let (parent, all) = (long.run.id(), children(long.run.id()));
        sleep(Duration::from_micros(random.random_range(0..200_000)));
        // Everybody, the parent alone, or a process and at once its parent.
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
        let [record] = &files(work.path())[..] else { panic!("{:?}", files(work.path())) };
        let seen = inspected(3, record);
        let processes = seen["processes"].as_array().unwrap();
        assert_eq!(
            processes.iter().map(|one| &one["pid"]).collect::<Vec<_>>(),
            all.iter().collect::<Vec<_>>()
        );
        assert!(processes.iter().all(|one| one["state"] == "gone"), "{nth}: {seen}");
        // The parent may have seen the one that was killed before it; then that one alone was first. It never names others.
        let first: Vec<_> =
            seen["first"].as_array().unwrap().iter().map(|pid| pid.as_u64().unwrap() as u32).collect();
        let noted: Vec<_> = processes.iter().filter(|one| !one["died_at_us"].is_null()).collect();
        if noted.is_empty() {
            assert_eq!(first, all, "{nth}: {seen}");
        } else {
            assert!(first.iter().all(|pid| killed.contains(pid)), "{nth}: {seen}");
        }
    }
    agrees(&SMALL, &["3"]);
}

#[test]
fn of_two_groups_at_once_each_has_its_own_record() {
    let work = tempdir().unwrap();
    let [dies, lives] = [0, 1].map(|_| Long::start(work.path(), 2, &[]));
    until("two records", || files(work.path()).len() == 2);
    let (all, others) = (children(dies.run.id()), children(lives.run.id()));
    sleep(Duration::from_millis(100));
    signal("-9", all[0]);
    let (output, _) = dies.end(Instant::now());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let record = Path::new(report["record"].as_str().unwrap()).to_owned();
    assert_eq!(inspected(3, &record)["first"], serde_json::json!([all[0]]));
    let other = files(work.path()).into_iter().find(|path| *path != record).unwrap();
    // It is read while it is written.
    let seen = inspected(0, &other);
    for (one, pid) in seen["processes"].as_array().unwrap().iter().zip(others) {
        assert_eq!((&one["pid"], &one["state"]), (&pid.into(), &"unknown".into()), "{seen}");
    }
    signal("-TERM", lives.run.id());
    let (output, _) = lives.end(Instant::now());
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert_eq!(files(work.path()), [record]);
}

/// Runs a line of a shell in a folder.
fn shell(work: &Path, line: &str) -> Output {
    let mut shell = Command::new("sh");
    shell.args(["-c", line]).current_dir(work).env("V", env!("CARGO_BIN_EXE_veriep"));
    shell.stdin(Stdio::null()).output().unwrap()
}

#[test]
fn a_full_disk_ends_no_run() {
    let work = tempdir().unwrap();
    let warned = |output: &Output, what: &str| {
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(stderr.starts_with("note: --record: ") && stderr.contains(what), "{stderr}");
        assert!(stderr.ends_with(": the run goes on without a record\n"), "{stderr}");
    };
    // Files may not grow to what a record needs. (Nor may the memory of processes.)
    let limited = shell(work.path(), "ulimit -f 64; exec $V run --preset tiny --record record");
    warned(&limited, "File too large");
    assert_eq!(fs::read_dir(work.path().join("record")).unwrap().count(), 0);
    let nowhere =
        shell(work.path(), "TMPDIR=/nowhere exec $V run --preset tiny --backend processes --processes 2");
    warned(&nowhere, "/nowhere");
    // A disk of our own needs a system that lets us have one.
    let own = "exec unshare --user --map-root-user --mount sh -c";
    let disk = |size: &str, line: &str| {
        shell(
            work.path(),
            &format!("mkdir -p disk; {own} 'mount -t tmpfs -o size={size} none disk && {line}'"),
        )
    };
    if !disk("64k", "true").status.success() {
        println!("no mount in a namespace here: only limits of file sizes were tried");
        return;
    }
    let run = "TMPDIR=disk $V run --preset tiny --backend processes --processes 2 --rounds 200";
    warned(&disk("64k", &format!("exec env {run}")), "No space left");
    let fills = format!(
        "env {run} --record disk/record & sleep 0.2; cat /dev/zero > disk/fill; wait $! && $V inspect disk/record"
    );
    let filled = disk("1m", &fills);
    let stderr = String::from_utf8_lossy(&filled.stderr).into_owned();
    assert_eq!(filled.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains("No space left") && !stderr.contains("--record"), "{stderr}");
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
    let slow = |duty: &str| {
        let mut run = Command::new(env!("CARGO_BIN_EXE_veriep"));
        run.arg("run").args(SLOW).args(PROCESSES).args(["--record", "none", "--format", "json"]);
        run.env("VERIEP_TWIN", duty).output().unwrap()
    };
    let well = slow("");
    assert_eq!(well.status.code(), Some(0), "{well:?}");
    let silent = slow("beat");
    assert_eq!(silent.status.code(), Some(3), "{silent:?}");
    let report: Value = serde_json::from_slice(&silent.stdout).unwrap();
    assert!(report["gone"].as_array().unwrap().iter().any(|gone| gone["how"] == "silent"), "{report}");
}

#[test]
fn a_death_that_nobody_looks_for_is_not_named() {
    let work = tempdir().unwrap();
    let long = Long::without(Some("look"), work.path(), 2, &["--deadline", "1"]);
    let all = children(long.run.id());
    sleep(Duration::from_millis(100));
    let since = Instant::now();
    signal("-9", all[1]);
    let (output, took) = long.end(since);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(took >= Duration::from_secs(1), "{took:?}");
    assert_ne!(report["gone"][0]["how"], "signal 9", "{report}");
}

#[test]
fn a_death_that_nobody_notes_has_no_time_in_the_record() {
    let work = tempdir().unwrap();
    let long = Long::without(Some("note"), work.path(), 2, &[]);
    let all = children(long.run.id());
    sleep(Duration::from_millis(100));
    signal("-9", all[1]);
    let (output, _) = long.end(Instant::now());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let seen = inspected(3, Path::new(report["record"].as_str().unwrap()));
    let died = |process: usize| seen["processes"][process]["died_at_us"].is_null();
    assert!(died(0) && died(1), "{seen}");
}

#[test]
fn a_process_that_does_not_die_with_its_parent_is_left_behind() {
    let work = tempdir().unwrap();
    let mut long = Long::without(Some("die-with-parent"), work.path(), 2, &[]);
    let all = children(long.run.id());
    sleep(Duration::from_millis(100));
    long.run.kill().unwrap();
    long.run.wait().unwrap();
    sleep(Duration::from_millis(300));
    let left = all.iter().filter(|&&pid| is_running(pid)).count();
    all.iter().filter(|&&pid| is_running(pid)).for_each(|&pid| signal("-9", pid));
    assert_eq!(left, 2);
    until("they end", || all.iter().all(|&pid| !is_running(pid)));
}
