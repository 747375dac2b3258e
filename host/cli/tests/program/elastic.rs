//! Elastic domains from case files to results: physical names outside, new ids inside, and no rank touches the dead.

use crate::common::{fails, fails_with_lines, json, text};
use safetensors::Dtype;
use std::path::Path;
use tempfile::{TempDir, tempdir};
use veriep_case::case::{Case, load};
use veriep_case::config::{Bs, Config};
use veriep_case::generate::{Left, MaskKind, Options};
use veriep_case::store::{Tensor, TensorFile, bytes_of, write_tensors};
use veriep_core::fabric::Fabric;
use veriep_core::layout::state::STATE_BYTES;
use veriep_core::place::Place;
use veriep_core::units::{CoreId, RankId};
use veriep_group::backend::lockstep::{Lockstep, Memory};
use veriep_group::backend::rank_remap::RankRemap;
use veriep_group::backend::shared::SharedMemory;
use veriep_group::backend::{Backend, Layer};
use veriep_group::driver::threads::Spread;
use veriep_testing::trial::{Trial, make_left, small};

/// Six ranks, two of them with the two shared experts.
fn six() -> Config {
    Config { shared_expert_num: Some(2), shared_expert_rank_num: 2, ..small(6, 8, 2, 3, 2) }
}

/// Physical ranks 4, 0, 5, 2 in this order; shared experts on 4 and 0, six MoE experts on 5 and 2.
const FOUR_LEFT: [i32; 16] = [1, 4, 2, 6, 1, -1, 3, -1, 0, 2, 4, 0, 5, 2, -1, -1];

fn four_left(options: Options) -> Case {
    make_left(six(), options, Left::Info(&FOUR_LEFT))
}

fn is_untouched<B: Backend>(backend: &B, rank: u32, window: u64) -> bool {
    let fabric = backend.fabric(RankId(rank), CoreId(0), 0);
    let zero = |at, len| fabric.bytes(at, len).unwrap().iter().all(|&byte| byte == 0);
    zero(Place::state(0), STATE_BYTES) && zero(Place::window(0), window)
}

#[test]
fn the_memory_of_a_dead_rank_is_there_and_never_touched() {
    let case = four_left(Options::default());
    let trial = Trial::new(&case, "DDCC", 3);
    let window = case.shape.window_bytes();
    let touched = |backend: &dyn Fn(u32) -> bool| (0..6).filter(|&rank| !backend(rank)).collect::<Vec<_>>();
    for memory in [Memory::Strong, Memory::Weak] {
        let backend = RankRemap::of(&case).over(Lockstep::new(&case, 6, memory, 3).expect("memory"));
        trial.stepped(&backend).unwrap();
        assert_eq!(touched(&|rank| is_untouched(&backend.inner, rank, window)), [0, 2, 4, 5]);
    }
    let backend = RankRemap::of(&case).over(SharedMemory::new(&case, 6).expect("memory"));
    trial.threaded(&backend, 2, Spread::Cores).unwrap();
    assert_eq!(touched(&|rank| is_untouched(&backend.inner, rank, window)), [0, 2, 4, 5]);
}

#[test]
fn a_group_without_names_for_its_ranks_is_found_out() {
    // The twin of the test above: machines whose new ids reach memory unchanged.
    let case = four_left(Options::default());
    let memory = Lockstep::new(&case, 2, Memory::Strong, 3).expect("memory");
    let backend = RankRemap { left: None }.over(memory);
    assert!(Trial::new(&case, "DC", 2).stepped(&backend).is_err(), "rank 1 has no outputs");
}

