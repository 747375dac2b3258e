//! The size of the windows: numbers computed by hand, and properties of every configuration.

#[path = "../src/tests/random.rs"]
mod random;

use proptest::prelude::*;
use veriep_core::layout::data::{combine_row, dispatch_record};
use veriep_core::layout::direct;
use veriep_core::layout::map;
use veriep_core::layout::state::Partition;
use veriep_core::place::Region;
use veriep_core::placement::Home;
use veriep_core::protocol::{Choices, Receive};
use veriep_core::shape::{
    BatchSizes, Buffer, Config, Dtype, Given, Limits, Op, Protocol, Rule, Shape, Violation,
};
use veriep_core::units::{RankId, Token, div_ceil};

const MIB: u64 = 1 << 20;

fn preset(name: &str) -> Config<'static> {
    let base = Config { moe_expert_num: 256, ..Config::default() };
    let a2 = Config { comm_alg: Protocol::Fullmesh, ..base };
    let bs = BatchSizes::Uniform;
    match name {
        "deepseek-v3-decode" => base,
        "a3-288" => Config {
            ep_world_size: 288,
            shared_expert_num: 1,
            shared_expert_rank_num: 32,
            bs: bs(48),
            hccl_buffsize_mb: 512,
            ..base
        },
        "a2-64" => Config { ep_world_size: 64, ..a2 },
        "a2-hier-16" => Config { comm_alg: Protocol::Hierarchy, ..a2 },
        "a2-hier-64" => Config { comm_alg: Protocol::Hierarchy, ep_world_size: 64, ..a2 },
        "tiny" => Config { ep_world_size: 2, moe_expert_num: 4, k: 2, h: 1024, bs: bs(4), ..base },
        other => panic!("no preset {other}"),
    }
}

/// (preset, required MiB, largest bs that fits the configured size), all by hand.
const GOLDEN: [(&str, u64, u64); 6] = [
    // 2 * (256 * 14848 + 8 * 14336) = 7 831 552 B per unit of bs; 16 of them are 119.5 MiB.
    ("deepseek-v3-decode", 120, 26),
    // 2 * (288 * 14848 + 9 * 14336) = 8 810 496 B per unit of bs; 48 of them are 403.3 MiB.
    ("a3-288", 404, 60),
    // 64 * 4 * 7168 * 4 B = 7 MiB per unit of bs, and 4 MiB.
    ("a2-64", 116, 28),
    // 256 * (14336 + 128) = 3 702 784 B per unit of bs, and 104 MiB; the number of ranks plays no part.
    ("a2-hier-16", 161, 27),
    ("a2-hier-64", 161, 27),
    // 2 * (4 * 2560 + 2 * 2048) = 28 672 B per unit of bs, so the product's least and most.
    ("tiny", 2, 512),
];

fn violations(config: &Config<'_>, limits: Limits) -> Vec<Violation> {
    let mut found = Vec::new();
    Shape::check(config, limits, &mut |violation| found.push(*violation));
    found
}

#[test]
fn presets_are_valid_and_need_the_sizes_computed_by_hand() {
    for (name, required_mb, max_bs) in GOLDEN {
        let config = preset(name);
        let buffer = Buffer::new(&config);
        assert_eq!((buffer.required_mb, buffer.max_bs), (required_mb, max_bs), "{name}");
        assert!(buffer.fits(), "{name}");
        if let Err(found) = Shape::new(&config, Limits::Product) {
            panic!("{name}: {found:?}");
        }
    }
}

#[test]
fn one_mib_less_than_required_is_refused() {
    for (name, required_mb, _) in GOLDEN {
        let required_mb = i64::try_from(required_mb).unwrap();
        let enough = Config { hccl_buffsize_mb: required_mb, ..preset(name) };
        assert!(Shape::new(&enough, Limits::Product).is_ok(), "{name}");
        let short = Config { hccl_buffsize_mb: required_mb - 1, ..preset(name) };
        let found = violations(&short, Limits::Product);
        assert_eq!(found.len(), 1, "{name}");
        assert_eq!(found[0].parameter, "hccl_buffsize_mb", "{name}");
        // Tiny groups need less than the smallest window, so a range applies.
        match found[0].rule {
            Rule::Range { min, .. } => {
                assert_eq!((min, Buffer::new(&short).is_smallest), (2, true), "{name}");
            }
            _ => assert_eq!(found[0].numbers[0], ("required_mb", required_mb), "{name}"),
        }
        assert_eq!(Buffer::new(&short).is_smallest, name == "tiny");
    }
}

