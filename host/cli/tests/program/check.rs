//! `veriep check`, from outside.

use crate::common::{config_file, fails, fails_with_lines, json, text, veriep};
use serde_json::Value;
use tempfile::tempdir;

#[test]
fn a_valid_config_has_no_violations_and_its_sizes() {
    let folder = tempdir().unwrap();
    let config = config_file(folder.path(), "c.toml", "k = 8");
    let report = json(0, &["check", &config]);
    assert_eq!(report["ok"], true);
    assert_eq!(report["violations"].as_array().unwrap().len(), 0);
    assert_eq!(report["buffer"]["configured_mb"], 200);
    assert!(report["buffer"]["required_mb"].as_u64().unwrap() <= 200);
    assert!(report["buffer"]["max_bs"].as_u64().unwrap() >= 16);
    assert_eq!(report["sizes"]["local_expert_num"], 4);
    let table = veriep(&["check", &config]);
    assert!(table.status.success() && table.stderr.is_empty());
    assert!(String::from_utf8(table.stdout).unwrap().contains("required_mb"));
}

#[test]
fn the_environment_chooses_the_algorithm_of_a2_and_check_repeats_the_advice() {
    let folder = tempdir().unwrap();
    let a2 = |name, more: &str| {
        let config = format!("product = \"a2\"\nmoe_expert_num = 256\nhccl_buffsize_mb = 800\n{more}");
        json(0, &["check", &config_file(folder.path(), name, &config)])
    };
    let switched = a2("a.toml", "HCCL_INTRA_PCIE_ENABLE = 1\nHCCL_INTRA_ROCE_ENABLE = 0");
    assert_eq!(switched["buffer"], a2("b.toml", "comm_alg = \"hierarchy\"")["buffer"]);
    assert!(switched["notes"][0].as_str().unwrap().contains("choose comm_alg = \"hierarchy\""), "{switched}");
    let both = a2("c.toml", "HCCL_INTRA_PCIE_ENABLE = 1\nHCCL_INTRA_ROCE_ENABLE = 1");
    assert_eq!(both["buffer"], a2("d.toml", "comm_alg = \"fullmesh\"")["buffer"]);
    assert_ne!(both["buffer"], switched["buffer"]);
}

#[test]
fn fullmesh_v2_takes_a_tp_world_size_of_0_and_of_1() {
    let folder = tempdir().unwrap();
    for (tp, notes) in [(0, 1), (1, 0)] {
        let config = format!("k = 8\ncomm_alg = \"fullmesh_v2\"\ntp_world_size = {tp}");
        let report = json(0, &["check", &config_file(folder.path(), "c.toml", &config)]);
        assert_eq!(report["notes"].as_array().unwrap().len(), notes, "{report}");
    }
}

#[test]
fn choices_of_a_group_are_judged_with_its_configuration() {
    for (preset, option, why) in [
        ("a2-64", ["--flags", "separate"], "--flags: product = a2 has flags in its windows"),
        ("tiny", ["--stage", "2"], "--stage 2: only comm_alg = hierarchy has stages"),
        ("a2-64", ["--receive", "direct"], "product = a2"),
    ] {
        let line = fails(2, &[&["check", "--preset", preset][..], &option].concat());
        assert!(line.contains(why), "{line}");
    }
    for (preset, option) in [("tiny", ["--flags", "separate"]), ("a2-hier-16", ["--stage", "2"])] {
        json(0, &[&["check", "--preset", preset][..], &option].concat());
    }
}

#[test]
fn a_name_with_control_characters_breaks_no_table() {
    let folder = tempdir().unwrap();
    let config = config_file(folder.path(), "x\x1b[31m\ny", "k = 8");
    for verb in ["check", "layout", "plan"] {
        let table = String::from_utf8(veriep(&[verb, &config]).stdout).unwrap();
        let named = table.lines().filter(|line| line.contains("x\\u{1b}[31m; y")).count();
        assert_eq!((named, table.contains('\x1b')), (1, false), "{verb}: {table}");
    }
}

