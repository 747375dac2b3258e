//! Cases in folders: round trips, and every way a file can be wrong.

use crate::common::all_of;
use crate::random;
use core::sync::atomic::{AtomicBool, Ordering};
use proptest::prelude::*;
use safetensors::{Dtype, SafeTensors};
use std::path::Path;
use tempfile::{TempDir, tempdir};
use veriep_case::case::{Case, OwnedMask, load};
use veriep_case::config::Config;
use veriep_case::generate::{MaskKind, Options, generate};
use veriep_case::presets::preset;
use veriep_case::store::{Tensor, TensorFile, write_tensors};

fn tiny(change: impl FnOnce(&mut Config), options: Options) -> Case {
    let (mut config, _) = preset("tiny").unwrap();
    change(&mut config);
    generate(config, options, "test").unwrap()
}

fn saved() -> (TempDir, Case) {
    let folder = tempdir().unwrap();
    let case = tiny(|_| {}, Options::default());
    case.save(folder.path()).unwrap();
    (folder, case)
}

/// The same with everything that combine may read.
fn saved_with_all() -> (TempDir, Case) {
    let folder = tempdir().unwrap();
    let options = Options { shared_expert_x: true, seed: 9, ..Options::default() };
    let change = |config: &mut Config| {
        config.op = "combine_add_rms_norm".to_owned();
        (config.copy_expert_num, config.const_expert_num) = (1, 2);
    };
    let case = tiny(change, options);
    case.save(folder.path()).unwrap();
    (folder, case)
}

