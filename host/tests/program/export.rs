//! `veriep export`: what it writes, held against the core by compilers and by a script that reads nothing else. Random shapes,
//! in more languages, are in `host/python/tests/test_headers.py`.

use crate::common::{fails, json, text};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::tempdir;

/// Presets, overrides and options: every protocol in every mode.
const GROUPS: [&[&str]; 10] = [
    &["--preset", "tiny"],
    &["--preset", "tiny", "--flags", "separate", "--set", "hccl_buffsize_mb=8", "--port-offset", "1024"],
    &["--preset", "tiny", "--set", "comm_alg=fullmesh_v2", "--set", "quant_mode=2"],
    &["--preset", "tiny", "--receive", "in-place"],
    &["--preset", "tiny", "--receive", "direct", "--set", "quant_mode=2"],
    &["--preset", "tiny", "--set", "ep_world_size=3", "--set", "shared_expert_rank_num=1"],
    &["--preset", "tiny", "--set", "tp_world_size=2", "--set", "moe_expert_num=2"],
    &["--preset", "a2-64", "--set", "ep_world_size=16", "--set", "bs=2"],
    &["--preset", "a2-hier-16", "--set", "bs=2"],
    &["--preset", "a2-hier-16", "--set", "bs=2", "--stage", "2"],
];

fn export(folder: &Path, args: &[&str]) -> Value {
    let fixed = ["export", "--prefix", "p", "--out", text(folder)];
    json(0, &[&fixed, args].concat())
}

/// Whether a compiler is there, and what its program ends with.
fn checked(folder: &Path, compiler: &[&str]) -> Option<bool> {
    let program = folder.join("check");
    let built = Command::new(compiler[0])
        .args(&compiler[1..])
        .args(["-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-o", text(&program)])
        .arg(folder.join("p_check.c"))
        .status();
    assert!(built.ok()?.success(), "{compiler:?}");
    Some(Command::new(program).output().unwrap().status.success())
}

const C: [&str; 2] = ["cc", "-std=c99"];
const CXX: [&str; 4] = ["c++", "-std=c++17", "-x", "c++"];

fn places(folder: &Path) -> std::process::Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/program/plan_places.py");
    Command::new("python3").arg(script).arg(folder.join("plan.json")).output().unwrap()
}

#[test]
fn every_offset_of_every_protocol_is_the_cores_in_c_and_in_cxx_and_no_byte_has_two_writers() {
    let folder = tempdir().unwrap();
    for args in GROUPS {
        let written = export(folder.path(), args);
        assert!(
            written["maps"].as_u64().unwrap() > 10 && written["events"].as_u64().unwrap() > 3,
            "{args:?}"
        );
        assert_eq!(checked(folder.path(), &C), Some(true), "{args:?}");
        assert_ne!(checked(folder.path(), &CXX), Some(false), "{args:?}");
        let seen = places(folder.path());
        assert!(seen.status.success(), "{args:?}: {}", String::from_utf8_lossy(&seen.stderr));
    }
}

#[test]
fn a_wrong_stride_and_a_wrong_constant_are_seen() {
    let folder = tempdir().unwrap();
    export(folder.path(), GROUPS[0]);
    let header = folder.path().join("p_plan.h");
    let good = fs::read_to_string(&header).unwrap();
    for (right, wrong) in [
        ("(uint64_t)slot * 2560ull", "(uint64_t)slot * 2561ull"),
        ("#define P_AIV_NUM 8ull", "#define P_AIV_NUM 9ull"),
        ("(uint64_t)core * 512ull", "(uint64_t)core * 511ull"),
    ] {
        assert!(good.contains(right), "{right} of {good}");
        fs::write(&header, good.replacen(right, wrong, 1)).unwrap();
        assert_eq!(checked(folder.path(), &C), Some(false), "{wrong}");
    }
    // Records that are put closer together than they are long.
    let plan = folder.path().join("plan.json");
    let text = fs::read_to_string(&plan).unwrap();
    let close = text.replacen("\"index\":\"slot\",\"stride\":2560", "\"index\":\"slot\",\"stride\":512", 1);
    assert_ne!(close, text);
    fs::write(&plan, close).unwrap();
    assert!(!places(folder.path()).status.success());
}

#[test]
fn what_cannot_be_exported_is_refused() {
    let folder = tempdir().unwrap();
    let of = |args: &[&'static str]| {
        let fixed = ["export", "--preset", "tiny", "--out", text(folder.path())];
        fails(2, &[&fixed, args].concat())
    };
    assert!(of(&["--ranks", "0,2"]).contains("--ranks 2: must be all, or ranks in [0, 1]"));
    assert!(of(&["--prefix", "9"]).contains("must be a letter"));
    assert!(of(&["--receive", "direct", "--flags", "separate", "--port-offset", "512"]).contains("port"));
}