#[test]
fn fullmesh_v2_counts_a_record_in_blocks() {
    // (14336 + 64) / 480 = 30 blocks of 512 B: 2 * (4096 * 15360 + 128 * 14336) B = 123.5 MiB.
    let config = Config { comm_alg: Protocol::FullmeshV2, ..preset("deepseek-v3-decode") };
    assert_eq!(Buffer::new(&config).required_mb, 124);
    let shape = Shape::new(&config, Limits::Product).unwrap();
    assert_eq!((shape.record_pitch(), shape.combine_pitch()), (15360, 14336));
    let quantised = Shape::new(&Config { quant_mode: 2, ..config }, Limits::Product).unwrap();
    assert_eq!(quantised.record_pitch(), 8192);
}

#[test]
fn terms_add_up_and_have_names() {
    let buffer = Buffer::new(&preset("a2-64"));
    assert_eq!((buffer.terms[0].bytes, buffer.terms[1].bytes), (112 * MIB, 4 * MIB));
    assert_eq!(buffer.terms[2].name, "");
    let decode = Buffer::new(&preset("deepseek-v3-decode"));
    assert_eq!(decode.terms.map(|term| term.bytes), [2 * 4096 * 14848, 2 * 128 * 14336, 0]);
    // 119.5 MiB and 2 * 2 * 16 * 1 MiB.
    let offset = Buffer::new(&Config { port_offset: MIB as i64, ..preset("deepseek-v3-decode") });
    assert_eq!((offset.required_mb, offset.terms[2].bytes), (184, 64 * MIB));
    assert_eq!(offset.max_bs, 18);
}

#[test]
fn a_size_that_is_not_a_number_of_bytes_saturates() {
    let absurd = Config { h: i64::MAX, moe_expert_num: i64::MAX, k: i64::MAX, ..preset("tiny") };
    assert_eq!((Buffer::new(&absurd).required_mb, Buffer::new(&absurd).max_bs), (u64::MAX.div_ceil(MIB), 0));
}

#[test]
fn a_record_beyond_4_gib_has_the_offset_of_the_formula() {
    let bs = BatchSizes::Uniform(512);
    let large = Config { ep_world_size: 256, moe_expert_num: 1024, bs, ..preset("deepseek-v3-decode") };
    let mb = Buffer::new(&large).required_mb;
    let shape = Shape::new(&Config { hccl_buffsize_mb: mb as i64, ..large }, Limits::Product).unwrap();
    let home = Home { rank: RankId(7), local_expert: 3 };
    for (partition, start) in [(Partition::P0, 0), (Partition::P1, mb * MIB / 2)] {
        let record = ((255 * 4 + 3) * 512 + 511) * 14848;
        let want = start + 512 * 8 * 14336 + record;
        assert!(record > 7 << 30);
        assert_eq!(dispatch_record(&shape, partition, home, RankId(255), 511).offset, want);
        assert_eq!(combine_row(&shape, partition, Token(511), 7).offset, start + (512 * 8 - 1) * 14336);
    }
}

#[test]
fn shared_experts_without_ranks_of_their_own_take_no_room() {
    let none = preset("deepseek-v3-decode");
    let one = Config { shared_expert_num: 1, ..none };
    assert_eq!(Buffer::new(&one), Buffer::new(&none));
}

#[test]
fn max_bs_honours_the_status_slots() {
    // K + S = 2: 10240 slots hold 5120 tokens, though 200 MiB would hold 7314.
    assert_eq!(Buffer::with(&preset("tiny"), Limits::None).max_bs, 5120);
    // Validation gives the same result for any window.
    let door = |bs| {
        let large = Config { bs: BatchSizes::Uniform(bs), hccl_buffsize_mb: 4096, ..preset("tiny") };
        Shape::new(&large, Limits::None).map(drop).map_err(|violation| violation.parameter)
    };
    assert_eq!([door(5120), door(5121)], [Ok(()), Err("bs")]);
}

