//! The rules of the V2 reference in one table, by product: a change that breaks each rule alone, and one that just keeps it. The
//! source of validation is read to check that no rule is missing.

use core::mem::discriminant;
use veriep_core::shape::{BatchSizes, Config, Given, Limits, Op, Protocol, Rule, Shape, Violation};
use veriep_core::units::RankId;

type Base = fn() -> Config<'static>;
type Set = fn(&mut Config<'static>);

/// The base of a rule, and two changes: the first one breaks it, the second just keeps it.
type Row = (Base, &'static str, &'static str, Set, Set);

fn a3() -> Config<'static> {
    Config { hccl_buffsize_mb: 4096, ..Config::default() }
}

fn v2() -> Config<'static> {
    Config { comm_alg: Protocol::FullmeshV2, ..a3() }
}

fn a2() -> Config<'static> {
    Config { comm_alg: Protocol::Fullmesh, hccl_buffsize_mb: 8192, ..Config::default() }
}

fn near() -> Config<'static> {
    Config { comm_alg: Protocol::Hierarchy, ..a2() }
}

const ALL_BUT_ONE_IDLE: [i64; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16];
const ONE_LATER: [i64; 16] = [16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 15];

fn size(bs: i64) -> BatchSizes<'static> {
    BatchSizes::Uniform(bs)
}

/// Of one rank alone.
fn own(rank: u32, bs: i64) -> BatchSizes<'static> {
    BatchSizes::Own { rank: RankId(rank), bs }
}

/// 2048 slots with 256 shared ranks (L = 2), 3072 with 512 (L = 4).
fn slots(c: &mut Config<'static>, shared_ranks: i64) {
    (c.ep_world_size, c.moe_expert_num, c.hccl_buffsize_mb) = (768, 1024, 1 << 20);
    (c.shared_expert_num, c.shared_expert_rank_num) = (1, shared_ranks);
}

