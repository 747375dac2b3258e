//! The reference against cases computed by hand.

mod combine;
mod servers;

use super::{Cluster, Dispatched, numerics};
use crate::inputs::{AddRmsNorm, Inputs, Mask};
use crate::shape::{BatchSizes, Config, Dtype, Given, Limits, Shape};
use crate::testing::random;
use crate::units::{RankId, Token};
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

/// One rank's tensors, owned; `x` as values that bf16 represents exactly.
#[derive(Clone, Debug, Default)]
struct Tensors {
    x: Vec<u8>,
    ids: Vec<i32>,
    weights: Vec<f32>,
    mask_1d: Option<Vec<bool>>,
    mask_2d: Option<Vec<bool>>,
    scales: Option<Vec<f32>>,
    shared_expert_x: Option<Vec<u8>>,
    alpha_1: Vec<u8>,
    alpha_2: Vec<u8>,
    const_v: Vec<u8>,
    /// `residual_x` and `gamma`.
    add_rms_norm: Option<[Vec<u8>; 2]>,
}

impl Tensors {
    fn new(x: &[f32], ids: &[i32], weights: &[f32]) -> Self {
        Self { x: bf16(x), ids: ids.to_vec(), weights: weights.to_vec(), ..Self::default() }
    }

    fn inputs(&self) -> Inputs<'_> {
        let mask = match (&self.mask_1d, &self.mask_2d) {
            (Some(mask), _) => Mask::Tokens(mask),
            (_, Some(mask)) => Mask::Pairs(mask),
            _ => Mask::None,
        };
        let (scales, norm) = (self.scales.as_deref(), self.add_rms_norm.as_ref());
        Inputs {
            x: &self.x,
            expert_ids: &self.ids,
            expert_scales: &self.weights,
            mask,
            scales,
            shared_expert_x: self.shared_expert_x.as_deref(),
            const_expert_alpha_1: &self.alpha_1,
            const_expert_alpha_2: &self.alpha_2,
            const_expert_v: &self.const_v,
            add_rms_norm: norm.map(|[residual_x, gamma]| AddRmsNorm { residual_x, gamma }),
            call: None,
            dispatched: None,
        }
    }
}

fn bf16(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|&v| numerics::to_bytes(Dtype::Bf16, v)).collect()
}

fn shape(config: &Config<'_>) -> Shape {
    Shape::new(config, Limits::None).unwrap()
}

/// `R, E, S, Rs, K, H, BS` and one core, bf16, unquantised.
fn small(numbers: [i64; 7]) -> Config<'static> {
    let [r, e, s, rs, k, h, bs] = numbers;
    Config {
        ep_world_size: r,
        moe_expert_num: e,
        shared_expert_num: s,
        shared_expert_rank_num: rs,
        k,
        h,
        bs: BatchSizes::Uniform(bs),
        aiv_num: 1,
        ..Config::default()
    }
}

fn dispatch(shape: &Shape, tensors: &[Tensors]) -> Vec<Dispatched> {
    let ranks: Vec<_> = tensors.iter().map(Tensors::inputs).collect();
    for (rank, inputs) in (0..).zip(&ranks) {
        assert_eq!(inputs.check(shape, RankId(rank)), Ok(()), "the case must be legal");
    }
    let cluster = Cluster { shape, ranks: &ranks, elastic_info: None, expert_map: None };
    (0..shape.ep_world_size()).map(|rank| cluster.dispatch(RankId(rank))).collect()
}

/// Returns `x_out` as values and the requested rows, when `result` gives each returned row.
fn combine(
    shape: &Shape,
    tensors: &[Tensors],
    rank: u32,
    result: &dyn Fn(usize, u32) -> Vec<f32>,
) -> (Vec<f32>, Vec<(u32, u32)>) {
    let ranks: Vec<_> = tensors.iter().map(Tensors::inputs).collect();
    let mut asked = Vec::new();
    let x_out = Cluster { shape, ranks: &ranks, elastic_info: None, expert_map: None }.combine(
        RankId(rank),
        &mut |token: Token, k, row| {
            asked.push((token.0, k));
            *row = bf16(&result(token.index(), k));
        },
    );
    (numerics::values(Dtype::Bf16, &x_out), asked)
}

/// Two ranks, experts 0 and 1 on rank 0, 2 and 3 on rank 1, K = 2, two tokens of two elements each.
fn two_ranks() -> [Tensors; 2] {
    [
        Tensors::new(&[1., 2., 3., 4.], &[0, 2, 3, 0], &[0.5, 0.25, 1.0, 0.5]),
        Tensors::new(&[5., 6., 7., 8.], &[2, 0, 1, 2], &[2.0, 1.0, -1.0, 0.5]),
    ]
}

