//! Answers of `diagnose` where its input is incomplete or contradicts itself: options that nothing states, dumps of different
//! times, a configuration or a case of another job. No rank is named by such evidence that did nothing wrong.

use crate::common::{json, text, veriep};
use crate::dumps::{
    DIRECT, Group, IN_BLOCKS, JOINT, MESSAGES, SEPARATE, SHARED, STREAMS, culprits, of, zero,
};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use tempfile::{TempDir, tempdir};

/// Groups that hang since rank 1 loses such words in a round.
const HANGS: [(&Group, &str); 15] = [
    (&JOINT, "silent=1"),
    (&JOINT, "silent=1:counts"),
    (&JOINT, "silent=1:rows"),
    (&SEPARATE, "silent=1"),
    (&SEPARATE, "silent=1:counts"),
    (&SEPARATE, "silent=1:tokens"),
    (&SEPARATE, "silent=1:rows"),
    (&DIRECT, "silent=1:grants"),
    (&DIRECT, "silent=1:rows"),
    (&IN_BLOCKS, "silent=1:counts"),
    (&IN_BLOCKS, "silent=1:blocks"),
    (&IN_BLOCKS, "silent=1:rows"),
    (&SHARED, "silent=1:rows"),
    (&MESSAGES, "silent=1"),
    (&STREAMS, "silent=1:ends"),
];

fn hang(group: &Group, fault: &str, rounds: &str) -> TempDir {
    group.dump(3, &["--rounds", rounds, "--inject", fault])
}

/// Changes lines of a file in a folder; `None` leaves a line out.
fn change(folder: &Path, name: &str, line: impl Fn(&str) -> Option<String>) {
    let path = folder.join(name);
    let lines: Vec<_> = fs::read_to_string(&path).unwrap().lines().filter_map(line).collect();
    fs::write(path, lines.join("\n") + "\n").unwrap();
}

/// What is said, with whatever status.
fn said(folder: &Path, more: &[&str]) -> (Option<i32>, Value) {
    let output = veriep(&[&["diagnose", text(folder), "--format", "json"], more].concat());
    let said = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output.status.code(), said)
}

/// Nothing but rank 1 is a culprit, and nothing is fine.
fn names_no_innocent(folder: &Path, what: &str) -> bool {
    let (status, said) = said(folder, &[]);
    match status {
        Some(2 | 4) => false,
        Some(3) => {
            assert_eq!(of(&said), [1], "{what}: {said}");
            true
        }
        _ => panic!("{what}: {said}"),
    }
}

#[test]
fn an_option_that_is_left_out_names_no_innocent() {
    let (mut named, mut decisive) = (0, BTreeSet::new());
    for (group, fault) in HANGS {
        for rounds in ["1", "2"] {
            let folder = hang(group, fault, rounds);
            let whole = fs::read_to_string(folder.path().join("options.toml")).unwrap();
            let names: Vec<_> =
                whole.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
            for name in &names {
                change(folder.path(), "options.toml", |line| {
                    (!line.starts_with(name)).then(|| line.to_owned())
                });
                named +=
                    usize::from(names_no_innocent(folder.path(), &format!("{fault} {whole} without {name}")));
                let decides = said(folder.path(), &[]).1["decides"].to_string();
                let option = format!("--{} ", name.replace('_', "-"));
                decisive.extend(decides.contains(&option).then(|| name.clone()));
                fs::write(folder.path().join("options.toml"), &whole).unwrap();
            }
            fs::remove_file(folder.path().join("options.toml")).unwrap();
            named += usize::from(names_no_innocent(folder.path(), &format!("{fault} without {whole}")));
        }
    }
    for rounds in ["2", "4"] {
        let more = ["--schedule", "DDCC", "--rounds", rounds];
        for fault in ["silent=1:rows", "silent=1:counts"] {
            let folder = JOINT.dump(3, &[&more[..], &["--inject", fault]].concat());
            change(folder.path(), "options.toml", |line| {
                (!line.starts_with("in_flight")).then(|| line.to_owned())
            });
            named += usize::from(names_no_innocent(folder.path(), &format!("{fault} {more:?}")));
            let decides = said(folder.path(), &[]).1["decides"].to_string();
            decisive.extend(decides.contains("--in-flight 1 or 2").then(|| "in_flight".to_owned()));
        }
    }
    // Memory mostly shows which value fits. Where it does not, the option is named.
    assert!(named > 60, "{named}");
    assert_eq!(decisive.into_iter().collect::<Vec<_>>(), ["flags", "in_flight", "receive"]);
}

