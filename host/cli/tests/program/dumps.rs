//! Dumps of our own groups: `run --dump` writes them, `diagnose` says who owes what.

use crate::common::{fails, json, text, veriep};
use core::time::Duration;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Instant;
use tempfile::{TempDir, tempdir};
use veriep_case::config::Config;
use veriep_core::layout::affine::Named;
use veriep_core::protocol::Choices;
use veriep_core::shape::{Given, Limits, Shape};
use veriep_core::units::RankId;
use veriep_plan::export::indices;

/// Overrides of the preset `tiny`, options of `run` that decide what words mean, and how many ranks there are.
pub(crate) struct Group {
    pub(crate) set: &'static [&'static str],
    pub(crate) options: &'static [&'static str],
    pub(crate) ranks: u32,
}

const A3: &[&str] = &["ep_world_size=4", "moe_expert_num=8", "bs=5", "aiv_num=3", "hccl_buffsize_mb=4"];
pub(crate) const JOINT: Group = Group { set: A3, options: &[], ranks: 4 };
pub(crate) const SEPARATE: Group = Group { set: A3, options: &["--flags", "separate"], ranks: 4 };
pub(crate) const DIRECT: Group = Group { set: A3, options: &["--receive", "direct"], ranks: 4 };
pub(crate) const IN_BLOCKS: Group = Group {
    set: &[
        "ep_world_size=4",
        "moe_expert_num=8",
        "bs=5",
        "aiv_num=3",
        "hccl_buffsize_mb=4",
        "comm_alg=fullmesh_v2",
    ],
    options: &[],
    ranks: 4,
};
pub(crate) const TP: Group = Group {
    set: &[
        "release=9.1.0",
        "ep_world_size=4",
        "tp_world_size=2",
        "moe_expert_num=4",
        "bs=5",
        "aiv_num=2",
        "hccl_buffsize_mb=4",
    ],
    options: &[],
    ranks: 8,
};
pub(crate) const SHARED: Group = Group {
    set: &[
        "ep_world_size=4",
        "moe_expert_num=6",
        "shared_expert_rank_num=1",
        "bs=5",
        "aiv_num=2",
        "hccl_buffsize_mb=4",
    ],
    options: &[],
    ranks: 4,
};
const MESH: Group = Group {
    set: &[
        "product=a2",
        "ep_world_size=16",
        "moe_expert_num=32",
        "k=4",
        "aiv_num=2",
        "h=64",
        "hccl_buffsize_mb=8",
    ],
    options: &[],
    ranks: 16,
};
pub(crate) const MESSAGES: Group = Group {
    set: &[
        "product=a2",
        "comm_alg=hierarchy",
        "ep_world_size=16",
        "moe_expert_num=32",
        "k=4",
        "aiv_num=2",
        "h=64",
        "hccl_buffsize_mb=120",
    ],
    options: &[],
    ranks: 16,
};
pub(crate) const STREAMS: Group = Group { options: &["--stage", "2"], ..MESSAGES };

impl Group {
    /// Runs it and returns its dump.
    pub(crate) fn dump(&self, status: i32, more: &[&str]) -> TempDir {
        self.dump_on("lockstep", status, more)
    }