#[test]
fn every_violation_is_a_line_and_an_entry() {
    let folder = tempdir().unwrap();
    let config = config_file(folder.path(), "c.toml", "k = 17\nquant_mode = 1\naiv_num = -1");
    let report = json(2, &["check", &config]);
    assert_eq!(report["ok"], false);
    let parameters: Vec<_> =
        report["violations"].as_array().unwrap().iter().map(|v| v["parameter"].as_str().unwrap()).collect();
    for parameter in ["k", "quant_mode", "aiv_num"] {
        assert!(parameters.contains(&parameter), "{parameters:?}");
    }
    assert!(report["violations"][0]["rule"].is_string() && report["violations"][0]["message"].is_string());
    let lines = fails_with_lines(2, &["check", &config]);
    assert_eq!(lines.len(), parameters.len());
    assert!(lines.iter().any(|line| line.contains("k = 17: ") && line.contains("c.toml")), "{lines:?}");
}

#[test]
fn an_invalid_config_still_has_buffer_sizes() {
    let folder = tempdir().unwrap();
    let config = config_file(folder.path(), "c.toml", "hccl_buffsize_mb = 2");
    let report = json(2, &["check", &config]);
    assert_eq!(report["violations"][0]["parameter"], "hccl_buffsize_mb");
    assert!(report["buffer"]["required_mb"].as_u64().unwrap() > 2);
    assert_eq!(report["buffer"]["max_bs"], 0);
}

#[test]
fn a_malformed_config_is_one_line_with_file_and_line() {
    let folder = tempdir().unwrap();
    for (content, line, word) in [
        ("k = 8\nwrong = 1", "line 2", "unknown key `wrong`: must be one of release, "),
        ("k = \"8\"", "line 1", "must be an integer"),
        ("k = 9223372036854775808", "line 1", "must be an integer"),
        ("\nk = = 8", "line 2", ""),
    ] {
        let config = config_file(folder.path(), "c.toml", content);
        let error = fails(2, &["check", &config]);
        assert!(error.contains("c.toml") && error.contains(line) && error.contains(word), "{error}");
        let report = json(2, &["check", &config]);
        assert_eq!((&report["ok"], &report["status"]), (&false.into(), &2.into()));
    }
}

