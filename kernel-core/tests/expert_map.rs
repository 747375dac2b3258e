//! Redundant experts: every rule of `expert_map`, and the choice of a token's replica.

use core::ops::ControlFlow;
use veriep_core::inputs::{ExpertMap, Inputs, Mask};
use veriep_core::shape::{Config, Limits, Shape};
use veriep_core::units::{RankId, Token};

const N: i32 = -1;

/// 4 ranks with 2 experts each, 2 special experts, 3 experts per token.
fn shape() -> Shape {
    let config = Config { ep_world_size: 4, moe_expert_num: 8, k: 3, h: 8, ..Config::default() };
    Shape::new(&Config { zero_expert_num: 1, copy_expert_num: 1, ..config }, Limits::None).unwrap()
}

/// Logical expert 0 has three replicas, 1 one, 2 four.
const MAP: [i32; 12] = [5, 0, 7, N, 3, N, N, N, 1, 2, 4, 6];

fn broken(words: &[i32], rows: usize) -> Vec<String> {
    let mut found = Vec::new();
    let map = ExpertMap::check(&shape(), words, rows, &mut |violation| found.push(violation.to_string()));
    assert_eq!(map.is_some(), found.is_empty());
    found
}

/// The map with some words changed.
fn changed(words: &[(usize, i32)]) -> Vec<String> {
    let mut map = MAP;
    words.iter().for_each(|&(at, word)| map[at] = word);
    broken(&map, 3)
}

#[test]
fn a_sound_map_passes() {
    assert!(broken(&MAP, 3).is_empty());
    assert!(broken(&[0, 1, 2, 3, 4, 5, 6, 7], 8).is_empty());
    assert!(broken(&[0, 1, 2, 3, 4, 5, 6, 7], 1).is_empty());
}

#[test]
fn a_map_has_a_row_for_each_logical_expert() {
    let rule = "must have a row for each logical expert, of which there are 1 to moe_expert_num";
    for (words, rows) in [(&MAP[..], 0), (&MAP, 5), (&[0, 1, 2, 3, 4, 5, 6, 7, 8], 9)] {
        assert_eq!(broken(words, rows), [format!("expert_map = {rows}: {rule} (moe_expert_num = 8)")]);
    }
}

#[test]
fn a_word_is_a_physical_expert_or_follows_the_last_one() {
    let range = "a physical expert must be in [0, moe_expert_num)";
    let at = |place: &str| format!("(moe_expert_num = 8, {place})");
    let row0 = at("logical expert = 0, replica = 1");
    assert_eq!(changed(&[(1, 8)]), [format!("expert_map[1] = 8: {range} {row0}")]);
    let told = changed(&[(1, -2)]);
    assert_eq!(told[0], format!("expert_map[1] = -2: {range} {row0}"));
    let place = at("logical expert = 0, replica = 2");
    assert_eq!(changed(&[(1, N)]), [format!("expert_map[2] = 7: -1 must come after the replicas {place}")]);
    let place = at("logical expert = 1, replica = 0");
    assert_eq!(
        changed(&[(4, N)]),
        [format!("expert_map[4] = -1: a logical expert must have a replica {place}")]
    );
}

#[test]
fn every_physical_expert_occurs_exactly_once() {
    let twice = "a physical expert must occur once (moe_expert_num = 8";
    assert_eq!(changed(&[(1, 5)]), [format!("expert_map[1] = 5: {twice}, logical expert = 0, replica = 1)")]);
    assert_eq!(changed(&[(4, 0)]), [format!("expert_map[4] = 0: {twice}, logical expert = 1, replica = 0)")]);
    assert_eq!(
        changed(&[(11, N)]),
        ["expert_map = 7: must name every physical expert (moe_expert_num = 8, first missing = 6)"]
    );
    assert_eq!(
        broken(&[], 3),
        ["expert_map = 0: must name every physical expert (moe_expert_num = 8, first missing = 0)"]
    );
}

#[test]
fn a_token_has_no_more_experts_than_there_are_ids() {
    let config = Config { ep_world_size: 4, moe_expert_num: 8, k: 3, h: 8, ..Config::default() };
    let shape = Shape::new(&config, Limits::None).unwrap();
    let mut found = Vec::new();
    let map = [0, 1, 2, 3, 4, 5, 6, 7];
    assert!(ExpertMap::check(&shape, &map, 2, &mut |violation| found.push(violation.to_string())).is_none());
    let rule = "must not exceed the number of logical and special experts";
    assert_eq!(found, [format!("k = 3: {rule} (logical experts = 2, special experts = 0)")]);
}

#[test]
fn of_many_wrong_words_the_first_are_reported() {
    let shape = Shape::new(&Config { moe_expert_num: 64, ..Config::default() }, Limits::None).unwrap();
    let mut told = 0;
    assert!(ExpertMap::check(&shape, &[0; 64], 64, &mut |_| told += 1).is_none());
    assert_eq!(told, 16);
}

#[test]
fn a_tokens_replica_is_rank_plus_token_modulo_their_number() {
    let shape = shape();
    let map = ExpertMap::check(&shape, &MAP, 3, &mut |violation| panic!("{violation}")).unwrap();
    assert_eq!(map.logical_expert_num(), 3);
    let of = |rank, token, id| map.physical(&shape, RankId(rank), Token(token), id);
    for (rank, token, physical) in
        [(0, 0, 5), (0, 1, 0), (0, 2, 7), (0, 3, 5), (1, 0, 0), (2, 2, 0), (3, 2, 7)]
    {
        assert_eq!(of(rank, token, 0), Some(physical), "rank {rank}, token {token}");
        assert_eq!(of(rank, token, 1), Some(3));
        assert_eq!(of(rank, token, 2), Some([1, 2, 4, 6][(rank + token) as usize % 4]));
    }
    // Special experts follow the logical ones.
    assert_eq!([3, 4, 5, -1, i32::MAX].map(|id| of(1, 1, id)), [Some(8), Some(9), None, None, None]);
    let (ids, mut physical) = ([0, 2, 3, 4, 1, 0], [0; 6]);
    map.translate(&shape, RankId(1), &ids, &mut physical);
    assert_eq!(physical, [0, 2, 8, 9, 3, 7]);
}

#[test]
fn ids_are_logical_or_special_and_distinct_within_a_row() {
    let shape = shape();
    let map = ExpertMap::check(&shape, &MAP, 3, &mut |violation| panic!("{violation}")).unwrap();
    let found_with = |mask| {
        let mut found = Vec::new();
        let all = &mut |error: veriep_core::inputs::InputError| {
            found.push(error.to_string());
            ControlFlow::Continue(())
        };
        let logical = Inputs { expert_ids: &[0, 1, 4, 5, -1, 2, 2, 3, 2], mask, ..Inputs::default() };
        assert!(map.check_ids(&shape, &logical, all).is_continue());
        found
    };
    let all = [
        "expert_ids[1, 0] = 5: must be in [0, 5)",
        "expert_ids[1, 1] = -1: must be in [0, 5)",
        "expert_ids[2] names expert 2 twice: ids must be distinct within a row",
    ];
    assert_eq!(found_with(Mask::None), all);
    assert_eq!(found_with(Mask::Tokens(&[true, true, false])), all[..2]);
    let mut pairs = [true; 9];
    (pairs[4], pairs[6]) = (false, false);
    assert_eq!(found_with(Mask::Pairs(&pairs)), all[..1]);
}