    pub(crate) fn dump_on(&self, backend: &str, status: i32, more: &[&str]) -> TempDir {
        let folder = tempdir().unwrap();
        let set = self.set.iter().flat_map(|set| ["--set", set]);
        let run = ["run", "--preset", "tiny", "--backend", backend, "--dump", text(folder.path())];
        let args: Vec<_> = run.into_iter().chain(set).chain(self.options.iter().copied()).collect();
        let output = veriep(&[&args, more].concat());
        assert_eq!(
            output.status.code(),
            Some(status),
            "{args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        folder
    }

    /// What is said of dumps of a run that has ended: no rank lacks a word. On A3 memory does not show that it has them all.
    pub(crate) fn looks_good(&self, folder: &Path, more: &[&str]) -> Value {
        let is_a2 = self.set.contains(&"product=a2");
        let said = diagnose(if is_a2 { 0 } else { 4 }, folder, more);
        assert_eq!((of(&said), &said["suspects"]), (vec![], &Value::Array(vec![])), "{:?}: {said}", self.set);
        if !is_a2 {
            assert!(said["decides"].to_string().contains("returned?"), "{:?}: {said}", self.set);
        }
        said
    }

    /// Every rank that loses such words is named, and no other one.
    fn names_the_silent(&self, lost: &[&str], rounds: &str) {
        for (what, rank) in lost.iter().flat_map(|what| (0..self.ranks).map(move |rank| (what, rank))) {
            let fault = format!("silent={rank}{what}");
            let folder = self.dump(3, &["--rounds", rounds, "--inject", &fault]);
            assert_eq!(culprits(3, folder.path(), &[]), [rank], "{:?} {:?} {fault}", self.set, self.options);
        }
    }

    /// Every rank that loses such words is the culprit or, where memory would be the same if the words had come and had been
    /// cleared, a suspect while no rank is a culprit. Returns how often it is a suspect.
    fn suspects_the_silent(&self, lost: &str, rounds: &str) -> usize {
        let is_suspected = |rank: &u32| {
            let fault = format!("silent={rank}{lost}");
            let folder = self.dump(3, &["--rounds", rounds, "--inject", &fault]);
            let output = veriep(&["diagnose", text(folder.path()), "--format", "json"]);
            let said: Value = serde_json::from_slice(&output.stdout).unwrap();
            let suspects: Vec<_> =
                said["suspects"].as_array().unwrap().iter().map(|one| &one["rank"]).collect();
            match output.status.code() {
                Some(3) => assert_eq!(of(&said), [*rank], "{fault}: {said}"),
                status => {
                    assert_eq!((status, of(&said)), (Some(4), vec![]), "{fault}: {said}");
                    assert!(
                        suspects.contains(&&Value::from(*rank)) && suspects.len() <= 2,
                        "{fault}: {said}"
                    );
                }
            }
            output.status.code() == Some(4)
        };
        (0..self.ranks).filter(is_suspected).count()
    }
}

pub(crate) fn culprits(status: i32, folder: &Path, more: &[&str]) -> Vec<u32> {
    of(&diagnose(status, folder, more))
}

pub(crate) fn diagnose(status: i32, folder: &Path, more: &[&str]) -> Value {
    json(status, &[&["diagnose", text(folder)], more].concat())
}

pub(crate) fn of(said: &Value) -> Vec<u32> {
    serde_json::from_value(said["culprits"].clone()).unwrap()
}

#[test]
fn who_loses_joint_flags_is_named() {
    JOINT.names_the_silent(&["", ":counts", ":rows"], "1");
    JOINT.names_the_silent(&[":counts", ":rows"], "2");
    Group { options: &["--schedule", "DDCC"], ..JOINT }.names_the_silent(&[":rows"], "2");
    Group { options: &["--receive", "in-place"], ..JOINT }.names_the_silent(&[":rows"], "1");
}

#[test]
fn who_loses_separate_flags_is_named() {
    SEPARATE.names_the_silent(&["", ":counts", ":tokens", ":rows"], "1");
    SEPARATE.names_the_silent(&[":tokens"], "2");
}

#[test]
fn who_loses_flags_in_slots_of_a_line_is_named() {
    Group { options: &["--slots", "64"], ..JOINT }.names_the_silent(&["", ":counts", ":rows"], "1");
}

#[test]
fn who_loses_words_of_direct_placement_is_named() {
    DIRECT.names_the_silent(&["", ":counts", ":grants", ":tokens", ":rows"], "1");
    let overwriting = Group { options: &["--receive", "direct", "--experts", "overwrite"], ..DIRECT };
    overwriting.names_the_silent(&[":grants", ":rows"], "2");
}

#[test]
fn who_loses_flags_of_blocks_is_named() {
    IN_BLOCKS.names_the_silent(&["", ":counts", ":rows"], "1");
    assert!(IN_BLOCKS.suspects_the_silent(":blocks", "1") > 0);
}

#[test]
fn who_loses_words_to_its_peer_is_named() {
    TP.names_the_silent(&["", ":counts"], "1");
    // A rank that returns no rows may wait for what its peer announces first.
    assert!(TP.suspects_the_silent(":rows", "1") > 0);
    assert!(TP.suspects_the_silent(":tp", "1") > 0);
}

#[test]
fn ranks_with_shared_experts_and_with_one_core_are_named() {
    SHARED.names_the_silent(&[":counts", ":rows"], "1");
    let one_core = &["ep_world_size=4", "moe_expert_num=8", "bs=5", "aiv_num=1", "hccl_buffsize_mb=4"];
    Group { set: one_core, ..JOINT }.names_the_silent(&[":counts", ":rows"], "2");
    // A slot for each core: all that is taken is cleared.
    let separate = Group { set: &[], options: &["--flags", "separate"], ranks: 2 };
    separate.names_the_silent(&[""], "1");
    assert_eq!(separate.suspects_the_silent(":tokens", "1"), 2, "either rank may be at fault");
}

#[test]
fn who_loses_the_ends_of_its_windows_is_named() {
    MESH.names_the_silent(&["", ":ends"], "1");
}

#[test]
fn who_loses_messages_is_named() {
    MESSAGES.names_the_silent(&[""], "1");
}

#[test]
fn who_loses_the_ends_of_its_streams_is_named() {
    STREAMS.names_the_silent(&["", ":ends"], "1");
}

#[test]
fn what_a_culprit_may_wait_for_is_no_more_than_a_suspicion() {
    // The slots of rank 15 are the last of each core, so rank 5, which has all words, looks as if it waited for them.
    let folder = tempdir().unwrap();
    let run = "run --preset deepseek-v3-decode --flags separate --set h=1024 --inject silent=5:tokens --deadline 5 --dump";
    let output = veriep(&run.split(' ').chain([text(folder.path())]).collect::<Vec<_>>());
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
    let said = diagnose(3, folder.path(), &[]);
    assert_eq!((of(&said), &said["verdict"]), (vec![5], &"no".into()));
    let suspects = said["suspects"].as_array().unwrap();
    assert!(suspects.iter().all(|one| one["rank"] == 15), "{said}");
    let reason = suspects[0]["reason"].as_str().unwrap();
    assert_eq!(reason, "ranks [5] may wait for its words, which look the same if they came and were cleared");
    // What it may lack is marked.
    assert_eq!((&said["ranks"][5]["sure"], &said["ranks"][4]["sure"]), (&false.into(), &true.into()));
    let line = fails(3, &["diagnose", text(folder.path())]);
    assert_eq!(line, "error: rank 5 has not sent 240 words, but has begun dispatch");
}

#[test]
#[cfg(target_os = "linux")]
fn processes_leave_a_dump_too() {
    let run = ["run", "--preset", "tiny", "--backend", "processes", "--processes", "2", "--deadline", "1"];
    for (rank, lost) in [(1, ""), (0, ":rows")] {
        let (folder, fault) = (tempdir().unwrap(), format!("silent={rank}{lost}"));
        let more = ["--inject", &fault, "--dump", text(folder.path())];
        let output = veriep(&[&run[..], &more].concat());
        assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(culprits(3, folder.path(), &[]), [rank]);
    }
}

#[test]
fn in_good_runs_and_zeros_nobody_owes() {
    let more: [&[&str]; 2] = [&["--rounds", "3"], &["--rounds", "2", "--schedule", "DDCC"]];
    for group in [JOINT, SEPARATE, DIRECT, IN_BLOCKS, TP, MESH, MESSAGES, STREAMS] {
        for more in more {
            let folder = group.dump(0, more);
            let said = group.looks_good(folder.path(), &[]);
            assert_eq!(said["missing"].as_array().unwrap().len(), 0, "{:?} {more:?}: {said}", group.set);
        }
        let folder = group.dump(0, &["--rounds", "1"]);
        zero(folder.path(), |path| path.extension().is_none_or(|end| end != "toml"));
        // Nothing shows that these are dumps of a group at all.
        let said = diagnose(4, folder.path(), &[]);
        assert!(
            said["ranks"].as_array().unwrap().iter().all(|rank| rank["phase"] == "has begun nothing"),
            "{said}"
        );
    }
}

#[test]
fn windows_that_say_nothing_leave_open_who_owes() {
    let hang = ["--rounds", "1", "--inject", "silent=1:rows"];
    for group in [JOINT, SEPARATE, IN_BLOCKS] {
        let folder = group.dump(3, &hang);
        zero(folder.path(), |path| path.extension().is_some_and(|end| end == "window"));
        let output = veriep(&["diagnose", text(folder.path())]);
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(4), "{:?}: {said}", group.set);
    }
}

