//! Seeds of the targets that read files: each a configuration or a case that a test asserts first.
#![cfg(feature = "files")]

use safetensors::Dtype;
use veriep_case::store::{Tensor, bytes_of, write_tensors};
use veriep_fuzz::case_files::{self, DIVIDER};
use veriep_fuzz::config_file;
use veriep_fuzz::shape_layout::Verdict;

mod keep;
use keep::{assert_all_kept, keep};

#[test]
fn no_seed_is_without_a_test_that_asserts_it() {
    configurations_with_a_line_for_every_mistake_are_seeds();
    cases_that_are_loaded_and_refused_are_seeds();
    ["config_file", "case_files"].into_iter().for_each(assert_all_kept);
}

#[test]
fn configurations_with_a_line_for_every_mistake_are_seeds() {
    let all = "product = \"a3\"\nop = \"combine\"\nep_world_size = 20\nmoe_expert_num = 32\nk = 4\nh = 2048\n\
               shared_expert_num = 2\nshared_expert_rank_num = 4\nbs = 8\nquant_mode = 2\nnorm_eps = 1e-5\n";
    for (name, text) in [
        ("empty", ""),
        ("all", all),
        ("list", "ep_world_size = 2\nmoe_expert_num = 2\nk = 1\nbs = [1, 2]\nglobal_bs = 4\n"),
    ] {
        assert!(matches!(config_file::run(text.as_bytes()), Some(Ok(Verdict::Valid(_)))), "{name}");
        keep("config_file", name, text.as_bytes());
    }
    let door = "k = -9223372036854775808\nh = 9223372036854775807\nnorm_eps = nan\n";
    assert!(matches!(config_file::run(door.as_bytes()), Some(Ok(Verdict::Refused(_)))));
    keep("config_file", "door", door.as_bytes());
    for (name, text, line) in [
        ("unknown", "k = 8\nkk = 9\n", 2),
        ("float", "\nk = 8.0", 2),
        ("twice", "k = 8\nk = 9", 2),
        ("no_value", "k =", 1),
        ("table", "[k]\n", 1),
        ("wide", "k = 9223372036854775808", 1),
    ] {
        let seen = config_file::run(text.as_bytes()).unwrap().unwrap_err();
        assert_eq!(seen.0, line, "{name}: {}", seen.1);
        keep("config_file", name, text.as_bytes());
    }
}

/// A case of sixteen ranks of A2 with one token of 32 elements each.
fn case(change: impl FnOnce(&mut String, &mut Vec<Tensor<'static>>)) -> Vec<u8> {
    let mut config = "product = \"a2\"\nmoe_expert_num = 16\nk = 1\nh = 32\nbs = 1\n".to_owned();
    let mut tensors = Vec::new();
    for rank in 0..16 {
        let mut add = |name: &str, dtype, shape: &[usize], data: Vec<u8>| {
            let (name, shape, data) = (format!("rank{rank}.{name}"), shape.to_vec(), data.into());
            tensors.push(Tensor { name, dtype, shape, data });
        };
        add("x", Dtype::BF16, &[1, 32], vec![0x3F; 64]);
        add("expert_ids", Dtype::I32, &[1, 1], bytes_of(&[(rank * 5) % 16], i32::to_le_bytes));
        add("expert_scales", Dtype::F32, &[1, 1], bytes_of(&[0.5], f32::to_le_bytes));
    }
    change(&mut config, &mut tensors);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("inputs.safetensors");
    write_tensors(&path, tensors).unwrap();
    [config.as_bytes(), DIVIDER, &std::fs::read(path).unwrap()].concat()
}

#[test]
fn cases_that_are_loaded_and_refused_are_seeds() {
    let whole = case(|_, _| ());
    assert_eq!(case_files::run(&whole).unwrap().unwrap().ranks.len(), 16);
    keep("case_files", "whole", &whole);
    let masked = case(|_, tensors| {
        let name = "rank3.x_active_mask".to_owned();
        tensors.push(Tensor { name, dtype: Dtype::BOOL, shape: vec![1], data: vec![0].into() });
    });
    assert!(case_files::run(&masked).unwrap().is_ok());
    keep("case_files", "masked", &masked);
    let refused = |name: &str, word: &str, bytes: Vec<u8>| {
        let lines = case_files::run(&bytes).unwrap().unwrap_err();
        assert!(lines.iter().any(|line| line.contains(word)), "{name}: {lines:?}");
        keep("case_files", name, &bytes);
    };
    refused("truncated", "the header declares", whole[..whole.len() - 1].to_vec());
    refused("no_header", "shorter than a header", [b"".as_slice(), DIVIDER, b"1234567"].concat());
    refused("key", "line 1", [b"kk = 1".as_slice(), DIVIDER, b"12345678"].concat());
    refused("missing", "rank0.x: missing", case(|_, tensors| drop(tensors.remove(0))));
    refused("id", "must be in [0, 16)", case(|_, tensors| tensors[1].data = vec![16, 0, 0, 0].into()));
    refused(
        "bool",
        "must be 0 or 1",
        case(|_, tensors| {
            let name = "rank3.x_active_mask".to_owned();
            tensors.push(Tensor { name, dtype: Dtype::BOOL, shape: vec![1], data: vec![2].into() });
        }),
    );
    refused(
        "unread",
        "unknown tensor",
        case(|_, tensors| tensors[47].name = "rank16.expert_scales".to_owned()),
    );
}