#[rustfmt::skip]
const A3: &[Row] = &[
    (a3, "ep_world_size", "[2, 768]", |c| c.ep_world_size = 1, |c| c.ep_world_size = 2),
    (a3, "ep_world_size", "[2, 768]", |c| c.ep_world_size = 769, |c| (c.ep_world_size, c.moe_expert_num) = (768, 768)),
    (a3, "moe_expert_num", "[1, 1024]", |c| c.moe_expert_num = 0, |c| (c.ep_world_size, c.moe_expert_num, c.k) = (2, 2, 1)),
    (a3, "moe_expert_num", "[1, 1024]", |c| c.moe_expert_num = 1040, |c| c.moe_expert_num = 1024),
    (a3, "moe_expert_num", "multiple of ep_world_size", |c| c.moe_expert_num = 63, |c| c.moe_expert_num = 48),
    (a3, "moe_expert_num", "dispatch status slot", |c| slots(c, 512), |c| slots(c, 256)),
    (a3, "h", "[1024, 8192]", |c| c.h = 1023, |c| c.h = 1024),
    (a3, "h", "[1024, 8192]", |c| c.h = 8193, |c| c.h = 8192),
    (a3, "bs", "[1, 512]", |c| c.bs = size(0), |c| c.bs = size(1)),
    (a3, "bs", "[1, 512]", |c| c.bs = size(513), |c| c.bs = size(512)),
    (a3, "bs", "[0, 512]", |c| c.bs = BatchSizes::PerRank(&[-1, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16]), |c| (c.bs, c.global_bs) = (BatchSizes::PerRank(&ALL_BUT_ONE_IDLE), 256)),
    (a3, "bs", "above 0 on some rank", |c| c.bs = BatchSizes::PerRank(&[0; 16]), |c| (c.bs, c.global_bs) = (BatchSizes::PerRank(&ALL_BUT_ONE_IDLE), 256)),
    (a3, "bs", "one entry per EP rank", |c| c.bs = BatchSizes::PerRank(&[16; 15]), |c| c.bs = BatchSizes::PerRank(&[16; 16])),
    (a3, "bs", "[0, 512]", |c| c.bs = own(0, 513), |c| c.bs = own(0, 512)),
    (a3, "bs", "above 0 on some rank", |c| c.bs = own(0, 0), |c| (c.bs, c.global_bs) = (own(0, 0), 16)),
    (a3, "bs", "of a rank below", |c| c.bs = own(16, 16), |c| c.bs = own(15, 16)),
    (a3, "bs", "every rank in a TP domain", |c| (c.tp_world_size, c.moe_expert_num, c.bs) = (2, 16, own(0, 16)), |c| (c.tp_world_size, c.moe_expert_num, c.bs) = (1, 16, own(0, 16))),
    (a3, "k", "[1, 16]", |c| c.k = 0, |c| c.k = 1),
    (a3, "k", "[1, 16]", |c| c.k = 17, |c| c.k = 16),
    (a3, "k", "not exceed", |c| (c.ep_world_size, c.moe_expert_num, c.k) = (2, 8, 9), |c| (c.ep_world_size, c.moe_expert_num, c.k, c.zero_expert_num) = (2, 8, 9, 1)),
    (a3, "shared_expert_num", "[0, 4]", |c| c.shared_expert_num = 5, |c| (c.shared_expert_num, c.shared_expert_rank_num, c.moe_expert_num) = (4, 4, 48)),
    (a3, "shared_expert_num", "[0, 4]", |c| c.shared_expert_num = -1, |c| c.shared_expert_num = 0),
    (a3, "shared_expert_rank_num", "[0, 15]", |c| (c.shared_expert_num, c.shared_expert_rank_num) = (1, 16), |c| (c.shared_expert_num, c.shared_expert_rank_num) = (1, 15)),
    (a3, "shared_expert_rank_num", "above 0", |c| c.shared_expert_num = 2, |c| c.shared_expert_num = 1),
    (a3, "shared_expert_rank_num", "0 when", |c| c.shared_expert_rank_num = 8, |c| (c.shared_expert_num, c.shared_expert_rank_num) = (1, 8)),
    (a3, "shared_expert_rank_num", "multiple of shared", |c| (c.shared_expert_num, c.shared_expert_rank_num) = (3, 8), |c| (c.shared_expert_num, c.shared_expert_rank_num) = (4, 8)),
    (a3, "tp_world_size", "[0, 2]", |c| c.tp_world_size = 3, |c| (c.tp_world_size, c.moe_expert_num) = (2, 16)),
    (a3, "tp_world_size", "one expert", |c| c.tp_world_size = 2, |c| c.tp_world_size = 1),
    (a3, "quant_mode", "0 or 2", |c| c.quant_mode = 1, |c| c.quant_mode = 2),
    (a3, "scales", "unless quant_mode is 2", |c| c.given = Given::SCALES, |c| (c.given, c.quant_mode) = (Given::SCALES, 2)),
    (a3, "comm_quant_mode", "0 or 2", |c| c.comm_quant_mode = 1, |c| c.comm_quant_mode = 2),
    (a3, "comm_quant_mode", "TP domain", |c| (c.tp_world_size, c.moe_expert_num, c.comm_quant_mode) = (2, 16, 2), |c| (c.moe_expert_num, c.comm_quant_mode) = (16, 2)),
    (a3, "zero_expert_num", "[0, 2147483646]", |c| c.zero_expert_num = -1, |c| c.zero_expert_num = 0),
    (a3, "copy_expert_num", "[0, 2147483646]", |c| c.copy_expert_num = 1 << 31, |c| c.copy_expert_num = i64::from(i32::MAX) - 64),
    (a3, "const_expert_num", "[0, 2147483646]", |c| c.const_expert_num = -1, |c| c.const_expert_num = 7),
    (a3, "zero_expert_num", "within the limit", |c| c.zero_expert_num = i64::from(i32::MAX) - 63, |c| c.zero_expert_num = i64::from(i32::MAX) - 64),
    (a3, "elastic_info", "TP domain", |c| (c.tp_world_size, c.moe_expert_num, c.given) = (2, 16, Given::ELASTIC_INFO), |c| c.given = Given::ELASTIC_INFO),
    (a3, "expert_map", "absent with elastic_info", |c| c.given = Given::EXPERT_MAP | Given::ELASTIC_INFO, |c| c.given = Given::EXPERT_MAP),
    (a3, "shared_expert_x", "ranks hold shared", |c| (c.shared_expert_num, c.shared_expert_rank_num, c.given) = (1, 8, Given::SHARED_EXPERT_X), |c| c.given = Given::SHARED_EXPERT_X),
    (a3, "global_bs", "0 or a multiple", |c| c.global_bs = 255, |c| c.global_bs = 256),
    (a3, "global_bs", "largest bs", |c| c.bs = BatchSizes::PerRank(&ONE_LATER), |c| (c.bs, c.global_bs) = (BatchSizes::PerRank(&ONE_LATER), 256)),
    (a3, "expert_token_nums_type", "[0, 1]", |c| c.expert_token_nums_type = 2, |c| c.expert_token_nums_type = 0),
    (a3, "aiv_num", "[1, 48]", |c| c.aiv_num = 0, |c| c.aiv_num = 1),
    (a3, "aiv_num", "[1, 48]", |c| c.aiv_num = 49, |c| c.aiv_num = 48),
    (a3, "port_offset", "[0, 1073741824]", |c| c.port_offset = -512, |c| c.port_offset = 512),
    (a3, "port_offset", "multiple of 512", |c| c.port_offset = 1000, |c| c.port_offset = 1024),
    (a3, "norm_eps", "finite", |c| c.norm_eps = f32::NAN, |c| c.norm_eps = f32::MAX),
    // 2 * (4 * 16 * 16 * 14848 + 8 * 16 * 14336) B = 32.5 MiB.
    (a3, "hccl_buffsize_mb", "hold the windows", |c| c.hccl_buffsize_mb = 32, |c| c.hccl_buffsize_mb = 33),
    (a3, "hccl_buffsize_mb", "[2, 4294967295]", |c| c.hccl_buffsize_mb = 1 << 32, |c| c.hccl_buffsize_mb = (1 << 32) - 1),
    (v2, "tp_world_size", "[0, 1]", |c| (c.tp_world_size, c.moe_expert_num) = (2, 16), |c| (c.tp_world_size, c.moe_expert_num) = (1, 16)),
    (v2, "elastic_info", "absent on a3 fullmesh_v2", |c| c.given = Given::ELASTIC_INFO, |c| c.given = Given::MASK_2D),
    // 2 * (4 * 16 * 16 * 15360 + 8 * 16 * 14336) B = 33.5 MiB.
    (v2, "hccl_buffsize_mb", "hold the windows", |c| c.hccl_buffsize_mb = 33, |c| c.hccl_buffsize_mb = 34),
];