#[test]
fn two_ranks_dispatch_as_on_paper() {
    let config = small([2, 4, 0, 0, 2, 2, 2]);
    let by_counts = dispatch(&shape(&config), &two_ranks());
    let on_rank_0 = Dispatched {
        // Expert 0: tokens 0 and 1 of rank 0, token 0 of rank 1; expert 1: token 1 of rank 1.
        expand_x: bf16(&[1., 2., 3., 4., 5., 6., 7., 8.]),
        dynamic_scales: vec![],
        assist_info_for_combine: vec![[0, 0, 0], [0, 1, 1], [1, 0, 1], [1, 1, 0]],
        expand_scales: vec![],
        expand_idx: vec![0, 0, 0, 1],
        expert_token_nums: vec![3, 1],
        ep_recv_counts: vec![2, 3, 3, 4],
        tp_recv_counts: vec![],
    };
    let on_rank_1 = Dispatched {
        // Expert 2: token 0 of rank 0, tokens 0 and 1 of rank 1; expert 3: token 1 of rank 0.
        expand_x: bf16(&[1., 2., 5., 6., 7., 8., 3., 4.]),
        dynamic_scales: vec![],
        assist_info_for_combine: vec![[0, 0, 1], [1, 0, 0], [1, 1, 1], [0, 1, 0]],
        expand_scales: vec![],
        expand_idx: vec![0, 0, 0, 1],
        expert_token_nums: vec![3, 1],
        ep_recv_counts: vec![1, 3, 4, 4],
        tp_recv_counts: vec![],
    };
    assert_eq!(by_counts, [on_rank_0, on_rank_1]);

    let by_prefix = dispatch(&shape(&Config { expert_token_nums_type: 0, ..config }), &two_ranks());
    assert_eq!(by_prefix.iter().map(|d| &d.expert_token_nums[..]).collect::<Vec<_>>(), [[3, 4]; 2]);
}

#[test]
fn two_ranks_combine_as_on_paper() {
    let (shape, tensors) = (shape(&small([2, 4, 0, 0, 2, 2, 2])), two_ranks());
    // Expert e multiplies by e + 1.
    let result = |rank: usize| {
        let tensors = &tensors;
        move |token: usize, k: u32| {
            let times = (tensors[rank].ids[2 * token + k as usize] + 1) as f32;
            let x = numerics::values(Dtype::Bf16, &tensors[rank].x);
            vec![times * x[2 * token], times * x[2 * token + 1]]
        }
    };
    let asked = vec![(0, 0), (0, 1), (1, 0), (1, 1)];
    // 0.5 * 1 + 0.25 * 3 = 1.25 times (1, 2); 1 * 4 + 0.5 * 1 = 4.5 times (3, 4).
    let rank_0 = combine(&shape, &tensors, 0, &result(0));
    assert_eq!(rank_0, (vec![1.25, 2.5, 13.5, 18.0], asked.clone()));
    // 2 * 3 + 1 * 1 = 7 times (5, 6); -1 * 2 + 0.5 * 3 = -0.5 times (7, 8).
    let rank_1 = combine(&shape, &tensors, 1, &result(1));
    assert_eq!(rank_1, (vec![35.0, 42.0, -3.5, -4.0], asked));
}

/// Two shared experts with two replicas each on ranks 0 to 3, experts 0 and 1 on ranks 4 and 5, K = 1; rank r has the one
/// token (r + 1).
fn shared() -> Vec<Tensors> {
    let ids = [0, 1, 0, 1, 1, 0];
    (0..6).map(|rank| Tensors::new(&[rank as f32 + 1.0], &[ids[rank]], &[0.5])).collect()
}