#[test]
fn a2_windows_of_models_hold_flags_that_are_larger_than_rows() {
    for (ranks, quant_mode, bs) in [1, 16, 768]
        .into_iter()
        .flat_map(|r| [0, 2].into_iter().flat_map(move |q| (0..400).map(move |b| (r, q, 16 * b + 1))))
    {
        for bs in [bs, bs + 15] {
            let mut config = Config {
                comm_alg: Protocol::Fullmesh,
                ep_world_size: ranks,
                moe_expert_num: ranks,
                k: 1,
                h: 8,
                bs: BatchSizes::Uniform(bs),
                quant_mode,
                ..Config::default()
            };
            config.hccl_buffsize_mb = i64::try_from(Buffer::with(&config, Limits::None).required_mb).unwrap();
            assert_areas_fit(&Shape::new(&config, Limits::None).unwrap());
        }
    }
}

/// Numbers near each limit, small ones, and any others.
fn number() -> impl Strategy<Value = i64> {
    prop_oneof![
        4 => -2i64..40,
        2 => prop::sample::select(vec![
            64, 128, 256, 512, 768, 1024, 2048, 4096, 5120, 7168, 8192, 10240, 10241, 65535, 65536,
            0x7FFF_FFFE, 0x7FFF_FFFF, 0x8000_0000, i64::MIN, i64::MAX,
        ]),
        1 => any::<i64>(),
    ]
}

const ALGS: [Protocol; 4] =
    [Protocol::FullmeshV1, Protocol::FullmeshV2, Protocol::Fullmesh, Protocol::Hierarchy];

fn any_config() -> impl Strategy<Value = (Config<'static>, Option<Vec<i64>>)> {
    let words = (prop::sample::select(&ALGS), prop::sample::select(&[Op::Combine, Op::CombineAddRmsNorm]));
    let numbers = prop::array::uniform18(number());
    let list = prop::option::weighted(0.3, prop::collection::vec(number(), 0..20));
    (words, numbers, list, any::<f32>(), 0u32..32).prop_map(|(words, n, list, norm_eps, given)| {
        let config = Config {
            comm_alg: words.0,
            op: words.1,
            dtype: Dtype::Bf16,
            ep_world_size: n[0],
            server_ranks: 8,
            tp_world_size: n[1],
            moe_expert_num: n[2],
            shared_expert_num: n[3],
            shared_expert_rank_num: n[4],
            zero_expert_num: n[5],
            copy_expert_num: n[6],
            const_expert_num: n[7],
            k: n[8],
            h: n[9],
            bs: BatchSizes::Uniform(n[10]),
            global_bs: n[11],
            quant_mode: n[12],
            comm_quant_mode: n[13],
            expert_token_nums_type: n[14],
            hccl_buffsize_mb: n[15],
            aiv_num: n[16],
            port_offset: n[17],
            norm_eps,
            given: Given::from_bits_truncate(given),
        };
        (config, list)
    })
}

