//! `compare` as a judge of foreign implementations, `golden`, and the cases of `gen --hard`.

use crate::common::{all_of, fails, json, text, veriep};
use half::bf16;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::{TempDir, tempdir};
use veriep_case::case::{self, Case};
use veriep_case::store::{Tensor, TensorFile, write_tensors};

/// Another implementation of combine's sum for bf16, from the terms `w`, `v` of an element.
type Sum = fn(&[(f32, f32)]) -> u16;

fn bits(value: f32) -> u16 {
    bf16::from_f32(value).to_bits()
}

fn as_defined(terms: &[(f32, f32)]) -> u16 {
    bits(terms.iter().fold(0.0, |sum, (w, v)| sum + w * v))
}

fn backwards(terms: &[(f32, f32)]) -> u16 {
    bits(terms.iter().rev().fold(0.0, |sum, (w, v)| sum + w * v))
}

fn fused(terms: &[(f32, f32)]) -> u16 {
    bits(terms.iter().fold(0.0, |sum, (w, v)| w.mul_add(*v, sum)))
}

fn rounded_at_every_addition(terms: &[(f32, f32)]) -> u16 {
    bits(terms.iter().fold(0.0, |sum, (w, v)| bf16::from_f32(sum + w * v).to_f32()))
}

fn cut_off(terms: &[(f32, f32)]) -> u16 {
    (terms.iter().fold(0.0, |sum, (w, v)| sum + w * v).to_bits() >> 16) as u16
}

fn ties_away(terms: &[(f32, f32)]) -> u16 {
    ((terms.iter().fold(0.0f32, |sum, (w, v)| sum + w * v).to_bits() + 0x8000) >> 16) as u16
}

/// Writes what `sum` makes of a case of two ranks whose rows travel as they are, `x_out` alone.
fn x_out(case: &Case, path: &Path, sum: Sum) {
    let (k, h) = (case.shape.k() as usize, case.shape.h() as usize);
    let of_rank = |(number, rank): (usize, &case::RankTensors)| {
        let mut out = Vec::new();
        let tokens = rank.expert_ids.chunks(k).zip(rank.expert_scales.chunks(k)).zip(rank.x.chunks(2 * h));
        for ((ids, weights), x) in tokens {
            for element in x.chunks(2) {
                let x = bf16::from_le_bytes([element[0], element[1]]).to_f32();
                let returned = |&id: &i32| bf16::from_f32(x * case.expert_gain[id as usize]).to_f32();
                let terms: Vec<_> = weights.iter().copied().zip(ids.iter().map(returned)).collect();
                out.extend(sum(&terms).to_le_bytes());
            }
        }
        let shape = vec![out.len() / 2 / h, h];
        Tensor {
            name: format!("rank{number}.x_out"),
            dtype: safetensors::Dtype::BF16,
            shape,
            data: out.into(),
        }
    };
    write_tensors(path, case.ranks.iter().enumerate().map(of_rank).collect()).unwrap();
}

fn made(more: &[&str]) -> (TempDir, PathBuf, PathBuf) {
    let folder = tempdir().unwrap();
    let (case, result) = (folder.path().join("case"), folder.path().join("result.safetensors"));
    let args = ["gen", "--preset", "tiny", "--set", "k=4", "--seed", "3", "--expected", "--out", text(&case)];
    json(0, &[&args[..], more].concat());
    fs::copy(case.join("expected.safetensors"), &result).unwrap();
    (folder, case, result)
}

/// Changes the bytes of a tensor of a result.
fn spoil(path: &Path, name: &str, change: impl FnOnce(&mut Vec<u8>, &mut Vec<usize>)) {
    let mut tensors = all_of(path);
    let tensor = tensors.iter_mut().find(|tensor| tensor.name == name).unwrap();
    change(tensor.data.to_mut(), &mut tensor.shape);
    write_tensors(path, tensors).unwrap();
}

/// Elements of `x_out` that `sum` has otherwise than the reference, with these options.
fn wrong(case: &Path, sum: Sum, status: i32, options: &[&str]) -> u64 {
    let result = case.with_extension("mine");
    x_out(&case::load(case).unwrap(), &result, sum);
    let args = ["compare", text(case), text(&result), "--tensors", "x_out"];
    let compared = json(status, &[&args[..], options].concat());
    compared["tensors"].as_array().unwrap().iter().map(|one| one["wrong"].as_u64().unwrap()).sum()
}

#[test]
fn hard_values_tell_apart_what_is_nearly_right() {
    let (_folder, case, _) = made(&["--hard"]);
    assert_eq!(wrong(&case, as_defined, 0, &[]), 0);
    // Of 4096 elements of tokens whose terms cancel, and as many that are ties.
    for (sum, least) in [
        (backwards as Sum, 1000),
        (fused, 1000),
        (rounded_at_every_addition, 4000),
        (cut_off, 2000),
        (ties_away, 2000),
    ] {
        let wrong = wrong(&case, sum, 1, &[]);
        assert!(wrong >= least, "{wrong} of at least {least}");
    }
    // Ordinary values say nothing of another order.
    let (_folder, case, _) = made(&[]);
    assert_eq!(wrong(&case, backwards, 0, &[]), 0);
    assert!(wrong(&case, rounded_at_every_addition, 1, &[]) > 1000);
}

