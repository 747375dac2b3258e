//! The verdicts of all subcommands: no yes where a search was cut short, where input is incomplete, or where evidence is
//! ambiguous.

use crate::common::all_of;
use crate::common::{let_work, text, veriep};
use crate::diagnose::{M, with_absent_cores};
use crate::dumps::{JOINT, MESSAGES, SEPARATE, zero};
use clap::CommandFactory;
use core::time::Duration;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::{TempDir, tempdir};
use veriep::cli::Cli;
use veriep_case::store::{Tensor, write_tensors};

/// Subcommands that report no verdict: they print, write or measure.
const OTHERS: [&str; 8] =
    ["gen", "layout", "export", "plan", "simulate", "golden", "mpi-shim", "completions"];

/// What a command says: its verdict, or none if the request is refused, and its exit status.
type Said = (Option<&'static str>, i32);

const YES: Said = (Some("yes"), 0);
const WRONG: Said = (Some("no"), 1);
const INVALID: Said = (Some("no"), 2);
const HANGS: Said = (Some("no"), 3);
const UNKNOWN: Said = (Some("unknown"), 4);
const REFUSED: Said = (None, 2);

/// A command, the situation that it is in, and what it must say. A command that ends in `^C` is interrupted.
const ROWS: [(&str, &str, Said); 74] = [
    ("check --preset tiny", "a valid configuration", YES),
    ("check case", "a valid case", YES),
    ("check alone", "a valid case of combine alone", YES),
    ("check alone-short", "experts returned fewer rows than they had", INVALID),
    ("check alone-cut", "the rows that experts returned end too early", INVALID),
    ("check --preset tiny --set k=99", "a rule is broken", INVALID),
    ("check cut-case", "the tensors end too early", INVALID),
    ("check valid.toml other.toml", "two layers of different groups", INVALID),
    ("check call.py", "a pasted call leaves keys to defaults", UNKNOWN),
    ("check setup.py", "a pasted call is one of another operator", REFUSED),
    ("check one-rank.py", "a default breaks a rule that another product keeps", UNKNOWN),
    ("check one-rank.py --set product=a3", "that product breaks it", INVALID),
    ("check many-ranks.py", "no product keeps the rule", INVALID),
    ("check empty.toml", "the file states nothing", UNKNOWN),
    ("check empty.toml --set k=2 --set moe_expert_num=64", "an option states what a file could", YES),
    ("check null-op.json", "a value is null that decides a rule", UNKNOWN),
    ("check nulls.json", "all values are null", UNKNOWN),
    ("check null-k.json", "a value is null whose default breaks a rule", UNKNOWN),
    ("run empty.toml", "the file states nothing", REFUSED),
    ("check valid.toml empty.toml", "one layer states nothing", UNKNOWN),
    ("check nowhere", "there is no configuration", REFUSED),
    ("schedule DC", "every state was searched", YES),
    ("schedule D --product a2 --ranks 3", "every state of a model was searched", YES),
    ("schedule DDDCCC", "a state is bad", WRONG),
    ("schedule DDDCCC --states 500", "the search was cut before the bad state", UNKNOWN),
    ("schedule DC --states 1", "the search of a safe order was cut", UNKNOWN),
    ("schedule DC --product a2 --ranks 3 --states 9", "the search of a model was cut", UNKNOWN),
    ("schedule DC --ranks 3 --receive direct ^C", "the search was interrupted", UNKNOWN),
    ("schedule CD", "no order of operators", REFUSED),
    ("run --preset tiny", "all rounds agree with the reference", YES),
    ("run --preset tiny --no-check", "no round was compared", UNKNOWN),
    ("run --preset tiny --rounds 1000000 ^C", "the run was interrupted", UNKNOWN),
    ("run --preset tiny --backend lockstep --inject silent=1", "a rank sends nothing", HANGS),
    (
        "run --preset a2-hier-16 --set h=512 --set bs=1 --backend lockstep --rounds 1 --inject twice=1",
        "a rank sends more than planned, and every output is right",
        YES,
    ),
    ("run --preset tiny --set k=99", "the configuration is invalid", REFUSED),
    ("compare case result", "all tensors agree", YES),
    ("compare case result --tensors x_out --ranks 1", "a part that is asked for agrees", YES),
    ("compare case padded --padded", "rows after the received ones are left out", YES),
    ("compare case padded --padded-with 0", "rows after the received ones hold something else", WRONG),
    ("compare case padded --padded-with 1e-300", "the tensor cannot hold the value", REFUSED),
    ("compare case wrong", "one value is wrong", WRONG),
    ("compare case one-tensor", "tensors are missing", WRONG),
    ("compare case wrong --ranks 0,1 --tensors x_out", "a part that is asked for is wrong", WRONG),
    ("compare case one-tensor --ranks 0,1", "a rank that is asked for is missing", UNKNOWN),
    ("compare case one-tensor --tensors x_out,expand_x", "a tensor that is asked for is missing", UNKNOWN),
    ("compare case result --tensors rstd", "no such tensor is there", UNKNOWN),
    ("compare hot hot/expected.safetensors --ranks 1 --tensors expand_x", "the tensor has no rows", UNKNOWN),
    (
        "compare case holes --ranks 0,1 --tensors x_out,expand_x",
        "one of the pairs asked for is missing",
        UNKNOWN,
    ),
    ("check foreign", "there are tensors, and no layout that judges them", UNKNOWN),
    ("conform events-hollow", "no word is observed", UNKNOWN),
    ("compare case nowhere", "there is no result", REFUSED),
    ("compare result result", "a file is compared with itself", YES),
    ("compare nameless nameless-too", "no tensor has a rank in its name", YES),
    ("compare nameless nameless-too --ranks 0", "no tensor has the rank that is asked for", REFUSED),
    ("conform events", "a whole run keeps the contract", YES),
    ("conform events-broken", "an event breaks the contract", WRONG),
    ("conform events-empty", "there are no events", UNKNOWN),
    ("conform events-half", "the record ends in the middle", UNKNOWN),
    ("conform events-part", "the record ends within a line", UNKNOWN),
    ("conform events-unsent", "no row is put", UNKNOWN),
    ("conform events-unread", "no row is read", UNKNOWN),
    ("conform events-foreign", "an event has a field that means nothing", REFUSED),
    ("conform valid.toml", "this is no record", REFUSED),
    ("diagnose good-servers", "no rank lacks a word, and none is ever cleared", YES),
    ("diagnose good", "no rank lacks a word, as if all or none had come", UNKNOWN),
    ("diagnose nothing-came", "all results of a token are missing", UNKNOWN),
    ("diagnose good --set k=1", "the dumps are of another group", REFUSED),
    ("diagnose hang", "words of one rank are surely missing", HANGS),
    ("diagnose zeros", "no rank has begun anything", UNKNOWN),
    ("diagnose good-but-one", "the dump of a rank is missing", UNKNOWN),
    ("diagnose cleared", "words came and were cleared, or never came", UNKNOWN),
    ("diagnose absent-on-one --from cann-m", "cores of one rank have not begun", HANGS),
    ("diagnose absent-on-all --from cann-m", "the same cores of all ranks have not begun", UNKNOWN),
    ("diagnose case", "this folder has no dumps", REFUSED),
];

/// A folder with everything that the rows name.
fn room() -> TempDir {
    let folder = tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let does = |args: &[&str]| {
        let output = veriep(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let generate = ["gen", "--preset", "tiny", "--seed", "3", "--expected", "--out"];
    does(&[&generate[..], &[text(&at("case"))]].concat());
    does(&[&generate[..], &[text(&at("hot")), "--routing", "hot", "--set", "k=1"]].concat());
    copy(&at("case"), &at("cut-case"));
    let inputs = at("cut-case").join("inputs.safetensors");
    let bytes = fs::read(&inputs).unwrap();
    fs::write(inputs, &bytes[..bytes.len() - 9]).unwrap();
    fs::write(at("valid.toml"), "ep_world_size = 2\nmoe_expert_num = 4\nk = 2\n").unwrap();
    fs::write(at("other.toml"), "ep_world_size = 4\nmoe_expert_num = 4\nk = 2\n").unwrap();
    let call = |function: &str, ranks: u32| {
        format!("torch_npu.npu_moe_distribute_{function}(ep_world_size={ranks}, moe_expert_num=64)")
    };
    for (name, function, ranks) in [
        ("call.py", "dispatch_v2", 16),
        ("setup.py", "dispatch_setup", 16),
        ("one-rank.py", "dispatch_v2", 1),
        ("many-ranks.py", "combine", 2000),
    ] {
        fs::write(at(name), call(function, ranks)).unwrap();
    }
    for (name, content) in [
        ("empty.toml", "# nothing\n"),
        ("nulls.json", "{\"ep_world_size\": null, \"k\": null}"),
        ("null-op.json", "{\"ep_world_size\": 16, \"product\": \"a2\", \"op\": null}"),
        ("null-k.json", "{\"k\": null, \"moe_expert_num\": 4, \"ep_world_size\": 2}"),
    ] {
        fs::write(at(name), content).unwrap();
    }
    results(&at("case").join("expected.safetensors"), &at);
    copy(&at("case"), &at("foreign"));
    let server = "product = \"a2\"\nep_world_size = 8\nmoe_expert_num = 64\n";
    fs::write(at("foreign").join("config.toml"), server).unwrap();
    let run = ["run", "--preset", "tiny", "--backend", "lockstep", "--rounds", "2", "--events"];
    does(&[&run[..], &[text(&at("events"))]].concat());
    let events = fs::read_to_string(at("events")).unwrap();
    let lines: Vec<_> = events.lines().collect();
    let without_puts = lines.iter().filter(|line| !line.contains("\"kind\":\"put\""));
    fs::write(at("events-broken"), without_puts.copied().collect::<Vec<_>>().join("\n")).unwrap();
    fs::write(at("events-empty"), lines[0]).unwrap();
    let bare = lines.iter().enumerate().filter(|(at, line)| {
        *at == 0 || ["begin", "end"].iter().any(|kind| line.contains(&format!("\"kind\":\"{kind}\"")))
    });
    fs::write(at("events-hollow"), bare.map(|(_, line)| *line).collect::<Vec<_>>().join("\n") + "\n")
        .unwrap();
    let without = |kinds: &[&str]| {
        let is_left_out =
            |line: &str| kinds.iter().any(|kind| line.contains(&format!("\"kind\":\"{kind}\"")));
        lines.iter().filter(|line| !is_left_out(line)).map(|line| format!("{line}\n")).collect::<String>()
    };
    fs::write(at("events-unsent"), without(&["put", "deliver"])).unwrap();
    fs::write(at("events-unread"), without(&["deliver"])).unwrap();
    fs::write(at("events-foreign"), events.replacen("\"time\"", "\"tick\"", 1)).unwrap();
    fs::write(at("events-half"), lines[..lines.len() / 2].join("\n")).unwrap();
    fs::write(at("events-part"), &events[..events.len() - 9]).unwrap();
    let dump = |name: &str, dump: TempDir| fs::rename(dump.keep(), at(name)).unwrap();
    dump("good", JOINT.dump(0, &["--rounds", "1"]));
    dump("good-servers", MESSAGES.dump(0, &["--rounds", "1"]));
    let two =
        crate::dumps::Group { set: &["bs=1"], options: &["--seed", "7", "--deadline", "0.5"], ranks: 2 };
    dump("nothing-came", two.dump(3, &["--rounds", "1", "--inject", "silent=1:rows"]));
    dump("hang", JOINT.dump(3, &["--rounds", "1", "--inject", "silent=1:counts"]));
    copy(&at("good"), &at("good-but-one"));
    fs::remove_file(at("good-but-one").join("rank3.state")).unwrap();
    copy(&at("good"), &at("zeros"));
    zero(&at("zeros"), |file| file.extension().is_some_and(|end| end == "state" || end == "window"));
    let cleared = ["--rounds", "1", "--deadline", "0.5", "--inject", "silent=3:tokens"];
    let eight = crate::dumps::Group { set: &["ep_world_size=4", "moe_expert_num=8"], ..SEPARATE };
    dump("cleared", eight.dump_on("threads", 3, &cleared));
    dump("absent-on-one", with_absent_cores(M, [&[], &[1, 2], &[], &[]]));
    dump("absent-on-all", with_absent_cores(M, [&[2]; 4]));
    folder
}

/// Results that are right, wrong, longer than they must be, and only a part.
fn results(expected: &Path, at: &dyn Fn(&str) -> PathBuf) {
    let tensors = || all_of(expected);
    fs::copy(expected, at("result")).unwrap();
    let (mut wrong, mut padded) = (tensors(), tensors());
    wrong.iter_mut().find(|one| one.name == "rank0.x_out").unwrap().data.to_mut()[7] ^= 1;
    write_tensors(&at("wrong"), wrong).unwrap();
    let rows = padded.iter_mut().find(|one| one.name == "rank0.expand_x").unwrap();
    rows.shape[0] += 1;
    rows.data.to_mut().extend(vec![0xA5; 2 * rows.shape[1]]);
    write_tensors(&at("padded"), padded).unwrap();
    let mut holes = tensors();
    holes.retain(|one| ["rank0.x_out", "rank0.expand_x", "rank1.x_out"].contains(&&*one.name));
    write_tensors(&at("holes"), holes).unwrap();
    for name in ["nameless", "nameless-too"] {
        let mut nameless = tensors();
        nameless.retain(|one| ["rank0.x_out", "rank0.expand_x"].contains(&&*one.name));
        nameless.iter_mut().for_each(|one| one.name = one.name.replace("rank0.", ""));
        write_tensors(&at(name), nameless).unwrap();
    }
    alone(tensors(), at);
    let one = tensors().into_iter().filter(|one| one.name == "rank1.x_out");
    write_tensors(&at("one-tensor"), one.collect()).unwrap();
}

/// Cases of combine alone: right, with a row less, and cut.
fn alone(tensors: Vec<Tensor<'_>>, at: &dyn Fn(&str) -> PathBuf) {
    let file = |name: &str| {
        copy(&at("case"), &at(name));
        at(name).join("returned.safetensors")
    };
    let mut rows = tensors;
    rows.retain(|one| one.name.ends_with(".expand_x"));
    write_tensors(&file("alone"), rows.clone()).unwrap();
    let bytes = fs::read(at("alone").join("returned.safetensors")).unwrap();
    fs::write(file("alone-cut"), &bytes[..bytes.len() - 9]).unwrap();
    rows[0].shape[0] -= 1;
    let len = rows[0].data.len() - 2 * rows[0].shape[1];
    rows[0].data.to_mut().truncate(len);
    write_tensors(&file("alone-short"), rows).unwrap();
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path()) {
        fs::copy(&entry, to.join(entry.file_name().unwrap())).unwrap();
    }
}

/// Runs a row's command, and interrupts it if the row says so.
fn run(folder: &Path, command: &str, more: &[&str]) -> Output {
    let (words, is_interrupted) = command.strip_suffix(" ^C").map_or((command, false), |words| (words, true));
    let mut program = Command::new(env!("CARGO_BIN_EXE_veriep"));
    program.args(words.split(' ')).args(more).current_dir(folder);
    let program = program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = program.spawn().unwrap();
    if is_interrupted {
        let_work(child.id(), Duration::from_millis(500), Duration::from_millis(1500));
        assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    }
    child.wait_with_output().unwrap()
}

/// What is wrong with what a command says, if anything is.
fn wrong(folder: &Path, (command, _, (verdict, status)): (&str, &str, Said)) -> Option<String> {
    let output = run(folder, command, &["--format", "json"]);
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let seen = (said["verdict"].as_str(), output.status.code());
    if seen != (verdict, Some(status)) {
        return Some(format!("JSON says {seen:?}: {said}"));
    }
    // Some reports have this field as well.
    if said["ok"].as_bool().is_some_and(|ok| ok != (verdict == Some("yes"))) {
        return Some(format!("ok is {}", said["ok"]));
    }
    let decides = said["decides"].as_array().map_or(0, Vec::len);
    if (verdict == Some("unknown")) != (decides > 0) {
        return Some(format!("{decides} things would decide it"));
    }
    let output = run(folder, command, &[]);
    let (table, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.code() != Some(status) {
        return Some(format!("ends with {:?}: {errors}", output.status));
    }
    let first = table.lines().next().unwrap_or_default();
    let is_told = match verdict {
        Some(verdict) => first.starts_with(&format!("verdict  {verdict}: ")),
        None => first.is_empty(),
    };
    if !is_told {
        return Some(format!("the table begins with {first:?}"));
    }
    if table.lines().count() > 10 {
        return Some(format!("the table has more than ten lines: {table}"));
    }
    let has_errors = errors.lines().any(|line| line.starts_with("error: "));
    (has_errors == (status == 0)).then(|| format!("stderr says {errors:?}"))
}

#[test]
fn every_subcommand_has_the_verdict_that_its_situation_allows() {
    let room = room();
    let wrong: Vec<_> = ROWS
        .into_iter()
        .filter_map(|row| Some(format!("veriep {} ({}): {}", row.0, row.1, wrong(room.path(), row)?)))
        .collect();
    assert!(wrong.is_empty(), "{} of {} rows:\n{}", wrong.len(), ROWS.len(), wrong.join("\n"));
}

#[test]
fn no_subcommand_is_left_out() {
    let judged: BTreeSet<_> = ROWS.iter().filter_map(|(command, _, _)| command.split(' ').next()).collect();
    let command = Cli::command();
    let all: BTreeSet<_> = command.get_subcommands().map(clap::Command::get_name).collect();
    assert_eq!(judged.union(&OTHERS.into_iter().collect()).copied().collect::<BTreeSet<_>>(), all);
    for command in judged {
        let verdicts: BTreeSet<_> =
            ROWS.iter().filter(|row| row.0.split(' ').next() == Some(command)).map(|row| row.2.0).collect();
        // A configuration can be judged whole.
        let least = if command == "check" { 2 } else { 3 };
        assert!(verdicts.into_iter().flatten().count() >= least, "{command}: a verdict has no row");
    }
}

#[test]
fn more_than_ten_lines_are_printed_on_request() {
    let room = room();
    for command in ["check --preset tiny", "run --preset tiny", "compare case result", "schedule DDDCCC"] {
        let lines = |more: &[&str]| {
            let output = run(room.path(), command, more).stdout;
            String::from_utf8(output).unwrap().lines().filter(|line| !line.is_empty()).count()
        };
        let (short, long) = (lines(&[]), lines(&["-v"]));
        assert!(short <= 10 && long > short, "{command}: {short} and {long} lines");
    }
}