#[test]
fn a_configuration_is_known_by_its_content() {
    let folder = tempdir().unwrap();
    let keys = "ep_world_size = 32\nmoe_expert_num = 256\n";
    let as_toml = json(0, &["check", &config_file(folder.path(), "c.toml", keys)]);
    let object = config_file(folder.path(), "a.txt", r#"{"ep_world_size": 32, "moe_expert_num": 256}"#);
    let call = "y = torch_npu.npu_moe_distribute_dispatch_v2(x=x, ep_world_size=32,\n moe_expert_num=256)";
    let call = config_file(folder.path(), "b.toml", call);
    // What a call cannot say is not known, so that its sizes are those of the defaults.
    for (file, status) in [(&object, 0), (&call, 4)] {
        assert_eq!(json(status, &["check", file])["buffer"], as_toml["buffer"], "{file}");
    }
    assert!(veriep(&["layout", &object, "--rank", "0"]).status.success());
    assert!(fails(2, &["layout", &call, "--rank", "0"]).contains("the input does not say bs, dtype, h"));
    assert_eq!(json(0, &["check", &object])["notes"], as_toml["notes"]);
    let notes = json(4, &["check", &call])["notes"].to_string();
    assert!(notes.contains("not read of the call of npu_moe_distribute_dispatch_v2: x"), "{notes}");
    assert!(notes.contains("defaults stand for them"), "{notes}");
    let all = ["product=a3", "dtype=bf16", "k=8", "h=7168", "bs=16", "hccl_buffsize_mb=200"];
    let set: Vec<_> = all.into_iter().flat_map(|set| ["--set", set]).collect();
    assert_eq!(json(0, &[&["check", &call], &set[..]].concat())["ok"], true);
    assert!(veriep(&[&["layout", &call, "--rank", "0"], &set[..]].concat()).status.success());
}

#[test]
fn tensors_that_a_call_passes_count_as_given() {
    let folder = tempdir().unwrap();
    let set = ["product=a3", "dtype=bf16", "k=8", "h=7168", "bs=4", "hccl_buffsize_mb=200"];
    let set: Vec<_> = set.into_iter().flat_map(|set| ["--set", set]).collect();
    let answer = |status, arguments: &str, more: &[&str]| {
        let call =
            format!("npu_moe_distribute_dispatch_v2(x=x, ep_world_size=16, moe_expert_num=256, {arguments})");
        let call = config_file(folder.path(), "call.py", &call);
        json(status, &[&["check", &call], &set[..], more].concat())
    };
    // A capacity needs batches without a mask.
    answer(0, "global_bs=256", &[]);
    let masked = answer(2, "global_bs=256, x_active_mask=mask", &[]);
    assert_eq!(masked["violations"][0]["parameter"], "global_bs");
    answer(0, "global_bs=64, x_active_mask=mask", &[]);
    answer(0, "x_active_mask=None", &[]);
    // 8.5.0 takes flags of tokens there, and none of pairs: which they are the call does not say.
    let v2 = "comm_alg=\"fullmesh_v2\", x_active_mask=mask";
    let open = answer(4, v2, &["--release", "8.5.0"]);
    assert_eq!((&open["verdict"], &open["ok"]), (&"unknown".into(), &false.into()));
    answer(2, v2, &["--release", "seed"]);
    // The name may stand for None.
    answer(4, "scales=scales", &[]);
}

#[test]
fn layers_of_other_releases_or_without_a_layout_are_no_yes() {
    let folder = tempdir().unwrap();
    let of = |name: &str, content: &str| config_file(folder.path(), name, content);
    let (a, b) = (of("a.toml", "k = 8\nrelease = \"seed\""), of("b.toml", "k = 8\nrelease = \"9.0.0\""));
    assert!(fails(2, &["check", &a, &b]).starts_with("error: release = "));
    let server = "product = \"a2\"\nep_world_size = 8\nmoe_expert_num = 64\n";
    let (a, b) = (of("c.toml", server), of("d.toml", &format!("{server}h = 1024")));
    assert_eq!(json(4, &["check", &a, &b])["ok"], false);
}

#[test]
fn a_number_of_experts_that_cannot_be_is_a_violation() {
    for value in ["-9223372036854775808", "9223372036854775807"] {
        let set = format!("redundant_experts={value}");
        assert!(fails(2, &["check", "--preset", "tiny", "--set", &set]).contains("must be in [0, 4]"));
    }
}

#[test]
fn the_name_of_a_preset_stands_for_it_where_no_file_has_it() {
    let folder = tempdir().unwrap();
    let run = |args: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_veriep"));
        let output = command.args(args).current_dir(folder.path()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    for request in [&["check"][..], &["layout", "--rank", "0"], &["plan", "--seed", "1"]] {
        let named = run(&[request, &["tiny"]].concat());
        assert_eq!(named.0, Some(0), "{request:?}");
        assert_eq!(named, run(&[request, &["--preset", "tiny"]].concat()), "{request:?}");
    }
    assert_eq!(run(&["check", "tiny", "a2-64"]).0, Some(2), "two layers, which cannot share a group");
    std::fs::write(folder.path().join("tiny"), "moe_expert_num = 250").unwrap();
    assert_eq!(run(&["check", "tiny"]).0, Some(2), "a file counts first");
}

#[test]
fn an_absent_file_is_missing() {
    assert!(fails(2, &["check", "/nowhere/c.toml"]).ends_with("/nowhere/c.toml: missing"));
}

#[test]
fn layers_report_the_largest_buffer_and_what_clashes() {
    let folder = tempdir().unwrap();
    let a = config_file(folder.path(), "a.toml", "bs = 4");
    let b = config_file(folder.path(), "b.toml", "bs = 16");
    let c = config_file(folder.path(), "c.toml", "moe_expert_num = 128\naiv_num = 4");
    let alone = json(0, &["check", &b]);
    let report = json(0, &["check", &a, &b]);
    assert_eq!(report["buffer"]["required_mb"], alone["buffer"]["required_mb"]);
    assert_eq!(report["configs"].as_array().unwrap().len(), 2);
    let report = json(2, &["check", &a, &c]);
    let clashes: Vec<_> =
        report["clashes"].as_array().unwrap().iter().map(|c| c["parameter"].clone()).collect();
    assert_eq!(clashes, ["moe_expert_num", "aiv_num"]);
    assert_eq!(fails_with_lines(2, &["check", &a, &c]).len(), 2);
}

#[test]
fn the_port_offset_is_part_of_what_is_required() {
    let folder = tempdir().unwrap();
    let config = config_file(folder.path(), "c.toml", "k = 8");
    let plain = json(0, &["check", &config]);
    let required = plain["buffer"]["layout_mb"].as_u64().unwrap();
    let report = json(0, &["check", &config, "--port-offset", "65536"]);
    assert_eq!(report["buffer"]["layout_mb"].as_u64().unwrap(), required + 4);
    // The operators know no such offset.
    assert_eq!(report["buffer"]["required_mb"], plain["buffer"]["required_mb"]);
    let tight = config_file(folder.path(), "t.toml", &format!("hccl_buffsize_mb = {required}"));
    assert!(veriep(&["check", &tight]).status.success());
    let line = fails(2, &["check", &tight, "--port-offset", "65536"]);
    assert!(
        line.contains("hccl_buffsize_mb") && line.contains("port offsets of both partitions = 4194304"),
        "{line}"
    );
}

#[test]
fn usage_errors_are_one_line_and_status_2() {
    assert!(fails(2, &[]).contains("missing subcommand"));
    assert!(fails(2, &["chekc"]).contains("chekc"));
    assert!(fails(2, &["check"]).contains("missing argument"));
    assert!(fails(2, &["check", "a", "--format", "xml"]).contains("table"));
    // Also what is refused before there is a request is an object.
    for arguments in [&["check", "--preset", "large"][..], &["check", "--buffer"], &["chekc"]] {
        let refused = json(2, arguments);
        assert_eq!((&refused["ok"], &refused["status"]), (&false.into(), &2.into()));
        assert!(refused["errors"][0].as_str().is_some_and(|line| !line.is_empty()), "{refused}");
    }
    assert!(fails(2, &["gen", "--preset", "tiny"]).contains("missing argument"));
    let help = veriep(&["--help"]);
    assert!(help.status.success() && help.stderr.is_empty());
}

#[cfg(unix)]
#[test]
fn a_closed_stdout_is_no_panic() {
    use std::process::{Command, Stdio};
    let folder = tempdir().unwrap();
    let config = config_file(folder.path(), "c.toml", "k = 8");
    for args in [&["check", &config][..], &["check", &config, "--format", "json"], &["--help"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let child = Command::new(env!("CARGO_BIN_EXE_veriep"))
            .args(args)
            .stdout(Stdio::from(writer))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_case_has_its_tensors_checked() {
    let folder = tempdir().unwrap();
    let case = folder.path().join("case");
    json(0, &["gen", "--preset", "tiny", "--seed", "1", "--out", text(&case)]);
    assert_eq!(json(0, &["check", text(&case)])["ok"], true);
    std::fs::remove_file(case.join("inputs.safetensors")).unwrap();
    let report = json(2, &["check", text(&case)]);
    assert_eq!(report["violations"][0]["parameter"], "inputs.safetensors");
    assert!(report["buffer"]["required_mb"].as_u64().unwrap() > 0);
    assert!(fails(2, &["check", text(&case)]).ends_with("inputs.safetensors: missing"));
}

#[test]
fn the_window_is_told_term_by_term() {
    let folder = tempdir().unwrap();
    let config = config_file(folder.path(), "c.toml", "moe_expert_num = 256");
    let buffer = &json(0, &["check", &config])["buffer"];
    assert_eq!((&buffer["required_mb"], &buffer["max_bs"]), (&120.into(), &26.into()));
    assert_eq!(buffer["max_bs_limit"], "hccl_buffsize_mb");
    let terms = buffer["terms"].as_array().unwrap();
    assert_eq!(terms[0]["formula"], "partitions * L * R * max_bs * pitch");
    assert_eq!(terms[1]["formula"], "partitions * (K + S) * max_bs * row");
    let mut sum = 0;
    for term in terms {
        let operands = term["operands"].as_array().unwrap();
        let bytes: u64 = operands.iter().map(|operand| operand["value"].as_u64().unwrap()).product();
        assert_eq!(term["bytes"], bytes);
        sum += bytes;
    }
    assert_eq!(sum, 2 * (16 * 16 * 16 * 14848 + 8 * 16 * 14336));
    assert_eq!(
        (&buffer["required_bytes"], &buffer["left_bytes"]),
        (&sum.into(), &((200 << 20) - sum).into())
    );
    let table = String::from_utf8(veriep(&["check", &config, "-v"]).stdout).unwrap();
    for part in [
        "partitions 2 x L 16 x R 16 x max_bs 16 x pitch 14848  121634816  116.00",
        "partitions 2 x (K + S) 8 x max_bs 16 x row 14336",
        "max_bs              26 (limit: hccl_buffsize_mb)",
        "pitch: bytes reserved for a record, quantised or not, align(align(2H, 32) + 64, 512)",
    ] {
        assert!(table.contains(part), "{part}:\n{table}");
    }
    let slots = config_file(
        folder.path(),
        "s.toml",
        "h = 1024\nk = 16\nmoe_expert_num = 16\nbs = 700\nhccl_buffsize_mb = 4096",
    );
    let buffer = &json(2, &["check", &slots])["buffer"];
    assert_eq!(
        (&buffer["max_bs"], &buffer["max_bs_limit"]),
        (&512.into(), &"the product's range of bs".into())
    );
}

#[test]
fn violations_come_with_what_to_change_to_what() {
    let folder = tempdir().unwrap();
    for (content, hint) in [
        ("hccl_buffsize_mb = 20", "hccl_buffsize_mb = 33"),
        ("moe_expert_num = 250", "moe_expert_num = 256 or 240"),
        ("k = 20", "k = 16"),
        ("k = 8\nglobal_bs = 16", "global_bs = 256 or 0"),
        ("comm_alg = \"fullmesh_v3\"", "comm_alg = \"fullmesh_v1\""),
        (
            "k = 8\nrelease = \"8.5.0\"\ncomm_alg = \"fullmesh_v2\"\nzero_expert_num = 1",
            "zero_expert_num = 0",
        ),
        ("release = \"9.1\"", "release = \"9.1.0\""),
        ("k = 8\nzero_expert_num = 2147483600", "zero_expert_num = 2147483583"),
        ("bs = [2, 2]", "bs = 2, or ep_world_size = 2"),
        ("bs = [16,16,16,16,16,16,16,16,16,16,16,16,16,16,16,600]", "bs[15] = 16"),
        ("norm_eps = nan", "norm_eps = 1e-6"),
        ("k = 8\nrelease = \"9.1.0\"\ntp_world_size = 2", "tp_world_size = 1"),
        ("k = 8\nshared_expert_num = 3", "shared_expert_rank_num = 12"),
    ] {
        let config = config_file(folder.path(), "c.toml", content);
        let report = json(2, &["check", &config]);
        let seen = report["violations"][0]["hint"].as_str().unwrap_or_default();
        assert!(seen.contains(hint), "{content}: {}", report["violations"]);
        assert!(fails_with_lines(2, &["check", &config])[0].contains(&format!("; hint: {seen}")));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_stdout_is_an_error() {
    use std::process::{Command, Stdio};
    for args in [&["--help"][..], &["--version"], &["check", "--help"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_veriep"));
        let output = command.args(args).stdout(full).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("stdout: cannot write"), "{args:?}");
    }
}

#[test]
fn files_that_are_no_configuration_are_one_line() {
    let folder = tempdir().unwrap();
    for (content, words) in [
        ("k = 8\nk = 9".to_owned(), "line 2: `k = 9`: duplicate key"),
        (format!("{} = 1", "x".repeat(50_000)), "unknown key `xxx"),
        (format!("k = {}", "1".repeat(50_000)), "integer"),
        ("k = nan".to_owned(), "line 1: `k = nan`: floating point `NaN`: must be an integer"),
        ("bs = [[1]]".to_owned(), "line 1: `bs = [[1]]`: sequence: must be an integer"),
        ("product = 1979-05-27".to_owned(), "line 1: `product = 1979-05-27`"),
    ] {
        let config = config_file(folder.path(), "c.toml", &content);
        let line = fails(2, &["check", &config]);
        assert!(line.contains(words) && line.len() < 1100, "{line}");
    }
    let long = config_file(folder.path(), "c.toml", &format!("bs = [{}]", "16,".repeat(100_000)));
    assert!(
        fails(2, &["check", &long])
            .contains("bs = a list of 100000 entries: must have one entry per EP rank")
    );
    let folder_for_file = folder.path().join("folder.toml");
    std::fs::create_dir(&folder_for_file).unwrap();
    assert!(fails(2, &["check", text(&folder_for_file)]).ends_with("config.toml: missing"));
}

#[test]
fn layers_of_other_sizes_share_a_window_with_one_batch_in_flight() {
    let folder = tempdir().unwrap();
    let a = config_file(folder.path(), "a.toml", "h = 2048");
    let b = config_file(folder.path(), "b.toml", "k = 8");
    let report = json(0, &["check", &a, &b]);
    assert_eq!(report["batches_in_flight_max"], 1);
    assert_eq!(json(0, &["check", &b, &b, "--in-flight", "2"])["batches_in_flight_max"], 2);
    let line = fails(2, &["check", &a, &b, "--in-flight", "2"]);
    assert!(line.contains("h = 2048 in ") && line.contains("combine area"), "{line}");
}

#[test]
fn numbers_of_any_size_are_told() {
    let folder = tempdir().unwrap();
    for number in [i64::MAX, i64::MIN, 0, -1] {
        let keys = ["ep_world_size", "moe_expert_num", "k", "h", "bs", "hccl_buffsize_mb", "zero_expert_num"];
        let content: String = keys.iter().map(|key| format!("{key} = {number}\n")).collect();
        let config = config_file(folder.path(), "c.toml", &content);
        let report = json(2, &["check", &config]);
        assert!(report["buffer"]["left_bytes"].is_i64(), "{report}");
        let hints: Vec<_> = report["violations"].as_array().unwrap().iter().map(|v| &v["hint"]).collect();
        assert!(hints.iter().all(|hint| hint.is_string()), "{hints:?}");
    }
}

#[test]
fn a_preset_with_other_keys_is_judged_as_a_file_with_them() {
    let folder = tempdir().unwrap();
    let config = config_file(folder.path(), "c.toml", "epWorldSize = 144\nmoeExpertNum = 288\nbs = 48");
    let set = ["--set", "sharedExpertRankNum=16"];
    let of_file = json(2, &[&["check", &config][..], &set].concat());
    let all = ["--set=ep_world_size=144", "--set=moe_expert_num=288", "--set=bs=48"];
    let preset = json(2, &[&["check", "--preset", "deepseek-v3-decode"][..], &all, &set].concat());
    assert_eq!(of_file["violations"], preset["violations"]);
    let violations = preset["violations"].as_array().unwrap();
    let parameters: Vec<_> = violations.iter().map(|v| &v["parameter"]).collect();
    assert_eq!(parameters, ["moe_expert_num", "hccl_buffsize_mb"], "one does not hide the other");
    assert!(violations[1]["hint"].as_str().unwrap().starts_with("hccl_buffsize_mb = 600"), "{violations:?}");
    let table = veriep(&[&["check", &config, "-v"][..], &set].concat());
    assert!(String::from_utf8(table.stdout).unwrap().contains("\n missing  "));
    // Every layer gets it.
    let other = config_file(folder.path(), "d.toml", "bs = 8");
    let layers = json(0, &["check", &other, &other, "--set", "k=4"]);
    assert_eq!(
        layers["configs"][1]["buffer"]["max_bs"],
        json(0, &["check", &other, "--set", "k=4"])["buffer"]["max_bs"]
    );
    assert!(fails(2, &["check", &other, "--preset", "tiny"]).contains("cannot be used with"));
}

#[test]
fn the_smallest_window_is_told_as_what_it_is() {
    let folder = tempdir().unwrap();
    let tiny = "ep_world_size = 2\nmoe_expert_num = 2\nk = 1\nh = 1024\nbs = 1\naiv_num = 1\n";
    let config = config_file(folder.path(), "c.toml", &format!("{tiny}hccl_buffsize_mb = 1"));
    assert!(fails(2, &["check", &config]).contains("hccl_buffsize_mb = 1: must be in [2, "));
    let table = veriep(&["check", &config, "--set", "HCCL_BUFFSIZE=2"]);
    assert!(String::from_utf8(table.stdout).unwrap().contains("2 (the smallest window)"));
}

#[test]
fn a_release_decides_what_is_accepted_and_how_much_is_asked_for() {
    let folder = tempdir().unwrap();
    let of = |content: &str| config_file(folder.path(), "c.toml", content);
    // A capacity, as a decode node has it: windows for 16 tokens, whatever a rank has.
    let capacity = of("ep_world_size = 16\nmoe_expert_num = 256\nbs = 4\nglobal_bs = 256");
    let report = json(0, &["check", &capacity]);
    assert_eq!((&report["release"], &report["buffer"]["required_mb"]), (&"2026-07".into(), &120.into()));
    json(
        0,
        &[
            "check",
            &of("ep_world_size = 4\nmoe_expert_num = 8\nk = 2\nh = 1024\nbs = [3, 1, 4, 2]\nglobal_bs = 64"),
        ],
    );
    // The name of a TP group that there is not.
    json(0, &["check", &of("k = 8\ngroup_ep = \"mc2\"\ngroup_tp = \"mc2\"\ntp_world_size = 1")]);
    let v2 =
        of("moe_expert_num = 256\ncomm_alg = \"fullmesh_v2\"\nk = 13\nbs = 300\nhccl_buffsize_mb = 4000");
    let parameters = |report: &Value| -> Vec<String> {
        let all = report["violations"].as_array().unwrap();
        all.iter().map(|problem| problem["parameter"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(parameters(&json(2, &["check", &v2])), ["k", "bs"]);
    assert_eq!(parameters(&json(0, &["check", &v2, "--release", "SEED"])), [""; 0]);
    // The TP group needs more than the EP group, and one number of the environment serves both.
    let tp =
        of("ep_world_size = 8\ntp_world_size = 2\nmoe_expert_num = 8\nk = 4\nbs = 512\nrelease = \"9.0.1\"");
    let report = json(2, &["check", &tp]);
    assert_eq!(parameters(&report), ["hccl_buffsize_mb"]);
    let sizes = ["required_mb", "required_ep_mb", "required_tp_mb", "layout_mb"];
    assert_eq!(sizes.map(|name| report["buffer"][name].as_u64()), [228, 172, 228, 228].map(Some));
    assert_eq!(parameters(&json(2, &["check", &tp, "--release", "2026-07"])), ["tp_world_size"]);
}

#[test]
fn what_the_operators_accept_and_we_cannot_run_is_accepted_with_our_limit_beside_it() {
    let folder = tempdir().unwrap();
    let of = |content: &str| config_file(folder.path(), "c.toml", content);
    for (content, mb, parameter) in [
        (
            "ep_world_size = 32\nmoe_expert_num = 256\ncomm_alg = \"hierarchy\"\nhccl_buffsize_mb = 461",
            461,
            "comm_alg",
        ),
        ("product = \"a2\"\nep_world_size = 8\nmoe_expert_num = 128", 32, "ep_world_size"),
        ("product = \"a2\"\nep_world_size = 384\nmoe_expert_num = 384", 172, "ep_world_size"),
        ("product = \"a2\"\nmoe_expert_num = 400", 60, "moe_expert_num"),
        (
            "product = \"a2\"\ncomm_alg = \"hierarchy\"\nep_world_size = 64\nbs = 512\nhccl_buffsize_mb = 2500",
            573,
            "bs",
        ),
        (
            "product = \"a2\"\ncomm_alg = \"hierarchy\"\nmoe_expert_num = 256\nhccl_buffsize_mb = 100",
            66,
            "hccl_buffsize_mb",
        ),
    ] {
        let config = of(content);
        let report = json(0, &["check", &config]);
        assert_eq!(report["buffer"]["required_mb"], mb, "{content}: {report}");
        assert_eq!(report["violations"], Value::Array(Vec::new()), "{content}");
        assert_eq!(report["own_limits"][0]["parameter"], parameter, "{content}: {report}");
        let line = &fails_with_lines(2, &["layout", &config])[0];
        assert!(line.contains("a limit of VeriEP: the operators accept it"), "{line}");
    }
    // No release before 9.0.0 has that algorithm of A3.
    let early = of("k = 8\ncomm_alg = \"hierarchy\"\nrelease = \"8.5.0\"");
    assert!(fails(2, &["check", &early]).contains("comm_alg = \"hierarchy\": must be"));
}

#[test]
fn notes_say_what_may_be_a_mistake_and_change_no_answer() {
    let folder = tempdir().unwrap();
    for (content, part) in [
        ("hccl_buffsize_mb = 1048576", "the unit is MB"),
        ("moe_expert_num = 32\nh = 1024\nhccl_buffsize_mb = 2000", "the unit is MB"),
        ("product = \"a2\"\nmoe_expert_num = 128", "561000"),
        ("logical_experts = 128\nredundant_experts = 32\nep_world_size = 32", "160 physical experts"),
    ] {
        let report = json(0, &["check", &config_file(folder.path(), "c.toml", content)]);
        assert!(report["notes"].to_string().contains(part), "{content}: {}", report["notes"]);
    }
    let many = json(2, &["check", &config_file(folder.path(), "c.toml", "bs = 8192")]);
    assert!(many["notes"].to_string().contains("prefill"), "{}", many["notes"]);
    let plain = json(0, &["check", &config_file(folder.path(), "c.toml", "k = 8")]);
    assert_eq!(plain["notes"], Value::Array(Vec::new()));
}

#[test]
fn a_rank_without_tokens_runs_here_and_is_refused_by_the_operators_with_the_hint_of_a_mask() {
    let idle = ["--preset", "tiny", "--set", "bs=[4,0]", "--set", "global_bs=8"];
    let line = fails(2, &[&["check"], &idle[..]].concat());
    assert!(
        line.contains("must be in [1, 512]") && line.contains("x_active_mask that is false everywhere"),
        "{line}"
    );
    json(0, &[&["run", "--backend", "lockstep"], &idle[..]].concat());
}

#[test]
fn one_number_of_redundancy_does_not_say_how_many_physical_experts_there_are() {
    let folder = tempdir().unwrap();
    for (content, more) in [
        ("logical_experts = 128\nep_world_size = 32", ""),
        ("logical_experts = 64\nep_world_size = 32", ""),
        ("logical_experts = 8\nep_world_size = 16\nk = 4", ""),
        ("redundant_experts = 80\nep_world_size = 32", ""),
        ("ep_world_size = 32", "logical_experts=128"),
    ] {
        let config = config_file(folder.path(), "c.toml", content);
        let set: &[&str] = if more.is_empty() { &[] } else { &["--set", more] };
        let report = json(4, &[&["check", &config], set].concat());
        assert_eq!(report["decides"][0], "--set KEY=VALUE for moe_expert_num", "{content}: {report}");
        assert_eq!(report["violations"], Value::Array(Vec::new()), "{content}");
        assert!(!report["notes"].to_string().contains("physical experts are counted"), "{report}");
        let line = fails(2, &[&["layout", &config], set].concat());
        assert!(line.contains("does not say moe_expert_num") || line.contains("moe_expert_num"), "{line}");
    }
    // Beside the number of physical experts each is judged.
    let whole = config_file(folder.path(), "c.toml", "logical_experts = 128\nmoe_expert_num = 64");
    assert!(fails(2, &["check", &whole]).contains("logical_experts = 128: must be in [0, 64]"));
}

#[test]
fn a_rule_that_reads_stated_keys_alone_is_certain() {
    let folder = tempdir().unwrap();
    let check = |status: i32, arguments: &str| {
        let text = format!("torch_npu.npu_moe_distribute_dispatch_v2({arguments})");
        json(status, &["check", &config_file(folder.path(), "call.py", &text), "--set", "product=a3"])
    };
    // The message has the other number in brackets, and the call states it.
    let group = "ep_world_size=16, moe_expert_num=60, shared_expert_rank_num=4";
    let report = check(2, &format!("{group}, shared_expert_num=3"));
    let message = report["violations"][0]["message"].as_str().unwrap();
    assert!(message.contains("must be a multiple of shared_expert_num (shared_expert_num = 3)"), "{message}");
    // Here it does not.
    let with_default = "ep_world_size=16, moe_expert_num=64, shared_expert_rank_num=4, shared_expert_num=n";
    check(4, with_default);
    // What remains of a division follows from several numbers.
    check(4, "ep_world_size=world, moe_expert_num=100");
}

#[test]
fn a_tensor_that_a_call_passes_by_name_may_be_none() {
    let folder = tempdir().unwrap();
    let check = |status: i32, arguments: &str| {
        let text = format!(
            "torch_npu.npu_moe_distribute_dispatch_v2(ep_world_size=16, moe_expert_num=64, {arguments})"
        );
        let all = ["product=a3", "dtype=bf16", "h=7168", "bs=8", "hccl_buffsize_mb=400"];
        let set: Vec<_> = all.iter().flat_map(|set| ["--set", set]).collect();
        let call = config_file(folder.path(), "call.py", &text);
        json(status, &[&["check", &call, "--set", "k=8"], &set[..]].concat())
    };
    check(0, "quant_mode=0, scales=None");
    let report = check(4, "quant_mode=0, scales=sc");
    assert!(report["decides"][0].as_str().unwrap().contains("the tensors that are meant"), "{report}");
    check(0, "quant_mode=2, scales=sc");
}

#[test]
fn a_case_whose_configuration_lacks_keys_is_open() {
    let folder = tempdir().unwrap();
    let case = folder.path().join("case");
    assert!(veriep(&["gen", "--preset", "tiny", "--seed", "1", "--out", text(&case)]).status.success());
    json(0, &["check", text(&case)]);
    config_file(&case, "config.toml", "");
    let report = json(4, &["check", text(&case)]);
    let keys =
        "--set KEY=VALUE for bs, dtype, ep_world_size, h, hccl_buffsize_mb, k, moe_expert_num, product";
    assert_eq!((&report["decides"][0], &report["violations"]), (&keys.into(), &Value::Array(Vec::new())));
}