/// The tolerance that docs/generate/numerics.md states.
#[test]
fn another_order_of_a_sum_in_f32_is_within_the_stated_tolerance_and_rounded_sums_are_not() {
    for more in [&["--hard"][..], &[]] {
        let (_folder, path, _) = made(more);
        let case = case::load(&path).unwrap();
        let (mut m, k) = (0.0f32, case.shape.k() as usize);
        for rank in &case.ranks {
            let largest = |row: &[u8]| {
                let values = row.chunks(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32().abs());
                values.fold(0.0, f32::max)
            };
            let rows = rank.x.chunks(2 * case.shape.h() as usize).map(largest);
            for ((x, ids), weights) in rows.zip(rank.expert_ids.chunks(k)).zip(rank.expert_scales.chunks(k)) {
                let terms =
                    ids.iter().zip(weights).map(|(&id, w)| (w * x * case.expert_gain[id as usize]).abs());
                m = m.max(terms.sum());
            }
        }
        let atol = format!("{}", (k + 1) as f32 * m * 2.0f32.powi(-22));
        let tolerance = ["--ulp", "1", "--atol", &atol];
        for right in [backwards as Sum, fused, as_defined] {
            assert_eq!(wrong(&path, right, 0, &tolerance), 0, "{more:?} {atol}");
        }
        // On ordinary values that is a step off at most: within the room that another order needs.
        let status = i32::from(!more.is_empty());
        let off = wrong(&path, rounded_at_every_addition, status, &tolerance);
        assert!(off >= if more.is_empty() { 0 } else { 4000 }, "{off}");
    }
}

#[test]
fn a_case_is_asked_with_its_configuration_overridden() {
    let (folder, case, result) = made(&[]);
    let other = folder.path().join("other");
    let set = ["--set", "expert_token_nums_type=0"];
    json(0, &[&["golden", text(&case), "--out", text(&other)][..], &set].concat());
    json(1, &["compare", text(&case), text(&other)]);
    json(0, &[&["compare", text(&case), text(&other)][..], &set].concat());
    let line = fails(2, &[&["compare", text(&result), text(&other)][..], &set].concat());
    assert!(line.ends_with("--set expert_token_nums_type=0: a result has no configuration"), "{line}");
}

#[test]
fn planted_errors_are_found_and_named() {
    let (_folder, case, result) = made(&["--set", "quant_mode=2"]);
    json(0, &["compare", text(&case), text(&result)]);
    let good = fs::read(&result).unwrap();
    let found = |tensor: &str, place: &str, change: &dyn Fn(&mut Vec<u8>)| {
        fs::write(&result, &good).unwrap();
        spoil(&result, &format!("rank1.{tensor}"), |data, _| change(data));
        let line = fails(1, &["compare", text(&case), text(&result)]);
        assert!(line.contains(&format!("rank1.{tensor}{place} = ")), "{line}");
        json(1, &["compare", text(&case), text(&result)])
    };
    // One step in one element.
    let compared = found("x_out", "[2, 7]", &|data| {
        let at = 2 * (2 * 1024 + 7);
        data[at] ^= 1;
    });
    let tensors = compared["tensors"].as_array().unwrap();
    let one = tensors.iter().find(|one| one["wrong"] != 0).unwrap();
    assert_eq!(
        (&one["name"], &one["rank"], &one["wrong"], &one["max_ulp"]),
        (&"x_out".into(), &1.into(), &1.into(), &1.into())
    );
    assert_eq!((&one["compared"], &one["first"][0]["index"]), (&4096.into(), &serde_json::json!([2, 7])));
    assert!(one["first"][0]["seen"].is_number() && one["max_abs"].as_f64() > Some(0.0));
    json(0, &["compare", text(&case), text(&result), "--ulp", "1"]);
    // Two rows in each other's place.
    let compared = found("expand_x", "[0, 0]", &|data| {
        let (first, rest) = data.split_at_mut(1024);
        first.swap_with_slice(&mut rest[..1024]);
    });
    let one = compared["tensors"].as_array().unwrap().iter().find(|one| one["wrong"] != 0).unwrap();
    assert_eq!(one["stray_row"], 1);
    let line = || fails(1, &["compare", text(&case), text(&result)]);
    assert!(line().ends_with("; row 0 holds what must be in row 1)"), "{}", line());
    // Nothing that is wrong is finite, so nothing says by how much.
    found("x_out", "[0, 0]", &|data| data.chunks_mut(2).for_each(|nan| nan.copy_from_slice(&[0xC0, 0x7F])));
    assert!(line().ends_with("(4096 of 4096 values differ in rows 0, 1, 2, 3)"), "{}", line());
    // A scale that is another row's.
    found("dynamic_scales", "[3]", &|data| data.copy_within(0..4, 12));
    // A count.
    found("ep_recv_counts", "[1]", &|data| data[4] += 1);
}