#[test]
fn a_combine_of_which_nothing_has_come_is_no_good_one() {
    // The results of the only token of rank 0 all come from rank 1.
    let one = ["--set", "bs=1", "--seed", "7", "--rounds", "1", "--deadline", "0.5"];
    let groups: [(&'static [_], &'static [_]); 3] =
        [(&[], &[]), (&["comm_alg=fullmesh_v2"], &[]), (&[], &["--receive", "direct"])];
    for (set, options) in groups {
        let two = Group { set, options, ranks: 2 };
        for lost in ["silent=1:rows", "silent=0:rows"] {
            let folder = two.dump(3, &[&one[..], &["--inject", lost]].concat());
            let status = veriep(&["diagnose", text(folder.path())]).status.code();
            assert!(matches!(status, Some(3 | 4)), "{set:?} {options:?} {lost}: {status:?}");
        }
    }
}

/// Makes files of a dump zeros, as long as they were.
pub(crate) fn zero(folder: &Path, is_one: impl Fn(&Path) -> bool) {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    for path in paths.filter(|path| is_one(path)) {
        let len = path.metadata().unwrap().len();
        fs::File::create(&path).unwrap().set_len(len).unwrap();
    }
}

fn files(folder: &Path) -> Vec<fs::File> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let regions = entries.filter(|path| path.extension().is_none_or(|end| end != "toml"));
    regions.map(|path| fs::OpenOptions::new().read(true).write(true).open(path).unwrap()).collect()
}

