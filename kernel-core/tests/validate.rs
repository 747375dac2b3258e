//! Every rule of a configuration: broken alone, and just kept.

use veriep_core::shape::{
    BatchSizes, Buffer, Config, Dtype, Given, Limits, Op, Protocol, Rule, Seen, Shape, Violation,
};

type Base = fn() -> Config<'static>;
type Set = fn(&mut Config<'static>);

fn a3() -> Config<'static> {
    Config { hccl_buffsize_mb: 4096, ..Config::default() }
}

fn v2() -> Config<'static> {
    Config { comm_alg: Protocol::FullmeshV2, ..a3() }
}

/// 12 MoE ranks of 4 experts, 2 shared experts of 2 replicas.
fn shared() -> Config<'static> {
    Config { moe_expert_num: 48, shared_expert_num: 2, shared_expert_rank_num: 4, ..a3() }
}

fn tp() -> Config<'static> {
    Config { tp_world_size: 2, moe_expert_num: 16, ..a3() }
}

fn a2() -> Config<'static> {
    Config {
        comm_alg: Protocol::Fullmesh,
        moe_expert_num: 256,
        ep_world_size: 64,
        hccl_buffsize_mb: 8192,
        ..Config::default()
    }
}

fn hierarchy() -> Config<'static> {
    Config { comm_alg: Protocol::Hierarchy, ep_world_size: 16, ..a2() }
}