#[test]
fn every_source_sends_to_one_replica_of_each_shared_expert() {
    let dispatched = dispatch(&shape(&small([6, 2, 2, 4, 1, 1, 1])), &shared());
    let expected = [
        // Shared expert 0 (k index K + 0 = 1): even sources on rank 0, odd ones on rank 1.
        ([1., 3., 5.], [[0, 0, 1], [2, 0, 1], [4, 0, 1]], [1, 1, 2, 2, 3, 3]),
        ([2., 4., 6.], [[1, 0, 1], [3, 0, 1], [5, 0, 1]], [0, 1, 1, 2, 2, 3]),
        // Shared expert 1 (k index 2).
        ([1., 3., 5.], [[0, 0, 2], [2, 0, 2], [4, 0, 2]], [1, 1, 2, 2, 3, 3]),
        ([2., 4., 6.], [[1, 0, 2], [3, 0, 2], [5, 0, 2]], [0, 1, 1, 2, 2, 3]),
        // MoE experts 0 and 1.
        ([1., 3., 6.], [[0, 0, 0], [2, 0, 0], [5, 0, 0]], [1, 1, 2, 2, 2, 3]),
        ([2., 4., 5.], [[1, 0, 0], [3, 0, 0], [4, 0, 0]], [0, 1, 1, 2, 3, 3]),
    ];
    for (seen, (x, triples, counts)) in dispatched.iter().zip(expected) {
        assert_eq!(seen.expand_x, bf16(&x));
        assert_eq!(seen.assist_info_for_combine, triples);
        assert_eq!(seen.ep_recv_counts, counts);
        assert_eq!((&seen.expert_token_nums[..], &seen.expand_idx[..]), (&[3][..], &[0][..]));
    }
}

#[test]
fn shared_results_are_added_unscaled() {
    // 0.5 * 12 + 10 + 100.
    let results = [12.0, 10.0, 100.0];
    let seen =
        combine(&shape(&small([6, 2, 2, 4, 1, 1, 1])), &shared(), 5, &|_, k| vec![results[k as usize]]);
    assert_eq!(seen, (vec![116.0], vec![(0, 0), (0, 1), (0, 2)]));
}

/// A shared expert on rank 0, experts 0 and 1 on ranks 1 and 2, K = 2; rank 0 has one active token of three,
/// rank 1 some active pairs, rank 2 none. Masked pairs have ids that are none.
fn masked() -> [Tensors; 3] {
    let rank = |first: f32| {
        Tensors::new(&[first, first + 1.0, first + 2.0], &[0, 1, 0, 1, 0, 1], &[1., 2., 3., 4., 5., 6.])
    };
    [
        Tensors { mask_1d: Some(vec![true, false, false]), ids: vec![0, 1, 2, -1, 7, 7], ..rank(1.0) },
        Tensors {
            mask_2d: Some(vec![false, false, false, true, true, false]),
            ids: vec![-1, -1, 1, 1, 0, 0],
            ..rank(4.0)
        },
        Tensors { mask_1d: Some(vec![false; 3]), ids: vec![i32::MIN, i32::MAX, -1, 0, 0, 0], ..rank(7.0) },
    ]
}

#[test]
fn masked_pairs_are_neither_sent_nor_counted() {
    let seen = dispatch(&shape(&small([3, 2, 1, 1, 2, 1, 3])), &masked());
    // Active tokens only, in order: token 0 of rank 0, tokens 1 and 2 of rank 1.
    assert_eq!(seen[0].expand_x, bf16(&[1., 5., 6.]));
    assert_eq!(seen[0].assist_info_for_combine, [[0, 0, 2], [1, 1, 2], [1, 2, 2]]);
    assert_eq!(seen[0].ep_recv_counts, [1, 3, 3]);
    assert_eq!(seen[0].expand_idx, [0, 0, -1, -1, -1, -1]);
    // Expert 0: pair (0, 0) of rank 0, pair (2, 0) of rank 1.
    assert_eq!(seen[1].expand_x, bf16(&[1., 6.]));
    assert_eq!(seen[1].assist_info_for_combine, [[0, 0, 0], [1, 2, 0]]);
    assert_eq!(seen[1].ep_recv_counts, [1, 2, 2]);
    assert_eq!(seen[1].expand_idx, [-1, -1, -1, 0, 0, -1]);
    // Expert 1: pair (0, 1) of rank 0, pair (1, 1) of rank 1. The rank itself is idle.
    assert_eq!(seen[2].expand_x, bf16(&[1., 5.]));
    assert_eq!(seen[2].assist_info_for_combine, [[0, 0, 1], [1, 1, 1]]);
    assert_eq!(seen[2].ep_recv_counts, [1, 2, 2]);
    assert_eq!(seen[2].expand_idx, [-1; 6]);
}