#[test]
fn tensors_and_ranks_that_are_not_asked_for_play_no_part() {
    let (_folder, case, result) = made(&[]);
    spoil(&result, "rank0.x_out", |data, _| data[0] ^= 1);
    let compare = |more: &[&'static str]| -> Vec<String> {
        [&["compare", text(&case), text(&result)][..], more].concat().into_iter().map(str::to_owned).collect()
    };
    let status = |more: &[&'static str]| {
        let args = compare(more);
        veriep(&args.iter().map(String::as_str).collect::<Vec<_>>()).status.code()
    };
    for (more, expected) in [
        (&[][..], 1),
        (&["--ranks", "1"], 0),
        (&["--ranks", "0,1"], 1),
        (&["--ranks", "0", "--tensors", "expand_x"], 0),
        (&["--tensors", "x_out"], 1),
        (&["--tensors", "rstd"], 4),
        (&["--tensors", "x_uot"], 2),
        (&["--ranks", "2"], 2),
        (&["--atol", "-1"], 2),
        (&["--rtol", "nan"], 2),
        (&["--ulp", "1"], 0),
        (&["--rtol", "0.01"], 0),
    ] {
        assert_eq!(status(more), Some(expected), "{more:?}");
    }
    // One tensor of one rank is enough then, and is missing otherwise.
    let alone = case.with_extension("alone");
    let mut file = TensorFile::open(&result).unwrap();
    let (data, info) = (file.read("rank1.x_out").unwrap().into(), file.info("rank1.x_out").unwrap());
    let tensor =
        Tensor { name: "rank1.x_out".to_owned(), dtype: info.dtype, shape: info.shape.clone(), data };
    write_tensors(&alone, vec![tensor]).unwrap();
    assert_eq!(
        json(0, &["compare", text(&case), text(&alone), "--tensors", "x_out", "--ranks", "1"])["tensors"][0]
            ["compared"],
        4096
    );
    // Without the rank, that of the other rank is asked for, too.
    json(4, &["compare", text(&case), text(&alone), "--tensors", "x_out"]);
    let missing = json(1, &["compare", text(&case), text(&alone)]);
    assert_eq!(missing["tensors"][0]["error"], "missing");
    let hint = |rank| {
        let mut all = missing["tensors"].as_array().unwrap().iter();
        all.find(|one| one["rank"] == rank && one["error"] == "missing").unwrap()["hint"].clone()
    };
    assert_eq!([hint(0), hint(1)], ["--ranks", "--tensors"]);
    let line = fails(4, &["compare", text(&case), text(&alone), "--ranks", "0"]);
    assert_eq!(
        line,
        "error: unknown: nothing was compared: the result has rank1.x_out; decided by: rank 0 in both files"
    );
    // What is there is right, and half of what is asked for is not there.
    let unknown = json(4, &["compare", text(&case), text(&alone), "--ranks", "0,1"]);
    assert_eq!((&unknown["verdict"], &unknown["ok"]), (&"unknown".into(), &false.into()));
    let decides = unknown["decides"][0].as_str().unwrap();
    assert!(decides.starts_with("rank 0, rank1.assist_info_for_combine, "), "{decides}");
    assert!(decides.ends_with(" in both files"), "{decides}");
}

#[test]
fn rows_behind_those_received_are_looked_at_unless_padded() {
    let (_folder, case, result) = made(&["--set", "quant_mode=2"]);
    for (tensor, row) in [("expand_x", 1024), ("dynamic_scales", 4), ("assist_info_for_combine", 12)] {
        spoil(&result, &format!("rank0.{tensor}"), |data, shape| {
            data.extend(vec![0xA5; 3 * row]);
            shape[0] += 3;
        });
    }
    let wrong = json(1, &["compare", text(&case), text(&result)]);
    let wrong: Vec<_> =
        wrong["tensors"].as_array().unwrap().iter().filter(|one| one["error"].is_string()).collect();
    assert_eq!(wrong.len(), 3);
    assert!(wrong.iter().all(|one| one["hint"] == "--padded"), "{wrong:?}");
    json(0, &["compare", text(&case), text(&result), "--padded"]);
    spoil(&result, "rank0.expand_x", |data, _| data[5] ^= 1);
    assert!(
        fails(1, &["compare", text(&case), text(&result), "--padded"]).contains("rank0.expand_x[0, 5] = ")
    );
    // What has no rows received is as long as it is.
    spoil(&result, "rank1.x_out", |data, shape| {
        data.extend([0; 2048]);
        shape[0] += 1;
    });
    assert!(json(1, &["compare", text(&case), text(&result), "--padded", "--ranks", "1"])["verdict"] == "no");
}

