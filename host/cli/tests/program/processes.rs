//! Ranks as processes: results are those of threads, and a process that dies is named, whenever it is; nothing is left behind.
#![cfg(target_os = "linux")]

use crate::common::{self, fails, text, veriep};
use core::time::Duration;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::Instant;
use tempfile::tempdir;
use veriep_testing::tier;

/// How long a test waits for what must come.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

fn result(folder: &Path, group: &[&str], more: &[&str]) -> Vec<u8> {
    let out = folder.join("result");
    let args = [&["run", "--out", text(&out)], group, more].concat();
    let ran = veriep(&args);
    assert_eq!(ran.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&ran.stderr));
    fs::read(out).unwrap()
}

/// The result file of a group over so many processes is that of threads.
pub(super) fn agrees(group: &[&str], processes: &[&str]) {
    let folder = tempdir().unwrap();
    let expected = result(folder.path(), group, &["--backend", "threads"]);
    for number in processes {
        let seen = result(folder.path(), group, &["--backend", "processes", "--processes", number]);
        assert!(seen == expected, "{group:?} over {number} processes");
    }
}

pub(super) const SMALL: [&str; 6] = ["--preset", "tiny", "--set", "ep_world_size=4", "--set", "aiv_num=2"];

#[test]
fn any_number_of_processes_gives_what_threads_give() {
    agrees(&["--preset", "tiny"], &["1", "2"]);
    let eight =
        ["--preset", "deepseek-v3-decode", "--set", "ep_world_size=8", "--set", "h=1024", "--rounds", "2"];
    agrees(&eight, &["1", "2", "4", "8"]);
    agrees(&["--preset", "a2-hier-16", "--set", "h=1024", "--rounds", "2"], &["2", "4", "8"]);
    agrees(&["--preset", "a2-64", "--set", "ep_world_size=16", "--set", "h=1024", "--rounds", "1"], &["4"]);
}

#[test]
fn every_protocol_and_receive_mode_gives_what_threads_give() {
    let small = |more: &[&str], processes: &[&str]| agrees(&[&SMALL, more].concat(), processes);
    small(&["--receive", "in-place"], &["2"]);
    small(&["--receive", "direct"], &["3"]);
    small(&["--receive", "direct", "--experts", "overwrite"], &["2"]);
    small(&["--flags", "separate", "--set", "quant_mode=2"], &["4"]);
    small(&["--schedule", "DDCC", "--chain", "2", "--threads", "2", "--spread", "cores"], &["2"]);
    small(&["--schedule", "Ds1 Cs0 Dr1 Cr0", "--chain", "2"], &["2"]);
    small(&["--set", "comm_alg=fullmesh_v2"], &["2"]);
    small(&["--dead", "1"], &["2", "3"]);
    small(&["--set", "op=combine_add_rms_norm"], &["2"]);
    let tp = [
        "--preset",
        "tiny",
        "--set",
        "release=9.1.0",
        "--set",
        "tp_world_size=2",
        "--set",
        "ep_world_size=2",
        "--set",
        "moe_expert_num=2",
    ];
    agrees(&tp, &["3", "4"]);
    agrees(&["--preset", "a2-hier-16", "--set", "h=1024", "--rounds", "1", "--stage", "2"], &["4"]);
}

#[test]
fn a_case_file_gives_the_same_result_over_processes() {
    let folder = tempdir().unwrap();
    let case = folder.path().join("case");
    let made = veriep(&["gen", "--preset", "tiny", "--routing", "zipf", "--seed", "3", "--out", text(&case)]);
    assert!(made.status.success());
    agrees(&[text(&case)], &["2"]);
}

#[test]
fn the_report_has_the_form_of_the_threads() {
    let of = |more: &[&str]| common::json(0, &[&["run"], &SMALL[..], more].concat());
    let (threads, processes) = (of(&[]), of(&["--backend", "processes", "--processes", "2"]));
    assert_eq!(processes["backend"], "processes");
    assert_eq!(processes["processes"], 2);
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let but_processes: Vec<_> = keys(&processes).into_iter().filter(|key| key != "processes").collect();
    assert_eq!(keys(&threads), but_processes);
    for key in ["rounds", "rows", "tokens", "steps", "compared"] {
        if key != "steps" {
            assert_eq!(processes[key], threads[key], "{key}");
        }
    }
    for operator in processes["operators"].as_array().unwrap() {
        assert!(operator["ms"]["median"].as_f64().unwrap() > 0.0, "{operator}");
        assert!(operator["memcpy_ms"].as_f64().unwrap() > 0.0, "{operator}");
    }
    let shown = veriep(&[&["run"], &SMALL[..], &["--backend", "processes", "--processes", "2"]].concat());
    assert!(String::from_utf8_lossy(&shown.stdout).contains("processes (2"), "{shown:?}");
}