#[test]
fn a_rank_that_never_began_is_named() {
    for group in [JOINT, SEPARATE, DIRECT, IN_BLOCKS, MESH, MESSAGES] {
        // Rank 1 has given no rank anything; as if it had never lived.
        let folder = group.dump(3, &["--rounds", "1", "--inject", "silent=1"]);
        zero(folder.path(), |path| path.file_stem().is_some_and(|name| name == "rank1"));
        assert_eq!(culprits(3, folder.path(), &[]), [1], "{:?}", group.set);
        // Without its dump it is unknown, and who waits for it has an excuse.
        for end in ["state", "window"] {
            fs::remove_file(folder.path().join(format!("rank1.{end}"))).unwrap();
        }
        let said = diagnose(4, folder.path(), &[]);
        assert_eq!(said["ranks"][1]["operator"], Value::Null);
        assert!(said["unknown"].to_string().contains("ranks without a dump: [1]"), "{said}");
    }
}

/// Memory of A2 does not show whether words have the numbers of their calls, and old ones then look like those that have come.
#[test]
fn a_dump_without_its_options_is_not_called_good_nor_blames_another() {
    for words in [&[][..], &["--unchecked"]] {
        for group in [JOINT, IN_BLOCKS, MESH, MESSAGES] {
            let folder = group.dump(3, &[&["--rounds", "3", "--inject", "silent=1"], words].concat());
            assert_eq!(culprits(3, folder.path(), &[]), [1], "{:?} {words:?}", group.set);
            fs::remove_file(folder.path().join("options.toml")).unwrap();
            let output = veriep(&["diagnose", text(folder.path()), "--format", "json"]);
            let said: Value = serde_json::from_slice(&output.stdout).unwrap();
            match output.status.code() {
                Some(3) => assert_eq!(of(&said), [1], "{:?} {words:?}: {said}", group.set),
                status => {
                    assert_eq!((status, of(&said)), (Some(4), vec![]), "{:?} {words:?}: {said}", group.set);
                }
            }
        }
    }
}

#[test]
fn ranks_two_operators_apart_are_placed() {
    // Rank 0 is in dispatch 1 and lacks flags of rank 1; the others have ended combine 1.
    let folder = JOINT.dump(0, &["--rounds", "1"]);
    let waits = JOINT.dump(3, &["--rounds", "1", "--inject", "silent=1:counts"]);
    let state = |folder: &TempDir, rank: u32| folder.path().join(format!("rank{rank}.state"));
    fs::copy(state(&waits, 0), state(&folder, 0)).unwrap();
    let put = |rank, at: u64, word: u64| {
        let file = fs::OpenOptions::new().write(true).open(state(&folder, rank)).unwrap();
        file.write_all_at(&word.to_le_bytes(), at).unwrap();
    };
    assert_eq!(culprits(3, folder.path(), &[]), [1]);
    // They begin dispatch 2: its selectors are 0 again. Only rank 0 could not.
    (1..4).for_each(|rank| (0..3).for_each(|core| put(rank, 786_432 + 512 * core, 0)));
    // A flag of rank 2 is early there.
    put(0, 393_216 + 32 * 2, 0x3F80_0000);
    let said = diagnose(3, folder.path(), &[]);
    assert_eq!(of(&said), [1, 2, 3]);
    assert!(said["missing"].to_string().contains("flag of rank 1 for local expert 1"), "{said}");
    // Further apart they cannot be: rank 1 behind combine 1, and rank 2 in combine 2.
    (0..3).for_each(|core| put(1, 786_432 + 512 * core, 1));
    (0..3).for_each(|core| put(2, 837_632 + 512 * core, 0));
    let said = diagnose(4, folder.path(), &[]);
    assert_eq!(of(&said), [0; 0]);
    assert!(said["bound"].to_string().contains("further apart than they can be"), "{said}");
}