/// Makes the tensors of a result what the operators return: `assist_info_for_combine` of one dimension, rows up to a capacity
/// of 20, and no `expand_idx`. Values after the received rows are those of `fill`.
fn as_of_operators(path: &Path, fill: impl Fn(&Tensor<'_>) -> Vec<u8>) {
    const CAPACITY: usize = 20;
    let mut tensors = Vec::new();
    for mut tensor in all_of(path).into_iter().filter(|tensor| !tensor.name.ends_with(".expand_idx")) {
        match tensor.name.split_once('.').unwrap().1 {
            "assist_info_for_combine" => tensor.shape = vec![128 * CAPACITY],
            "expand_x" | "dynamic_scales" => tensor.shape[0] = CAPACITY,
            _ => {}
        }
        let element = fill(&tensor);
        let bytes = tensor.shape.iter().product::<usize>() * element.len();
        let missing = (bytes - tensor.data.len()) / element.len();
        tensor.data.to_mut().extend(element.repeat(missing));
        tensors.push(tensor);
    }
    write_tensors(path, tensors).unwrap();
}

/// -1 as an element of a tensor.
fn minus_one(tensor: &Tensor<'_>) -> Vec<u8> {
    match tensor.dtype {
        safetensors::Dtype::BF16 => bf16::NEG_ONE.to_le_bytes().to_vec(),
        safetensors::Dtype::F32 => (-1.0f32).to_le_bytes().to_vec(),
        dtype => vec![0xFF; dtype.bitsize() / 8],
    }
}

#[test]
fn tensors_are_read_as_the_operators_return_them() {
    let (_folder, case, result) = made(&["--set", "quant_mode=2"]);
    let rows: usize = case::load(&case).unwrap().ranks.iter().map(|rank| rank.expert_ids.len()).sum();
    as_of_operators(&result, minus_one);
    let compare = ["compare", text(&case), text(&result)];
    let padded = [&compare[..], &["--padded"]].concat();
    let compared = json(0, &padded);
    assert_eq!(compared["not_compared"], serde_json::json!(["rank0.expand_idx", "rank1.expand_idx"]));
    let bound = compared["bound"].as_str().unwrap();
    // Rows for 20, of assist information 128 words; of those, what was received is judged.
    let not_judged = 2 * 20 * (128 + 1024 + 1) - rows * (3 + 1024 + 1);
    let of_bound = format!(
        ": 12 of 14 expected tensors of ranks 0-1; expand_idx was not compared, since the result has none; {not_judged} values after the received rows were not judged"
    );
    assert!(bound.ends_with(&of_bound), "{bound}");
    // Assist information of one dimension is the operator's own, whatever is asked for.
    let alone = [&compare[..], &["--tensors", "assist_info_for_combine"]].concat();
    assert_eq!(json(0, &alone)["verdict"], "yes");
    // The triples are one behind the other.
    let good = fs::read(&result).unwrap();
    spoil(&result, "rank1.assist_info_for_combine", |data, _| data[4 * 3 * 2 + 4] ^= 1);
    assert!(fails(1, &padded).contains("rank1.assist_info_for_combine[2, 1] = "));
    for words in [128 * 20 - 1, 128] {
        fs::write(&result, &good).unwrap();
        spoil(&result, "rank1.assist_info_for_combine", |data, shape| {
            data.truncate(4 * words);
            shape[0] = words;
        });
        let line = fails(1, &padded);
        assert!(
            line.contains(&format!("rank1.assist_info_for_combine: I32 [{words}]: must be I32 [")),
            "{line}"
        );
    }
    // What combine reads instead must be there.
    fs::write(&result, &good).unwrap();
    let less = case.with_extension("without");
    fs::copy(&result, &less).unwrap();
    without(&less, |name| name == "rank0.assist_info_for_combine");
    let lines = crate::common::fails_with_lines(1, &["compare", text(&case), text(&less), "--padded"]);
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines.iter().all(|line| line.contains("rank0.") && line.contains(": missing")), "{lines:?}");
}

#[test]
fn padding_must_hold_the_value_that_is_asked_for() {
    let (_folder, case, result) = made(&["--set", "quant_mode=2"]);
    as_of_operators(&result, minus_one);
    let compare = |value: &'static str| {
        [&["compare", text(&case), text(&result)][..], &["--padded-with", value]].concat()
    };
    let yes = json(0, &compare("-1"));
    let bound = yes["bound"].as_str().unwrap();
    assert!(bound.ends_with(" values after the received rows were compared with -1"), "{bound}");
    json(0, &compare("-1.0"));
    let n = case_rows(&case, 0);
    let line = fails_with_rank0(&compare("0"));
    let all = 128 * 20 - 3 * n;
    assert!(line.ends_with(&format!(
        "rank0.assist_info_for_combine[{}] = -1: must be 0 ({all} of {all} values after the received rows differ)",
        3 * n
    )), "{line}");
    // One element, in the last place.
    let good = fs::read(&result).unwrap();
    spoil(&result, "rank1.expand_x", |data, _| *data.last_mut().unwrap() = 7);
    let line = fails(1, &compare("-1"));
    assert!(line.contains("rank1.expand_x[19, 1023] = 7: must be -1 (1 of "), "{line}");
    let no = json(1, &compare("-1"));
    let one = no["tensors"].as_array().unwrap().iter().find(|one| one["padding"]["wrong"] == 1).unwrap();
    assert_eq!((&one["name"], &one["wrong"]), (&"expand_x".into(), &0.into()));
    json(0, &["compare", text(&case), text(&result), "--padded"]);
    // Rows are judged as well.
    fs::write(&result, &good).unwrap();
    spoil(&result, "rank0.expand_x", |data, _| data[5] ^= 1);
    assert!(fails(1, &compare("-1")).contains("rank0.expand_x[0, 5] = "));
    fs::write(&result, &good).unwrap();
    let line = fails(2, &compare("nan"));
    assert!(
        line.contains("--padded-with nan: rank0.assist_info_for_combine is I32, which has no such value"),
        "{line}"
    );
    fails(2, &compare("minus"));
    fails(2, &[&compare("-1")[..], &["--padded"]].concat());
    // Any NaN is one.
    let nan = |tensor: &Tensor<'_>| match tensor.dtype {
        safetensors::Dtype::F32 => f32::from_bits(0xFFC0_0001).to_le_bytes().to_vec(),
        _ => minus_one(tensor),
    };
    fs::copy(case.join("expected.safetensors"), &result).unwrap();
    as_of_operators(&result, nan);
    json(0, &[&compare("nan")[..], &["--tensors", "dynamic_scales"]].concat());
    // Without anything after the received rows the bound says that nothing was there.
    fs::copy(case.join("expected.safetensors"), &result).unwrap();
    let yes = json(0, &compare("-1"));
    assert!(
        yes["bound"].as_str().unwrap().ends_with("; there are no values after the received rows"),
        "{yes}"
    );
}