#[test]
fn what_no_group_of_processes_can_be_is_refused_at_once() {
    let line = fails(2, &[&["run"], &SMALL[..], &["--backend", "processes", "--processes", "5"]].concat());
    assert_eq!(line, "error: --processes 5: must be at most 4, the ranks of the group");
    let line = fails(2, &["run", "--preset", "tiny", "--processes", "2"]);
    assert_eq!(line, "error: --processes: only --backend processes and mpi have it, not threads");
    let line = fails(2, &["run", "--preset", "tiny", "--backend", "weak", "--threads", "2"]);
    assert_eq!(line, "error: --threads: only --backend threads, processes and mpi have it, not weak");
    // A place for evidence is looked at before anything runs, and nothing is left of what is refused.
    let folder = tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let path = file.to_str().unwrap();
    for backend in ["threads", "processes"] {
        let run = ["run", "--preset", "tiny", "--backend", backend, "--rounds", "1000000"];
        let line = fails(2, &[&run[..], &["--dump", path]].concat());
        assert_eq!(line, format!("error: {path}: cannot make the folder: File exists (os error 17)"));
    }
}

#[test]
fn a_rank_that_is_silent_is_missed_as_on_threads() {
    let silent = ["run", "--preset", "tiny", "--inject", "silent=1", "--deadline", "0.5"];
    let threads = common::json(3, &silent);
    let processes = common::json(3, &[&silent[..], &["--backend", "processes", "--processes", "2"]].concat());
    assert_eq!(threads["missing"], processes["missing"]);
    assert_eq!(threads["errors"], processes["errors"]);
    assert!(processes.get("gone").is_none(), "{processes}");
}

/// A long run over processes.
pub(super) struct Long {
    pub(super) run: Child,
    pub(super) started: Instant,
}

/// The processes whose parent is `parent`.
pub(super) fn children(parent: u32) -> Vec<u32> {
    let is_child = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let behind_name = stat.rsplit(')').next().unwrap_or_default();
        behind_name.split_whitespace().nth(1).and_then(|ppid| ppid.parse().ok()) == Some(parent)
    };
    let entries =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut all: Vec<u32> = entries.filter(is_child).collect();
    all.sort_unstable();
    all
}

pub(super) fn is_running(pid: u32) -> bool {
    // A process that has died may still be listed until its parent has waited for it.
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

pub(super) fn signal(name: &str, pid: u32) {
    assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
}

pub(super) fn until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LIMIT, "{what}");
        sleep(Duration::from_millis(5));
    }
}

impl Long {
    pub(super) fn start(work: &Path, processes: usize, more: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_veriep"));
        command.arg("run").args(SMALL).args(["--rounds", "1000000", "--backend", "processes"]);
        command
            .args(["--processes", &processes.to_string(), "--format", "json", "--out", "result"])
            .args(more);
        command.current_dir(work).env("TMPDIR", work);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let run = command.spawn().unwrap();
        let long = Self { run, started: Instant::now() };
        until("all processes", || children(long.run.id()).len() == processes);
        long
    }

    /// Its output, and how long it took since `since`.
    pub(super) fn end(self, since: Instant) -> (Output, Duration) {
        let output = self.run.wait_with_output().unwrap();
        (output, since.elapsed())
    }
}

/// Files in a folder, and what of ours is where all programs leave such.
pub(super) fn files(folder: &Path) -> Vec<PathBuf> {
    let all =
        |folder: &Path| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    let ours = |path: &PathBuf| path.to_string_lossy().contains("veriep");
    all(folder).into_iter().chain(all(Path::new("/dev/shm")).into_iter().filter(ours)).collect()
}

