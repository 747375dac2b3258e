//! Masked pairs whose ids are no experts: nothing reads them, so every byte is that of the same case with valid ids.

use tempfile::tempdir;
use veriep_case::case::{Case, load};
use veriep_case::generate::{MaskKind, Options, generate};
use veriep_core::protocol::{Choices, Receive};
use veriep_core::units::{RankId, Token};
use veriep_group::backend::lockstep::Memory;
use veriep_group::driver::Options as DriverOptions;
use veriep_group::driver::threads::Spread;
use veriep_testing::trial::{Trial, preset_with};

/// What padding leaves in `expert_ids`.
const UNREAD: [i32; 4] = [-1, i32::MAX, i32::MIN, 0];

/// Returns the case, saved and loaded again, with other ids in all masked pairs; in every fourth that of the first pair of
/// its token.
fn with_unread_ids(case: &Case) -> Case {
    let mut other = case.clone();
    let (shape, k) = (&case.shape, case.shape.k());
    let mut changed = 0;
    for tensors in &mut other.ranks {
        let before = tensors.clone();
        for (pair, id) in (0..).zip(&mut tensors.expert_ids) {
            if !before.inputs().pair_is_active(shape, Token(pair / k), pair % k) {
                let of_first = before.expert_ids[(pair - pair % k) as usize];
                *id = *UNREAD.get(pair as usize % 5).unwrap_or(&of_first);
                changed += 1;
            }
        }
    }
    assert!(changed > 8, "{changed} masked pairs");
    let folder = tempdir().unwrap();
    other.save(folder.path()).unwrap();
    load(folder.path()).unwrap()
}

fn assert_unread(set: &[&str], options: Options, receive: Receive) {
    for mask in [MaskKind::Tokens, MaskKind::Pairs] {
        let (config, routing) = preset_with("tiny", set);
        let case = generate(config, Options { mask, routing, ..options }, "test").unwrap();
        let other = with_unread_ids(&case);
        assert_eq!(other.inputs(RankId(0)).expert_ids.len(), case.ranks[0].expert_ids.len());
        let choices = Choices { receive, ..Choices::default() };
        let options = DriverOptions { choices, ..DriverOptions::default() };
        let [expected, seen] = [&case, &other].map(|case| Trial { options, ..Trial::new(case, "DC", 3) });
        let expected = expected.in_lockstep(Memory::Weak, 1).unwrap();
        assert!(seen.in_lockstep(Memory::Weak, 1).unwrap() == expected, "{set:?}, masks of {mask:?}");
        assert!(seen.on_threads(2, Spread::Cores).unwrap() == expected, "{set:?}, masks of {mask:?}");
    }
}

/// Four ranks with two experts each, three a token.
const PLAIN: [&str; 5] = ["ep_world_size=4", "moe_expert_num=8", "k=3", "bs=4", "aiv_num=2"];

fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&PLAIN[..], more].concat()
}

#[test]
fn of_a3_are_read_by_nothing() {
    assert_unread(&PLAIN, Options::default(), Receive::Copy);
    assert_unread(&PLAIN, Options::default(), Receive::Direct { areas: 1 });
    let shared =
        with(&["ep_world_size=6", "shared_expert_rank_num=2", "shared_expert_num=1", "quant_mode=2"]);
    assert_unread(&shared, Options { smooth_scales: true, ..Options::default() }, Receive::InPlace);
    let specials = with(&["zero_expert_num=1", "copy_expert_num=1", "const_expert_num=1"]);
    assert_unread(&specials, Options::default(), Receive::Copy);
    assert_unread(&with(&["comm_alg=fullmesh_v2", "quant_mode=2"]), Options::default(), Receive::Copy);
    let tp = with(&["release=9.1.0", "tp_world_size=2", "moe_expert_num=4"]);
    assert_unread(&tp, Options::default(), Receive::Copy);
}

#[test]
fn of_a2_are_read_by_nothing() {
    let a2 = ["product=a2", "ep_world_size=16", "moe_expert_num=16", "k=3", "bs=4"];
    assert_unread(&a2, Options::default(), Receive::Copy);
}

/// Files, and so the reference, have logical ids.
#[test]
fn of_logical_experts_are_read_by_nothing() {
    let options = Options { logical_experts: Some(5), ..Options::default() };
    assert_unread(&with(&["zero_expert_num=1"]), options, Receive::Copy);
}