/// Makes a case one of combine alone: what its experts returned is in `returned.safetensors`, in the order and under the names
/// that are asked for, and its tokens are gone. The case must have two ranks whose rows travel as they are.
fn of_combine_alone(path: &Path, is_reversed: bool, rows_name: &str) {
    let case = case::load(path).unwrap();
    let (k, h) = (case.shape.k() as usize, case.shape.h() as usize);
    let mut expected = TensorFile::open(&path.join("expected.safetensors")).unwrap();
    let mut tensors = Vec::new();
    for rank in 0..2 {
        let mut of_rank = |name: &str| expected.read(&format!("rank{rank}.{name}")).unwrap();
        let counts = of_rank("ep_recv_counts");
        let mut triples: Vec<_> = of_rank("assist_info_for_combine").chunks(12).map(<[u8]>::to_vec).collect();
        if is_reversed {
            triples.reverse();
        }
        let mut y = Vec::new();
        for triple in &triples {
            let word = |i: usize| i32::from_le_bytes(triple[4 * i..][..4].try_into().unwrap()) as usize;
            let source = &case.ranks[word(0)];
            let gain = case.expert_gain[source.expert_ids[word(1) * k + word(2)] as usize];
            for element in source.x[2 * h * word(1)..][..2 * h].chunks(2) {
                let x = bf16::from_le_bytes([element[0], element[1]]).to_f32();
                y.extend(bits(x * gain).to_le_bytes());
            }
        }
        let n = triples.len();
        let mut push = |name: &str, dtype, shape, data: Vec<u8>| {
            tensors.push(Tensor { name: format!("rank{rank}.{name}"), dtype, shape, data: data.into() });
        };
        // A capacity of two rows more.
        y.extend(vec![0xA5; 2 * 2 * h]);
        push(rows_name, safetensors::Dtype::BF16, vec![n + 2, h], y);
        let mut words = triples.concat();
        words.resize(4 * 128 * (n + 2), 0xA5);
        push("assist_info_for_combine", safetensors::Dtype::I32, vec![128 * (n + 2)], words);
        push("ep_recv_counts", safetensors::Dtype::I32, vec![counts.len() / 4], counts);
    }
    write_tensors(&path.join("returned.safetensors"), tensors).unwrap();
    without(&path.join("inputs.safetensors"), |name| name.ends_with(".x"));
}

/// Takes tensors out of a file.
fn without(path: &Path, is_one: impl Fn(&str) -> bool) {
    let mut tensors = all_of(path);
    tensors.retain(|tensor| !is_one(&tensor.name));
    write_tensors(path, tensors).unwrap();
}

#[test]
fn combine_alone_is_judged_by_the_rows_that_experts_returned() {
    for (is_reversed, rows_name) in [(false, "y"), (true, "y"), (true, "expand_x")] {
        let (folder, case, result) = made(&["--mask", "pairs"]);
        of_combine_alone(&case, is_reversed, rows_name);
        let alone = ["compare", text(&case), text(&result), "--tensors", "x_out"];
        let right = json(0, &alone);
        assert_eq!(
            (&right["tensors"][0]["name"], &right["tensors"][0]["compared"]),
            (&"x_out".into(), &4096.into())
        );
        assert!(
            right["expected"]
                .as_str()
                .unwrap()
                .ends_with("case, combine of the rows in returned.safetensors")
        );
        spoil(&result, "rank1.x_out", |data, _| data[2 * 1024 + 6] ^= 1);
        assert!(fails(1, &alone).contains("rank1.x_out[1, 3] = "));
        // One bit of what an expert returned: another result.
        fs::copy(case.join("expected.safetensors"), &result).unwrap();
        spoil(&case.join("returned.safetensors"), &format!("rank0.{rows_name}"), |data, _| data[1] ^= 0x40);
        assert!(fails(1, &alone).contains(".x_out["));
        // Nothing but combine is expected; the tokens are not there for anything else.
        let golden = folder.path().join("golden");
        json(0, &["golden", text(&case), "--out", text(&golden)]);
        assert_eq!(TensorFile::open(&golden).unwrap().names(), ["rank0.x_out", "rank1.x_out"]);
        let lines = crate::common::fails_with_lines(2, &["run", text(&case)]);
        assert!(lines.iter().any(|line| line.contains("rank0.x: missing")), "{lines:?}");
    }
}