const SAME: [i64; 16] = [16; 16];
const UNEVEN: [i64; 16] = [16, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
const ONE_WRONG: [i64; 16] = [16, 16, 16, 513, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16];

fn violations(config: &Config<'_>, limits: Limits) -> Vec<Violation> {
    let mut found = Vec::new();
    let shape = Shape::check(config, limits, &mut |violation| found.push(*violation));
    assert_eq!(shape.is_none(), !found.is_empty(), "refused without a reason, or taken with one: {config:?}");
    found
}

fn check_table(limits: Limits, table: &[(Base, Set, &[&str])]) {
    for (row, (base, set, expected)) in table.iter().enumerate() {
        let mut config = base();
        set(&mut config);
        let found = violations(&config, limits);
        found.iter().for_each(|violation| println!("row {row}: {violation}"));
        let first = Shape::new(&config, limits).err();
        assert_eq!(first.map(|v| v.to_string()), found.first().map(ToString::to_string), "row {row}");
        let broken: Vec<_> = found.iter().map(|violation| violation.parameter).collect();
        assert_eq!(&broken, expected, "row {row}: {config:?}");
    }
}

#[test]
fn a2_has_no_norm_and_every_product_both_dtypes() {
    check_table(
        Limits::Product,
        &[
            (a3, |c| c.op = Op::CombineAddRmsNorm, &[]),
            (a2, |c| c.op = Op::CombineAddRmsNorm, &["op"]),
            (hierarchy, |c| c.op = Op::CombineAddRmsNorm, &["op"]),
            (a3, |c| c.dtype = Dtype::F16, &[]),
            (a2, |c| c.dtype = Dtype::F16, &[]),
        ],
    );
}

#[test]
fn a_number_out_of_its_range_is_the_only_violation() {
    check_table(
        Limits::Product,
        &[
            (a3, |c| (c.ep_world_size, c.moe_expert_num) = (1, 8), &["ep_world_size"]),
            (a3, |c| (c.ep_world_size, c.moe_expert_num) = (2, 8), &[]),
            (a3, |c| (c.ep_world_size, c.moe_expert_num) = (768, 768), &[]),
            (a3, |c| (c.ep_world_size, c.moe_expert_num) = (769, 769), &["ep_world_size"]),
            (a3, |c| c.ep_world_size = i64::MIN, &["ep_world_size"]),
            (a3, |c| c.moe_expert_num = 0, &["moe_expert_num"]),
            (a3, |c| c.moe_expert_num = 1024, &[]),
            (a3, |c| c.moe_expert_num = 1040, &["moe_expert_num"]),
            (a3, |c| c.h = 1023, &["h"]),
            (a3, |c| c.h = 1024, &[]),
            (a3, |c| c.h = 1025, &[]),
            (a3, |c| c.h = 8192, &[]),
            (a3, |c| c.h = 8193, &["h"]),
            (a3, |c| c.bs = BatchSizes::Uniform(0), &["bs"]),
            (a3, |c| c.bs = BatchSizes::Uniform(1), &[]),
            (a3, |c| c.bs = BatchSizes::Uniform(512), &[]),
            (a3, |c| c.bs = BatchSizes::Uniform(513), &["bs"]),
            (a3, |c| c.k = 0, &["k"]),
            (a3, |c| c.k = 16, &[]),
            (a3, |c| c.k = 17, &["k"]),
            (a3, |c| c.shared_expert_num = -1, &["shared_expert_num"]),
            (a3, |c| c.shared_expert_num = 5, &["shared_expert_num"]),
            (a3, |c| c.shared_expert_rank_num = -1, &["shared_expert_rank_num"]),
            (shared, |c| c.shared_expert_rank_num = 16, &["shared_expert_rank_num"]),
            (a3, |c| c.tp_world_size = 1, &[]),
            (a3, |c| c.tp_world_size = 3, &["tp_world_size"]),
            (a3, |c| c.zero_expert_num = -1, &["zero_expert_num"]),
            (a3, |c| c.zero_expert_num = i64::from(i32::MAX) - 64, &[]),
            (a3, |c| c.zero_expert_num = i64::from(i32::MAX), &["zero_expert_num"]),
            (a3, |c| c.copy_expert_num = i64::MAX, &["copy_expert_num"]),
            (a3, |c| c.const_expert_num = -7, &["const_expert_num"]),
            (a3, |c| c.quant_mode = 1, &["quant_mode"]),
            (a3, |c| c.quant_mode = 2, &[]),
            (a3, |c| c.comm_quant_mode = 1, &["comm_quant_mode"]),
            (a3, |c| c.comm_quant_mode = 2, &[]),
            (a3, |c| c.expert_token_nums_type = 0, &[]),
            (a3, |c| c.expert_token_nums_type = 2, &["expert_token_nums_type"]),
            (a3, |c| c.aiv_num = 0, &["aiv_num"]),
            (a3, |c| c.aiv_num = 48, &[]),
            (a3, |c| c.aiv_num = 49, &["aiv_num"]),
            (a3, |c| c.port_offset = -512, &["port_offset"]),
            (a3, |c| c.port_offset = 511, &["port_offset"]),
            (a3, |c| c.port_offset = 512, &[]),
            (v2, |c| c.port_offset = 1536, &[]),
            (a3, |c| c.port_offset = 1 << 30, &["hccl_buffsize_mb"]),
            (a3, |c| c.port_offset = (1 << 30) + 512, &["port_offset"]),
            (a2, |c| c.port_offset = 512, &["port_offset"]),
            (hierarchy, |c| c.port_offset = 512, &["port_offset"]),
            (a3, |c| c.norm_eps = f32::NAN, &["norm_eps"]),
            (a3, |c| c.norm_eps = f32::NEG_INFINITY, &["norm_eps"]),
            (a3, |c| c.norm_eps = 0.0, &[]),
            (a3, |c| c.global_bs = -1, &["global_bs"]),
            (a3, |c| c.hccl_buffsize_mb = 0, &["hccl_buffsize_mb"]),
            (a3, |c| c.hccl_buffsize_mb = 1 << 32, &["hccl_buffsize_mb"]),
        ],
    );
}

#[test]
fn a2_has_ranges_of_its_own() {
    check_table(
        Limits::Product,
        &[
            (a2, |c| c.ep_world_size = 8, &["ep_world_size"]),
            (a2, |c| c.ep_world_size = 16, &[]),
            (a2, |c| c.ep_world_size = 20, &["ep_world_size"]),
            (a2, |c| c.ep_world_size = 256, &[]),
            (a2, |c| (c.ep_world_size, c.moe_expert_num) = (264, 264), &["ep_world_size"]),
            (a2, |c| c.moe_expert_num = 1024, &[]),
            (a2, |c| c.moe_expert_num = 1088, &["moe_expert_num"]),
            (a2, |c| (c.ep_world_size, c.moe_expert_num) = (16, 384), &[]),
            (a2, |c| (c.ep_world_size, c.moe_expert_num) = (16, 400), &["moe_expert_num"]),
            (hierarchy, |c| c.moe_expert_num = 400, &[]),
            (hierarchy, |c| c.ep_world_size = 64, &[]),
            (hierarchy, |c| (c.ep_world_size, c.moe_expert_num) = (72, 72), &["ep_world_size"]),
            (hierarchy, |c| c.ep_world_size = 17, &["ep_world_size"]),
            (a2, |c| c.h = 0, &["h"]),
            (a2, |c| c.h = 32, &[]),
            (a2, |c| c.h = 48, &["h"]),
            (a2, |c| c.h = 10240, &[]),
            (a2, |c| c.h = 10272, &["h"]),
            (hierarchy, |c| c.h = 10240, &[]),
            (hierarchy, |c| c.h = 10272, &["h"]),
            (a2, |c| c.bs = BatchSizes::Uniform(256), &[]),
            (a2, |c| c.bs = BatchSizes::Uniform(257), &["bs"]),
            (hierarchy, |c| c.bs = BatchSizes::Uniform(512), &[]),
            (hierarchy, |c| c.bs = BatchSizes::Uniform(513), &["bs"]),
            (hierarchy, |c| (c.ep_world_size, c.bs) = (64, BatchSizes::Uniform(512)), &["bs"]),
            (a2, |c| c.shared_expert_num = 1, &[]),
            (a2, |c| c.shared_expert_num = 2, &["shared_expert_num"]),
            (a2, |c| (c.shared_expert_num, c.shared_expert_rank_num) = (1, 8), &["shared_expert_rank_num"]),
            (a2, |c| c.tp_world_size = 1, &[]),
            (a2, |c| c.tp_world_size = 2, &["tp_world_size"]),
            (a2, |c| c.comm_quant_mode = 2, &["comm_quant_mode"]),
            (hierarchy, |c| c.comm_quant_mode = 2, &[]),
            (a2, |c| (c.zero_expert_num, c.copy_expert_num) = (3, 4), &[]),
            (a2, |c| c.const_expert_num = 1, &["const_expert_num"]),
            (hierarchy, |c| c.zero_expert_num = 1, &["zero_expert_num"]),
            (hierarchy, |c| c.copy_expert_num = 1, &["copy_expert_num"]),
            (hierarchy, |c| c.const_expert_num = 1, &["const_expert_num"]),
        ],
    );
}

#[test]
fn a_rule_between_parameters_names_the_one_to_change_first() {
    check_table(
        Limits::Product,
        &[
            (a3, |c| c.moe_expert_num = 65, &["moe_expert_num"]),
            (shared, |_| (), &[]),
            (shared, |c| c.moe_expert_num = 64, &["moe_expert_num"]),
            (a3, |c| c.shared_expert_num = 1, &[]),
            (a3, |c| c.shared_expert_num = 2, &["shared_expert_rank_num"]),
            (shared, |c| c.shared_expert_num = 0, &["shared_expert_rank_num"]),
            (shared, |c| c.shared_expert_num = 3, &["shared_expert_rank_num"]),
            (shared, |c| c.shared_expert_num = 4, &[]),
            (
                shared,
                |c| (c.shared_expert_rank_num, c.moe_expert_num) = (15, 1),
                &["shared_expert_rank_num", "k"],
            ),
            (a3, |c| (c.moe_expert_num, c.k) = (16, 16), &[]),
            (a3, |c| (c.moe_expert_num, c.ep_world_size, c.k) = (8, 8, 9), &["k"]),
            (a3, |c| (c.moe_expert_num, c.ep_world_size, c.k, c.const_expert_num) = (8, 8, 9, 1), &[]),
            (a3, |c| (c.zero_expert_num, c.copy_expert_num) = (1, 0x7FFF_FFFE), &["copy_expert_num"]),
            (a3, |c| c.zero_expert_num = 0x7FFF_FFFE, &["zero_expert_num"]),
            (a3, |c| c.global_bs = 256, &[]),
            (a3, |c| c.global_bs = 16, &["global_bs"]),
            (a3, |c| c.global_bs = 255, &["global_bs"]),
            (a3, |c| c.global_bs = 257, &["global_bs"]),
            (a3, |c| c.global_bs = 272, &[]),
            (a3, |c| c.global_bs = 16 * 65536, &["global_bs"]),
            (a2, |c| c.global_bs = 64 * 64, &[]),
            (hierarchy, |c| c.global_bs = 16 * 64, &[]),
            (a3, |c| c.bs = BatchSizes::PerRank(&SAME), &[]),
            (a3, |c| c.bs = BatchSizes::PerRank(&ONE_WRONG), &["bs"]),
            (a3, |c| c.bs = BatchSizes::PerRank(&[16; 15]), &["bs"]),
            (a3, |c| c.bs = BatchSizes::PerRank(&[]), &["bs"]),
            (a3, |c| c.bs = BatchSizes::PerRank(&[16, 1]), &["bs"]),
            (a3, |c| (c.bs, c.ep_world_size) = (BatchSizes::PerRank(&[16, 1]), 0), &["ep_world_size"]),
            (a3, |c| (c.bs, c.global_bs) = (BatchSizes::PerRank(&UNEVEN), 256), &[]),
            (a3, |c| c.bs = BatchSizes::PerRank(&UNEVEN), &["global_bs"]),
            (a3, |c| (c.bs, c.global_bs) = (BatchSizes::PerRank(&UNEVEN), 136), &["global_bs"]),
            (tp, |_| (), &[]),
            (tp, |c| c.moe_expert_num = 32, &["tp_world_size"]),
            (tp, |c| c.comm_quant_mode = 2, &["comm_quant_mode"]),
            (v2, |c| (c.tp_world_size, c.moe_expert_num) = (2, 16), &["tp_world_size"]),
            (v2, |c| (c.bs, c.global_bs) = (BatchSizes::PerRank(&UNEVEN), 256), &[]),
            (v2, |c| c.bs = BatchSizes::PerRank(&SAME), &[]),
            (v2, |c| c.global_bs = 272, &[]),
            (v2, |c| c.zero_expert_num = 1, &[]),
            (v2, |c| c.copy_expert_num = 1, &[]),
            (v2, |c| c.const_expert_num = 1, &[]),
            (v2, |c| (c.op, c.comm_quant_mode, c.quant_mode) = (Op::CombineAddRmsNorm, 2, 2), &[]),
            // 2048 dispatch slots: L * R = 2 * 768 fits, 4 * 768 does not.
            (a3, |c| set_slots(c, 256), &[]),
            (a3, |c| set_slots(c, 512), &["moe_expert_num"]),
        ],
    );
}

/// `L * R` slots with L = 1024 / (768 - shared ranks).
fn set_slots(config: &mut Config<'_>, shared_ranks: i64) {
    config.ep_world_size = 768;
    (config.shared_expert_num, config.shared_expert_rank_num) = (1, shared_ranks);
    config.moe_expert_num = 1024;
    config.hccl_buffsize_mb = 1 << 20;
}

#[test]
fn an_optional_input_is_refused_where_the_protocol_lacks_it() {
    check_table(
        Limits::Product,
        &[
            (a3, |c| (c.given, c.quant_mode) = (Given::SCALES, 2), &[]),
            (a3, |c| c.given = Given::SCALES, &["scales"]),
            (a3, |c| (c.given, c.quant_mode) = (Given::SCALES, 3), &["quant_mode"]),
            (a2, |c| (c.given, c.quant_mode) = (Given::SCALES, 2), &[]),
            (a2, |c| c.given = Given::SCALES, &["scales"]),
            (hierarchy, |c| (c.given, c.quant_mode) = (Given::SCALES, 2), &["scales"]),
            (a3, |c| c.given = Given::MASK_1D | Given::MASK_2D, &[]),
            (a2, |c| c.given = Given::MASK_1D | Given::MASK_2D, &[]),
            (hierarchy, |c| c.given = Given::MASK_1D, &["x_active_mask"]),
            (hierarchy, |c| c.given = Given::MASK_2D, &["x_active_mask"]),
            (v2, |c| c.given = Given::MASK_1D, &[]),
            (v2, |c| c.given = Given::MASK_2D, &[]),
            (a3, |c| c.given = Given::ELASTIC_INFO, &[]),
            (a2, |c| c.given = Given::ELASTIC_INFO, &["elastic_info"]),
            (hierarchy, |c| c.given = Given::ELASTIC_INFO, &["elastic_info"]),
            (v2, |c| c.given = Given::ELASTIC_INFO, &["elastic_info"]),
            (tp, |c| c.given = Given::ELASTIC_INFO, &["elastic_info"]),
            (a3, |c| c.given = Given::SHARED_EXPERT_X, &[]),
            (v2, |c| c.given = Given::SHARED_EXPERT_X, &[]),
            (shared, |c| c.given = Given::SHARED_EXPERT_X, &["shared_expert_x"]),
            (a2, |c| c.given = Given::SHARED_EXPERT_X, &["shared_expert_x"]),
            (hierarchy, |c| c.given = Given::SHARED_EXPERT_X, &["shared_expert_x"]),
        ],
    );
}

#[test]
fn models_may_be_tiny_but_not_senseless() {
    fn one() -> Config<'static> {
        let bs = BatchSizes::Uniform(1);
        Config {
            ep_world_size: 1,
            moe_expert_num: 1,
            k: 1,
            h: 1,
            bs,
            hccl_buffsize_mb: 1,
            ..Config::default()
        }
    }
    fn one_a2() -> Config<'static> {
        Config { comm_alg: Protocol::Fullmesh, h: 8, hccl_buffsize_mb: 5, ..one() }
    }
    fn one_server() -> Config<'static> {
        let (ep_world_size, moe_expert_num) = (8, 8);
        Config {
            comm_alg: Protocol::Hierarchy,
            ep_world_size,
            moe_expert_num,
            hccl_buffsize_mb: 105,
            ..one_a2()
        }
    }
    check_table(
        Limits::None,
        &[
            (one, |_| (), &[]),
            (one, |c| c.ep_world_size = 0, &["ep_world_size"]),
            (one, |c| c.moe_expert_num = 0, &["moe_expert_num"]),
            (one, |c| c.k = 2, &["k"]),
            (one, |c| c.h = 0, &["h"]),
            (one, |c| c.h = (1 << 24) + 1, &["h"]),
            (one, |c| c.bs = BatchSizes::Uniform(0), &["bs"]),
            (one, |c| c.bs = BatchSizes::Uniform(65536), &["bs"]),
            (one, |c| c.hccl_buffsize_mb = 0, &["hccl_buffsize_mb"]),
            (one, |c| c.aiv_num = 49, &["aiv_num"]),
            // 10240 combine slots, 2048 dispatch slots.
            (one, |c| (c.bs, c.hccl_buffsize_mb) = (BatchSizes::Uniform(10240), 64), &[]),
            (one, |c| (c.bs, c.hccl_buffsize_mb) = (BatchSizes::Uniform(10241), 64), &["bs"]),
            (one, |c| (c.moe_expert_num, c.hccl_buffsize_mb) = (2048, 64), &[]),
            (one, |c| (c.moe_expert_num, c.hccl_buffsize_mb) = (2049, 64), &["moe_expert_num"]),
            (one_a2, |_| (), &[]),
            (one_a2, |c| c.h = 4, &["h"]),
            (one_a2, |c| (c.moe_expert_num, c.k) = (24, 16), &[]),
            (one_a2, |c| (c.moe_expert_num, c.k) = (25, 16), &["moe_expert_num"]),
            (one_server, |_| (), &[]),
            (one_server, |c| (c.ep_world_size, c.moe_expert_num) = (9, 9), &["ep_world_size"]),
            // A relay record of H 2^20 takes 2 MiB + 128 B: 25 of them fit 51 MiB.
            (one_server, |c| set_relay(c, 25), &[]),
            (one_server, |c| set_relay(c, 26), &["bs"]),
        ],
    );
}