#[rustfmt::skip]
const A2: &[Row] = &[
    (a2, "op", "must be", |c| c.op = Op::CombineAddRmsNorm, |_| ()),
    (a2, "ep_world_size", "[16, 256]", |c| c.ep_world_size = 8, |c| c.ep_world_size = 16),
    (a2, "ep_world_size", "[16, 256]", |c| c.ep_world_size = 264, |c| (c.ep_world_size, c.moe_expert_num) = (256, 256)),
    (a2, "ep_world_size", "multiple of 8", |c| c.ep_world_size = 28, |c| (c.ep_world_size, c.moe_expert_num) = (24, 48)),
    (a2, "moe_expert_num", "[1, 1024]", |c| c.moe_expert_num = 0, |c| c.moe_expert_num = 16),
    (a2, "moe_expert_num", "[1, 1024]", |c| (c.ep_world_size, c.moe_expert_num) = (64, 1088), |c| (c.ep_world_size, c.moe_expert_num) = (64, 1024)),
    (a2, "moe_expert_num", "than the limit", |c| c.moe_expert_num = 400, |c| c.moe_expert_num = 384),
    (a2, "moe_expert_num", "multiple of ep_world_size", |c| c.moe_expert_num = 65, |c| c.moe_expert_num = 80),
    (a2, "h", "[1, 10240]", |c| c.h = 0, |c| c.h = 32),
    (a2, "h", "[1, 10240]", |c| c.h = 10272, |c| c.h = 10240),
    (a2, "h", "multiple of 32", |c| c.h = 7152, |c| c.h = 7136),
    (a2, "bs", "[1, 256]", |c| c.bs = size(257), |c| c.bs = size(256)),
    (a2, "k", "[1, 16]", |c| c.k = 17, |c| c.k = 16),
    (a2, "shared_expert_num", "[0, 1]", |c| c.shared_expert_num = 2, |c| c.shared_expert_num = 1),
    (a2, "shared_expert_rank_num", "must be 0", |c| (c.shared_expert_num, c.shared_expert_rank_num) = (1, 8), |_| ()),
    (a2, "tp_world_size", "[0, 1]", |c| c.tp_world_size = 2, |c| c.tp_world_size = 1),
    (a2, "quant_mode", "0 or 2", |c| c.quant_mode = 3, |c| c.quant_mode = 2),
    (a2, "scales", "unless quant_mode is 2", |c| c.given = Given::SCALES, |c| (c.given, c.quant_mode) = (Given::SCALES, 2)),
    (a2, "comm_quant_mode", "must be 0", |c| c.comm_quant_mode = 2, |_| ()),
    (a2, "const_expert_num", "must be 0", |c| c.const_expert_num = 1, |c| (c.zero_expert_num, c.copy_expert_num) = (1, 1)),
    (a2, "copy_expert_num", "within the limit", |c| c.copy_expert_num = i64::from(i32::MAX) - 63, |c| c.copy_expert_num = i64::from(i32::MAX) - 64),
    (a2, "elastic_info", "absent on a2", |c| c.given = Given::ELASTIC_INFO, |c| c.given = Given::MASK_1D),
    (a2, "shared_expert_x", "absent on a2", |c| c.given = Given::SHARED_EXPERT_X, |c| c.given = Given::MASK_2D),
    (a2, "port_offset", "must be 0", |c| c.port_offset = 512, |_| ()),
    (a2, "global_bs", "0 or a multiple", |c| c.global_bs = 16, |c| c.global_bs = 272),
    // 16 * 16 * 4 * 7168 * 4 B = 28 MiB, and 4.
    (a2, "hccl_buffsize_mb", "hold the windows", |c| c.hccl_buffsize_mb = 31, |c| c.hccl_buffsize_mb = 32),
];

