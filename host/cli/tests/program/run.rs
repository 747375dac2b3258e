//! `veriep run`, from outside.

use crate::common::{fails, json, text, veriep};
use core::time::Duration;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;
use tempfile::tempdir;
use veriep_case::store::TensorFile;

const BACKENDS: [&str; 3] = ["threads", "lockstep", "weak"];

/// Runs the tiny preset and returns the bytes of its result.
fn result(folder: &Path, name: &str, more: &[&str]) -> Vec<u8> {
    let out = folder.join(name);
    json(0, &[&["run", "--out", text(&out)], more].concat());
    fs::read(out).unwrap()
}

#[test]
fn every_backend_and_every_choice_writes_the_same_result() {
    let folder = tempdir().unwrap();
    let tiny = ["--preset", "tiny"];
    let run = |more: &[&str]| result(folder.path(), "result.safetensors", &[&tiny[..], more].concat());
    let expected = run(&[]);
    for backend in BACKENDS {
        assert_eq!(run(&["--backend", backend]), expected, "{backend}");
    }
    for choice in [
        &["--rounds", "1"][..],
        &["--rounds", "7", "--schedule", "DDCC"],
        &["--schedule", "DCDDCC", "--chain", "2", "--rounds", "6"],
        &["--schedule", "DDCC", "--backend", "weak", "--rounds", "5"],
        &["--schedule", "DsDrCsCr", "--rounds", "3"],
        &["--schedule", "Ds1 Cs0 Dr1 Cr0", "--chain", "3", "--spread", "cores", "--threads", "3"],
        &["--schedule", "Ds1 Cs0 Dr1 Cr0", "--backend", "weak", "--rounds", "5"],
        &["--order", "plain"],
        &["--order", "plain", "--backend", "lockstep"],
        &["--spread", "cores", "--threads", "3"],
        &["--threads", "1"],
        &["--vector", "portable"],
        &["--vector", "auto", "--spread", "cores"],
        &["--row-copy", "streaming"],
        &["--threads", "8", "--spread", "cores"],
        &["--deadline", "0.5"],
    ] {
        assert_eq!(run(choice), expected, "{choice:?}");
    }
    assert_ne!(run(&["--seed", "2"]), expected);
    let unchecked = folder.path().join("unchecked");
    json(4, &["run", "--preset", "tiny", "--no-check", "--out", text(&unchecked)]);
    assert_eq!(fs::read(unchecked).unwrap(), expected);
}

#[test]
fn the_result_is_that_of_the_last_round_with_rows_really_received() {
    let folder = tempdir().unwrap();
    result(folder.path(), "result", &["--preset", "tiny", "--set", "quant_mode=2", "--set", "k=1"]);
    let mut file = TensorFile::open(&folder.path().join("result")).unwrap();
    let shape = |name: &str| file.info(name).unwrap().shape.clone();
    let rows = shape("rank0.expand_x")[0] + shape("rank1.expand_x")[0];
    assert_eq!(rows, 8, "each of 2 x 4 tokens goes to one expert");
    for rank in ["rank0", "rank1"] {
        let n = shape(&format!("{rank}.expand_x"))[0];
        assert_eq!(shape(&format!("{rank}.dynamic_scales")), [n]);
        assert_eq!(shape(&format!("{rank}.assist_info_for_combine")), [n, 3]);
        assert_eq!(shape(&format!("{rank}.x_out")), [4, 1024]);
    }
    let counts = file.read("rank0.ep_recv_counts").unwrap();
    let last = i32::from_le_bytes(*counts.last_chunk().unwrap());
    assert_eq!(last as usize, file.info("rank0.expand_x").unwrap().shape[0]);
}