/// Mostly valid configurations, of both products and all layouts, large and tiny.
fn plausible() -> impl Strategy<Value = (Config<'static>, Limits)> {
    let domain = (1i64..40, 1i64..12, 0i64..5, 0i64..4);
    let sizes = (1i64..17, 1i64..600, 1i64..70, 0i64..3000);
    let flags = (any::<bool>(), 0usize..3, any::<bool>());
    let modes = (prop::sample::select(vec![0i64, 2]), flags, prop::sample::select(vec![0i64, 0, 1, 3, 777]));
    (domain, sizes, modes).prop_map(|(domain, sizes, modes)| {
        let (moe_ranks, local, shared, replicas) = domain;
        let (k, h, bs, mb) = sizes;
        let (quant_mode, (a3, alg, tiny), offset) = modes;
        let shared_ranks = if a3 { shared * replicas } else { 0 };
        let moe_ranks = if a3 { moe_ranks + 1 } else { 8 * moe_ranks.clamp(2, 8) };
        let config = Config {
            comm_alg: ALGS[if a3 { alg % 2 } else { 2 + alg % 2 }],
            ep_world_size: moe_ranks + shared_ranks,
            moe_expert_num: moe_ranks * local,
            shared_expert_num: if shared_ranks == 0 { 0 } else { shared },
            shared_expert_rank_num: shared_ranks,
            k: k.min(moe_ranks * local),
            h: if a3 { h + if tiny { 0 } else { 1023 } } else { 32 * h.min(224) },
            bs: BatchSizes::Uniform(bs),
            hccl_buffsize_mb: mb,
            port_offset: if a3 { offset * 512 } else { 0 },
            quant_mode,
            ..Config::default()
        };
        (config, if tiny { Limits::None } else { Limits::Product })
    })
}

/// Asserts that the areas of a valid shape are within their part of the window.
fn assert_areas_fit(shape: &Shape) {
    let half = shape.window_bytes() / 2;
    match shape.protocol() {
        Protocol::FullmeshV1 | Protocol::FullmeshV2 => {
            let offsets = 2 * shape.port_offset() * u64::from(shape.ep_world_size());
            assert!(shape.combine_area() + shape.dispatch_area() + offsets <= half);
            assert!(shape.dispatch_slots() * 32 <= 64 << 10);
            assert!(u64::from(shape.bs_max() * shape.combine_columns()) * 32 <= 320 << 10);
            assert!(shape.record_pitch() >= shape.payload_bytes() + 44);
        }
        Protocol::Fullmesh => {
            let rank_window = (half - MIB) / u64::from(shape.ep_world_size()) / 512 * 512;
            let rows = u64::from(shape.bs_max() * shape.local_expert_num().min(shape.k()));
            let scale = if shape.payload_bytes() == shape.row_bytes() { 0 } else { 32 };
            let flag2 = 512 + rows * (shape.payload_bytes() + scale) + 512;
            assert!(flag2 + 32 <= rank_window, "dispatch window");
            assert!(rows * shape.row_bytes() + 64 <= rank_window, "combine window");
            assert!(shape.local_expert_num() <= 24);
        }
        Protocol::Hierarchy => {
            let k = u64::from(shape.k()).next_multiple_of(8);
            let slots = u64::from(shape.moe_expert_num() * shape.bs_max());
            assert!(shape.window_bytes() - 103 * MIB >= slots * (shape.row_bytes() + 16 * k));
            let servers = div_ceil(shape.ep_world_size().into(), 8);
            let record = 32 + shape.row_bytes() + 32 + 8 * k;
            assert!(servers * u64::from(shape.bs_max()) * record <= 51 * MIB);
        }
        other => panic!("no areas of {other:?}"),
    }
}

