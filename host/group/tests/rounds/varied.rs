//! The rounds before the last one: legal whatever the case has, and with other counts than those that they share memory with.

use half::bf16;
use veriep_case::batch::Batch;
use veriep_case::case::{Case, OwnedMask};
use veriep_case::config::{Bs, Config};
use veriep_case::generate::{Left, MaskKind, Options};
use veriep_case::global_rank;
use veriep_core::units::{RankId, Token};
use veriep_testing::trial::{idle, make, make_left, seeded, small};

/// Rounds of a case, the last one first.
fn rounds(case: &Case) -> impl Iterator<Item = Batch<'_>> {
    (0..20).map(|distance| Batch::varied(case, distance))
}

fn tokens(case: &Case, rank: RankId) -> impl Iterator<Item = Token> {
    (0..case.shape.bs(global_rank::ep_rank(&case.shape, rank))).map(Token)
}

/// Active pairs by rank, then id.
fn counts(case: &Case, batch: &Batch<'_>) -> Vec<Vec<u32>> {
    let of_rank = |rank| {
        let inputs = batch.inputs(rank);
        let mut counts = vec![0; case.shape.expert_ids_end() as usize];
        for token in tokens(case, rank) {
            for (k, &id) in (0..).zip(inputs.ids(&case.shape, token)) {
                counts[id as usize] += u32::from(inputs.pair_is_active(&case.shape, token, k));
            }
        }
        counts
    };
    global_rank::all(&case.shape).map(of_rank).collect()
}

fn assert_legal(case: &Case) {
    for (distance, batch) in rounds(case).enumerate() {
        for rank in global_rank::all(&case.shape) {
            let seen = batch.inputs(rank).check(&case.shape, global_rank::ep_rank(&case.shape, rank));
            assert_eq!(seen, Ok(()), "rank {rank} at distance {distance}");
        }
    }
}

/// Of every kind that changes who may send what: masks, special and shared experts, batches, domains, products.
fn kinds() -> Vec<Case> {
    let plain = || small(4, 8, 2, 3, 2);
    let masked = |mask| make(plain(), Options { mask, ..Options::default() });
    let shared = Config { shared_expert_rank_num: 1, quant_mode: 2, ..small(3, 4, 2, 3, 2) };
    vec![
        seeded(plain(), 1),
        masked(MaskKind::Tokens),
        masked(MaskKind::Pairs),
        seeded(shared, 1),
        seeded(Config { zero_expert_num: 1, copy_expert_num: 2, const_expert_num: 1, ..plain() }, 1),
        seeded(Config { bs: Bs::PerRank(vec![1, 5, 0, 3]), global_bs: 20, ..plain() }, 1),
        seeded(Config { tp_world_size: 2, ..small(2, 2, 1, 4, 2) }, 1),
        make(
            Config { comm_alg: "fullmesh_v2".to_owned(), const_expert_num: 1, ..plain() },
            Options { mask: MaskKind::Pairs, ..Options::default() },
        ),
        make(
            Config { op: "combine_add_rms_norm".to_owned(), ..plain() },
            Options { shared_expert_x: true, ..Options::default() },
        ),
        make_left(plain(), Options::default(), Left::Without(&[1])),
    ]
}

#[test]
fn the_last_round_is_the_case() {
    for case in kinds() {
        assert_eq!(format!("{:?}", Batch::varied(&case, 0)), format!("{:?}", Batch::new(&case)));
    }
}

#[test]
fn rounds_that_share_memory_differ_in_their_counts_and_in_every_row() {
    for case in kinds() {
        assert_legal(&case);
        let rounds: Vec<_> = rounds(&case).collect();
        let alike = rounds.windows(3).filter(|w| counts(&case, &w[0]) == counts(&case, &w[2])).count();
        assert!(alike <= 1, "{alike} of 18: {:?}", case.config);
        for three in rounds.windows(3) {
            for rank in global_rank::all(&case.shape) {
                let [now, before] = [&three[0], &three[2]].map(|batch| batch.inputs(rank));
                let row = |token| now.row(&case.shape, token) != before.row(&case.shape, token);
                assert!(tokens(&case, rank).all(row), "{:?}", case.config);
            }
        }
    }
}

#[test]
fn ranks_are_idle_by_turns_where_some_rank_of_the_case_is_and_never_where_none_is() {
    let mut case = seeded(small(4, 8, 2, 3, 2), 1);
    let idle_rounds = |case: &Case| {
        let is_idle = |rank: &Vec<u32>| rank.iter().all(|&count| count == 0);
        let mut idle = [0; 4];
        for batch in rounds(case) {
            idle.iter_mut().zip(counts(case, &batch)).for_each(|(n, rank)| *n += u32::from(is_idle(&rank)));
        }
        idle
    };
    assert_eq!(idle_rounds(&case), [0; 4]);
    idle(&mut case, 2);
    assert!(idle_rounds(&case).iter().all(|rounds| (1..20).contains(rounds)), "{:?}", idle_rounds(&case));
}

/// A token that quantisation refuses may be after a mask, or far from the expert whose scale it cannot bear.
#[test]
fn what_quantisation_would_refuse_is_never_sent() {
    for mask in [MaskKind::Tokens, MaskKind::Pairs] {
        let mut case = make(
            Config { quant_mode: 2, ..small(3, 6, 2, 6, 2) },
            Options { mask, seed: 3, ..Options::default() },
        );
        let row = case.shape.row_bytes() as usize;
        for rank in &mut case.ranks {
            let hidden = |token: usize| match &rank.mask {
                OwnedMask::Tokens(mask) => !mask[token],
                OwnedMask::Pairs(mask) => !mask[2 * token] && !mask[2 * token + 1],
                OwnedMask::None | OwnedMask::Abstains => false,
            };
            for token in (0..6).filter(|&token| hidden(token)) {
                rank.x[token * row..][..row].fill(0xFF);
            }
        }
        assert!(case.ranks.iter().any(|rank| rank.x.contains(&0xFF)));
        assert_legal(&case);
    }
    let options = Options { smooth_scales: true, ..Options::default() };
    let mut case = make(Config { quant_mode: 2, ..small(2, 2, 1, 4, 1) }, options);
    let h = case.shape.h() as usize;
    case.scales.as_mut().unwrap()[..h].fill(1e30);
    case.ranks[0].expert_ids.fill(1);
    case.ranks[0].x = bf16::from_f32(1e20).to_le_bytes().repeat(4 * h);
    case.ranks[1].expert_ids.fill(0);
    assert_legal(&case);
}