/// Experts 1 and 0 are in for logical expert 0 alternately; -1 has no row of the map.
#[test]
fn what_a_masked_pair_names_is_not_looked_up_in_the_map() {
    let shape = shape(&small([2, 2, 0, 0, 1, 1, 3]));
    let rank = |mask| Tensors { mask_1d: Some(mask), ..Tensors::new(&[1., 2., 3.], &[0, 0, -1], &[1.; 3]) };
    let tensors = [rank(vec![true, true, false]), rank(vec![true, false, false])];
    let ranks = tensors.each_ref().map(Tensors::inputs);
    let cluster =
        Cluster { shape: &shape, ranks: &ranks, elastic_info: None, expert_map: Some((&[1, 0], 1)) };
    let seen = [0, 1].map(|rank| cluster.dispatch(RankId(rank)));
    assert_eq!(seen[0].assist_info_for_combine, [[0, 1, 0], [1, 0, 0]]);
    assert_eq!(seen[1].assist_info_for_combine, [[0, 0, 0]]);
    assert_eq!(seen[0].expand_idx, [0, 0, -1]);
    assert_eq!(cluster.combine(RankId(0), &mut |_, _, row| *row = bf16(&[5.0])), bf16(&[5., 5., 0.]));
}

#[test]
fn inactive_tokens_come_out_as_zeros_and_masked_pairs_are_not_asked_for() {
    let (shape, tensors) = (shape(&small([3, 2, 1, 1, 2, 1, 3])), masked());
    // Every result is 10, so token 1 has 4 * 10 + 10, token 2 has 5 * 10 + 10.
    let rank_1 = combine(&shape, &tensors, 1, &|_, _| vec![10.0]);
    assert_eq!(rank_1, (vec![0.0, 50.0, 60.0], vec![(1, 1), (1, 2), (2, 0), (2, 2)]));
    assert_eq!(combine(&shape, &tensors, 2, &|_, _| vec![10.0]), (vec![0.0; 3], vec![]));
}

#[test]
fn a_rank_without_tokens_receives_rows_and_sums_none() {
    let config = Config { bs: BatchSizes::PerRank(&[2, 0]), global_bs: 4, ..small([2, 2, 0, 0, 1, 1, 0]) };
    let (shape, tensors) =
        (shape(&config), [Tensors::new(&[1., 2.], &[1, 0], &[1.; 2]), Tensors::new(&[], &[], &[])]);
    let seen = dispatch(&shape, &tensors);
    assert_eq!((&seen[0].expand_x, &seen[0].assist_info_for_combine[..]), (&bf16(&[2.]), &[[0, 1, 0]][..]));
    assert_eq!((&seen[1].expand_x, &seen[1].assist_info_for_combine[..]), (&bf16(&[1.]), &[[0, 0, 0]][..]));
    assert_eq!([&seen[0].ep_recv_counts[..], &seen[1].ep_recv_counts[..]], [[1, 1], [1, 1]]);
    assert_eq!([&seen[0].expand_idx[..], &seen[1].expand_idx[..]], [&[0, 0][..], &[]]);
    assert_eq!(combine(&shape, &tensors, 0, &|_, _| vec![10.0]).0, [10., 10.]);
    assert_eq!(combine(&shape, &tensors, 1, &|_, _| vec![10.0]), (vec![], vec![]));
}

#[test]
fn rows_are_quantised_with_the_scales_of_their_expert() {
    let config = Config { quant_mode: 2, given: Given::SCALES, ..small([3, 2, 1, 1, 2, 4, 1]) };
    let smooth = [1., 1., 1., 1., 4., 0.5, 2., 8., 1., 1., 2., 4.];
    let rank =
        Tensors { scales: Some(smooth.to_vec()), ..Tensors::new(&[1., -2., 0.5, 0.25], &[0, 1], &[1., 1.]) };
    let seen = dispatch(&shape(&config), &[rank.clone(), rank.clone(), rank]);
    let expected: [([i8; 4], f32); 3] = [
        // m = 2, s = 63.5: 63.5 -> 64 (a tie), -127, 31.75, 15.875.
        ([64, -127, 32, 16], 1.0 / 63.5),
        // (4, -1, 1, 2): m = 4, s = 31.75: 127, -31.75, 31.75, 63.5.
        ([127, -32, 32, 64], 1.0 / 31.75),
        // (1, -2, 1, 1): m = 2.
        ([64, -127, 64, 64], 1.0 / 63.5),
    ];
    for (seen, (q, scale)) in seen.iter().zip(expected) {
        assert_eq!(seen.expand_x, q.map(|q| q as u8).repeat(3));
        assert_eq!(seen.dynamic_scales, [scale; 3]);
    }
}