#[test]
fn it_is_said_how_far_each_rank_is() {
    let folder = JOINT.dump(3, &["--rounds", "1", "--inject", "silent=2:counts"]);
    let said = diagnose(3, folder.path(), &[]);
    let [first, silent] = [0, 2].map(|rank| &said["ranks"][rank]);
    assert_eq!((&first["operator"], &first["phase"]), (&"dispatch".into(), &"waits for flags".into()));
    // Selectors have it modulo 2.
    assert_eq!(first["number"], Value::Null);
    assert_eq!((&silent["operator"], &silent["phase"]), (&"combine".into(), &"waits for results".into()));
    let wait = &first["waits_for"][0];
    assert_eq!((&wait["what"], &wait["source"]), (&"dispatch_flag".into(), &2.into()));
    assert!(said["missing"].to_string().contains("dispatch: dispatch flag of rank 2 for local expert 0"));
    let said = diagnose(3, MESSAGES.dump(3, &["--inject", "silent=9"]).path(), &[]);
    assert_eq!((&said["ranks"][0]["operator"], &said["ranks"][0]["number"]), (&"dispatch".into(), &1.into()));
}

#[test]
fn what_is_no_dump_of_the_group_is_refused() {
    let fresh = || JOINT.dump(3, &["--rounds", "1", "--inject", "silent=1"]);
    let says = |folder: &TempDir, more: &[&str], words: &str| {
        let line = fails(2, &[&["diagnose", text(folder.path())], more].concat());
        assert!(line.contains(words), "{line}");
    };
    let changed = |folder: TempDir, name: &str, from: &str, to: &str| {
        let path = folder.path().join(name);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(path, text.replace(from, to)).unwrap();
        folder
    };
    let hang = |group: Group, what: &str| group.dump(3, &["--rounds", "1", "--inject", what]);
    let folder = changed(SEPARATE.dump(0, &["--rounds", "1"]), "config.toml", "aiv_num = 3", "aiv_num = 2");
    says(&folder, &[], "rank0.state: 0x");
    let folder = SEPARATE.dump(3, &["--inject", "silent=1:rows"]);
    says(&changed(folder, "config.toml", "moe_expert_num = 8", "moe_expert_num = 4"), &[], "nothing");
    // A rank that was given other flags than the others.
    let (folder, other) = (fresh(), hang(SEPARATE, "silent=1:tokens"));
    fs::copy(other.path().join("rank0.state"), folder.path().join("rank0.state")).unwrap();
    says(&folder, &[], "rank0.state: 0x3f8000003f800000 at byte");
    let direct = changed(DIRECT.dump(0, &["--rounds", "1"]), "options.toml", "\"direct\"", "\"copy\"");
    says(&direct, &[], "rank0.state: ");
    // What a folder states of its dumps stands.
    for (more, words) in [
        (["--set", "k=1"], "config.toml: k = 2: the arguments say 1: must agree with the dumps"),
        (["--set", "aiv_num=2"], "config.toml: aiv_num = 3: the arguments say 2"),
        (["--preset", "tiny"], "config.toml: aiv_num = 3: the arguments say 8"),
        (["--flags", "separate"], "options.toml: flags = \"joint\": the arguments say \"separate\""),
        (["--receive", "direct"], "options.toml: receive = \"copy\": the arguments say \"direct\""),
        (["--in-flight", "2"], "options.toml: in_flight = 1: the arguments say 2"),
    ] {
        says(&fresh(), &more, words);
    }
    assert_eq!(culprits(3, fresh().path(), &["--set", "k=2", "--flags", "joint"]), [1]);
    says(&fresh(), &["--from", "cann-m"], "rank0.state: dispatch record of core 0");
    for (name, text, words) in [
        ("options.toml", "flags = \"none\"", "options.toml: flags: must be joint or separate"),
        ("options.toml", "stages = 3", "unknown field `stages`"),
        ("options.toml", "checked = true\nin_flight = 3", "in_flight = 3: must be 1 or 2 on A3"),
        ("rank2.state", "short", "rank2.state: has 5 bytes: must have 1048576"),
        ("rank2.window", "", "rank2.window: has 0 bytes: must have 4194304"),
        ("rank4.state", "", "rank4.state: is of no rank of this configuration"),
    ] {
        let folder = fresh();
        fs::write(folder.path().join(name), text).unwrap();
        says(&folder, &[], words);
    }
}