#[rustfmt::skip]
const HIERARCHY: &[Row] = &[
    (near, "op", "must be", |c| c.op = Op::CombineAddRmsNorm, |_| ()),
    (near, "ep_world_size", "[16, 64]", |c| (c.ep_world_size, c.moe_expert_num) = (72, 72), |c| c.ep_world_size = 64),
    (near, "ep_world_size", "multiple of 8", |c| c.ep_world_size = 20, |c| c.ep_world_size = 32),
    (near, "server_ranks", "must be 8", |c| c.server_ranks = 4, |c| c.server_ranks = 8),
    (near, "moe_expert_num", "[1, 512]", |c| c.moe_expert_num = 528, |c| c.moe_expert_num = 512),
    (near, "moe_expert_num", "multiple of ep_world_size", |c| c.moe_expert_num = 65, |c| c.moe_expert_num = 80),
    (near, "h", "[1, 10240]", |c| c.h = 10272, |c| c.h = 10240),
    (near, "h", "multiple of 32", |c| c.h = 10230, |c| c.h = 10208),
    (near, "bs", "[1, 512]", |c| c.bs = size(513), |c| c.bs = size(512)),
    // 8 servers * 512 * (14336 + 128) B are 56.5 MiB, and the area has 51.
    (near, "bs", "in the relay area", |c| (c.ep_world_size, c.bs) = (64, size(512)), |c| (c.ep_world_size, c.bs) = (64, size(256))),
    (near, "shared_expert_num", "[0, 1]", |c| c.shared_expert_num = 2, |c| c.shared_expert_num = 1),
    (near, "shared_expert_rank_num", "must be 0", |c| (c.shared_expert_num, c.shared_expert_rank_num) = (1, 8), |_| ()),
    (near, "tp_world_size", "[0, 1]", |c| c.tp_world_size = 2, |c| c.tp_world_size = 1),
    (near, "scales", "absent on a2 hierarchy", |c| (c.given, c.quant_mode) = (Given::SCALES, 2), |c| c.quant_mode = 2),
    (near, "comm_quant_mode", "0 or 2", |c| c.comm_quant_mode = 1, |c| c.comm_quant_mode = 2),
    (near, "zero_expert_num", "must be 0", |c| c.zero_expert_num = 1, |_| ()),
    (near, "copy_expert_num", "must be 0", |c| c.copy_expert_num = 1, |_| ()),
    (near, "const_expert_num", "must be 0", |c| c.const_expert_num = 1, |_| ()),
    (near, "x_active_mask", "absent on a2 hierarchy", |c| c.given = Given::MASK_1D, |_| ()),
    (near, "x_active_mask", "absent on a2 hierarchy", |c| c.given = Given::MASK_2D, |_| ()),
    (near, "elastic_info", "absent on a2 hierarchy", |c| c.given = Given::ELASTIC_INFO, |_| ()),
    (near, "shared_expert_x", "absent on a2 hierarchy", |c| c.given = Given::SHARED_EXPERT_X, |_| ()),
    (near, "port_offset", "must be 0", |c| c.port_offset = 512, |_| ()),
    // 64 * 16 * (14336 + 128) B = 14.1 MiB, and 104.
    (near, "hccl_buffsize_mb", "hold the windows", |c| c.hccl_buffsize_mb = 118, |c| c.hccl_buffsize_mb = 119),
];

