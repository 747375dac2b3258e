//! `diagnose` on dumps that leave open which rank has not sent, and the inputs that decide it: a case, windows, more dumps.

use crate::common::{fails, text, veriep};
use crate::dumps::{DIRECT, Group, IN_BLOCKS, JOINT, MESSAGES, SEPARATE, SHARED, TP, culprits, diagnose, of};
use serde_json::Value;
use std::fs;
use std::path::Path;
use tempfile::{TempDir, tempdir};

/// The case with which `run` ends by default.
fn case(group: &Group) -> TempDir {
    let folder = tempdir().unwrap();
    let set = group.set.iter().flat_map(|set| ["--set", set]);
    let args = ["gen", "--preset", "tiny", "--seed", "1", "--out", text(folder.path()), "--force"];
    assert!(veriep(&args.into_iter().chain(set).collect::<Vec<_>>()).status.success());
    folder
}

/// No rank is named, and the report says that these words would decide it.
fn cannot_tell(folder: &Path, add: &str) {
    let said = diagnose(4, folder, &[]);
    assert_eq!(
        (of(&said), &said["ok"], &said["verdict"]),
        (vec![], &false.into(), &"unknown".into()),
        "{said}"
    );
    assert!(said["decides"].to_string().contains(add), "{said}");
    let table = veriep(&["diagnose", text(folder), "--format", "table"]).stdout;
    let table = String::from_utf8(table).unwrap();
    assert!(table.starts_with("verdict  unknown: "), "{table}");
}

#[test]
fn a_case_that_is_not_the_batch_of_the_windows_is_refused() {
    for group in [JOINT, IN_BLOCKS, TP, SHARED] {
        let case = case(&group);
        let case = ["--case", text(case.path())];
        // Of two rounds the last one has the case's tokens, and rank 1 hangs the first one.
        let hang = |rounds| group.dump(3, &["--rounds", rounds, "--inject", "silent=1:rows"]);
        match group.set == TP.set {
            // Rank 1 may wait for what its peer announces first.
            true => assert_eq!(diagnose(4, hang("1").path(), &case)["suspects"][0]["rank"], 1),
            false => assert_eq!(culprits(3, hang("1").path(), &case), [1], "{:?}", group.set),
        }
        let folder = hang("2");
        assert_eq!(culprits(3, folder.path(), &[]), [1], "{:?}", group.set);
        let line = fails(2, &[&["diagnose", text(folder.path())], &case[..]].concat());
        assert!(line.contains("the case is not the batch of these dumps"), "{line}");
        // In a good run the last one is it.
        let folder = group.dump(0, &["--rounds", "3"]);
        group.looks_good(folder.path(), &case);
    }
    let more = ["--rounds", "4", "--schedule", "DDCC"];
    let folder = JOINT.dump(3, &[&more[..], &["--inject", "silent=1:rows"]].concat());
    let case = case(&JOINT);
    let line = fails(2, &["diagnose", text(folder.path()), "--case", text(case.path())]);
    assert!(line.contains("the case is not the batch of these dumps"), "{line}");
}

#[test]
fn a_combine_without_windows_needs_a_case() {
    let folder = JOINT.dump(3, &["--rounds", "1", "--inject", "silent=3:rows"]);
    // One rank's window is missing, then its whole dump, then all windows.
    fs::remove_file(folder.path().join("rank3.window")).unwrap();
    cannot_tell(folder.path(), "--case CASE, or the windows of all ranks");
    let state = folder.path().join("rank3.state");
    let bytes = fs::read(&state).unwrap();
    fs::remove_file(&state).unwrap();
    cannot_tell(folder.path(), "dumps of ranks [3]");
    fs::write(&state, bytes).unwrap();
    (0..3).for_each(|rank| fs::remove_file(folder.path().join(format!("rank{rank}.window"))).unwrap());
    cannot_tell(folder.path(), "--case CASE, or the windows of all ranks");
    assert_eq!(culprits(3, folder.path(), &["--case", text(case(&JOINT).path())]), [3]);
}