#[test]
fn all_that_combine_can_do_writes_the_same_result_on_every_backend() {
    let folder = tempdir().unwrap();
    let set = ["zero_expert_num=1", "copy_expert_num=1", "const_expert_num=2", "k=4", "comm_quant_mode=2"];
    let mut args = vec!["--preset", "tiny", "--set", "op=combine_add_rms_norm", "--shared-expert-x"];
    args.extend(set.iter().flat_map(|assignment| ["--set", assignment]));
    let results = BACKENDS.map(|backend| {
        let more = ["--backend", backend, "--schedule", "DDCC", "--rounds", "6"];
        result(folder.path(), "result", &[&args[..], &more].concat())
    });
    assert!(results[0] == results[1] && results[0] == results[2]);
    let file = TensorFile::open(&folder.path().join("result")).unwrap();
    let shape = |name: &str| file.info(name).unwrap().shape.clone();
    for rank in ["rank0", "rank1"] {
        for tensor in ["x_out", "x", "y"] {
            assert_eq!(shape(&format!("{rank}.{tensor}")), [4, 1024]);
        }
        assert_eq!(shape(&format!("{rank}.rstd")), [4]);
    }
    // Rows of special experts are not sent; those that are come back as 1024 B and 128 scales.
    let report = json(0, &[&["run"], &args[..]].concat());
    let rows = report["rows"].as_u64().unwrap();
    assert_eq!(rows as usize, shape("rank0.expand_x")[0] + shape("rank1.expand_x")[0]);
    assert!(rows < 32, "{rows} of 8 tokens with 4 experts each");
    assert_eq!(report["operators"][1]["payload_bytes"], rows * (1024 + 2 * 128));
}

#[test]
fn cases_of_every_routing_and_mask_run_on_every_backend() {
    let folder = tempdir().unwrap();
    for (i, routing) in ["uniform", "zipf", "hot", "node-limited"].into_iter().enumerate() {
        let case = folder.path().join(routing);
        let mask = ["none", "tokens", "pairs", "tokens"][i];
        let shape = ["--set", "ep_world_size=3", "--set", "shared_expert_rank_num=1", "--set", "aiv_num=3"];
        let make = ["gen", "--preset", "tiny", "--routing", routing, "--mask", mask, "--seed", "5"];
        json(0, &[&make[..], &shape, &["--out", text(&case)]].concat());
        let results = BACKENDS.map(|backend| {
            result(folder.path(), "result", &[text(&case), "--backend", backend, "--schedule", "DDCC"])
        });
        assert!(results[0] == results[1] && results[0] == results[2], "{routing}");
    }
}

#[test]
fn the_report_counts_rounds_and_says_what_was_checked() {
    let run = |more: &[&str]| json(0, &[&["run", "--preset", "tiny"], more].concat());
    let report = run(&["--rounds", "5", "--schedule", "DDCC"]);
    assert_eq!(
        (&report["verdict"], &report["rounds"], &report["checked"]),
        (&"yes".into(), &6.into(), &true.into())
    );
    assert_eq!((&report["ranks"], &report["tokens"], &report["rows"]), (&2.into(), &8.into(), &16.into()));
    assert_eq!(report["operators"][0]["operator"], "dispatch");
    assert_eq!(report["operators"][0]["payload_bytes"], 16 * 2048);
    assert!(report["operators"][1]["ms"]["median"].as_f64().unwrap() > 0.0);
    let unchecked = ["run", "--preset", "tiny", "--backend", "weak", "--no-check", "--rounds", "100"];
    let report = json(4, &unchecked);
    assert_eq!((&report["verdict"], &report["ok"]), (&"unknown".into(), &false.into()));
    assert_eq!((&report["rounds"], &report["checked"]), (&100.into(), &false.into()));
    assert!(report["operators"][0]["ms"].is_null(), "lockstep has no times");
    assert!(report["compared"].is_null());
    assert_eq!(run(&["--rounds", "1"])["compared"], "bit for bit on every round");
    let norm = run(&["--rounds", "1", "--set", "op=combine_add_rms_norm"]);
    assert_eq!(norm["compared"], "bit for bit on every round; rstd by its range, y by that rstd");
}

#[test]
fn the_report_says_for_how_many_rounds_memory_was_committed() {
    for (rounds, committed, line) in [
        ("4", 4, "committed before the clock starts: times are without page faults"),
        ("12", 8, "committed for 8 of 12 rounds: later times include page faults"),
    ] {
        let arguments = ["run", "--preset", "tiny", "--rounds", rounds];
        assert_eq!(json(0, &arguments)["committed_rounds"], committed);
        let table = String::from_utf8(veriep(&[&arguments[..], &["-v"]].concat()).stdout).unwrap();
        assert!(table.lines().any(|found| found == format!(" memory    {line}")), "{table}");
    }
    // Nothing is timed there.
    let lockstep = json(0, &["run", "--preset", "tiny", "--backend", "lockstep"]);
    assert!(lockstep["committed_rounds"].is_null());
}

