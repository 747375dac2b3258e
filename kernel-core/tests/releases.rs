//! Rules and sizes of the shipped operators by release, from their public sources, as tables of what each release answers.

use veriep_core::shape::{
    Algorithm, BatchSizes, Buffer, Config, Given, Limits, Protocol, Release, Shape, Violation,
};
use veriep_core::units::RankId;

use Algorithm::{A2Fullmesh, A2Hierarchy, A3Fullmesh, A3FullmeshV2, A3Hierarchy};

type Set = fn(&mut Config<'static>);

const UNEVEN: [i64; 16] = [16, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// A configuration that every release accepts with this algorithm, on 16 ranks.
fn base(algorithm: Algorithm) -> Config<'static> {
    let comm_alg = algorithm.protocol().unwrap_or(Protocol::FullmeshV1);
    Config { comm_alg, hccl_buffsize_mb: 60_000, ..Config::default() }
}

fn violations(release: Release, algorithm: Algorithm, config: &Config<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    let is_accepted = release.check(algorithm, config, &mut |violation| found.push(*violation));
    assert_eq!(is_accepted, found.is_empty(), "refused without a reason, or accepted with one: {config:?}");
    found
}

/// Each row has one letter for a release, oldest first: `.` accepts, `x` refuses, ` ` lacks the algorithm.
fn check(table: &[(Algorithm, Set, &str)]) {
    for (row, (algorithm, set, expected)) in table.iter().enumerate() {
        let mut config = base(*algorithm);
        set(&mut config);
        let answer = |release: Release| match violations(release, *algorithm, &config).is_empty() {
            _ if !release.has(*algorithm) => ' ',
            true => '.',
            false => 'x',
        };
        let seen: String = Release::ALL.into_iter().map(answer).collect();
        assert_eq!(seen, **expected, "row {row}: {algorithm:?} {config:?}");
    }
}

fn bs(config: &mut Config<'static>, bs: i64) {
    config.bs = BatchSizes::Uniform(bs);
}

/// E experts on R ranks.
fn world(config: &mut Config<'static>, ranks: i64, experts: i64) {
    (config.ep_world_size, config.moe_expert_num) = (ranks, experts);
}

#[test]
fn every_algorithm_accepts_its_base_and_no_release_before_9_0_0_has_the_hierarchy_of_a3() {
    check(&[
        (A3Fullmesh, |_| (), "....."),
        (A3FullmeshV2, |_| (), "....."),
        (A3Hierarchy, |_| (), "  ..."),
        (A2Fullmesh, |_| (), "....."),
        (A2Hierarchy, |_| (), "....."),
    ]);
}

#[test]
fn the_full_mesh_of_a2_grows_from_release_to_release() {
    check(&[
        (A2Fullmesh, |c| world(c, 1, 8), "xx..."),
        (A2Fullmesh, |c| world(c, 2, 8), "xx..."),
        (A2Fullmesh, |c| world(c, 7, 14), "xx..."),
        (A2Fullmesh, |c| world(c, 8, 128), "x...."),
        (A2Fullmesh, |c| world(c, 9, 18), "xxxxx"),
        (A2Fullmesh, |c| world(c, 24, 48), "....."),
        (A2Fullmesh, |c| world(c, 256, 256), "....."),
        (A2Fullmesh, |c| world(c, 384, 384), "xx..."),
        (A2Fullmesh, |c| world(c, 392, 392), "xxxxx"),
        (A2Fullmesh, |c| world(c, 16, 384), "....."),
        (A2Fullmesh, |c| world(c, 16, 400), "xx..."),
        (A2Fullmesh, |c| world(c, 64, 512), "....."),
        (A2Fullmesh, |c| world(c, 64, 576), "xxx.."),
        (A2Fullmesh, |c| world(c, 64, 1024), "xxx.."),
        (A2Fullmesh, |c| world(c, 64, 1088), "xxxxx"),
        (A2Fullmesh, |c| c.h = 7200, "xxx.."),
        (A2Fullmesh, |c| c.h = 10240, "xxx.."),
        (A2Fullmesh, |c| c.h = 10272, "xxxxx"),
        (A2Fullmesh, |c| c.h = 1000, "xxxxx"),
        (A2Fullmesh, |c| bs(c, 256), "....."),
        (A2Fullmesh, |c| bs(c, 257), "xxxxx"),
        (A2Fullmesh, |c| c.tp_world_size = 2, "xxxxx"),
        (A2Fullmesh, |c| c.comm_quant_mode = 2, "xxxxx"),
        (A2Fullmesh, |c| (c.zero_expert_num, c.copy_expert_num) = (3, 4), "....."),
        (A2Fullmesh, |c| c.const_expert_num = 1, "xxxxx"),
        (A2Fullmesh, |c| c.given = Given::MASK_1D, "....."),
        (A2Fullmesh, |c| c.given = Given::MASK_2D, "....."),
        (A2Fullmesh, |c| c.given = Given::ELASTIC_INFO, "xxxxx"),
        (A2Fullmesh, |c| c.global_bs = 16 * 64, "....."),
    ]);
}

#[test]
fn the_hierarchy_of_a2_takes_larger_batches_from_9_0_0_on() {
    check(&[
        (A2Hierarchy, |c| world(c, 64, 64), "....."),
        (A2Hierarchy, |c| world(c, 72, 72), "xxxxx"),
        (A2Hierarchy, |c| world(c, 8, 128), "x...."),
        (A2Hierarchy, |c| world(c, 16, 400), "....."),
        (A2Hierarchy, |c| world(c, 16, 528), "xxxxx"),
        (A2Hierarchy, |c| c.h = 10240, "....."),
        (A2Hierarchy, |c| bs(c, 256), "....."),
        (A2Hierarchy, |c| bs(c, 512), "xx..."),
        (A2Hierarchy, |c| bs(c, 513), "xxxxx"),
        (A2Hierarchy, |c| c.comm_quant_mode = 2, "....."),
        (A2Hierarchy, |c| c.copy_expert_num = 1, "x...."),
        (A2Hierarchy, |c| c.given = Given::MASK_1D, "x...."),
    ]);
}

#[test]
fn the_full_mesh_of_a3_loses_its_tp_domain_in_the_newest_release() {
    check(&[
        (A3Fullmesh, |c| (c.tp_world_size, c.moe_expert_num) = (2, 16), "....x"),
        (A3Fullmesh, |c| (c.tp_world_size, c.moe_expert_num) = (2, 32), "xxxxx"),
        (A3Fullmesh, |c| c.tp_world_size = 1, "....."),
        (A3Fullmesh, |c| world(c, 768, 768), "....."),
        (A3Fullmesh, |c| world(c, 769, 769), "xxxxx"),
        (A3Fullmesh, |c| c.moe_expert_num = 1024, "....."),
        (A3Fullmesh, |c| c.h = 1023, "xxxxx"),
        (A3Fullmesh, |c| c.h = 1025, "....."),
        (A3Fullmesh, |c| bs(c, 512), "....."),
        (A3Fullmesh, |c| bs(c, 513), "xxxxx"),
        (A3Fullmesh, |c| c.k = 16, "....."),
        (A3Fullmesh, |c| c.quant_mode = 1, "xxxxx"),
        (A3Fullmesh, |c| c.const_expert_num = 3, "....."),
        (A3Fullmesh, |c| c.given = Given::MASK_1D | Given::MASK_2D, "....."),
        (A3Fullmesh, |c| c.given = Given::ELASTIC_INFO, "....."),
    ]);
}

#[test]
fn fullmesh_v2_gains_masks_and_special_experts_and_loses_large_batches() {
    check(&[
        (A3FullmeshV2, |c| c.k = 12, "....."),
        (A3FullmeshV2, |c| c.k = 13, ".xxxx"),
        (A3FullmeshV2, |c| bs(c, 256), "....."),
        (A3FullmeshV2, |c| bs(c, 257), ".xxxx"),
        (A3FullmeshV2, |c| c.given = Given::MASK_1D, "x...."),
        (A3FullmeshV2, |c| c.given = Given::MASK_2D, "xx..."),
        (A3FullmeshV2, |c| c.zero_expert_num = 1, "xx..."),
        (A3FullmeshV2, |c| c.const_expert_num = 1, "xx..."),
        (A3FullmeshV2, |c| c.given = Given::ELASTIC_INFO, "xx..."),
        (A3FullmeshV2, |c| (c.bs, c.global_bs) = (BatchSizes::PerRank(&UNEVEN), 256), "xx..."),
        (A3FullmeshV2, |c| c.global_bs = 272, "xx..."),
        (A3FullmeshV2, |c| (c.tp_world_size, c.moe_expert_num) = (2, 16), "xxxxx"),
    ]);
}

#[test]
fn the_hierarchy_of_a3_has_rules_of_its_own() {
    check(&[
        (A3Hierarchy, |c| world(c, 32, 256), "  ..."),
        (A3Hierarchy, |c| world(c, 256, 256), "  ..."),
        (A3Hierarchy, |c| world(c, 272, 272), "  xxx"),
        (A3Hierarchy, |c| world(c, 24, 24), "  xxx"),
        (A3Hierarchy, |c| c.moe_expert_num = 528, "  xxx"),
        (A3Hierarchy, |c| c.h = 7200, "  xxx"),
        (A3Hierarchy, |c| c.h = 1000, "  xxx"),
        (A3Hierarchy, |c| bs(c, 256), "  ..."),
        (A3Hierarchy, |c| bs(c, 257), "  xxx"),
        (A3Hierarchy, |c| c.k = 16, "  ..."),
        (A3Hierarchy, |c| c.zero_expert_num = 1, "  xxx"),
        (A3Hierarchy, |c| (c.shared_expert_num, c.shared_expert_rank_num) = (1, 8), "  xxx"),
        (A3Hierarchy, |c| c.given = Given::MASK_1D, "  ..."),
        (A3Hierarchy, |c| c.given = Given::MASK_2D, "  xxx"),
        (A3Hierarchy, |c| c.given = Given::ELASTIC_INFO, "  xxx"),
        (A3Hierarchy, |c| (c.bs, c.global_bs) = (BatchSizes::PerRank(&UNEVEN), 256), "  xxx"),
        (A3Hierarchy, |c| c.global_bs = 272, "  xxx"),
        (A3Hierarchy, |c| c.global_bs = 256, "  ..."),
    ]);
}

#[test]
fn global_bs_is_a_capacity_unless_a_mask_is_given() {
    check(&[
        (A3Fullmesh, |c| (c.bs, c.global_bs) = (BatchSizes::Uniform(4), 256), "....."),
        (A3Fullmesh, |c| (c.bs, c.global_bs) = (BatchSizes::Uniform(4), 48), "xxxxx"),
        (A3Fullmesh, |c| (c.bs, c.global_bs) = (BatchSizes::Uniform(4), 250), "xxxxx"),
        (A3Fullmesh, |c| (c.bs, c.global_bs) = (BatchSizes::PerRank(&UNEVEN), 0), "xxxxx"),
        (A3Fullmesh, |c| (c.bs, c.global_bs) = (BatchSizes::PerRank(&UNEVEN), 1024), "....."),
        (A3Fullmesh, |c| (c.given, c.global_bs) = (Given::MASK_1D, 272), "xxxxx"),
        (A3Fullmesh, |c| (c.given, c.global_bs) = (Given::MASK_1D, 256), "....."),
        (A3FullmeshV2, |c| (c.given, c.global_bs) = (Given::MASK_1D, 272), "xxxxx"),
        (A2Fullmesh, |c| (c.given, c.global_bs) = (Given::MASK_1D, 272), "....."),
        (A2Hierarchy, |c| c.global_bs = 272, "....."),
    ]);
}

#[test]
fn no_operator_takes_a_rank_without_tokens() {
    const IDLE: [i64; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
    check(&[
        (A3Fullmesh, |c| (c.bs, c.global_bs) = (BatchSizes::PerRank(&IDLE), 256), "xxxxx"),
        (A2Hierarchy, |c| (c.bs, c.global_bs) = (BatchSizes::PerRank(&IDLE), 256), "xxxxx"),
    ]);
    let ours = Config { bs: BatchSizes::PerRank(&IDLE), global_bs: 256, ..base(A3Fullmesh) };
    assert_eq!(Shape::new(&ours, Limits::Product).unwrap().bs(RankId(0)), 0);
}

/// `required_mb` of each release, oldest first.
fn required(algorithm: Algorithm, config: &Config<'_>) -> [u64; 5] {
    Release::ALL.map(|release| release.buffer(algorithm, config).required_mb)
}

#[test]
fn sizes_are_those_that_the_operators_print() {
    let decode = |ranks, experts, k, h, tokens| Config {
        ep_world_size: ranks,
        moe_expert_num: experts,
        k,
        h,
        bs: BatchSizes::Uniform(tokens),
        ..Config::default()
    };
    // What vllm-ascend users saw operators print was one more: 609, 294 and 825 (its pull request 5287, its report 4051, a launch script).
    assert_eq!(required(A3Fullmesh, &decode(2, 128, 8, 2048, 512)), [608; 5]);
    assert_eq!(required(A3Fullmesh, &decode(4, 512, 10, 2048, 64)), [293; 5]);
    assert_eq!(required(A3Fullmesh, &decode(16, 256, 8, 6144, 128)), [824; 5]);
    // A capacity of 16 sizes the window, not the 4 tokens that a rank has.
    let capacity = Config { global_bs: 256, ..decode(16, 256, 8, 7168, 4) };
    assert_eq!(required(A3Fullmesh, &capacity), required(A3Fullmesh, &decode(16, 256, 8, 7168, 16)));
    assert_eq!(required(A3Fullmesh, &capacity), [120; 5]);
    // 256 * 16 * (2 * 7168 + 4 * 40 + 64) B + 404 MiB.
    assert_eq!(required(A3Hierarchy, &decode(32, 256, 8, 7168, 16))[2..], [461; 3]);
    // vllm-ascend report 9872: two servers, 256 experts, K 8, H 3072, 128 tokens.
    assert_eq!(required(A2Fullmesh, &decode(16, 256, 8, 3072, 128)), [196; 5]);
    assert_eq!(required(A2Hierarchy, &decode(16, 256, 8, 3072, 128)), [300, 300, 208, 208, 208]);
    // 64 ranks: (256 + 16) * 16 * 14464 B + 8 MiB against 256 * 16 * 14464 B + 104 MiB.
    assert_eq!(required(A2Hierarchy, &decode(64, 256, 8, 7168, 16)), [161, 161, 69, 69, 69]);
}

#[test]
fn the_window_of_the_tp_group_counts_where_an_operator_checks_it() {
    // A = 512 * 8 rows of (14848 + 14336) B, twice: 228 MiB, while the EP group needs 172.
    let config = Config {
        ep_world_size: 8,
        tp_world_size: 2,
        moe_expert_num: 8,
        k: 4,
        bs: BatchSizes::Uniform(512),
        ..Config::default()
    };
    assert_eq!(required(A3Fullmesh, &config), [172, 228, 228, 228, 172]);
    let buffer = Release::V9_1_0.buffer(A3Fullmesh, &config);
    assert_eq!((buffer.required_ep_mb, buffer.required_tp_mb), (172, 228));
    let refused =
        |release| violations(release, A3Fullmesh, &config).iter().any(|v| v.parameter == "hccl_buffsize_mb");
    assert_eq!(Release::ALL.map(refused), [false, true, true, true, false]);
    // Our own layout has such a window whatever the release.
    assert_eq!(Buffer::new(&config).required_mb, 228);
    assert!(Shape::new(&config, Limits::Product).is_err());
}

#[test]
fn a_capacity_gives_places_and_each_rank_its_own_number_of_tokens() {
    let shape = |config: &Config<'_>| Shape::new(config, Limits::Product).expect("valid");
    let full = shape(&Config::default());
    let below = shape(&Config { bs: BatchSizes::Uniform(4), global_bs: 256, ..Config::default() });
    assert_eq!((below.bs_max(), below.bs(RankId(15)), below.bs_is_uneven()), (16, 4, true));
    assert_eq!(below.dispatch_area(), full.dispatch_area());
    assert_eq!(below.combine_area(), full.combine_area());
    let differ = Config { bs: BatchSizes::PerRank(&UNEVEN), global_bs: 512, ..Config::default() };
    let differ = shape(&differ);
    assert_eq!((differ.bs_max(), differ.bs(RankId(0)), differ.bs(RankId(1))), (32, 16, 1));
}

fn notes(release: Release, algorithm: Algorithm, config: &Config<'_>) -> Vec<&'static str> {
    let mut notes = Vec::new();
    release.notes(algorithm, config, &mut |note| notes.push(note));
    notes
}

#[test]
fn what_only_the_documentation_refuses_is_a_note() {
    let count = |algorithm: Algorithm, set: Set| {
        let mut config = base(algorithm);
        config.hccl_buffsize_mb = 30_000;
        set(&mut config);
        Release::ALL.map(|release| notes(release, algorithm, &config).len())
    };
    assert_eq!(count(A3Fullmesh, |_| ()), [0; 5]);
    assert_eq!(count(A3Fullmesh, |c| c.given = Given::ELASTIC_INFO), [0, 0, 1, 1, 1]);
    assert_eq!(count(A3Fullmesh, |c| (c.tp_world_size, c.moe_expert_num) = (2, 16)), [1, 0, 0, 0, 0]);
    assert_eq!(count(A3Fullmesh, |c| c.global_bs = 16 * 600), [1; 5]);
    assert_eq!(count(A2Fullmesh, |c| world(c, 24, 48)), [0, 1, 1, 1, 1]);
    // "The operator accepts it" is said of nothing that it refuses.
    assert_eq!(count(A2Fullmesh, |c| world(c, 9, 18)), [0; 5]);
    assert_eq!(count(A2Fullmesh, |c| c.given = Given::MASK_2D), [0, 1, 1, 1, 1]);
    assert_eq!(count(A2Fullmesh, |c| world(c, 2, 1024)), [0, 0, 0, 1, 1]);
    assert_eq!(count(A2Hierarchy, |c| c.given = Given::MASK_1D), [0, 1, 1, 1, 1]);
    // From 9.0.0 on one server is a full mesh, whatever was asked for.
    assert_eq!(count(A2Hierarchy, |c| world(c, 8, 128))[2..], [1; 3]);
    // The environment alone sizes the window.
    assert_eq!(count(A3Hierarchy, |_| ())[2..], [1; 3]);
    assert_eq!(count(A3Hierarchy, |c| c.hccl_buffsize_mb = 70_000)[2..], [2; 3]);
}

#[test]
fn halves_that_overlap_are_a_note_from_9_1_0_on() {
    let tight = |ranks: i64, mb| Config {
        ep_world_size: ranks,
        moe_expert_num: ranks,
        k: 1,
        h: 1024,
        bs: BatchSizes::Uniform(1),
        hccl_buffsize_mb: mb,
        ..Config::default()
    };
    // 2 * 768 * 2560 + 2 * 2048 B = 3.754 MiB: at 4 MiB 252 KiB are left of the 768 KiB that 768 ranks need.
    let noted = |mb| Release::ALL.map(|release| notes(release, A3Fullmesh, &tight(768, mb)).len());
    assert_eq!(noted(4), [0, 0, 0, 1, 1]);
    assert_eq!(noted(5), [0; 5]);
}

#[test]
fn a_release_is_found_by_its_name() {
    for release in Release::ALL {
        assert_eq!(Release::named(release.name()), Some(release));
    }
    assert_eq!(Release::named("SEED"), Some(Release::Seed));
    assert_eq!(Release::named("9.0.1"), Some(Release::V9_0_0));
    assert_eq!(Release::named("8.0"), None);
    assert_eq!(Release::NEWEST.name(), "2026-07");
}