proptest! {
    #![proptest_config(random::config(4000))]

    #[test]
    fn validation_never_panics_and_never_refuses_without_a_reason((mut config, list) in any_config()) {
        if let Some(list) = &list {
            config.bs = BatchSizes::PerRank(list);
        }
        for limits in [Limits::Product, Limits::None] {
            let buffer = Buffer::with(&config, limits);
            let _ = buffer.fits();
            let mut found = 0;
            match Shape::check(&config, limits, &mut |_| found += 1) {
                Some(shape) => assert_areas_fit(&shape),
                None => prop_assert!(found > 0),
            }
        }
    }

    #[test]
    fn areas_of_a_valid_shape_fit_the_smallest_window((mut config, limits) in plausible()) {
        let required_mb = Buffer::with(&config, limits).required_mb;
        config.hccl_buffsize_mb = i64::try_from(required_mb).unwrap();
        let shape = Shape::new(&config, limits);
        // Gives up, and so fails, if too few are valid.
        prop_assume!(shape.is_ok());
        let shape = shape.unwrap();
        assert_areas_fit(&shape);
        prop_assert!(shape.rows_max(RankId(0)) > 0);
        prop_assert_eq!(shape.product(), config.comm_alg.product());
    }

    #[test]
    fn max_bs_is_valid_and_one_more_is_not((config, limits) in plausible()) {
        let max_bs = i64::try_from(Buffer::with(&config, limits).max_bs).unwrap();
        let wrong = |bs| violations(&Config { bs: BatchSizes::Uniform(bs), ..config }, limits);
        if wrong(1).is_empty() {
            prop_assert!(wrong(max_bs).is_empty(), "{max_bs}");
            let found = wrong(max_bs + 1);
            prop_assert!(!found.is_empty());
            prop_assert!(found.iter().all(|v| ["bs", "hccl_buffsize_mb"].contains(&v.parameter)));
        } else if max_bs > 0 {
            let found = wrong(1);
            prop_assert!(found.iter().all(|v| v.parameter != "hccl_buffsize_mb"), "{found:?}");
        }
    }

    #[test]
    fn required_grows_with_bs_and_is_the_sum_of_its_terms((config, limits) in plausible()) {
        let of = |bs| Buffer::with(&Config { bs: BatchSizes::Uniform(bs), ..config }, limits);
        let (less, more) = (of(7), of(8));
        prop_assert!(less.required_mb <= more.required_mb);
        let sum: u64 = more.terms.iter().map(|term| term.bytes).sum();
        prop_assert_eq!(more.required_mb, div_ceil(sum, MIB).max(if limits == Limits::None { 1 } else { 2 }));
    }

    #[test]
    fn the_size_of_our_layout_covers_every_area_in_every_mode_also_at_the_largest_batch(
        (mut config, limits) in plausible(),
        (receive, has_tp, spare) in (0usize..5, any::<bool>(), 1i64..4),
    ) {
        let receive = [
            Receive::Copy,
            Receive::InPlace,
            Receive::Direct { areas: 1 },
            Receive::Direct { areas: 2 },
            Receive::Overwrite { areas: 2 },
        ][receive];
        if has_tp && config.comm_alg == Protocol::FullmeshV1 {
            config.tp_world_size = 2;
            config.moe_expert_num = config.ep_world_size - config.shared_expert_rank_num;
            config.k = config.k.min(config.moe_expert_num);
        }
        if let BatchSizes::Uniform(bs) = config.bs {
            config.global_bs = spare * bs * config.ep_world_size;
        }
        let needed = Buffer::with(&config, limits).required_mb;
        config.hccl_buffsize_mb = i64::try_from(needed).unwrap();
        let shape = Shape::new(&config, limits);
        prop_assume!(shape.is_ok());
        assert_listed(&shape.unwrap(), receive, needed);
        // The largest capacity of a larger window.
        config.hccl_buffsize_mb *= 3;
        let most = Buffer::with(&config, limits);
        config.bs = BatchSizes::Uniform(i64::try_from(most.max_bs).unwrap());
        config.global_bs = 0;
        let shape = Shape::new(&config, limits);
        prop_assert!(shape.is_ok(), "{:?}", shape.err());
        assert_listed(&shape.unwrap(), Receive::Copy, config.hccl_buffsize_mb.cast_unsigned());
    }
}

/// Asserts that each area which the map lists ends within `mb`, or within what direct placement needs.
fn assert_listed(shape: &Shape, receive: Receive, mb: u64) {
    if receive.excluded_by(shape).next().is_some() {
        return;
    }
    let placed = if receive.is_direct() {
        direct::required_bytes(shape, receive.areas(), receive.overwrites())
    } else {
        0
    };
    let size = (mb * MIB).max(placed.next_multiple_of(MIB));
    let mode = Choices { receive, ..Choices::default() }.mode();
    let ranks = [0, shape.shared_expert_rank_num(), shape.ep_world_size() - 1];
    for area in ranks.into_iter().flat_map(|rank| map::areas(shape, mode, RankId(rank))) {
        if matches!(area.start.region, Region::Window | Region::TpWindow) {
            let end = area.start.offset + area.size();
            assert!(end <= size, "{} ends at {end}, beyond {size}: {receive:?} {shape:?}", area.named.name());
        }
    }
}