#[test]
fn the_table_fits_eighty_columns() {
    let norm = ["--set", "op=combine_add_rms_norm"];
    for (backend, more) in BACKENDS.iter().flat_map(|&backend| [(backend, &[][..]), (backend, &norm)]) {
        let output = veriep(&[&["run", "--preset", "tiny", "--backend", backend], more].concat());
        let stdout = String::from_utf8(output.stdout).unwrap();
        assert!(output.stderr.is_empty());
        assert!(stdout.contains("agrees bit for bit"), "{stdout}");
        assert!(stdout.lines().all(|line| line.chars().count() <= 80), "{stdout}");
    }
}

#[test]
fn a_silent_rank_is_named_within_the_deadline() {
    let since = Instant::now();
    let silent = ["run", "--preset", "tiny", "--inject", "silent=1", "--deadline", "1"];
    let line = fails(3, &silent);
    assert!((Duration::from_secs(1)..Duration::from_secs(10)).contains(&since.elapsed()));
    assert!(
        line.contains(
            "round 0: no progress for 1 s: waiting for rank 1 (rank 0 cores 1, 3); rank 0 core 1: "
        ),
        "{line}"
    );
    assert!(line.contains("missing: dispatch flag of rank 1 for local expert"), "{line}");
    for backend in ["lockstep", "weak"] {
        let since = Instant::now();
        let line = fails(3, &[&silent[..5], &["--backend", backend, "--seed", "9"]].concat());
        assert!(since.elapsed() < Duration::from_secs(10));
        assert!(line.contains("no core can move: waiting for rank 1 ("), "{line}");
        assert!(line.ends_with(&format!("--backend {backend} --seed 9 repeats it")), "{line}");
    }
}

#[test]
fn what_is_missing_is_listed_as_json() {
    let silent =
        ["run", "--preset", "tiny", "--set", "aiv_num=1", "--inject", "silent=1", "--backend", "lockstep"];
    let report = json(3, &silent);
    assert_eq!((&report["verdict"], &report["status"]), (&"no".into(), &3.into()));
    let missing = serde_json::json!([{
        "rank": 0, "core": 0, "round": 0, "operator": "dispatch", "what": "dispatch_flag",
        "source_rank": 1, "local_expert": 0,
    }]);
    assert_eq!(report["missing"], missing);
}