#[test]
fn a_scale_is_the_inverse_of_a_rounded_quotient() {
    // m = 143 / 128: 127 / m is rounded to 0x42E35B4D, whose inverse is nearest to 0x3C102040; m / 127 would be 0x3C102041, and
    // m / 2 would become 63.
    let row: Vec<_> =
        [1.117_187_5, 0.558_593_75].iter().flat_map(|&v| numerics::to_bytes(Dtype::Bf16, v)).collect();
    let mut out = Vec::new();
    let scale = numerics::quantise(Dtype::Bf16, &row, None, &mut out);
    assert_eq!((scale.to_bits(), &out[..]), (0x3C10_2040, &[127, 64][..]));
}

/// The A2 design, section 3.2.2: rank 0 of 4, with two experts.
#[test]
fn the_worked_prefix_table_comes_out() {
    let config =
        Config { bs: BatchSizes::PerRank(&[1, 5, 3, 3]), global_bs: 20, ..small([4, 8, 0, 0, 1, 1, 0]) };
    let ids: [&[i32]; 4] = [&[0], &[1; 5], &[1, 0, 1], &[0, 1, 1]];
    let tensors = ids.map(|ids| Tensors::new(&vec![1.0; ids.len()], ids, &vec![1.0; ids.len()]));
    let seen = &dispatch(&shape(&config), &tensors)[0];
    assert_eq!(seen.ep_recv_counts, [1, 1, 2, 3, 3, 8, 10, 12]);
    assert_eq!(seen.expert_token_nums, [3, 9]);
    // "Expert 0: 1 - 1 = 0 tokens for rank 1, from row 1; expert 1: 8 - 3 = 5, from row 3."
    let from = |source| seen.assist_info_for_combine.iter().map(move |triple| triple[0] == source);
    assert!(from(1).enumerate().all(|(row, is_from)| is_from == (3..8).contains(&row)));
    let counts = |source: usize| {
        [0, 4].map(|start| {
            let before = (start + source).checked_sub(1).map_or(0, |i| seen.ep_recv_counts[i]);
            seen.ep_recv_counts[start + source] - before
        })
    };
    assert_eq!([0, 1, 2, 3].map(counts), [[1, 0], [0, 5], [1, 2], [1, 2]]);
}

/// A cluster with shared experts on the first `S * replicas` ranks and random routing and masks.
fn clusters() -> impl Strategy<Value = ([i64; 7], Vec<Tensors>)> {
    (0i64..3, 1i64..3, 1i64..4, 1i64..4, 1i64..4).prop_flat_map(|(s, n, moe_ranks, local, bs)| {
        let (r, e) = (s * n + moe_ranks, moe_ranks * local);
        let k = 2.min(e);
        let pairs = (bs * k) as usize;
        let ids = Just((0..e as i32).collect::<Vec<_>>()).prop_shuffle();
        let ids = prop::collection::vec(ids, bs as usize)
            .prop_map(move |rows| rows.iter().flat_map(|row| row[..k as usize].to_vec()).collect::<Vec<_>>());
        let mask = prop::option::of(prop::collection::vec(any::<bool>(), pairs));
        let rank = (ids, mask).prop_map(move |(ids, mask_2d)| {
            let x: Vec<_> = (0..bs).map(|token| token as f32).collect();
            Tensors { mask_2d, ..Tensors::new(&x, &ids, &vec![1.0; pairs]) }
        });
        (Just([r, e, s, s * n, k, 1, bs]), prop::collection::vec(rank, r as usize))
    })
}

proptest! {
    #![proptest_config(random::config(512))]

    /// Each row that combine requests was dispatched once, to one rank, and carries its token.
    #[test]
    fn combine_requests_the_rows_that_dispatch_sent((numbers, tensors) in clusters()) {
        let shape = shape(&small(numbers));
        let mut sent = Vec::new();
        for rank in dispatch(&shape, &tensors) {
            let rows = numerics::values(Dtype::Bf16, &rank.expand_x);
            prop_assert_eq!(rows.len(), rank.assist_info_for_combine.len());
            prop_assert_eq!(rank.ep_recv_counts.last().copied(), Some(rows.len() as i32));
            prop_assert_eq!(rank.expert_token_nums.iter().sum::<i64>(), rows.len() as i64);
            for (x, triple) in rows.iter().zip(&rank.assist_info_for_combine) {
                prop_assert_eq!(*x, triple[1] as f32);
            }
            sent.extend(rank.assist_info_for_combine);
        }
        let mut asked = Vec::new();
        for rank in 0..shape.ep_world_size() {
            let (_, pairs) = combine(&shape, &tensors, rank, &|_, _| vec![0.0]);
            asked.extend(pairs.into_iter().map(|(token, k)| [rank as i32, token as i32, k as i32]));
        }
        sent.sort_unstable();
        prop_assert_eq!(sent, asked);
    }
}
