//! `veriep check`, from outside.

mod common;

use common::{config_file, fails, fails_with_lines, json, text, veriep};
use tempfile::tempdir;

#[test]
fn a_valid_config_has_no_violations_and_its_sizes() {
    let folder = tempdir().unwrap();
    let config = config_file(folder.path(), "c.toml", "");
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
        ("k = 8\nwrong = 1", "line 2", "unknown field `wrong`"),
        ("k = \"8\"", "line 1", "i64"),
        ("k = 9223372036854775808", "line 1", "i64"),
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
    let config = config_file(folder.path(), "c.toml", "");
    let plain = json(0, &["check", &config]);
    let required = plain["buffer"]["required_mb"].as_u64().unwrap();
    let report = json(0, &["check", &config, "--port-offset", "65536"]);
    assert_eq!(report["buffer"]["required_mb"].as_u64().unwrap(), required + 2);
    let tight = config_file(folder.path(), "t.toml", &format!("hccl_buffsize_mb = {required}"));
    assert!(veriep(&["check", &tight]).status.success());
    let line = fails(2, &["check", &tight, "--port-offset", "65536"]);
    assert!(
        line.contains("hccl_buffsize_mb") && line.contains("port offsets of both partitions = 2097152"),
        "{line}"
    );
}

#[test]
fn usage_errors_are_one_line_and_status_2() {
    assert!(fails(2, &[]).contains("missing verb"));
    assert!(fails(2, &["chekc"]).contains("chekc"));
    assert!(fails(2, &["check"]).contains("missing argument"));
    assert!(fails(2, &["check", "a", "--format", "xml"]).contains("table"));
    assert!(fails(2, &["gen", "--preset", "tiny"]).contains("missing argument"));
    let help = veriep(&["--help"]);
    assert!(help.status.success() && help.stderr.is_empty());
}

#[cfg(unix)]
#[test]
fn a_closed_stdout_is_no_panic() {
    use std::process::{Command, Stdio};
    let folder = tempdir().unwrap();
    let config = config_file(folder.path(), "c.toml", "");
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