#[test]
fn uneven_batches_and_masks_go_with_their_ranks() {
    let uneven = Config { bs: Bs::PerRank(vec![3, 1, 0, 5, 4, 1]), global_bs: 30, ..six() };
    let case = make_left(uneven, Options::default(), Left::Info(&FOUR_LEFT));
    let tokens: Vec<_> = case.ranks.iter().map(|rank| rank.expert_ids.len() / 2).collect();
    assert_eq!(tokens, [4, 3, 1, 0]);
    Trial::new(&case, "DC", 4).in_lockstep(Memory::Weak, 1).unwrap();
    for mask in [MaskKind::Tokens, MaskKind::Pairs] {
        let case = four_left(Options { mask, seed: 5, ..Options::default() });
        Trial::new(&case, "DC", 4).in_lockstep(Memory::Weak, 1).unwrap();
    }
}

#[test]
fn without_shared_expert_ranks_left_nobody_sends_to_shared_experts_and_their_rows_stay() {
    let info = [1, 3, 0, 6, 2, -1, -1, 1, 0, -1, 4, 3, 0, -1, -1, -1];
    let config = Config { quant_mode: 2, ..six() };
    let options = Options { smooth_scales: true, ..Options::default() };
    let case = make_left(config, options, Left::Info(&info));
    assert_eq!((case.expert_gain.len(), case.scales.as_ref().map(Vec::len)), (10, Some(80)));
    Trial::new(&case, "DC", 4).in_lockstep(Memory::Weak, 1).unwrap();
    // A row of scales is an expert's own: another one's gives other bytes.
    let mut other = case.clone();
    let scales = other.scales.as_mut().unwrap();
    scales[..16].fill(9.0);
    let bytes = |case: &Case| Trial::new(case, "DC", 1).in_lockstep(Memory::Strong, 1).unwrap();
    assert!(bytes(&other) == bytes(&case), "rows of shared experts that no rank holds");
    other.scales.as_mut().unwrap()[16..].fill(9.0);
    assert!(bytes(&other) != bytes(&case));
}

/// A case of the product's sizes in a folder: R = 6, and FOUR_LEFT unless changed.
fn saved() -> (TempDir, Case) {
    let config = Config { h: 1024, hccl_buffsize_mb: 200, ..six() };
    let case =
        veriep_case::generate::generate_left(config, Options::default(), Left::Info(&FOUR_LEFT), "test")
            .unwrap();
    let folder = tempdir().unwrap();
    case.save(folder.path()).unwrap();
    (folder, case)
}

