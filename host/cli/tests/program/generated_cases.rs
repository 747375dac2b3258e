//! Properties of generated cases.

use crate::common::json;
use crate::random;
use proptest::prelude::*;
use std::collections::BTreeSet;
use veriep_case::case::{Case, OwnedMask};
use veriep_case::config::{Bs, Config};
use veriep_case::generate::{MaskKind, Options, Routing, SERVERS_MAX, generate};
use veriep_core::units::ExpertId;

/// A configuration with narrow rows: routing does not look at them.
fn config(ranks: i64, experts: i64, k: i64, bs: i64) -> Config {
    Config {
        ep_world_size: ranks,
        moe_expert_num: experts,
        k,
        h: 1024,
        bs: Bs::Uniform(bs),
        hccl_buffsize_mb: 4096,
        ..Config::default()
    }
}

fn make(config: Config, routing: Routing, seed: u64) -> Case {
    generate(config, Options { routing, seed, ..Options::default() }, "test").unwrap()
}

fn rows(case: &Case) -> impl Iterator<Item = &[i32]> {
    case.ranks.iter().flat_map(|rank| rank.expert_ids.chunks_exact(case.shape.k() as usize))
}

fn popularity(case: &Case) -> Vec<usize> {
    let mut visits = vec![0; case.shape.moe_expert_num() as usize];
    rows(case).flatten().for_each(|&expert| visits[expert as usize] += 1);
    visits
}

fn routings() -> impl Strategy<Value = Routing> {
    prop_oneof![Just(Routing::Uniform), Just(Routing::Zipf), Just(Routing::Hot), Just(Routing::NodeLimited)]
}

proptest! {
    #![proptest_config(random::config(24))]

    #[test]
    fn rows_are_distinct_weights_positive_and_of_sum_1(
        routing in routings(), seed: u64, ranks in 2i64..20, local in 1i64..4, k in 1i64..17, bs in 1i64..5
    ) {
        let experts = ranks * local;
        let case = make(config(ranks, experts, k.min(experts), bs), routing, seed);
        for row in rows(&case) {
            prop_assert_eq!(row.iter().collect::<BTreeSet<_>>().len(), row.len());
            prop_assert!(row.iter().all(|&expert| (0..experts).contains(&i64::from(expert))));
        }
        for rank in &case.ranks {
            for weights in rank.expert_scales.chunks_exact(case.shape.k() as usize) {
                prop_assert!(weights.iter().all(|&weight| weight > 0.0));
                prop_assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-5);
            }
        }
    }
}

#[test]
fn a_case_depends_on_its_seed_alone() {
    let make = |seed| make(config(4, 16, 4, 8), Routing::Zipf, seed);
    assert_eq!(make(3), make(3));
    assert_ne!(make(3), make(4));
}

#[test]
fn every_token_visits_the_hot_expert() {
    let case = make(config(8, 64, 4, 32), Routing::Hot, 1);
    let visits = popularity(&case);
    assert_eq!(visits.iter().filter(|&&visits| visits == 8 * 32).count(), 1);
}

#[test]
fn zipf_makes_few_experts_popular_and_uniform_does_not() {
    let mut zipf = popularity(&make(config(8, 64, 2, 128), Routing::Zipf, 1));
    let mut uniform = popularity(&make(config(8, 64, 2, 128), Routing::Uniform, 1));
    zipf.sort_unstable();
    uniform.sort_unstable();
    let top = |visits: &[usize]| visits[56..].iter().sum::<usize>() * 100 / visits.iter().sum::<usize>();
    assert!(top(&zipf) > 45, "{}", top(&zipf));
    assert!(top(&uniform) < 25, "{}", top(&uniform));
}

#[test]
fn node_limited_tokens_visit_few_servers() {
    let case = make(config(64, 256, 8, 16), Routing::NodeLimited, 1);
    let server =
        |&expert: &i32| case.shape.moe_home(ExpertId(expert as u32)).rank.0 / case.shape.server_ranks();
    let visited: Vec<_> =
        rows(&case).map(|row| row.iter().map(server).collect::<BTreeSet<_>>().len()).collect();
    assert_eq!(visited.iter().max(), Some(&SERVERS_MAX));
    assert!(popularity(&case).iter().all(|&visits| visits > 0));
}

#[test]
fn more_servers_are_visited_when_four_hold_too_few_experts() {
    let mut config = config(64, 8, 8, 4);
    config.shared_expert_rank_num = 56;
    config.k = 8;
    let case = make(config, Routing::NodeLimited, 1);
    assert!(rows(&case).all(|row| row.len() == 8));
}

#[test]
fn special_experts_are_chosen_when_k_needs_them() {
    for routing in [Routing::Uniform, Routing::Zipf, Routing::Hot, Routing::NodeLimited] {
        let config = Config { zero_expert_num: 3, copy_expert_num: 3, ..config(2, 2, 8, 4) };
        let case = make(config, routing, 1);
        assert!(rows(&case).all(|row| row.iter().collect::<BTreeSet<_>>().len() == 8));
    }
}