#[test]
fn noise_is_refused_or_says_nothing() {
    for group in [JOINT, DIRECT, IN_BLOCKS, TP, MESH, MESSAGES, STREAMS] {
        let folder = group.dump(0, &["--rounds", "1"]);
        for seed in 1..4_u64 {
            for file in files(folder.path()).iter().skip(seed as usize).step_by(3) {
                // Products of an odd number, cut down to their upper bytes, at the start of the region.
                let word = |n: u64| ((n * seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 8).to_le_bytes();
                let noise: Vec<_> = (0..1 << 14).flat_map(word).collect();
                file.write_all_at(&noise, 0).unwrap();
            }
            let output = veriep(&["diagnose", text(folder.path())]);
            let line = String::from_utf8(output.stderr).unwrap();
            assert!(matches!(output.status.code(), Some(0 | 2 | 4)), "{:?} {seed}: {line}", group.set);
        }
    }
}

#[test]
fn a_running_group_is_dumped_when_a_signal_asks() {
    let folder = tempdir().unwrap();
    let dumped = folder.path().join("dumped");
    let mut run = Command::new(env!("CARGO_BIN_EXE_veriep"))
        .args([
            "run",
            "--preset",
            "tiny",
            "--inject",
            "silent=1:counts",
            "--deadline",
            "2",
            "--dump",
            text(&dumped),
        ])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while !dumped.join("config.toml").exists() {
        assert!(start.elapsed() < Duration::from_secs(60), "no dump");
        // Until the program has begun to listen the signal would end it.
        sleep(Duration::from_millis(300));
        assert_eq!(run.try_wait().unwrap(), None, "it goes on");
        let kill = Command::new("kill").args(["-USR2", &run.id().to_string()]).status().unwrap();
        assert!(kill.success());
    }
    assert_eq!(run.try_wait().unwrap(), None, "it goes on");
    let output = run.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8(output.stderr).unwrap().contains("dumped: dumped"));
    assert_eq!(culprits(3, &dumped, &[]), [1]);
    // Pages that were never touched are holes.
    let window = dumped.join("rank0.window").metadata().unwrap();
    assert!(window.blocks() * 512 < window.len() / 10, "{} blocks", window.blocks());
}