/// Rewrites the tensors of a case.
fn rewrite(folder: &Path, edit: impl FnOnce(&mut Vec<Tensor<'_>>)) {
    let path = folder.join("inputs.safetensors");
    let mut file = TensorFile::open(&path).unwrap();
    let mut tensors = Vec::new();
    for name in file.names() {
        let data = file.read(&name).unwrap().into();
        let info = file.info(&name).unwrap();
        tensors.push(Tensor { dtype: info.dtype, shape: info.shape.clone(), data, name });
    }
    edit(&mut tensors);
    write_tensors(&path, tensors).unwrap();
}

fn edited(edit: impl FnOnce(&mut Vec<Tensor<'_>>)) -> TempDir {
    let (folder, _) = saved();
    rewrite(folder.path(), edit);
    folder
}

fn set_info(tensors: &mut [Tensor<'_>], info: &[i32]) {
    let tensor = tensors.iter_mut().find(|tensor| tensor.name == "elastic_info").unwrap();
    (tensor.shape, tensor.data) = (vec![info.len()], bytes_of(info, i32::to_le_bytes).into());
}

fn lines(folder: &Path) -> Vec<String> {
    load(folder).expect_err("the case is wrong").lines()
}

#[test]
fn a_saved_elastic_case_names_physical_ranks_and_loads_as_it_was() {
    let (folder, case) = saved();
    assert_eq!(load(folder.path()).unwrap(), case);
    let file = TensorFile::open(&folder.path().join("inputs.safetensors")).unwrap();
    let names = file.names();
    let ranks: Vec<_> = names.iter().filter_map(|name| name.strip_suffix(".x")).collect();
    assert_eq!(ranks, ["rank0", "rank2", "rank4", "rank5"]);
    assert_eq!(file.info("elastic_info").unwrap().shape, [16]);
}

#[test]
fn a_tensor_of_a_dead_rank_is_one_that_nobody_reads_and_one_of_a_survivor_must_be_there() {
    let folder = edited(|tensors| {
        for tensor in tensors.iter_mut().filter(|tensor| tensor.name.starts_with("rank4.")) {
            tensor.name = tensor.name.replace("rank4.", "rank3.");
        }
    });
    let lines = lines(folder.path());
    assert_eq!(lines.len(), 6, "{lines:?}");
    let of = |name: &str| lines.iter().find(|line| line.contains(name)).unwrap();
    assert!(of("rank4.x:").contains("missing"), "{lines:?}");
    let rule = "unknown tensor: must be absent (ranks left by elastic_info = 4)";
    assert!(of("rank3.x:").ends_with(rule), "{lines:?}");
}

#[test]
fn elastic_info_that_is_switched_off_is_as_if_absent() {
    let config = Config { h: 1024, hccl_buffsize_mb: 200, ..six() };
    let whole = veriep_case::generate::generate(config, Options::default(), "test").unwrap();
    let folder = tempdir().unwrap();
    whole.save(folder.path()).unwrap();
    let mut words = [9; 16];
    words[0] = 0;
    let data = bytes_of(&words, i32::to_le_bytes).into();
    rewrite(folder.path(), |tensors| {
        tensors.push(Tensor { name: "elastic_info".to_owned(), dtype: Dtype::I32, shape: vec![16], data });
    });
    assert_eq!(load(folder.path()).unwrap(), whole);
}

#[test]
fn elastic_info_of_a_wrong_type_shape_or_content_is_told_with_its_rule() {
    let folder = edited(|tensors| set_info(tensors, &FOUR_LEFT[..14]));
    assert!(
        lines(folder.path())[0].ends_with("elastic_info: shape [14]: must be [16]"),
        "{:?}",
        lines(folder.path())
    );
    let folder = edited(|tensors| {
        tensors.iter_mut().find(|tensor| tensor.name == "elastic_info").unwrap().dtype = Dtype::F32;
    });
    assert!(
        lines(folder.path())[0].ends_with("elastic_info: dtype F32: must be I32; hint: .to(torch.int32)")
    );
    let mut info = FOUR_LEFT;
    (info[2], info[3]) = (1, 0);
    let folder = edited(|tensors| set_info(tensors, &info));
    assert_eq!(fails_with_lines(2, &["run", text(folder.path())]).len(), 2);
    let report = json(2, &["check", text(folder.path())]);
    let violations = report["violations"].as_array().unwrap();
    assert_eq!(violations.len(), 2, "{violations:?}");
    assert!(violations.iter().all(|violation| violation["parameter"] == "elastic_info"));
    let hinted = |seen: &[i32]| {
        let folder = edited(|tensors| set_info(tensors, seen));
        lines(folder.path())
            .iter()
            .map(|line| line.split_once("; hint: ").unwrap().1.to_owned())
            .collect::<Vec<_>>()
    };
    let with = |changes: &[(usize, i32)]| {
        let mut info = FOUR_LEFT;
        changes.iter().for_each(|&(at, value)| info[at] = value);
        info
    };
    // Experts on two MoE ranks, two shared experts; an entry of table 1 that table 2 does not have.
    assert_eq!(hinted(&with(&[(3, 5)])), ["elastic_info[3] = 6 or 4"]);
    assert_eq!(hinted(&with(&[(2, 1), (3, 0)])), ["elastic_info[2] = 2 or 0", "elastic_info[3] = 2"]);
    assert_eq!(hinted(&with(&[(5, 7)])), ["elastic_info[5] = -1"]);
    assert_eq!(hinted(&with(&[(4, -1), (11, -1)])), ["leave out elastic_info"]);
    assert_eq!(report["buffer"]["max_bs"].as_u64().map(|bs| bs > 3), Some(true), "sizes all the same");
}

#[test]
fn features_without_elastic_domains_refuse_one_that_is_switched_on() {
    for (release, set, parameter) in [
        ("8.5.0", "comm_alg = \"fullmesh_v2\"", "fullmesh_v2"),
        ("9.1.0", "tp_world_size = 2", "tp_world_size"),
    ] {
        let (folder, _) = saved();
        let path = folder.path().join("config.toml");
        let key = set.split(' ').next().unwrap();
        let mut config: String = std::fs::read_to_string(&path)
            .unwrap()
            .lines()
            .filter(|line| !line.starts_with(key) && !line.starts_with("release"))
            .map(|line| format!("{line}\n"))
            .collect();
        config += &format!("release = \"{release}\"\n{set}");
        std::fs::write(&path, config).unwrap();
        let lines = fails_with_lines(2, &["check", text(folder.path())]);
        assert!(
            lines.iter().any(|line| line.contains("elastic_info") && line.contains(parameter)),
            "{lines:?}"
        );
    }
}

#[test]
fn more_experts_than_before_run_without_a_row_for_each_and_refuse_tensors_that_lack_one() {
    // One rank left with all 12 slots of the whole domain.
    let info = [1, 1, 0, 12, -1, -1, -1, 0, -1, -1, 3, -1, -1, -1, -1, -1];
    let config = Config { h: 1024, hccl_buffsize_mb: 200, ..six() };
    let case =
        veriep_case::generate::generate_left(config, Options::default(), Left::Info(&info), "test").unwrap();
    assert!(case.expert_gain.is_empty());
    Trial::new(&case, "DC", 2).in_lockstep(Memory::Weak, 1).unwrap();
    let folder = tempdir().unwrap();
    case.save(folder.path()).unwrap();
    assert_eq!(load(folder.path()).unwrap(), case);
    // With expert_gain it lacks rows.
    let data = bytes_of(&[1.0; 10], f32::to_le_bytes).into();
    rewrite(folder.path(), |tensors| {
        tensors.push(Tensor { name: "expert_gain".to_owned(), dtype: Dtype::F32, shape: vec![10], data });
    });
    let lines = lines(folder.path());
    assert!(
        lines.len() == 1
            && lines[0].ends_with(
                "expert_gain has 10 rows, none for MoE expert 8: must be absent when elastic_info has more MoE experts than moe_expert_num"
            ),
        "{lines:?}"
    );
}

#[test]
fn results_name_physical_ranks_and_triples_new_ids() {
    let (folder, case) = saved();
    let out = folder.path().join("result.safetensors");
    let report = json(0, &["run", text(folder.path()), "--out", text(&out), "--backend", "weak"]);
    assert_eq!(report["ranks"], 4);
    assert_eq!(report["dead"].as_array().unwrap().len(), 2);
    let mut file = TensorFile::open(&out).unwrap();
    let names = file.names();
    let ranks: Vec<_> = names.iter().filter_map(|name| name.strip_suffix(".x_out")).collect();
    assert_eq!(ranks, ["rank0", "rank2", "rank4", "rank5"]);
    // Physical rank 4 is new id 0, a shared-expert rank with one local expert and four sources.
    assert_eq!(file.info("rank4.ep_recv_counts").unwrap().shape, [4]);
    assert_eq!(file.info("rank5.ep_recv_counts").unwrap().shape, [12]);
    assert_eq!(case.name(RankId(0)), RankId(4));
    let triples = file.read("rank4.assist_info_for_combine").unwrap();
    let mut sources: Vec<_> = triples.iter().step_by(12).copied().collect();
    sources.dedup();
    // One replica of each of two shared experts: all four send to it, by new id.
    assert_eq!(sources, [0, 1, 2, 3]);
}

#[test]
fn a_hang_names_physical_ranks() {
    let (folder, _) = saved();
    for backend in ["lockstep", "threads"] {
        let args = ["run", text(folder.path()), "--backend", backend, "--inject", "silent=5"];
        let args =
            if backend == "threads" { [&args[..], &["--deadline", "1"]].concat() } else { args.to_vec() };
        let line = fails(3, &args);
        assert!(line.contains("waiting for rank 5 ("), "{line}");
        assert!(line.contains("rank 0 core 1: missing: dispatch flag of rank 5 for local expert"), "{line}");
        let report = json(3, &args);
        let missing = report["missing"].as_array().unwrap();
        assert!(missing.iter().all(|one| one["source_rank"] == 5 && one["rank"] != 1 && one["rank"] != 3));
    }
    let line = fails(2, &["run", text(folder.path()), "--inject", "silent=3"]);
    assert!(line.ends_with("must be silent=RANK with RANK in [0, 5], not one that is gone"), "{line}");
}

#[test]
fn dead_ranks_can_be_asked_for_and_the_seed_orders_the_others() {
    let make = |seed: &str| {
        let folder = tempdir().unwrap();
        let out = text(folder.path());
        let set =
            ["--set", "ep_world_size=6", "--set", "moe_expert_num=8", "--set", "shared_expert_rank_num=2"];
        let args =
            [&["gen", "--preset", "tiny", "--dead", "1,3", "--seed", seed, "--out", out][..], &set].concat();
        let report = json(0, &args);
        assert_eq!(report["ranks"], 4);
        let mut file = TensorFile::open(&folder.path().join("inputs.safetensors")).unwrap();
        file.read("elastic_info").unwrap()
    };
    assert_eq!(make("1"), make("1"));
    assert!((2..9).any(|seed| make(&seed.to_string()) != make("1")));
    let head: Vec<_> = make("1")[..16].iter().step_by(4).copied().collect();
    // One of two replicas of the shared expert left; 8 experts over three ranks: two each.
    assert_eq!(head, [1, 4, 1, 6]);
    let line = fails(2, &["run", "--preset", "tiny", "--dead", "2"]);
    assert_eq!(line, "error: --dead 2: must be in [0, 1]");
    let line = fails(2, &["run", "--preset", "tiny", "--dead", "0,1"]);
    assert_eq!(line, "error: --dead: all 2 ranks: at least one must be left");
}

#[test]
fn layouts_and_layers_know_who_is_left() {
    let folder = tempdir().unwrap();
    let made = |name: &str, more: &[&str]| {
        let path = text(&folder.path().join(name)).to_owned();
        // Ranks 1 and 3 gone: four MoE experts on two ranks, where there was one on each.
        let domain = ["gen", "--preset=tiny", "--set=ep_world_size=4", "--seed=1", "--out", &path];
        json(0, &[&domain[..], more].concat());
        path
    };
    let (left, other, whole) =
        (made("left", &["--dead", "1,3"]), made("other", &["--dead", "2"]), made("whole", &[]));
    let layout = json(0, &["layout", &left, "--rank", "2"]);
    assert_eq!(layout["rank"], 2);
    let status = layout["areas"].as_array().unwrap().iter().find(|area| area["name"] == "dispatch status");
    // Two experts of two ranks each.
    assert_eq!(status.unwrap()["count"], 4, "{layout}");
    let line = fails(2, &["layout", &left, "--rank", "1"]);
    assert!(line.ends_with("--rank 1: must be in [0, 3], not one that is gone"), "{line}");
    json(0, &["check", &left, &left]);
    for (a, b, seen) in [(&left, &whole, "2 ranks left"), (&left, &other, "3 ranks left")] {
        let line = fails(2, &["check", a, b]);
        assert!(line.contains("elastic_info = ") && line.contains(seen), "{line}");
    }
}
