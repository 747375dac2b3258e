//! Golden vectors: `gen --expected` and `compare`, from outside.

use crate::common::{all_of, fails, fails_with_lines, json, text, veriep};
use safetensors::Dtype;
use std::fs;
use tempfile::tempdir;
use veriep_case::store::{Tensor, TensorFile, write_tensors};

const KINDS: [&[&str]; 14] = [
    &["--set", "aiv_num=3"],
    &["--set", "quant_mode=2", "--smooth-scales", "--mask", "pairs"],
    &["--set", "dtype=f16", "--set", "expert_token_nums_type=0", "--mask", "tokens"],
    &["--set", "ep_world_size=4", "--set", "shared_expert_rank_num=2", "--routing", "hot"],
    &["--set", "ep_world_size=4", "--set", "k=1", "--dead", "0,2"],
    &["--set", "comm_alg=fullmesh_v2"],
    &["--set", "moe_expert_num=8", "--set", "copy_expert_num=1", "--logical-experts", "3", "--mask", "pairs"],
    &["--set", "moe_expert_num=8", "--set", "quant_mode=2", "--logical-experts", "5", "--hard"],
    &["--set", "bs=[4, 1]", "--set", "global_bs=8"],
    &["--set", "zero_expert_num=1", "--set", "copy_expert_num=2", "--set", "const_expert_num=2"],
    &["--shared-expert-x", "--mask", "pairs"],
    &["--set", "comm_quant_mode=2", "--set", "ep_world_size=3", "--set", "shared_expert_rank_num=1"],
    &[
        "--set",
        "release=9.1.0",
        "--set",
        "tp_world_size=2",
        "--set",
        "moe_expert_num=2",
        "--set",
        "k=1",
        "--set",
        "quant_mode=2",
    ],
    &[
        "--set",
        "product=a2",
        "--set",
        "ep_world_size=16",
        "--set",
        "moe_expert_num=32",
        "--set",
        "quant_mode=2",
    ],
];

#[test]
fn a_run_gives_what_the_oracle_alone_has_written() {
    let folder = tempdir().unwrap();
    for (i, kind) in KINDS.iter().enumerate() {
        let case = folder.path().join(format!("case{i}"));
        let base = ["gen", "--preset", "tiny", "--seed", "5", "--expected", "--out", text(&case)];
        json(0, &[&base[..], kind].concat());
        let result = folder.path().join(format!("result{i}.safetensors"));
        json(4, &["run", text(&case), "--no-check", "--out", text(&result)]);
        let expected = case.join("expected.safetensors");
        assert_eq!(fs::read(&result).unwrap(), fs::read(&expected).unwrap(), "{kind:?}");
        for against in [&case, &expected] {
            let compared = json(0, &["compare", text(against), text(&result)]);
            let tensors = compared["tensors"].as_array().unwrap();
            assert!(!tensors.is_empty() && tensors.iter().all(|one| one["wrong"] == 0), "{compared}");
        }
    }
}

/// `rstd` is a sum in any order, and `y` follows from it: only these may differ, and `compare` says by how much.
#[test]
fn a_run_of_add_rms_norm_gives_what_the_oracle_has_written_but_for_rstd_and_y() {
    let folder = tempdir().unwrap();
    let (case, result) = (folder.path().join("case"), folder.path().join("result.safetensors"));
    let mut args = vec!["gen", "--preset", "tiny", "--seed", "5", "--expected", "--out", text(&case)];
    args.extend(["--set", "op=combine_add_rms_norm", "--set", "copy_expert_num=1", "--mask", "tokens"]);
    json(0, &args);
    json(4, &["run", text(&case), "--no-check", "--out", text(&result)]);
    let expected = case.join("expected.safetensors");
    for against in [&case, &expected] {
        assert_eq!(json(0, &["compare", text(against), text(&result)])["verdict"], "yes");
    }
    let [mut a, mut b] = [&expected, &result].map(|path| TensorFile::open(path).unwrap());
    let names = a.names();
    assert_eq!(names, b.names());
    assert!(["x_out", "x", "rstd", "y"].iter().all(|name| names.contains(&format!("rank1.{name}"))));
    for name in names.iter().filter(|name| !name.ends_with(".rstd") && !name.ends_with(".y")) {
        assert_eq!(a.read(name).unwrap(), b.read(name).unwrap(), "{name}");
    }
}