#[test]
fn separate_flags_slots_of_a_line_and_fullmesh_v2_give_the_same_result_and_name_what_is_missing() {
    let folder = tempdir().unwrap();
    let result = |name: &str, more: &[&str]| {
        let path = folder.path().join(name);
        json(0, &[&["run", "--preset", "tiny", "--out", text(&path)], more].concat());
        fs::read(&path).unwrap()
    };
    let plain = result("plain", &[]);
    for (i, backend) in ["threads", "lockstep", "weak"].into_iter().enumerate() {
        let more = |more: &[&'static str]| [&["--backend", backend], more].concat();
        assert_eq!(result(&format!("separate{i}"), &more(&["--flags", "separate"])), plain, "{backend}");
        assert_eq!(result(&format!("lines{i}"), &more(&["--slots", "64"])), plain, "{backend}");
        assert_eq!(
            result(&format!("blocks{i}"), &more(&["--set", "comm_alg=fullmesh_v2"])),
            plain,
            "{backend}"
        );
    }
    let silent =
        ["run", "--preset", "tiny", "--set", "aiv_num=1", "--inject", "silent=1", "--backend", "lockstep"];
    let (flag, count) = ("dispatch_flag", "count_flag");
    for (more, what) in [
        (["--flags", "separate"], count),
        (["--set", "comm_alg=fullmesh_v2"], count),
        (["--slots", "64"], flag),
    ] {
        let report = json(3, &[&silent[..], &more].concat());
        let missing = serde_json::json!([{
            "rank": 0, "core": 0, "round": 0, "operator": "dispatch", "what": what,
            "source_rank": 1, "local_expert": 0,
        }]);
        assert_eq!(report["missing"], missing);
    }
}

#[test]
fn every_flag_that_can_be_missing_is_named_as_json_and_in_words() {
    let tp = [
        "--set",
        "release=9.1.0",
        "--set",
        "tp_world_size=2",
        "--set",
        "ep_world_size=2",
        "--set",
        "moe_expert_num=2",
        "--set",
        "k=1",
    ];
    let a2 = ["--set", "product=a2", "--set", "ep_world_size=16", "--set", "moe_expert_num=16"];
    let v2 = ["--set", "comm_alg=fullmesh_v2"];
    for (what, more, name, words) in [
        ("counts", &[][..], "dispatch_flag", "missing: dispatch flag of rank 1 for local expert"),
        ("counts", &["--flags", "separate"], "count_flag", "missing: count of rank 1 for local expert"),
        ("counts", &v2, "count_flag", "missing: count of rank 1 for local expert"),
        ("tokens", &["--flags", "separate"], "token_flag", "missing: token flag of rank 1 for local expert"),
        ("blocks", &v2, "block_flag", "missing: block 4 of record 0 of rank 1 for local expert"),
        ("rows", &[], "combine_flag", "missing: combine flag of rank 1 for token"),
        ("tp", &tp, "tp_flag", "rank 0 core 0: missing: TP flag of rank 1, core 0"),
        ("ends", &a2, "window_rows", "missing: end flag of rank 1 after"),
    ] {
        let fault = format!("silent=1:{what}");
        let run =
            ["run", "--preset", "tiny", "--backend", "lockstep", "--set", "aiv_num=2", "--inject", &fault];
        let args = [&run[..], more].concat();
        let line = fails(3, &args);
        assert!(line.contains(words), "{args:?}: {line}");
        let report = json(3, &args);
        let missing = report["missing"].as_array().unwrap();
        assert!(missing.iter().any(|one| one["what"] == name), "{args:?}: {report}");
        let of_rank_1 = |one: &serde_json::Value| one["source_rank"] == 1 || one["rank"] == 1;
        assert!(missing.iter().all(of_rank_1), "{args:?}: {report}");
        if what == "blocks" {
            assert_eq!((&missing[0]["record"], &missing[0]["block"]), (&0.into(), &4.into()));
        }
    }
}

#[test]
fn a_request_that_cannot_be_run_is_one_line() {
    let folder = tempdir().unwrap();
    let nowhere = folder.path().join("none/result");
    let tiny = |more: &[&str]| fails(2, &[&["run", "--preset", "tiny"], more].concat());
    for (more, says) in [
        (&["--schedule", "DDC"][..], "2 D and 1 C"),
        (&["--schedule", "CD"], "combine 0 has no dispatch to combine"),
        (&["--schedule", "Ds0 Dr0 Cs0"], "1 of D or Ds, 1 of D or Dr, 1 of C or Cs, 0 of C or Cr"),
        (&["--schedule", "DsDrCs"], "1 D and 0 C in both halves"),
        (&["--schedule", "DrDs"], "no sending half before it"),
        (&["--schedule", "dc"], "must be D or C"),
        (&["--schedule", ""], "at least one D"),
        (&["--deadline", "0"], "must be a number in [0.001, 1000000]"),
        (&["--deadline", "soon"], "must be a number"),
        (&["--deadline", "NaN"], "must be a number"),
        (&["--rounds", "0"], "--rounds"),
        (&["--rounds=-1"], "--rounds"),
        (&["--chain", "0"], "--chain"),
        (&["--threads", "0"], "--threads"),
        (&["--backend", "gpu"], "lockstep"),
        (&["--inject", "silent=2"], "must be silent=RANK with RANK in [0, 1]"),
        (&["--inject", "loud=1"], "must be silent=RANK, silent=RANK:WHAT, killed=RANK:N"),
        (
            &["--inject", "silent=1:x"],
            "what is lost must be one of counts, tokens, grants, blocks, rows, tp, ends",
        ),
        (&["--out", text(&nowhere)], "none missing"),
        (&["--out", text(folder.path())], "a folder: must be a file"),
        (
            &["--shared-expert-x", "--set", "ep_world_size=3", "--set", "shared_expert_rank_num=1"],
            "shared_expert_x is given: must be absent when ranks hold shared experts",
        ),
        (&["--set", "comm_alg=fullmesh_v2", "--flags", "joint"], "--flags: comm_alg = fullmesh_v2"),
        (&["--set", "h=1000"], "h = 1000"),
        (&["--set", "hccl_buffsize_mb=2", "--set", "bs=512"], "hccl_buffsize_mb"),
    ] {
        let line = tiny(more);
        assert!(line.contains(says), "{more:?}: {line}");
    }
    assert!(tiny(&[text(folder.path())]).contains("--preset"), "a case and a preset");
    assert!(fails(2, &["run", text(&nowhere)]).contains("missing"));
    assert!(fails(2, &["run"]).contains("missing argument"));
    assert!(!nowhere.exists() && fs::read_dir(folder.path()).unwrap().next().is_none());
}

#[test]
fn an_unwritable_result_is_refused_before_the_run() {
    let folder = tempdir().unwrap();
    let since = Instant::now();
    // Half a million rounds would take minutes.
    let out = folder.path().join("none/result");
    fails(2, &["run", "--preset", "tiny", "--rounds", "500000", "--out", text(&out)]);
    assert!(since.elapsed() < Duration::from_secs(10));
}

#[test]
fn nothing_is_written_over_an_input() {
    let folder = tempdir().unwrap();
    let (case, cluster) = (folder.path().join("case"), folder.path().join("cluster.toml"));
    json(0, &["gen", "--preset", "tiny", "--seed", "1", "--out", text(&case)]);
    fs::write(&cluster, "").unwrap();
    let inputs = [case.join("inputs.safetensors"), case.join("config.toml"), cluster.clone()];
    let read = || inputs.each_ref().map(|input| fs::read(input).unwrap());
    let (before, case) = (read(), text(&case));
    let [tensors, config, _] = inputs.each_ref().map(|input| text(input));
    let lockstep = ["run", case, "--backend", "lockstep"];
    let simulate = ["simulate", case, "--cluster"];
    for (arguments, why) in [
        (&["run", case, "--out", tensors][..], "is an input of this run: --out must name"),
        (&["run", case, "--out", config], "is an input of this run"),
        (&[&lockstep[..], &["--html", tensors]].concat(), "is an input of this run: --html must name"),
        (&[&lockstep[..], &["--trace", config]].concat(), "is an input of this run: --trace must name"),
        (&[&lockstep[..], &["--events", tensors]].concat(), "is an input of this run"),
        (&["run", case, "--dump", case], "has a config.toml that is of no dump"),
        (&[&simulate[..], &["a3", "--csv", config]].concat(), "is an input of this run"),
        (&[&simulate[..], &[text(&cluster), "--csv", text(&cluster)]].concat(), "is an input of this run"),
        (&["gen", case, "--seed", "2", "--out", case], "is an input of this run"),
    ] {
        let line = fails(2, arguments);
        assert!(line.contains(why), "{arguments:?}: {line}");
        assert!(read() == before, "{arguments:?}: an input has changed");
    }
    // Also by another name, and two results in one file that is not there yet.
    let one = folder.path().join("one");
    let (html, trace) = (folder.path().join("case/../one"), text(&one));
    let line = fails(2, &[&lockstep[..], &["--html", text(&html), "--trace", trace]].concat());
    assert!(line.contains("--trace and --html must name different files"), "{line}");
    assert!(!one.exists());
}

#[test]
fn as_many_rounds_run_as_are_asked_for() {
    for (more, rounds) in [
        (&["--rounds", "7", "--chain", "3"][..], 7),
        (&["--rounds", "7", "--backend", "weak", "--chain", "4"], 7),
        (&["--rounds", "3", "--schedule", "DDCC"], 4),
    ] {
        let seen = json(0, &[&["run", "--preset", "tiny"], more].concat());
        assert_eq!(seen["rounds"], rounds, "{more:?}");
    }
}

#[test]
fn what_a_backend_does_not_have_is_refused() {
    for option in [&["--threads", "2"][..], &["--spread", "cores"], &["--row-copy", "plain"]] {
        let line = fails(2, &[&["run", "--preset", "tiny", "--backend", "weak"], option].concat());
        assert!(line.contains("only --backend threads, processes and mpi have it"), "{line}");
    }
    let line =
        fails(2, &["run", "--preset", "tiny", "--set", "hccl_buffsize_mb=4294967295", "--backend", "weak"]);
    assert!(line.contains("memory of the group"), "{line}");
}

#[test]
fn how_rows_are_copied_is_measured_where_it_pays_and_else_as_is_asked() {
    // Rows are measured from 1 MiB and 20 rounds on. These are 1.1 MiB, and two rounds suffice for a way that is asked for.
    let run =
        ["run", "--preset", "tiny", "--set", "h=7168", "--set", "bs=48", "--set", "hccl_buffsize_mb=64"];
    let with = |more: &[&str]| json(0, &[&run, more].concat())["row_copy"].as_str().unwrap().to_owned();
    for backend in ["threads", "processes"] {
        let receive =
            |rounds, more: &[&str]| with(&[&["--backend", backend, "--rounds", rounds], more].concat());
        // Each round is compared with the reference: what was measured has left nothing behind.
        for more in [&[][..], &["--receive", "direct"], &["--receive", "direct", "--experts", "overwrite"]] {
            let way = receive("20", more);
            assert!(["ahead", "plain", "streaming"].contains(&way.as_str()), "{backend} {more:?}");
        }
        for way in ["ahead", "plain", "streaming"] {
            assert_eq!(receive("2", &["--row-copy", way]), way, "{backend}");
        }
    }
}

#[test]
fn a_core_that_never_comes_is_named_by_its_rank() {
    let absent = ["run", "--preset", "tiny", "--rounds", "1", "--inject", "absent-core=1:2"];
    for more in [&["--deadline", "1"][..], &["--backend", "lockstep"], &["--backend", "weak"]] {
        let line = fails(3, &[&absent[..], more].concat());
        assert!(line.contains("waiting for rank 1"), "{more:?}: {line}");
    }
    let line = fails(2, &["run", "--preset", "tiny", "--inject", "absent-core=1:8"]);
    assert!(line.contains("must be absent-core=RANK:CORE with CORE in [0, 8)"), "{line}");
}

#[test]
fn a_combine_of_another_batch_is_refused_before_anything_is_sent() {
    let wrong = ["run", "--preset", "tiny", "--rounds", "4", "--inject", "wrong-batch=1:2"];
    for more in [&[][..], &["--chain", "4"], &["--backend", "lockstep"], &["--backend", "weak"]] {
        let line = fails(1, &[&wrong[..], more].concat());
        assert!(line.contains("rank 1: combine of batch 2: "), "{more:?}: {line}");
    }
    let bound = &json(1, &wrong)["bound"];
    assert_eq!(bound, "rank 1 gives combine of round 2 another batch than its dispatch had");
}

/// One token for one of two experts: a wrong batch has the same one by chance. Then the run is right, and says why.
#[test]
fn a_wrong_batch_with_the_same_experts_is_said_to_have_no_effect() {
    let small =
        ["run", "tiny", "--set", "bs=1", "--set", "moe_expert_num=2", "--set", "k=1", "--rounds", "4"];
    let note = "note: --inject wrong-batch=1:2: without effect: both batches have the same experts\n";
    let mut refused = 0;
    for seed in 0..8 {
        let seed = seed.to_string();
        let run =
            [&small[..], &["--backend", "lockstep", "--inject", "wrong-batch=1:2", "--seed", &seed]].concat();
        let output = veriep(&run);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(stderr.contains(note), output.status.success(), "{seed}: {stderr}");
        refused += u32::from(output.status.code() == Some(1));
    }
    assert!((1..8).contains(&refused), "{refused} of 8 refused");
}

#[test]
fn a_rank_that_begins_late_does_no_harm() {
    let late = ["run", "--preset", "tiny", "--rounds", "2", "--inject", "late=1:0.05"];
    let since = Instant::now();
    json(0, &late);
    assert!(since.elapsed() >= Duration::from_millis(4 * 50), "four operators begin late");
    let line = fails(2, &[&late[..], &["--backend", "lockstep"]].concat());
    assert!(line.contains("only --backend threads and processes have it"), "{line}");
}

#[test]
fn an_order_that_gates_refuse_is_bad_input_unless_it_is_unchecked() {
    let of = |order: &'static str, more: &[&'static str]| {
        let run = ["run", "--preset", "tiny", "--backend", "lockstep", "--schedule", order];
        [&run[..], more].concat()
    };
    let line = |order, more: &[&'static str]| fails(2, &of(order, &[&["--rounds", "6"], more].concat()));
    assert_eq!(
        line("DDDCCC", &[]),
        "error: --schedule DDDCCC: combine 2: an operator begins while other ranks may still read its partition: \
         a dispatch must begin and end before: \
         see veriep schedule DDDCCC, or run it with --unchecked"
    );
    // The command that it names is about this group.
    for (more, options) in [
        (&["--receive", "in-place"][..], "--receive in-place"),
        (&["--flags", "separate"], "--flags separate"),
        (&["--receive", "direct", "--experts", "overwrite"], "--receive direct --experts overwrite"),
    ] {
        let seen = line("DDDCCC", more);
        assert!(seen.contains(&format!("see veriep schedule DDDCCC {options}, or")), "{seen}");
    }
    for (preset, options) in [("fullmesh", "--product a2"), ("hierarchy", "--product a2 --hierarchy")] {
        let (set, order) = (format!("comm_alg={preset}"), "Ds1 Cs0 Dr1 Cr0");
        let run = ["run", "a2-hier-16", "--set", &set, "--set", "k=2", "--set", "h=512", "--schedule", order];
        let seen = fails(2, &run);
        assert!(seen.contains(&format!("see veriep schedule \"{order}\" {options}, or")), "{seen}");
    }
    let seen = line("Ds0 Ds1 Dr0 Dr1 C0 C1", &[]);
    assert!(
        seen.contains("sending half of dispatch 1: ") && seen.contains("schedule \"Ds0 Ds1 Dr0"),
        "{seen}"
    );
    let seen = line(
        "DsDrCsCr",
        &["--set", "release=9.1.0", "--set", "tp_world_size=2", "--set", "moe_expert_num=2"],
    );
    assert!(seen.contains("operators of a TP domain have no halves"), "{seen}");
    // Right where no partition is used again.
    json(0, &of("Ds0 Ds1 Dr0 Dr1 C0 C1", &["--rounds", "2", "--unchecked"]));
}

/// Runs six rounds back to back, of which rank 1 leaves out the fourth. Returns status and error.
fn skipping(more: &[&str]) -> (i32, String) {
    let skips = ["run", "--preset", "tiny", "--rounds", "6", "--inject", "skips=1:3", "--deadline", "5"];
    let mut run = Command::new(env!("CARGO_BIN_EXE_veriep"));
    let output = run.args(skips).args(more).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_rank_that_leaves_out_a_round_is_named_by_number_and_without_numbers_only_at_the_end() {
    let a2 = ["--set", "product=a2", "--set", "ep_world_size=16", "--set", "moe_expert_num=32"];
    let hierarchy = [&a2[..], &["--set", "comm_alg=hierarchy"]].concat();
    let chain = ["--chain", "6"];
    for more in [
        &[][..],
        &["--flags", "separate"],
        &["--receive", "direct"],
        &["--set", "comm_alg=fullmesh_v2"],
        &a2,
        &hierarchy,
        &["--backend", "weak"],
        &["--backend", "processes", "--processes", "2"],
    ] {
        let args = if more.first() == Some(&"--backend") && more[1] == "weak" {
            more.to_vec()
        } else {
            [more, &chain].concat()
        };
        let (status, line) = skipping(&args);
        assert_eq!(status, 1, "{more:?}: {line}");
        let names = line.contains("is in dispatch 4") && line.contains("this rank in dispatch 3")
            || line.contains("is in dispatch 3") && line.contains("this rank in dispatch 4");
        assert!(names && line.contains("left out a call"), "{more:?}: {line}");
        // Its peers take its fifth dispatch for its fourth, and miss one only when it has no more. A process of its own may
        // compare its results with the reference's before that.
        let (status, line) = skipping(&[&args[..], &["--unchecked"]].concat());
        let is_late = status == 3 && line.contains("dispatch of round 5");
        assert!(is_late || status == 1 && line.contains("round 3: rank1."), "{more:?}: {status} {line}");
    }
}