fn set_relay(config: &mut Config<'_>, bs: i64) {
    config.h = 1 << 20;
    config.bs = BatchSizes::Uniform(bs);
    config.hccl_buffsize_mb = 1024;
}

#[test]
fn all_violations_are_reported_at_once() {
    let config = Config {
        comm_alg: Protocol::FullmeshV1,
        op: Op::Combine,
        dtype: Dtype::Bf16,
        ep_world_size: 0,
        server_ranks: 4,
        tp_world_size: 3,
        moe_expert_num: -1,
        shared_expert_num: 5,
        shared_expert_rank_num: 1000,
        zero_expert_num: -1,
        copy_expert_num: -1,
        const_expert_num: -1,
        k: 0,
        h: 1,
        bs: BatchSizes::Uniform(0),
        global_bs: -1,
        quant_mode: 1,
        comm_quant_mode: 1,
        expert_token_nums_type: 2,
        hccl_buffsize_mb: 1,
        port_offset: -1,
        aiv_num: 0,
        norm_eps: f32::INFINITY,
        given: Given::empty(),
    };
    let found: Vec<_> = violations(&config, Limits::Product).iter().map(|v| v.parameter).collect();
    let expected = [
        "ep_world_size",
        "server_ranks",
        "moe_expert_num",
        "shared_expert_num",
        "shared_expert_rank_num",
        "zero_expert_num",
        "copy_expert_num",
        "const_expert_num",
        "k",
        "h",
        "bs",
        "global_bs",
        "tp_world_size",
        "quant_mode",
        "comm_quant_mode",
        "expert_token_nums_type",
        "aiv_num",
        "port_offset",
        "norm_eps",
        "hccl_buffsize_mb",
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_window_too_small_is_reported_beside_other_errors() {
    let told = |config: Config<'_>| {
        let found = violations(&config, Limits::Product);
        let window = found.iter().find(|v| v.parameter == "hccl_buffsize_mb").map(|v| v.numbers[0].1);
        (window, found.len())
    };
    // Three local experts of 288 on 128 ranks, as 384 would give: 2 * (3 * 144 * 48 * 14848 + 9 * 48 * 14336) B.
    let divided = Config {
        ep_world_size: 144,
        shared_expert_num: 1,
        shared_expert_rank_num: 16,
        moe_expert_num: 384,
        k: 8,
        bs: BatchSizes::Uniform(48),
        ..Config::default()
    };
    assert_eq!(told(divided), (Some(600), 1));
    assert_eq!(told(Config { moe_expert_num: 288, ..divided }), (Some(600), 2));
    assert_eq!(told(Config { moe_expert_num: 288, hccl_buffsize_mb: 600, ..divided }), (None, 1));
    assert_eq!(told(Config { k: 0, aiv_num: 0, ..divided }).0, Some(590));
    // A number out of its range counts as the smallest in it, so that no consequence of it is reported.
    let window = told(Config { h: 1024, hccl_buffsize_mb: 3, ..a3() });
    assert_eq!(window.1, 1);
    assert_eq!(told(Config { h: i64::MAX, hccl_buffsize_mb: 3, ..a3() }), (window.0, 2));
    assert_eq!(told(Config { h: i64::MAX, ..a3() }), (None, 1));
}

#[test]
fn fullmesh_v2_lists_each_thing_it_leaves_out() {
    let config = Config { tp_world_size: 2, moe_expert_num: 16, given: Given::ELASTIC_INFO, ..v2() };
    let found: Vec<_> = violations(&config, Limits::Product).iter().map(|v| v.parameter).collect();
    assert_eq!(found, ["tp_world_size", "elastic_info"]);
}

#[test]
fn a_violation_carries_the_value_the_rule_and_the_other_numbers() {
    let message = |config: &Config<'_>| {
        let found = violations(config, Limits::Product);
        assert_eq!(found.len(), 1, "{found:?}");
        found[0].to_string()
    };
    assert_eq!(message(&Config { k: 17, ..a3() }), "k = 17: must be in [1, 16]");
    let norm = Config { op: Op::CombineAddRmsNorm, ..a2() };
    assert_eq!(message(&norm), r#"op = "combine_add_rms_norm": must be "combine""#);
    assert_eq!(
        message(&Config { moe_expert_num: 65, ..a3() }),
        "moe_expert_num = 65: must be a multiple of ep_world_size - shared_expert_rank_num \
         (ep_world_size = 16, shared_expert_rank_num = 0, remainder = 1)"
    );
    assert_eq!(
        message(&Config { bs: BatchSizes::PerRank(&ONE_WRONG), ..a3() }),
        "bs = 513: must be in [0, 512] (rank = 3, other ranks out of range = 0)"
    );
    assert_eq!(
        message(&Config { hccl_buffsize_mb: 20, ..a3() }),
        "hccl_buffsize_mb = 20: must hold the windows (required_mb = 33, dispatch areas of both partitions = \
         30408704, combine areas of both partitions = 3670016)"
    );
    assert_eq!(
        message(&Config { given: Given::MASK_1D, ..hierarchy() }),
        "x_active_mask is given: must be absent on a2 hierarchy"
    );
    let found = Shape::new(&Config { quant_mode: 7, ..a3() }, Limits::Product).unwrap_err();
    assert_eq!((found.seen, found.rule), (Seen::Number(7), Rule::OneOf(&[0, 2])));
}

#[test]
fn a_valid_shape_has_the_numbers_of_its_configuration() {
    let config = Config { given: Given::MASK_1D, ..shared() };
    let shape = Shape::new(&config, Limits::Product).unwrap();
    assert_eq!((shape.ep_world_size(), shape.moe_expert_num(), shape.local_expert_num()), (16, 48, 4));
    assert_eq!((shape.shared_expert_num(), shape.shared_expert_rank_num()), (2, 4));
    assert_eq!((shape.k(), shape.h(), shape.bs_max(), shape.tp_world_size()), (8, 7168, 16, 1));
    assert_eq!(shape.norm_eps(), 1e-6);

    let none = Shape::new(&Config { shared_expert_num: 1, ..a3() }, Limits::Product).unwrap();
    assert_eq!(none, Shape::new(&a3(), Limits::Product).unwrap());
    // A shape serves both combines.
    let norm = Shape::new(&Config { op: Op::CombineAddRmsNorm, ..a3() }, Limits::Product).unwrap();
    assert_eq!(norm, Shape::new(&a3(), Limits::Product).unwrap());

    let same = Shape::new(&Config { bs: BatchSizes::PerRank(&SAME), ..a3() }, Limits::Product).unwrap();
    assert_eq!(same, none);

    let config = Config { bs: BatchSizes::PerRank(&UNEVEN), global_bs: 256, ..a3() };
    let uneven = Shape::new(&config, Limits::Product).unwrap();
    assert!(uneven.bs_is_uneven() && !same.bs_is_uneven());
    let all: Vec<i64> = (0..16).map(|r| i64::from(uneven.bs(veriep_core::units::RankId(r)))).collect();
    assert_eq!((all.as_slice(), uneven.bs_max()), (UNEVEN.as_slice(), 16));
}

#[test]
fn a_fingerprint_distinguishes_shapes() {
    let of = |config: &Config<'_>| Shape::new(config, Limits::None).unwrap().fingerprint();
    // Ranks of different programs compare these numbers, so they must not change unnoticed.
    assert_eq!([of(&a3()), of(&hierarchy())], [14_411_246_456_147_425_264, 4_036_650_242_391_472_780]);
    assert_eq!(of(&a3()), of(&Config { bs: BatchSizes::PerRank(&SAME), global_bs: 256, ..a3() }));
    // Each differs from another row in one parameter.
    let mut swapped = UNEVEN;
    swapped.swap(1, 2);
    let uneven = Config { global_bs: 256, bs: BatchSizes::PerRank(&UNEVEN), ..a3() };
    let a2 = Config { ep_world_size: 16, ..a2() };
    let specials = Config { zero_expert_num: 1, ..a3() };
    let configs = [
        a3(),
        v2(),
        a2,
        hierarchy(),
        Config { server_ranks: 4, ..hierarchy() },
        Config { dtype: Dtype::F16, ..a3() },
        Config { quant_mode: 2, ..a3() },
        Config { comm_quant_mode: 2, ..a3() },
        Config { ep_world_size: 32, ..a3() },
        Config { moe_expert_num: 16, ..a3() },
        tp(),
        Config { moe_expert_num: 48, shared_expert_num: 1, shared_expert_rank_num: 4, ..a3() },
        shared(),
        Config { moe_expert_num: 52, shared_expert_num: 1, shared_expert_rank_num: 3, ..a3() },
        specials,
        Config { copy_expert_num: 1, zero_expert_num: 0, ..specials },
        Config { const_expert_num: 1, zero_expert_num: 0, ..specials },
        Config { k: 4, ..a3() },
        Config { h: 1024, ..a3() },
        Config { bs: BatchSizes::Uniform(15), ..a3() },
        uneven,
        Config { bs: BatchSizes::PerRank(&swapped), ..uneven },
        Config { aiv_num: 9, ..a3() },
        Config { hccl_buffsize_mb: 4097, ..a3() },
        Config { port_offset: 512, ..a3() },
    ];
    let all: std::collections::BTreeSet<u64> = configs.iter().map(of).collect();
    assert_eq!(all.len(), configs.len());
    // One operator alone knows these.
    for config in [
        Config { op: Op::CombineAddRmsNorm, ..a3() },
        Config { norm_eps: 1e-5, ..a3() },
        Config { expert_token_nums_type: 0, ..a3() },
    ] {
        assert_eq!(of(&config), of(&a3()), "{config:?}");
    }
}

#[test]
fn the_buffer_of_an_invalid_configuration_is_still_computed() {
    let buffer = Buffer::new(&Config { k: 17, hccl_buffsize_mb: -5, ..a3() });
    assert_eq!((buffer.configured_mb, buffer.max_bs), (-5, 0));
    assert!(buffer.required_mb > 30 && !buffer.fits());
}
