//! `veriep export`: what it writes, held against the core by compilers and by a script that reads nothing else. Random shapes,
//! in more languages, are in `host/python/tests/test_headers.py`.

use crate::common::{fails, json, text};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::tempdir;
use veriep_case::store::{Tensor, TensorFile};

/// Presets, overrides and options: every protocol in every mode.
const GROUPS: [&[&str]; 11] = [
    &["--preset", "tiny"],
    &["--preset", "tiny", "--flags", "separate", "--set", "hccl_buffsize_mb=8", "--port-offset", "1024"],
    &["--preset", "tiny", "--set", "comm_alg=fullmesh_v2", "--set", "quant_mode=2"],
    &["--preset", "tiny", "--receive", "in-place"],
    &["--preset", "tiny", "--slots", "64"],
    &["--preset", "tiny", "--receive", "direct", "--set", "quant_mode=2"],
    &["--preset", "tiny", "--set", "ep_world_size=3", "--set", "shared_expert_rank_num=1"],
    &["--preset", "tiny", "--set", "release=9.1.0", "--set", "tp_world_size=2", "--set", "moe_expert_num=2"],
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

/// Every number of a JSON value, with its place.
fn each_number(value: &Value, act: &mut dyn FnMut(f64, &Value)) {
    match value {
        Value::Number(number) => act(number.as_f64().unwrap(), value),
        Value::Array(all) => all.iter().for_each(|one| each_number(one, act)),
        Value::Object(all) => all.values().for_each(|one| each_number(one, act)),
        _ => {}
    }
}

/// The second half of a window begins at 8 GiB, so a place of 32 bits would be in the first.
#[test]
fn places_beyond_4_gib_are_whole_in_json_and_in_c() {
    let folder = tempdir().unwrap();
    let wide = ["--set", "hccl_buffsize_mb=16384"];
    let mut changed = 0;
    for group in [GROUPS[0], GROUPS[2], GROUPS[7]] {
        export(folder.path(), &[group, &wide].concat());
        assert_eq!(checked(folder.path(), &C), Some(true), "{group:?}");
        let plan: Value =
            serde_json::from_slice(&fs::read(folder.path().join("plan.json")).unwrap()).unwrap();
        assert_eq!(plan["constants"]["window_bytes"], 1_u64 << 34);
        let half = plan["maps"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|map| map["region"] == "window" && map["dims"][0]["index"] == "partition");
        assert!(half.clone().count() > 0 && half.clone().all(|map| map["dims"][0]["stride"] == 1_u64 << 33));
        // What readers that know of no integers take for another number.
        each_number(&plan, &mut |number, value| assert!(number.abs() < (1_u64 << 53) as f64, "{value}"));
        let header = folder.path().join("p_plan.h");
        let good = fs::read_to_string(&header).unwrap();
        for (right, wrong) in [
            ("(uint64_t)partition * 8589934592ull", "(uint64_t)partition * (uint32_t)8589934592ull"),
            ("_WINDOW_BYTES 17179869184ull", "_WINDOW_BYTES 0ull"),
        ] {
            assert!(good.contains(right), "{right} of {group:?}");
            fs::write(&header, good.replacen(right, wrong, 1)).unwrap();
            assert_ne!(checked(folder.path(), &C), Some(true), "{wrong}");
            changed += 1;
        }
    }
    assert_eq!(changed, 6);
}

#[test]
fn what_a_core_does_is_the_same_in_export_and_in_plan() {
    let folder = tempdir().unwrap();
    // With fullmesh_v2 pairs of MoE experts are sent as `experts` alone.
    for (group, sends) in [(GROUPS[0], "moe_pairs"), (GROUPS[2], "experts"), (GROUPS[5], "moe_pairs")] {
        export(folder.path(), group);
        let plan: Value =
            serde_json::from_slice(&fs::read(folder.path().join("plan.json")).unwrap()).unwrap();
        let mut seen = 0;
        for share in plan["sends"].as_array().unwrap() {
            let [rank, core] = ["rank", "core"].map(|key| share[key].to_string());
            let of_core = json(0, &[&["plan", "--rank", &rank, "--core", &core], group].concat());
            for (key, range) in share.as_object().unwrap() {
                let operator = match key.as_str() {
                    "rank" | "core" => continue,
                    "tokens" => "combine",
                    _ => "dispatch",
                };
                assert_eq!(of_core[operator][key], *range, "{group:?}: {key} of core {core} of rank {rank}");
            }
            let count = |key: &str| share[key][1].as_u64().unwrap() - share[key][0].as_u64().unwrap();
            assert!(count("moe_pairs") == 0 || count("experts") == 0, "{group:?}: both send: {share}");
            seen += count(sends);
        }
        assert!(seen > 0, "{group:?}");
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

/// Whether tables of routing are right for a case, by its tensors and those of its golden result alone.
fn route(case: &Path, tables: &mut TensorFile, golden: &mut TensorFile, ranks: usize) -> Result<(), String> {
    let mut inputs = TensorFile::open(&case.join("inputs.safetensors")).unwrap();
    let ints = |file: &mut TensorFile, rank: usize, name: &str| -> Vec<i32> {
        let bytes = file.read(&format!("rank{rank}.{name}")).unwrap();
        bytes.as_chunks().0.iter().map(|&bytes| i32::from_le_bytes(bytes)).collect()
    };
    let mut received: Vec<Vec<Option<[i32; 3]>>> = Vec::new();
    for rank in 0..ranks {
        let rows = golden.info(&format!("rank{rank}.expand_x")).unwrap().shape[0];
        received.push(vec![None; rows]);
        for name in ["ep_recv_counts", "expert_token_nums"] {
            let name = format!("rank{rank}.{name}");
            if tables.read(&name).unwrap() != golden.read(&name).unwrap() {
                return Err(name);
            }
        }
    }
    for rank in 0..ranks {
        let [to, local, slot, row, counts] = ["destination", "local_expert", "slot", "row", "send_counts"]
            .map(|name| ints(tables, rank, name));
        let columns = tables.info(&format!("rank{rank}.row")).unwrap().shape[1];
        let x = inputs.read(&format!("rank{rank}.x")).unwrap();
        let width = x.len() / (to.len() / columns);
        let sent = to.iter().filter(|&&to| to >= 0).count();
        if counts.iter().sum::<i32>() as usize != sent {
            return Err(format!("rank {rank}: {sent} pairs, send_counts {counts:?}"));
        }
        for pair in (0..to.len()).filter(|&pair| to[pair] >= 0) {
            let place = format!("rank {rank} pair {pair}");
            let (receiver, number) = (to[pair] as usize, row[pair] as usize);
            let rows = golden.read(&format!("rank{receiver}.expand_x")).unwrap();
            let seen = rows.chunks(width).nth(number).ok_or(format!("{place}: no such row"))?;
            if seen != &x[pair / columns * width..][..width] {
                return Err(format!("{place}: row {number} of rank {receiver} is another token's"));
            }
            let starts = ints(golden, receiver, "ep_recv_counts");
            let block = local[pair] as usize * ranks + rank;
            let start = if block == 0 { 0 } else { starts[block - 1] };
            if start + slot[pair] != row[pair] || row[pair] >= starts[block] {
                return Err(format!("{place}: slot {} is not row {number}", slot[pair]));
            }
            let told = [rank as i32, (pair / columns) as i32, (pair % columns) as i32];
            if received[receiver][number].replace(told).is_some() {
                return Err(format!("{place}: row {number} of rank {receiver} has two sources"));
            }
        }
    }
    for (rank, rows) in received.iter().enumerate() {
        let triples: Vec<_> = rows.iter().flat_map(|told| told.unwrap_or([-1; 3])).collect();
        if triples != ints(golden, rank, "assist_info_for_combine") {
            return Err(format!("rank {rank}: rows have other sources"));
        }
    }
    Ok(())
}

#[test]
fn routing_tables_of_a_case_say_where_every_row_comes_from() {
    let folder = tempdir().unwrap();
    let [case, out, golden] = ["case", "out", "golden"].map(|name| folder.path().join(name));
    let sets =
        ["ep_world_size=4", "moe_expert_num=6", "shared_expert_rank_num=1", "k=3", "zero_expert_num=1"];
    let sets = sets.map(|set| format!("--set={set}"));
    let made = ["gen", "--preset=tiny", "--mask=pairs", "--seed=5", "--out", text(&case)];
    json(0, &[&made[..], &sets.each_ref().map(String::as_str)].concat());
    json(0, &["golden", text(&case), "--out", text(&golden)]);
    let written = json(0, &["export", text(&case), "--out", text(&out)]);
    assert_eq!(written["files"][3], "routing.safetensors");
    let [mut tables, mut golden] =
        [&out.join("routing.safetensors"), &golden].map(|path| TensorFile::open(path).unwrap());
    route(&case, &mut tables, &mut golden, 4).unwrap();
    // A configuration has no routing.
    let written = json(0, &["export", "--preset=tiny", "--out", text(&out.join("config"))]);
    assert_eq!(written["files"].as_array().unwrap().len(), 3);
    // One wrong entry of any table is seen.
    for name in ["destination", "local_expert", "slot", "row", "send_counts", "ep_recv_counts"] {
        let mut tensors: Vec<_> = tables.names();
        tensors.sort();
        let wrong = |tensor: &String| {
            let info = tables.info(tensor).unwrap();
            let (dtype, shape) = (info.dtype, info.shape.clone());
            (tensor.clone(), dtype, shape)
        };
        let infos: Vec<_> = tensors.iter().map(wrong).collect();
        let mut twin = Vec::new();
        for (tensor, dtype, shape) in infos {
            let mut data = tables.read(&tensor).unwrap();
            if tensor == format!("rank1.{name}") {
                let at =
                    data.as_chunks::<4>().0.iter().position(|&entry| i32::from_le_bytes(entry) >= 0).unwrap();
                data[4 * at] ^= 1;
            }
            twin.push(Tensor { name: tensor, dtype, shape, data: data.into() });
        }
        let mut twin = TensorFile::of_tensors("twin", twin).unwrap();
        assert!(route(&case, &mut twin, &mut golden, 4).is_err(), "{name}");
    }
}