/// Rank 2 leaves out a call, so its words have numbers that no other rank awaits, also where numbers come round. Of two ranks
/// either may be the one.
#[test]
fn a_rank_in_another_call_is_named_with_both_numbers() {
    for group in [JOINT, SEPARATE, DIRECT, IN_BLOCKS, MESH, MESSAGES, STREAMS] {
        let folder = group.dump(1, &["--rounds", "6", "--inject", "skips=2:3"]);
        let said = diagnose(3, folder.path(), &[]);
        let line = said["bound"].as_str().unwrap();
        let is_subject = line.starts_with("rank 2 is one call ahead of rank ")
            && (line.contains("has number 4 where 3 is") || line.contains("has number 3 where 4 is"));
        let is_one_of_two = line.contains(" is one call behind rank 2: ");
        assert!(is_subject || of(&said).is_empty() && is_one_of_two, "{:?}: {line}", group.set);
        let suspected = said["suspects"].as_array().unwrap().iter().any(|one| one["rank"] == 2);
        assert!(of(&said) == [2] || of(&said).is_empty() && suspected, "{:?}: {said}", group.set);
        assert!(!line.contains("has not sent"), "{line}");
        // Read as words without numbers they may all have come.
        fs::remove_file(folder.path().join("options.toml")).unwrap();
        let output = veriep(&["diagnose", text(folder.path())]);
        assert_ne!(output.status.code(), Some(0), "{:?}", group.set);
    }
    let mut named = 0;
    // The subject is the rank that differs from all others, not one whose word it was first to refuse.
    for (rank, seed) in (0..4).flat_map(|rank| ["1", "2", "3"].map(|seed| (rank, seed))) {
        let skips = format!("skips={rank}:1");
        let folder = JOINT.dump(1, &["--rounds", "4", "--inject", &skips, "--seed", seed]);
        let said = diagnose(3, folder.path(), &[]);
        let line = said["bound"].as_str().unwrap();
        // Where memory shows one pair alone, either may be the one.
        if of(&said).is_empty() {
            continue;
        }
        named += 1;
        assert_eq!(of(&said), [rank], "{skips} {seed}: {said}");
        assert!(
            line.starts_with(&format!("rank {rank} is one call ahead of rank ")),
            "{skips} {seed}: {line}"
        );
    }
    assert!(named > 4, "{named}");
    let folder = JOINT.dump(1, &["--rounds", "2050", "--inject", "skips=2:2047"]);
    let line = diagnose(3, folder.path(), &[])["bound"].to_string();
    let ahead =
        line.contains("rank 2 is one call ahead of rank ") && line.contains("has number 0 where 2047 is");
    assert!(ahead || line.contains("is one call behind rank 2"), "{line}");
    let two = Group { set: &["aiv_num=2"], options: &[], ranks: 2 };
    let folder = two.dump(1, &["--rounds", "4", "--inject", "skips=1:2"]);
    let said = diagnose(3, folder.path(), &[]);
    let reasons: Vec<_> = said["suspects"].as_array().unwrap().iter().map(|one| &one["reason"]).collect();
    assert_eq!((of(&said), reasons.len()), (vec![], 2), "{said}");
    assert!(reasons[0].as_str().unwrap().starts_with("it is in another call than ranks [1]"), "{said}");
}

/// A hang of a hierarchy as it would be just after numbers in words have come round: what has not come has the last number before.
#[test]
fn epochs_that_have_come_round_are_told_from_old_ones() {
    let folder = MESSAGES.dump(3, &["--rounds", "1", "--inject", "silent=3"]);
    let before = diagnose(3, folder.path(), &[]);
    assert_eq!(of(&before), [3]);
    let config = fs::read_to_string(folder.path().join("config.toml")).unwrap();
    let config = Config::parse(&config).unwrap();
    let shape = Shape::new(&config.as_core(Given::empty()), Limits::None).unwrap();
    let (last, beside) = ((1_u64 << 36) - 1, 16);
    for member in 0..MESSAGES.ranks {
        let path = folder.path().join(format!("rank{member}.window"));
        let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        for named in [Named::Epochs, Named::Entered, Named::EndFlags, Named::Counts] {
            let map = named.map(&shape, Choices::default().mode(), RankId(member)).unwrap();
            for indices in indices(&map) {
                let at = map.offset(indices);
                let mut bytes = [0; 8];
                file.read_exact_at(&mut bytes, at).unwrap();
                let word = u64::from_le_bytes(bytes);
                // Operator 1 is number 2^36 + 1 then, which words state as 3.
                let new = match (named, word) {
                    (Named::Epochs, 0) => 0,
                    (Named::Epochs, _) => last + 2,
                    (Named::Entered, 0) => last << 12,
                    (Named::Entered, _) => 3 << 12,
                    (_, 0) => last << (12 + beside),
                    _ => word + (2 << (12 + beside)),
                };
                file.write_all_at(&u64::to_le_bytes(new), at).unwrap();
            }
        }
    }
    let after = diagnose(3, folder.path(), &[]);
    assert_eq!(of(&after), [3], "{after}");
    let waits = |said: &Value| -> Vec<Value> {
        let ranks = said["ranks"].as_array().unwrap().iter();
        ranks.map(|rank| Value::from(rank["waits_for"].as_array().unwrap().len())).collect()
    };
    assert_eq!(waits(&after), waits(&before));
    assert_eq!(after["ranks"][0]["number"], (last + 3) / 2);
}