#[test]
fn what_combine_takes_from_dispatch_must_be_right() {
    let (_folder, case, result) = made(&[]);
    of_combine_alone(&case, false, "y");
    let returned = case.join("returned.safetensors");
    let good = fs::read(&returned).unwrap();
    let refused = |name: &str, change: &dyn Fn(&mut Vec<u8>, &mut Vec<usize>)| {
        fs::write(&returned, &good).unwrap();
        spoil(&returned, name, change);
        fails(2, &["compare", text(&case), text(&result), "--tensors", "x_out"])
    };
    let line = refused("rank1.ep_recv_counts", &|data, _| data[0] += 1);
    assert!(
        line.contains("rank1.ep_recv_counts[0] = ") && line.ends_with(", which dispatch returns"),
        "{line}"
    );
    // A row twice, and so another one not at all.
    let line = refused("rank0.assist_info_for_combine", &|data, _| data.copy_within(0..12, 12));
    assert!(line.contains("rank0.assist_info_for_combine[1] = [0, 0, "), "{line}");
    assert!(line.ends_with(": must be a row that dispatch sends here, once"), "{line}");
    let line = refused("rank0.assist_info_for_combine", &|data, _| data[0] = 7);
    assert!(line.contains("rank0.assist_info_for_combine[0] = [7, 0, "), "{line}");
    fs::write(&returned, &good).unwrap();
    let mut twice = all_of(&returned);
    let y = twice.iter().find(|tensor| tensor.name == "rank0.y").unwrap().clone();
    twice.push(Tensor { name: "rank0.expand_x".to_owned(), ..y });
    write_tensors(&returned, twice).unwrap();
    let line = fails(2, &["compare", text(&case), text(&result), "--tensors", "x_out"]);
    assert!(line.ends_with("rank0.expand_x is given: must be absent beside rank0.y"), "{line}");
    let line = refused("rank0.y", &|data, shape| {
        data.truncate(2 * 1024 * 15);
        shape[0] = 15;
    });
    assert!(line.ends_with("rank0.y: BF16 [15, 1024]: must be BF16 [16, 1024]"), "{line}");
    fs::write(&returned, &good).unwrap();
    without(&returned, |name| name == "rank1.y");
    let line = fails(2, &["golden", text(&case), "--out", text(&result.with_extension("golden"))]);
    assert!(line.ends_with("returned.safetensors: rank1.y: missing: must be BF16 [16, 1024]"), "{line}");
    // Another case does not inherit it.
    json(0, &["gen", "--preset", "tiny", "--seed", "3", "--out", text(&case), "--force"]);
    assert!(!returned.exists());
}

/// Rows that a rank receives by the reference.
fn case_rows(case: &Path, rank: u32) -> usize {
    let file = TensorFile::open(&case.join("expected.safetensors")).unwrap();
    file.info(&format!("rank{rank}.expand_x")).unwrap().shape[0]
}

/// The first line of a comparison with a wrong rank 0.
fn fails_with_rank0(args: &[&str]) -> String {
    let lines = crate::common::fails_with_lines(1, args);
    lines.into_iter().find(|line| line.contains("rank0.")).unwrap()
}

#[test]
fn golden_writes_what_gen_expects_of_tensors_from_anywhere() {
    let (folder, case, expected) = made(&[]);
    let golden = folder.path().join("golden");
    json(0, &["golden", text(&case), "--out", text(&golden)]);
    assert_eq!(fs::read(&golden).unwrap(), fs::read(&expected).unwrap());
    // Another weight: another result, which a run has as well.
    let inputs = case.join("inputs.safetensors");
    spoil(&inputs, "rank0.expert_scales", |data, _| data[2] ^= 0x40);
    json(0, &["golden", text(&case), "--out", text(&golden)]);
    assert_ne!(fs::read(&golden).unwrap(), fs::read(&expected).unwrap());
    let run = folder.path().join("run");
    json(4, &["run", text(&case), "--no-check", "--rounds", "1", "--out", text(&run)]);
    json(0, &["compare", text(&golden), text(&run)]);
    // Of a configuration it makes the case that gen would.
    let of_preset = ["golden", "--preset", "tiny", "--set", "k=4", "--seed", "3", "--out", text(&golden)];
    json(0, &of_preset);
    assert_eq!(fs::read(&golden).unwrap(), fs::read(&expected).unwrap());
    assert!(
        fails(2, &["golden", text(&case), "--out", text(&inputs)])
            .ends_with("is an input of this run: --out must name another file")
    );
    assert!(
        fails(2, &["golden", "--out", text(&golden)])
            .ends_with("missing argument: CONFIG, CASE or --preset NAME")
    );
    assert!(fails(2, &["golden", text(&case), "--hard", "--out", text(&golden)]).contains("--hard: "));
}