#[test]
fn what_differs_is_named_and_ends_with_status_1() {
    let folder = tempdir().unwrap();
    let (a, b) = (folder.path().join("a"), folder.path().join("b"));
    for (case, seed) in [(&a, "1"), (&b, "2")] {
        json(0, &["gen", "--preset", "tiny", "--seed", seed, "--expected", "--out", text(case)]);
    }
    let foreign = b.join("expected.safetensors");
    let lines = fails_with_lines(1, &["compare", text(&a), text(&foreign)]);
    assert!(
        lines.iter().any(|line| line.contains("rank0.x_out[0, 0] = ")
            && line.contains("values differ in rows 0, 1, 2, 3, by at most ")),
        "{lines:?}"
    );
    assert_eq!(json(1, &["compare", text(&a), text(&foreign)])["verdict"], "no");
    assert!(fails(2, &["compare", text(&a), "/nowhere"]).ends_with("/nowhere: missing"));
    let inputs = b.join("inputs.safetensors");
    assert!(fails_with_lines(1, &["compare", text(&a), text(&inputs)])[0].contains("missing"));
    // One wrong bit.
    let mut bytes = fs::read(&foreign).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    let spoiled = folder.path().join("spoiled.safetensors");
    fs::write(&spoiled, bytes).unwrap();
    assert!(fails(1, &["compare", text(&b), text(&spoiled)]).contains("(1 of "));
}

#[test]
fn golden_vectors_of_another_case_do_not_stay() {
    let folder = tempdir().unwrap();
    let case = folder.path().join("case");
    let args = ["gen", "--preset", "tiny", "--seed", "1", "--out", text(&case)];
    json(0, &[&args[..], &["--expected"]].concat());
    assert!(case.join("expected.safetensors").is_file());
    json(0, &[&args[..], &["--force"]].concat());
    assert!(!case.join("expected.safetensors").exists());
    assert!(veriep(&["check", text(&case)]).status.success());
}

#[test]
fn a_name_that_occurs_twice_in_a_header_is_refused() {
    let folder = tempdir().unwrap();
    let entry = r#"{"dtype":"U8","shape":[1],"data_offsets":[0,1]}"#;
    let header = format!(r#"{{"rank0.x":{entry},"rank0.x":{entry}}}"#);
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.push(0);
    let path = folder.path().join("twice.safetensors");
    fs::write(&path, bytes).unwrap();
    let line = fails(2, &["compare", text(&path), text(&path)]);
    assert!(line.contains("duplicate name \"rank0.x\" in the header"), "{line}");
}

/// Words of a tensor of 4 bytes each.
fn ints(file: &mut TensorFile, name: &str) -> Vec<i32> {
    let bytes = file.read(name).unwrap();
    bytes.as_chunks().0.iter().map(|word| i32::from_le_bytes(*word)).collect()
}

/// Rank 0 has a table as frameworks make it, one replica of each logical expert; rank 1 follows the rule of the map.
#[test]
fn a_rank_that_chooses_its_replicas_sends_to_those() {
    let folder = tempdir().unwrap();
    let (case, result) = (folder.path().join("case"), folder.path().join("result.safetensors"));
    let experts =
        ["--set", "moe_expert_num=8", "--set", "expert_token_nums_type=1", "--logical-experts", "3"];
    let base = ["gen", "--preset", "tiny", "--seed", "5", "--out", text(&case)];
    json(0, &[&base[..], &experts].concat());
    let inputs = case.join("inputs.safetensors");
    let mut file = TensorFile::open(&inputs).unwrap();
    let map = ints(&mut file, "expert_map");
    let rows: Vec<Vec<_>> =
        map.chunks(map.len() / 3).map(|row| row.iter().copied().filter(|id| *id >= 0).collect()).collect();
    let table: Vec<i32> = rows.iter().map(|row| *row.last().unwrap()).collect();
    let mut counts = [0_i64; 8];
    for rank in 0..2 {
        let ids = ints(&mut file, &format!("rank{rank}.expert_ids"));
        for (pair, &id) in ids.iter().enumerate() {
            let row = &rows[id as usize];
            let by_rule = row[(rank + pair / 2) % row.len()];
            counts[if rank == 0 { table[id as usize] } else { by_rule } as usize] += 1;
        }
    }
    let mut tensors = all_of(&inputs);
    let data: Vec<_> = table.iter().flat_map(|id| id.to_le_bytes()).collect();
    tensors.push(Tensor {
        name: "rank0.replicas".to_owned(),
        dtype: Dtype::I32,
        shape: vec![3],
        data: data.into(),
    });
    write_tensors(&inputs, tensors).unwrap();
    for backend in ["threads", "weak"] {
        let said =
            json(0, &["run", text(&case), "--backend", backend, "--rounds", "4", "--out", text(&result)]);
        assert_eq!(said["verdict"], "yes", "{said}");
    }
    json(0, &["compare", text(&case), text(&result)]);
    let mut result = TensorFile::open(&result).unwrap();
    let got: Vec<_> = (0..2)
        .flat_map(|rank| {
            let bytes = result.read(&format!("rank{rank}.expert_token_nums")).unwrap();
            bytes.as_chunks().0.iter().map(|word| i64::from_le_bytes(*word)).collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(got, counts);
}