/// Rewrites the tensors of a saved case and returns the lines of the error that loading gives.
fn lines_after(edit: impl FnOnce(&mut Vec<Tensor<'_>>)) -> Vec<String> {
    lines_of(saved().0, edit)
}

fn lines_of(folder: TempDir, edit: impl FnOnce(&mut Vec<Tensor<'_>>)) -> Vec<String> {
    let path = folder.path().join("inputs.safetensors");
    let mut tensors = all_of(&path);
    edit(&mut tensors);
    write_tensors(&path, tensors).unwrap();
    load(folder.path()).expect_err("the case is wrong").lines()
}

fn one_line_after(edit: impl FnOnce(&mut Vec<Tensor<'_>>)) -> String {
    one_line_of(saved().0, edit)
}

fn one_line_of(folder: TempDir, edit: impl FnOnce(&mut Vec<Tensor<'_>>)) -> String {
    let lines = lines_of(folder, edit);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("inputs.safetensors: "), "{lines:?}");
    lines[0].clone()
}

fn tensor<'t, 'a>(tensors: &'t mut [Tensor<'a>], name: &str) -> &'t mut Tensor<'a> {
    tensors.iter_mut().find(|tensor| tensor.name == name).unwrap()
}

#[test]
fn a_saved_case_loads_as_it_was() {
    for mask in [MaskKind::None, MaskKind::Tokens, MaskKind::Pairs] {
        let folder = tempdir().unwrap();
        let options = Options { mask, smooth_scales: true, seed: 5, ..Options::default() };
        let case = tiny(|config| config.quant_mode = 2, options);
        assert_eq!(case.ranks[0].mask == OwnedMask::None, mask == MaskKind::None);
        case.save(folder.path()).unwrap();
        assert_eq!(load(folder.path()).unwrap(), case);
    }
}

#[test]
fn a_case_with_all_that_combine_reads_loads_as_it_was() {
    let (folder, case) = saved_with_all();
    assert_eq!(load(folder.path()).unwrap(), case);
    let (h, bs) = (1024, 4);
    let weights = &case.weights;
    let lengths = [&weights.const_expert_alpha_1, &weights.const_expert_alpha_2].map(Vec::len);
    assert_eq!((lengths, weights.const_expert_v.len(), weights.gamma.len()), ([4; 2], 4 * h, 2 * h));
    for rank in &case.ranks {
        let shared = rank.shared_expert_x.as_ref().map(Vec::len);
        assert_eq!((shared, rank.residual_x.len()), (Some(2 * bs * h), 2 * bs * h));
        assert_ne!(rank.shared_expert_x.as_ref(), Some(&rank.residual_x));
    }
}

#[test]
fn what_combine_reads_is_checked_with_its_tensor() {
    let all = |edit: &dyn Fn(&mut Vec<Tensor<'_>>)| one_line_of(saved_with_all().0, edit);
    for name in
        ["const_expert_alpha_1", "const_expert_alpha_2", "const_expert_v", "gamma", "rank1.residual_x"]
    {
        let line = all(&|tensors| tensors.retain(|tensor| tensor.name != name));
        assert!(line.contains(&format!("{name}: missing: must be BF16 [")), "{line}");
    }
    for name in ["const_expert_alpha_1", "const_expert_alpha_2", "const_expert_v", "gamma"] {
        let line = all(&|tensors| {
            tensor(tensors, name).data.to_mut()[2..4].copy_from_slice(&0x7FC0_u16.to_le_bytes());
        });
        let at = if name == "const_expert_v" { "0, 1" } else { "1" };
        assert!(line.contains(&format!("inputs.safetensors: {name}[{at}] = NaN: must be finite")), "{line}");
    }
    let line = all(&|tensors| tensor(tensors, "rank0.shared_expert_x").shape = vec![1024, 4]);
    assert!(line.contains("rank0.shared_expert_x: shape [1024, 4]: must be [4, 1024]"), "{line}");
    let line = all(&|tensors| tensors.retain(|tensor| tensor.name != "rank1.shared_expert_x"));
    assert!(line.contains("rank1.shared_expert_x: missing: must be given by all ranks or by none"), "{line}");
}

#[test]
fn expert_gain_may_be_left_out() {
    let (folder, case) = saved();
    let path = folder.path().join("inputs.safetensors");
    let mut tensors = all_of(&path);
    tensors.retain(|tensor| tensor.name != "expert_gain");
    write_tensors(&path, tensors).unwrap();
    let loaded = load(folder.path()).unwrap();
    assert_eq!(loaded.expert_gain, [1.0; 4]);
    assert_eq!(loaded.ranks, case.ranks);
}

#[test]
fn presence_type_and_shape_of_every_tensor_are_checked() {
    for name in ["rank1.x", "rank0.expert_ids", "rank1.expert_scales"] {
        let line = one_line_after(|tensors| tensors.retain(|tensor| tensor.name != name));
        assert!(line.contains(&format!("{name}: missing: must be ")), "{line}");
    }
    let line = one_line_after(|tensors| tensor(tensors, "rank0.x").dtype = Dtype::F16);
    assert!(line.contains("rank0.x: dtype F16: must be BF16"), "{line}");
    let line = one_line_after(|tensors| tensor(tensors, "rank0.expert_ids").shape = vec![2, 4]);
    assert!(line.contains("rank0.expert_ids: shape [2, 4]: must be [4, 2]"), "{line}");
    let all = lines_after(|tensors| tensors.retain(|tensor| !tensor.name.starts_with("rank1.")));
    assert_eq!(all.len(), 3, "{all:?}");
}

#[test]
fn values_are_checked_with_rank_tensor_and_token() {
    let line = one_line_after(|tensors| tensor(tensors, "rank1.expert_ids").data.to_mut()[0..4].fill(0x7F));
    assert!(line.contains("rank1.expert_ids[0, 0] = 2139062143: must be in [0, 4)"), "{line}");
    let nan = f32::NAN.to_le_bytes();
    let line = one_line_after(|tensors| {
        tensor(tensors, "rank0.expert_scales").data.to_mut()[4..8].copy_from_slice(&nan);
    });
    assert!(line.contains("rank0.expert_scales"), "{line}");
    let line =
        one_line_after(|tensors| tensor(tensors, "expert_gain").data.to_mut()[8..12].copy_from_slice(&nan));
    assert!(line.contains("expert_gain[2] = NaN: must be finite"), "{line}");
}

#[test]
fn masks_are_checked() {
    let mask = |shape: Vec<usize>, bytes: &'static [u8]| {
        one_line_after(|tensors| {
            let name = "rank1.x_active_mask".to_owned();
            tensors.push(Tensor { name, dtype: Dtype::BOOL, shape, data: bytes.into() });
        })
    };
    let line = mask(vec![4, 2], &[1, 1, 1, 1, 1, 2, 0, 0]);
    assert!(line.contains("rank1.x_active_mask[2, 1] = 2: a BOOL byte must be 0 or 1"), "{line}");
    let line = mask(vec![4], &[1, 0, 1, 0]);
    assert!(line.contains("rank1.x_active_mask[2]"), "{line}");
    let line = mask(vec![3], &[1, 0, 0]);
    assert!(line.contains("must be [4] or [4, 2]"), "{line}");
}

#[test]
fn a_tensor_that_nobody_reads_is_named() {
    let names =
        ["rank2.x", "rank0.y", "gamma", "const_expert_v", "rank0.residual_x", "rank01.x", "rank0.scales"];
    for name in names.into_iter().chain(["a.x_active_mask", "rank0.gamma"]) {
        let line = one_line_after(|tensors| {
            tensors.push(Tensor {
                name: name.to_owned(),
                dtype: Dtype::U8,
                shape: vec![0],
                data: (&[]).into(),
            });
        });
        assert!(line.contains(&format!("{name}: unknown tensor")), "{line}");
    }
}

#[test]
fn metadata_is_accepted() {
    let (folder, case) = saved();
    with_header(folder.path(), |header| header.replacen('{', "{\"__metadata__\":{\"by\":\"hand\"},", 1));
    assert_eq!(load(folder.path()).unwrap(), case);
}

#[test]
fn a_lying_or_truncated_file_is_one_line() {
    let wrongs: [fn(&mut Vec<u8>); 8] = [
        |bytes| bytes.clear(),
        |bytes| bytes.truncate(7),
        |bytes| bytes.truncate(100),
        |bytes| _ = bytes.pop(),
        |bytes| bytes.push(0),
        |bytes| bytes[0..8].fill(0xFF),
        |bytes| bytes[8] = b'x',
        |bytes| bytes[9] = 0xFF,
    ];
    for (i, wrong) in wrongs.into_iter().enumerate() {
        let (folder, _) = saved();
        let path = folder.path().join("inputs.safetensors");
        let mut bytes = std::fs::read(&path).unwrap();
        wrong(&mut bytes);
        std::fs::write(&path, bytes).unwrap();
        assert_one_line_about_the_file(folder.path(), &i.to_string());
    }
    let lies: [fn(&str) -> String; 4] = [
        |header| header.replacen("[4]", "[5]", 1),
        |header| header.replacen("\"data_offsets\":[0,", "\"data_offsets\":[1,", 1),
        |header| header.replacen("\"F32\"", "\"F33\"", 1),
        |header| header.replacen("[4]", "[18446744073709551615,9]", 1),
    ];
    for (i, lie) in lies.into_iter().enumerate() {
        let (folder, _) = saved();
        with_header(folder.path(), lie);
        assert_one_line_about_the_file(folder.path(), &format!("lie {i}"));
    }
}

fn assert_one_line_about_the_file(folder: &Path, what: &str) {
    let lines = load(folder).expect_err(what).lines();
    assert!(lines.len() == 1 && lines[0].contains("inputs.safetensors: not a safetensors file"), "{lines:?}");
}

/// Replaces the header's text, its length with it.
fn with_header(folder: &Path, edit: impl FnOnce(&str) -> String) {
    let path = folder.join("inputs.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let old = core::str::from_utf8(&bytes[8..8 + len]).unwrap();
    let new = edit(old);
    assert_ne!(new, old);
    let parts = [&(new.len() as u64).to_le_bytes()[..], new.as_bytes(), &bytes[8 + len..]];
    std::fs::write(&path, parts.concat()).unwrap();
}

#[test]
fn headers_end_at_multiples_of_8_and_others_are_read_alike() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("tensors");
    let data: Vec<u8> = (0..=16).collect();
    for letters in 1..=8 {
        let name = "x".repeat(letters);
        let (dtype, shape) = (Dtype::U8, vec![data.len()]);
        write_tensors(&path, vec![Tensor { name: name.clone(), dtype, shape, data: (&data).into() }])
            .unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let (len, _) = SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(len % 8, 0, "tensors must be aligned: a header of {len} bytes");
        let written = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(written.tensor(&name).unwrap().data(), data);
        // Other programs may end theirs at any byte.
        let header = core::str::from_utf8(&bytes[8..8 + len]).unwrap().trim_end();
        for more in 0..8 {
            let header = format!("{header}{}", " ".repeat(more));
            let length = (header.len() as u64).to_le_bytes();
            std::fs::write(&path, [&length[..], header.as_bytes(), &data].concat()).unwrap();
            let mut file = TensorFile::open(&path).unwrap();
            assert_eq!(file.read(&name).unwrap(), data, "a header of {} bytes", header.len());
        }
    }
}

proptest! {
    #![proptest_config(random::config(64))]

    /// Whatever a few bytes are changed to: the case loads, or the error is lines of printable text.
    #[test]
    fn foreign_bytes_never_panic(changes in prop::collection::vec((0usize..700, any::<u8>()), 1..4)) {
        let (folder, _) = saved();
        let path = folder.path().join("inputs.safetensors");
        let mut bytes = std::fs::read(&path).unwrap();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        std::fs::write(&path, bytes).unwrap();
        if let Err(error) = load(folder.path()) {
            let lines = error.lines();
            prop_assert!(!lines.is_empty() && lines.iter().all(|line| !line.contains(char::is_control)));
        }
    }
}

#[test]
fn all_that_is_wrong_with_all_tensors_is_listed_with_how_many_more() {
    let lines = lines_after(|tensors| {
        tensor(tensors, "rank0.expert_ids").data.to_mut().fill(0x7F);
        let nan = f32::NAN.to_le_bytes();
        tensor(tensors, "rank1.expert_scales").data.to_mut()[4..8].copy_from_slice(&nan);
        tensor(tensors, "rank1.x").shape = vec![1024, 4];
        tensors.retain(|tensor| tensor.name != "rank0.x");
        tensor(tensors, "expert_gain").data.to_mut().copy_from_slice(&nan.repeat(4));
    });
    let ends: Vec<_> = lines.iter().map(|line| line.split("safetensors: ").nth(1).unwrap()).collect();
    let expected = [
        "rank0.x: missing: must be BF16 [4, 1024]",
        "rank1.x: shape [1024, 4]: must be [4, 1024]",
        "rank0.expert_ids[0, 0] = 2139062143: must be in [0, 4)",
        "rank0.expert_ids[0, 1] = 2139062143: must be in [0, 4)",
        "rank0.expert_ids[1, 0] = 2139062143: must be in [0, 4)",
        "rank0.expert_ids[1, 1] = 2139062143: must be in [0, 4)",
        "rank0.expert_ids: 4 more wrong values",
        "rank1.expert_scales[0, 1] = NaN: must be finite",
        "expert_gain[0] = NaN: must be finite",
        "expert_gain[1] = NaN: must be finite",
        "expert_gain[2] = NaN: must be finite",
        "expert_gain[3] = NaN: must be finite",
    ];
    assert_eq!(ends, expected);
}

#[test]
fn whoever_reads_a_case_that_is_being_made_again_gets_one_of_both() {
    let folder = tempdir().unwrap();
    let cases = [("f16", 5), ("bf16", 6)].map(|(dtype, seed)| {
        tiny(|config| config.dtype = dtype.to_owned(), Options { seed, ..Options::default() })
    });
    cases[0].save(folder.path()).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..400 {
                cases[i % 2].save(folder.path()).unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
        let (mut read, mut refused) = (0, 0);
        while !done.load(Ordering::Relaxed) {
            match load(folder.path()) {
                Ok(case) => {
                    assert!(cases.contains(&case), "of two cases");
                    read += 1;
                }
                Err(error) => {
                    let line = error.lines().remove(0);
                    let gone = [
                        "config.toml: missing",
                        "config.toml: has changed meanwhile: another case is being made here",
                    ];
                    assert!(gone.iter().any(|gone| line.ends_with(gone)), "{line}");
                    refused += 1;
                }
            }
        }
        assert!(read > 0, "{refused} refused");
    });
}

#[cfg(unix)]
#[test]
fn a_case_made_again_through_links_is_behind_them() {
    let (far, near) = (saved().0, tempdir().unwrap());
    for name in ["config.toml", "inputs.safetensors"] {
        std::os::unix::fs::symlink(far.path().join(name), near.path().join(name)).unwrap();
    }
    let case = tiny(|config| config.dtype = "f16".to_owned(), Options::default());
    case.save(near.path()).unwrap();
    assert_eq!(load(far.path()).unwrap(), case);
    assert_eq!(load(near.path()).unwrap(), case);
}