/// A batch as frameworks have it, with -1 for pairs that are not sent, has the result of the same batch under a mask.
#[test]
fn minus_one_among_ids_is_a_masked_pair_on_request() {
    let (folder, masked, _) = made(&["--mask", "pairs"]);
    let marked = folder.path().join("marked");
    fs::create_dir(&marked).unwrap();
    for name in ["config.toml", "inputs.safetensors"] {
        fs::copy(masked.join(name), marked.join(name)).unwrap();
    }
    let inputs = marked.join("inputs.safetensors");
    let case = case::load(&masked).unwrap();
    let mut inactive = 0;
    for (rank, tensors) in case.ranks.iter().enumerate() {
        let case::OwnedMask::Pairs(mask) = &tensors.mask else { panic!("no mask of pairs") };
        let place = |pair: usize| 4 * pair..4 * pair + 4;
        let left_out: Vec<_> = (0..mask.len()).filter(|&pair| !mask[pair]).collect();
        inactive += left_out.len();
        spoil(&inputs, &format!("rank{rank}.expert_ids"), |data, _| {
            left_out.iter().for_each(|&pair| data[place(pair)].fill(0xFF));
        });
        // What is beside no expert is no number.
        spoil(&inputs, &format!("rank{rank}.expert_scales"), |data, _| {
            left_out.iter().for_each(|&pair| data[place(pair)].fill(0xFF));
        });
    }
    assert!(inactive > 0);
    without(&inputs, |name| name.ends_with(".x_active_mask"));
    let lines = crate::common::fails_with_lines(
        2,
        &["golden", text(&marked), "--out", text(&folder.path().join("no"))],
    );
    assert!(lines[0].contains(" = -1: must be in [0, 4)"), "{lines:?}");
    let config = marked.join("config.toml");
    let keys = fs::read_to_string(&config).unwrap();
    fs::write(&config, keys + "ids = \"-1-inactive\"\n").unwrap();
    let [golden, run] = ["golden", "run"].map(|name| folder.path().join(name));
    json(0, &["golden", text(&marked), "--out", text(&golden)]);
    json(0, &["compare", text(&masked), text(&golden)]);
    json(0, &["run", text(&marked), "--backend", "lockstep", "--rounds", "2", "--out", text(&run)]);
    json(0, &["compare", text(&masked), text(&run)]);
    let checked = json(0, &["check", text(&marked)]);
    let notes = checked["notes"].to_string();
    assert!(notes.contains("ids: the shipped operators are not known to take -1"), "{notes}");
    // -1 is a mask, which this order of sending has not; other ids are as wrong as ever.
    let v2 = ["--set", "comm_alg=fullmesh_v2", "--set", "release=8.5.0"];
    let lines = crate::common::fails_with_lines(2, &[&["check", text(&marked)][..], &v2].concat());
    assert!(lines.iter().any(|line| line.contains("x_active_mask")), "{lines:?}");
    spoil(&inputs, "rank0.expert_ids", |data, _| data[..4].fill(0xFE));
    let lines = crate::common::fails_with_lines(2, &["golden", text(&marked), "--out", text(&golden)]);
    assert!(lines[0].contains("rank0.expert_ids[0, 0] = -16843010: must be in [0, 4)"), "{lines:?}");
}

/// What NumPy writes of a tensor: a header, then the same bytes.
fn npy(tensor: &Tensor<'_>) -> Vec<u8> {
    let descr = match tensor.dtype {
        safetensors::Dtype::BF16 => "<V2",
        safetensors::Dtype::F32 => "<f4",
        safetensors::Dtype::I8 => "|i1",
        safetensors::Dtype::I32 => "<i4",
        safetensors::Dtype::I64 => "<i8",
        other => panic!("{other}"),
    };
    let shape: String = tensor.shape.iter().map(|extent| format!("{extent}, ")).collect();
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}\n");
    let start = [&b"\x93NUMPY\x01\x00"[..], &(header.len() as u16).to_le_bytes(), header.as_bytes()].concat();
    [&start, &*tensor.data].concat()
}