fn violations(base: Base, set: Set, limits: Limits) -> Vec<Violation> {
    let mut config = base();
    set(&mut config);
    let mut found = Vec::new();
    Shape::check(&config, limits, &mut |violation| found.push(*violation));
    found
}

#[test]
fn each_rule_can_be_broken_alone_and_just_kept() {
    for (row, &(base, parameter, rule, breaks, keeps)) in [A3, A2, HIERARCHY].concat().iter().enumerate() {
        let place = format!("row {row}: {parameter} {rule}");
        let found = violations(base, breaks, Limits::Product);
        let [only] = found.as_slice() else { panic!("{place}: {found:?}") };
        assert_eq!(only.parameter, parameter, "{place}");
        assert!(only.rule.to_string().contains(rule), "{place}: {only}");
        assert_eq!(violations(base, keeps, Limits::Product), [], "{place}");
    }
}

/// Rules that the products' ranges make unbreakable; models can break them.
const OF_MODELS: [&str; 1] = [
    // 512 tokens with 16 + 4 columns take exactly the 10 240 slots.
    "must leave a combine status slot per (token, k or shared expert)",
];

/// Rules that only operators have, which the tables of `releases.rs` break.
const OF_OPERATORS: [&str; 5] = [
    "must be the same on every rank",
    "must be absent when ranks differ in bs",
    "must be 0 or bs * ep_world_size",
    "must be 0 or bs * ep_world_size with x_active_mask",
    "must have one flag a token, not one a pair",
];

/// Returns the text after each `opening` in `source`, up to the quote.
fn literals<'s>(source: &'s str, opening: &'s str) -> impl Iterator<Item = &'s str> {
    source.split(opening).skip(1).filter_map(|rest| rest.split('"').next())
}

#[test]
fn the_table_has_every_rule_in_the_source_of_validation() {
    let source = include_str!("../src/shape/rules.rs");
    let table = [A3, A2, HIERARCHY].concat();
    let found: Vec<_> = table.iter().flat_map(|row| violations(row.0, row.3, Limits::Product)).collect();
    let has = |parameter: &str, rule: &Rule| {
        found.iter().any(|v| v.parameter == parameter && discriminant(&v.rule) == discriminant(rule))
    };
    let kinds = [
        ("self.range(\"", Rule::Range { min: 0, max: 0 }),
        ("self.multiple(\"", Rule::MultipleOf(1)),
        ("self.one_of(\"", Rule::OneOf(&[])),
    ];
    let mut parameters = 0;
    for (call, kind) in kinds {
        for parameter in literals(source, call) {
            parameters += 1;
            // Only the sum of two legal numbers is too large, or one number is not legal.
            let of_another_rule = parameter == "global_bs";
            assert!(of_another_rule || has(parameter, &kind), "{call}{parameter}\": not in the table");
        }
    }
    assert!(parameters > 15, "the calls have another form now: {parameters}");
    let mut words = 0;
    for rule in literals(source, "\"must ").map(|rest| format!("must {rest}")) {
        words += 1;
        let in_table = found.iter().any(|v| v.rule.to_string() == rule);
        let elsewhere = OF_MODELS.iter().chain(&OF_OPERATORS).any(|other| **other == *rule);
        assert!(in_table || elsewhere, "{rule:?}: not in the table");
    }
    assert!(words > 20, "the rules have another form now: {words}");
}