#[test]
fn a_key_of_another_job_names_no_innocent() {
    for (group, fault) in HANGS {
        for rounds in ["1", "2"] {
            let folder = hang(group, fault, rounds);
            let whole = fs::read_to_string(folder.path().join("config.toml")).unwrap();
            for (key, value) in [
                ("moe_expert_num", "4"),
                ("moe_expert_num", "16"),
                ("moe_expert_num", "64"),
                ("comm_alg", "\"\""),
                ("comm_alg", "\"fullmesh_v2\""),
            ] {
                let set = |line: &str| match line.split_once(" = ") {
                    Some((name, _)) if name == key => Some(format!("{key} = {value}")),
                    _ => Some(line.to_owned()),
                };
                change(folder.path(), "config.toml", set);
                names_no_innocent(
                    folder.path(),
                    &format!("{:?} {fault} {rounds} {key} = {value}", group.set),
                );
                fs::write(folder.path().join("config.toml"), &whole).unwrap();
            }
        }
    }
}

/// Evidence contradicts itself, and the report says by what.
fn contradicts(folder: &Path, more: &[&str], what: &str) -> Value {
    let said = json(4, &[&["diagnose", text(folder)], more].concat());
    assert_eq!((of(&said), &said["verdict"]), (vec![], &"unknown".into()), "{said}");
    assert!(said["bound"].as_str().unwrap().starts_with("evidence contradicts itself: "), "{said}");
    assert!(said["bound"].as_str().unwrap().contains(what), "{what}: {said}");
    said
}

#[test]
fn a_rank_behind_those_who_needed_its_flags_is_no_culprit() {
    // All have ended combine 1 but rank 2, whose state is as new.
    for group in [JOINT, SEPARATE, DIRECT, IN_BLOCKS] {
        let folder = group.dump(0, &["--rounds", "1"]);
        zero(folder.path(), |path| path.ends_with("rank2.state"));
        let what =
            "rank 2 has begun nothing, although rank 3 is in combine, which it reached by flags of all ranks";
        contradicts(folder.path(), &[], what);
    }
    let folder = MESSAGES.dump(0, &["--rounds", "1"]);
    zero(folder.path(), |path| path.ends_with("rank2.window"));
    contradicts(folder.path(), &[], "rank 2 has begun nothing, although rank 15 is in combine 1");
}

#[test]
fn a_window_with_fewer_rows_than_were_counted_is_contradicted() {
    for group in [JOINT, SEPARATE, IN_BLOCKS] {
        let folder = hang(&group, "silent=1:rows", "1");
        assert_eq!(culprits(3, folder.path(), &[]), [1]);
        zero(folder.path(), |path| path.ends_with("rank2.window"));
        contradicts(folder.path(), &[], "rank 2: its window has 0 rows of core 0, its state region counts ");
    }
}

#[test]
fn a_case_of_another_batch_names_no_innocent_without_windows() {
    for group in [JOINT, SEPARATE, SHARED] {
        let folder = hang(&group, "silent=1:rows", "1");
        let windows = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let windows = windows.filter(|path| path.extension().is_some_and(|end| end == "window"));
        windows.for_each(|path| fs::remove_file(path).unwrap());
        let case = |seed: &str| {
            let case = tempdir().unwrap();
            let set = group.set.iter().flat_map(|set| ["--set", set]);
            let args = ["gen", "--preset", "tiny", "--seed", seed, "--out", text(case.path()), "--force"];
            assert!(veriep(&args.into_iter().chain(set).collect::<Vec<_>>()).status.success());
            case
        };
        assert_eq!(culprits(3, folder.path(), &["--case", text(case("1").path())]), [1]);
        for seed in ["2", "3", "4"] {
            let case = case(seed);
            contradicts(folder.path(), &["--case", text(case.path())], " rows, and --case sends it ");
        }
    }
}