#[test]
fn while_all_are_in_one_dispatch_cleared_words_are_open() {
    // Threads begin no combine before all have ended the dispatch, and here each core awaits one source.
    let eight = |set: &'static [&'static str]| Group { set, options: &[], ranks: 4 };
    let plain = &["ep_world_size=4", "moe_expert_num=8"];
    let in_blocks = &["ep_world_size=4", "moe_expert_num=8", "comm_alg=fullmesh_v2"];
    for (group, lost) in [
        (Group { options: SEPARATE.options, ..eight(plain) }, "silent=3:tokens"),
        (eight(in_blocks), "silent=3:blocks"),
        (TP, "silent=3:tp"),
    ] {
        let folder = group.dump_on("threads", 3, &["--rounds", "1", "--deadline", "0.5", "--inject", lost]);
        cannot_tell(folder.path(), "memory is the same whether they wait or not");
    }
}

/// Groups of 2 and of 4 ranks.
const PAIR: Group = Group { set: &["ep_world_size=2"], options: &[], ranks: 2 };
const FOUR: Group = Group { set: &["ep_world_size=4", "moe_expert_num=8"], options: &[], ranks: 4 };

#[test]
fn operators_in_halves_accuse_no_rank() {
    let silent = ["--inject", "silent=1", "--deadline", "0.5"];
    let interleaved: &[&str] = &["--schedule", "Ds1 Cs0 Dr1 Cr0"];
    let chained: &[&str] = &["--schedule", "Cs0 Ds1 Cr0 Dr1", "--chain", "3"];
    let runs =
        [(&PAIR, "threads", interleaved), (&FOUR, "threads", chained), (&FOUR, "lockstep", interleaved)];
    for ((group, backend, more), seed) in runs.iter().flat_map(|run| ["1", "2", "3"].map(|seed| (run, seed)))
    {
        let folder = group.dump_on(backend, 3, &[more, &silent[..], &["--seed", seed]].concat());
        cannot_tell(folder.path(), "in which half of which operator each core stopped");
        let said = diagnose(4, folder.path(), &[]);
        let lacks = |word: &&Value| (&word["rank"], &word["source"]) == (&0.into(), &1.into());
        assert!(said["missing"].as_array().unwrap().iter().any(|word| lacks(&word)), "{more:?}: {said}");
        assert_eq!((&said["suspects"], &said["ranks"][0]["sure"]), (&Value::Array(vec![]), &false.into()));
        // Where the file does not say it, the option does.
        let path = folder.path().join("options.toml");
        let options = fs::read_to_string(&path).unwrap();
        fs::write(&path, options.replace("halves = true\n", "")).unwrap();
        assert_eq!(of(&diagnose(4, folder.path(), &["--halves"])), [0; 0], "{more:?}");
    }
    for group in [DIRECT, MESSAGES] {
        let folder = group.dump(3, &[&["--schedule", "Ds Dr Cs Cr", "--rounds", "2"][..], &silent].concat());
        cannot_tell(folder.path(), "in which half of which operator each core stopped");
    }
    let folder = PAIR.dump(3, &["--inject", "silent=1"]);
    let line = fails(2, &["diagnose", text(folder.path()), "--halves"]);
    assert!(line.contains("options.toml: halves = false: the arguments say true"), "{line}");
}

#[test]
fn a_call_that_was_left_out_names_no_innocent_with_batches_in_flight() {
    let mut contradicted = 0;
    for (group, set) in
        [(&PAIR, "aiv_num=1"), (&FOUR, "aiv_num=1"), (&PAIR, "aiv_num=4"), (&FOUR, "aiv_num=4")]
    {
        for (fault, seed) in
            ["skips=1:1", "skips=1:3"].into_iter().flat_map(|fault| ["1", "2", "3"].map(|seed| (fault, seed)))
        {
            for backend in ["lockstep", "threads"] {
                let more = ["--schedule", "DDCC", "--rounds", "4", "--deadline", "0.5", "--set", set];
                let folder =
                    group.dump_on(backend, 3, &[&more[..], &["--inject", fault, "--seed", seed]].concat());
                let output = veriep(&["diagnose", text(folder.path()), "--format", "json"]);
                let said: Value = serde_json::from_slice(&output.stdout).unwrap();
                match output.status.code() {
                    Some(3) => {
                        assert!(of(&said).iter().all(|rank| *rank == 1), "{set} {fault} {backend}: {said}");
                    }
                    status => assert_eq!(status, Some(4), "{set} {fault} {backend}: {said}"),
                }
                let bound = said["bound"].as_str().unwrap_or_default();
                let names_all = bound.contains(
                    "another configuration or release, a call that a rank left out, or operators in halves",
                );
                contradicted += usize::from(names_all);
            }
        }
    }
    assert!(contradicted > 0);
}