#[test]
fn a_killed_process_is_named_whenever_it_dies() {
    // More by `VERIEP_KILLS=200 cargo test -p veriep --test program a_killed_process`.
    let kills = std::env::var("VERIEP_KILLS").map_or(4, |kills| kills.parse().unwrap());
    let mut random = ChaCha8Rng::seed_from_u64(27);
    let (mut slowest, mut waited_for) = (Duration::ZERO, 0);
    // On a busy machine others may have made their checks meanwhile: more trials, until a core has waited.
    for nth in 0..kills + 40 {
        if nth >= kills && waited_for > 0 {
            break;
        }
        let work = tempdir().unwrap();
        let more: &[&str] = [&[][..], &["--receive", "direct"], &["--chain", "8"]][nth % 3];
        let long = Long::start(work.path(), 4, more);
        let all = children(long.run.id());
        // Some before the first round.
        sleep(Duration::from_micros(random.random_range(0..300_000)));
        let process = random.random_range(0..4);
        let told = format!("kill {nth} of process {process}, {:?} behind the start", long.started.elapsed());
        let since = Instant::now();
        signal("-9", all[process]);
        let (output, took) = long.end(since);
        slowest = slowest.max(took);
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{told}: {line}");
        assert_eq!(line.lines().count(), 1, "{told}: {line}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let gone = report["gone"].as_array().unwrap();
        assert_eq!(gone.len(), 1, "{told}: {report}");
        assert_eq!((&gone[0]["pid"], &gone[0]["how"]), (&all[process].into(), &"signal 9".into()), "{told}");
        assert_eq!(
            (&gone[0]["process"], &gone[0]["ranks"]),
            (&process.into(), &vec![process].into()),
            "{told}"
        );
        let who = format!("process {process} (pid {}, host ", all[process]);
        assert!(line.contains(&who) && line.contains("was killed by signal 9"), "{told}: {line}");
        // No process blames another one.
        for missing in report["missing"].as_array().into_iter().flatten() {
            assert_eq!(missing["source_rank"], process, "{told}: {missing}");
            waited_for += 1;
        }
        assert!(all.iter().all(|&pid| !is_running(pid)), "{told}: left running");
        assert_eq!(files(work.path()), Vec::<PathBuf>::new(), "{told}");
    }
    assert!(waited_for > 0, "in no trial anybody waited for the dead");
    // Half a second, and what a machine that compiles meanwhile adds.
    println!("{kills} kills; the slowest end came {slowest:?} behind its kill");
    assert!(slowest < Duration::from_secs(5), "{slowest:?}");
    // And the next group is well.
    agrees(&SMALL, &["4"]);
}

#[test]
fn who_dies_before_the_ranks_have_met_is_named_at_once() {
    // They have just been started, and each has its case to make. On a busy machine they may have met before the signal.
    let before_the_first_round = (0..20).any(|_| {
        let work = tempdir().unwrap();
        let long = Long::start(work.path(), 4, &[]);
        let dead = children(long.run.id())[2];
        let since = Instant::now();
        signal("-9", dead);
        let (output, took) = long.end(since);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let [gone] = &report["gone"].as_array().unwrap()[..] else { panic!("{report}") };
        let expected = json!({ "process": 2, "pid": dead, "ranks": [2], "how": "signal 9", "round": gone["round"],
                               "operator": gone["operator"], "host": gone["host"] });
        assert_eq!((output.status.code(), gone), (Some(3), &expected));
        assert!(took < Duration::from_secs(5), "{took:?}");
        gone["round"].is_null()
    });
    assert!(before_the_first_round, "the ranks had met in every trial");
}

/// A rank dies in place of one write after the other, ever further apart, until it has none left and the run ends well.
fn dies_at_any_write(group: &[&str], rank: u32) {
    let (mut at, mut step, mut deaths, mut waited_for) = (0_u32, 1_u32, 0, 0);
    loop {
        let fault = format!("killed={rank}:{at}");
        let run = ["run", "--backend", "processes", "--processes", "3", "--rounds", "2", "--format", "json"];
        let output = veriep(&[&run, group, &["--inject", &fault]].concat());
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.code() == Some(0) {
            assert!(line.contains("it was not killed"), "{group:?} {fault}: {line}");
            break;
        }
        assert_eq!(output.status.code(), Some(3), "{group:?} {fault}: {line}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let gone = &report["gone"];
        assert_eq!(gone.as_array().unwrap().len(), 1, "{group:?} {fault}: {report}");
        let ranks: Vec<_> = gone[0]["ranks"].as_array().unwrap().clone();
        // An agent may still send when its rank's cores have ended.
        assert_ne!(gone[0]["operator"], "check", "{group:?} {fault}: {report}");
        assert_eq!(gone[0]["how"], "signal 9", "{group:?} {fault}: {report}");
        for missing in report["missing"].as_array().into_iter().flatten() {
            assert!(ranks.contains(&missing["source_rank"]), "{group:?} {fault}: {missing}");
            waited_for += 1;
        }
        deaths += 1;
        at += step;
        step += step.div_ceil(2);
    }
    assert!(deaths > 5 && waited_for > 5, "{group:?}: {deaths} deaths, {waited_for} waited");
}

#[test]
fn whoever_dies_at_any_write_of_any_protocol_is_named() {
    let small = "--preset tiny --set ep_world_size=4 --set aiv_num=2";
    let mesh = "--preset a2-64 --set ep_world_size=16 --set moe_expert_num=16 --set k=4 \
                --set h=1024 --set bs=4 --set aiv_num=2";
    let tp = "--preset tiny --set release=9.1.0 --set tp_world_size=2 --set moe_expert_num=2 --set aiv_num=2";
    let servers = "--preset a2-hier-16 --set h=1024 --set aiv_num=4 --stage";
    let groups = [
        (small.to_owned(), 2),
        (format!("{servers} 2"), 9),
        (format!("{small} --receive direct"), 2),
        (format!("{small} --set comm_alg=fullmesh_v2"), 2),
        (format!("{small} --dead 1"), 2),
        (tp.to_owned(), 2),
        (mesh.to_owned(), 9),
        (format!("{servers} 3"), 9),
    ];
    for (group, rank) in &groups[..tier(2, groups.len())] {
        dies_at_any_write(&group.split(' ').collect::<Vec<_>>(), *rank);
    }
}

#[test]
fn a_silent_process_is_named_at_the_deadline() {
    let work = tempdir().unwrap();
    let long = Long::start(work.path(), 2, &["--deadline", "1"]);
    let all = children(long.run.id());
    sleep(Duration::from_millis(200));
    let since = Instant::now();
    signal("-STOP", all[1]);
    let (output, took) = long.end(since);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["gone"][0]["how"], "silent", "{report}");
    assert_eq!(report["gone"][0]["pid"], all[1], "{report}");
    assert_eq!(report["gone"].as_array().unwrap().len(), 1, "{report}");
    assert!((Duration::from_secs(1)..Duration::from_secs(6)).contains(&took), "{took:?}");
    assert!(all.iter().all(|&pid| !is_running(pid)), "left running");
}

#[test]
fn no_process_outlives_its_parent() {
    let work = tempdir().unwrap();
    let mut long = Long::start(work.path(), 3, &[]);
    let all = children(long.run.id());
    sleep(Duration::from_millis(100));
    long.run.kill().unwrap();
    long.run.wait().unwrap();
    until("processes end with their parent", || all.iter().all(|&pid| !is_running(pid)));
    assert_eq!(files(work.path()), Vec::<PathBuf>::new());
}

#[test]
fn an_interrupt_ends_all_processes_between_two_rounds() {
    let work = tempdir().unwrap();
    let long = Long::start(work.path(), 2, &[]);
    let all = children(long.run.id());
    sleep(Duration::from_millis(300));
    // As a terminal does: to all of them.
    [&all[..], &[long.run.id()]].concat().into_iter().for_each(|pid| signal("-INT", pid));
    let (output, _) = long.end(Instant::now());
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["interrupted"], true, "{report}");
    assert!(report["rounds"].as_u64().unwrap() > 0, "{report}");
    assert!(all.iter().all(|&pid| !is_running(pid)), "left running");
}

#[test]
fn two_groups_at_once_do_not_meet() {
    let folder = tempdir().unwrap();
    let expected = result(folder.path(), &SMALL, &[]);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let folder = tempdir().unwrap();
                let more = ["--backend", "processes", "--processes", "2"];
                assert!(result(folder.path(), &SMALL, &more) == expected);
            });
        }
    });
}