fn write_npz(path: &Path, tensors: &[Tensor<'_>]) {
    let mut zip = zip::ZipWriter::new(fs::File::create(path).unwrap());
    for tensor in tensors {
        zip.start_file(format!("{}.npy", tensor.name), zip::write::SimpleFileOptions::default()).unwrap();
        std::io::Write::write_all(&mut zip, &npy(tensor)).unwrap();
    }
    zip.finish().unwrap();
}

#[test]
fn results_and_cases_are_read_as_numpy_writes_them() {
    let (folder, case, result) = made(&[]);
    let at = |name: &str| folder.path().join(name);
    write_npz(&at("all.npz"), &all_of(&result));
    let yes = json(0, &["compare", text(&case), text(&at("all.npz"))]);
    assert!(
        yes["bound"].as_str().unwrap().ends_with("bit for bit: all 12 expected tensors of ranks 0-1"),
        "{yes}"
    );
    let one = |name: &str| all_of(&result).into_iter().find(|one| one.name == name).unwrap();
    let x_out = one("rank1.x_out");
    fs::write(at("rank1.x_out.npy"), npy(&x_out)).unwrap();
    let asked = ["--ranks", "1", "--tensors", "x_out"];
    json(0, &[&["compare", text(&case), text(&at("rank1.x_out.npy"))][..], &asked].concat());
    let mut wrong = npy(&x_out);
    *wrong.last_mut().unwrap() ^= 1;
    fs::write(at("rank1.x_out.npy"), wrong).unwrap();
    json(1, &[&["compare", text(&case), text(&at("rank1.x_out.npy"))][..], &asked].concat());
    // The tensors of a case, too, and what experts returned.
    let inputs = case.join("inputs.safetensors");
    write_npz(&case.join("inputs.npz"), &all_of(&inputs));
    let line = fails(2, &["check", text(&case)]);
    assert!(line.contains("inputs.npz: stands beside inputs.safetensors: only one may be there"), "{line}");
    fs::remove_file(inputs).unwrap();
    json(0, &["check", text(&case)]);
    json(0, &["compare", text(&case), text(&result)]);
    let rows: Vec<_> = all_of(&result).into_iter().filter(|one| one.name.ends_with(".expand_x")).collect();
    write_npz(&case.join("returned.npz"), &rows);
    let bound = json(0, &["check", text(&case)])["bound"].clone();
    assert!(bound.as_str().unwrap().ends_with("its tensors and the rows that experts returned"), "{bound}");
    write_npz(&case.join("returned.npz"), &rows[1..]);
    assert!(fails(2, &["check", text(&case)]).contains("returned.npz: rank0.expand_x: missing"));
    // A case that is made again keeps none of these.
    json(0, &["gen", "--preset", "tiny", "--seed", "1", "--force", "--out", text(&case)]);
    assert!(!case.join("inputs.npz").exists() && !case.join("returned.npz").exists());
}

#[test]
fn tensors_without_a_rank_are_those_of_the_rank_that_is_meant() {
    let (folder, case, result) = made(&[]);
    let nameless = folder.path().join("mine");
    let mut tensors = all_of(&result);
    tensors.retain(|one| one.name.starts_with("rank1."));
    tensors.iter_mut().for_each(|one| one.name = one.name.replace("rank1.", ""));
    write_tensors(&nameless, tensors.clone()).unwrap();
    let line = fails(2, &["compare", text(&case), text(&nameless)]);
    assert!(line.ends_with("before their names; hint: --rank N if they are of one rank"), "{line}");
    let yes = json(0, &["compare", text(&case), text(&nameless), "--rank", "1"]);
    assert!(yes["bound"].as_str().unwrap().ends_with(" of rank 1 and nothing else"), "{yes}");
    json(1, &["compare", text(&case), text(&nameless), "--rank", "0"]);
    fails(2, &["compare", text(&case), text(&nameless), "--rank", "2"]);
    fails(2, &["compare", text(&case), text(&nameless), "--rank", "1", "--ranks", "1"]);
    json(0, &["compare", text(&nameless), text(&result), "--rank", "1"]);
    // One file has both names.
    let both = folder.path().join("both");
    let named = all_of(&result).into_iter().filter(|one| one.name == "rank1.x_out");
    write_tensors(&both, tensors.into_iter().chain(named).collect()).unwrap();
    assert!(
        fails(2, &["compare", text(&case), text(&both), "--rank", "1"]).contains("which would be the same")
    );
}

#[test]
fn the_bound_of_a_comparison_says_what_was_compared() {
    let (folder, case, result) = made(&[]);
    let bound = |args: &[&str]| json(0, args)["bound"].as_str().unwrap().to_owned();
    let itself = bound(&["compare", text(&result), text(&result)]);
    assert!(
        itself.ends_with("; both names are of one file, which was compared with itself and nothing else"),
        "{itself}"
    );
    let link = folder.path().join("link");
    fs::hard_link(&result, &link).unwrap();
    assert_eq!(bound(&["compare", text(&result), text(&link)]), itself);
    assert!(!bound(&["compare", text(&case), text(&result)]).contains("one file"));
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
    for path in [&a, &b] {
        let mut tensors = all_of(&result);
        tensors.truncate(6);
        tensors.iter_mut().enumerate().for_each(|(nth, one)| one.name = format!("t{nth}"));
        write_tensors(path, tensors).unwrap();
    }
    let nameless = bound(&["compare", text(&a), text(&b)]);
    let end = ": all 6 expected tensors without a rank in their names (t0, t1, t2, t3, 2 more)";
    assert!(nameless.ends_with(end), "{nameless}");
    // Two NaN are equal, and not bit for bit.
    let nan = |bits: u16| {
        move |data: &mut Vec<u8>, _: &mut Vec<usize>| data[..2].copy_from_slice(&bits.to_le_bytes())
    };
    let [a, b] = ["nan-a", "nan-b"].map(|name| folder.path().join(name));
    for (path, bits) in [(&a, 0x7FC0), (&b, 0xFFC1)] {
        fs::copy(&result, path).unwrap();
        spoil(path, "rank0.x_out", nan(bits));
    }
    let of_nan = bound(&["compare", text(&a), text(&b)]);
    assert!(
        of_nan.contains(" values agree bit for bit, 1 of them as NaN of other bits: all 12 "),
        "{of_nan}"
    );
    fs::copy(&a, &b).unwrap();
    assert!(bound(&["compare", text(&a), text(&b)]).contains(" values agree bit for bit: all 12 "));
}