#[test]
fn special_experts_of_every_kind_occur_under_every_routing() {
    for routing in [Routing::Uniform, Routing::Zipf, Routing::Hot, Routing::NodeLimited] {
        let specials = Config { zero_expert_num: 1, copy_expert_num: 1, ..config(64, 64, 8, 32) };
        let case = make(Config { const_expert_num: 2, ..specials }, routing, 1);
        let seen: BTreeSet<_> = rows(&case).flatten().filter(|&&id| id >= 64).collect();
        assert_eq!(seen.len(), 4, "{routing:?}: {seen:?}");
    }
}

#[test]
fn gains_differ_and_lie_around_one() {
    let case = make(Config { shared_expert_rank_num: 2, ..config(10, 512, 4, 1) }, Routing::Uniform, 1);
    assert_eq!(case.expert_gain.len(), 513);
    assert!(case.expert_gain.iter().all(|gain| (0.5..1.5).contains(gain)));
    let distinct: BTreeSet<_> = case.expert_gain.iter().map(|gain| gain.to_bits()).collect();
    assert_eq!(distinct.len(), 513);
}

#[test]
fn rows_look_normal() {
    for dtype in ["bf16", "f16"] {
        let case = make(Config { dtype: dtype.to_owned(), ..config(2, 4, 2, 16) }, Routing::Uniform, 1);
        let value = |&bytes: &[u8; 2]| match dtype {
            "bf16" => half::bf16::from_le_bytes(bytes).to_f32(),
            _ => half::f16::from_le_bytes(bytes).to_f32(),
        };
        let values: Vec<_> = case.ranks.iter().flat_map(|rank| rank.x.as_chunks().0).map(value).collect();
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        let square = values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32;
        assert!(mean.abs() < 0.05 && (0.95..1.05).contains(&square), "{dtype}: {mean} {square}");
    }
}

#[test]
fn masks_are_of_the_kind_asked_for() {
    let make = |mask| {
        let options = Options { mask, seed: 2, ..Options::default() };
        generate(config(16, 16, 4, 8), options, "test").unwrap()
    };
    let lengths = |case: &Case| {
        let length = |rank: &veriep_case::case::RankTensors| match &rank.mask {
            OwnedMask::None | OwnedMask::Abstains => 0,
            OwnedMask::Tokens(mask) | OwnedMask::Pairs(mask) => mask.len(),
        };
        case.ranks.iter().map(length).collect::<BTreeSet<_>>()
    };
    assert_eq!(lengths(&make(MaskKind::None)), [0].into());
    assert_eq!(lengths(&make(MaskKind::Tokens)), [8].into());
    assert_eq!(lengths(&make(MaskKind::Pairs)), [32].into());
}

#[test]
fn the_values_of_a_seed_never_change() {
    let case = make(config(2, 8, 2, 4), Routing::Uniform, 42);
    assert_eq!(case.ranks[1].expert_ids, [0, 1, 4, 1, 2, 1, 4, 1]);
    assert_eq!(case.ranks[1].x[..8], [148, 191, 155, 190, 196, 191, 31, 63]);
    assert_eq!(
        case.ranks[1].expert_scales[..2].iter().map(|w| w.to_bits()).collect::<Vec<_>>(),
        [1057136011, 1056621801]
    );
    assert_eq!(
        case.expert_gain[..2].iter().map(|w| w.to_bits()).collect::<Vec<_>>(),
        [1062341035, 1067050418]
    );
}

#[test]
fn rows_without_values_leave_all_else_as_it_is() {
    let case = |values_max| {
        let (config, routing) = veriep_case::presets::preset("tiny").unwrap();
        generate(config, Options { routing, values_max, ..Options::default() }, "test").unwrap()
    };
    let with = case(u64::MAX);
    let bytes = veriep_case::case::round_bytes(&with.shape);
    let (just, without) = (case(bytes), case(bytes - 1));
    for ((with, just), without) in with.ranks.iter().zip(&just.ranks).zip(&without.ranks) {
        assert_eq!(with, just);
        assert!(with.x.iter().any(|&byte| byte != 0) && without.x.iter().all(|&byte| byte == 0));
        assert_eq!(with.x.len(), without.x.len());
        assert_eq!((&with.expert_ids, &with.expert_scales), (&without.expert_ids, &without.expert_scales));
    }
}

/// Larger than any sample: a core writes or reads a table in several pieces.
#[test]
fn tables_of_more_words_than_one_write_has_agree_with_the_oracle() {
    for group in [
        "--receive direct --set ep_world_size=2 --set moe_expert_num=140 --set k=8",
        "--set release=9.1.0 --set tp_world_size=2 --set ep_world_size=70 --set moe_expert_num=70 --set k=2 --set aiv_num=1",
    ] {
        let run = format!("run --preset tiny --set bs=4 --rounds 1 {group}");
        json(0, &run.split(' ').collect::<Vec<_>>());
    }
}
