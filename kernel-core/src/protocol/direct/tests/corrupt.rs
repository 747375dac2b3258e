//! Words from other ranks are untrusted: each impossible value is refused with an error that names it.

use crate::fabric::{Flag, ProtocolError, Wait};
use crate::layout::state::{Direct, Partition, results_ready};
use crate::place::Place;
use crate::protocol::{Choices, Receive};
use crate::sync::flag;
use crate::testing::domain::{Dice, OwnedMask, PAIR, Tensors};
use crate::testing::group::{Group, in_turn};
use crate::units::RankId;
use alloc::vec::Vec;

/// Two ranks, each sending both tokens to the other.
fn group() -> Group {
    let shape = PAIR.shape();
    let tensors =
        |rank: u32| Tensors::new(&shape, RankId(rank), [1 - rank as i32; 2].to_vec(), OwnedMask::None);
    let mut group = Group::new(&shape, (0..2).map(tensors).collect());
    group.choices = Choices { receive: Receive::Direct { areas: 1 }, ..Choices::default() };
    group.begin_dispatch();
    group
}

/// Steps rank 0 alone until it waits.
fn waits(group: &mut Group) -> Wait {
    loop {
        if let crate::fabric::Progress::Pending(wait) = group.step(0).unwrap().progress
            && wait != Wait::QUIET
        {
            return wait;
        }
    }
}

fn refused(group: &mut Group) -> ProtocolError {
    (0..100).find_map(|_| group.step(0).err()).expect("refused")
}

/// Steps rank 1 until it waits for a word of rank 0.
fn let_the_other_run(group: &mut Group) {
    (0..100).for_each(|_| drop(group.step(1).unwrap()));
}

#[test]
fn a_rank_waits_for_counts_then_for_grants_then_for_tokens() {
    let mut group = group();
    let of = RankId(1);
    assert_eq!(waits(&mut group), Wait::new(Flag::Counts, of, &[]));
    // Rank 1 publishes its counts, but no grant before it has the counts of rank 0, which have arrived.
    while !matches!(group.step(1).unwrap().after.as_str(), "Await" | "Sums") {}
    assert_eq!(waits(&mut group), Wait::new(Flag::Grant, of, &[]));
    while group.step(1).unwrap().after != "Quiet" {}
    assert_eq!(waits(&mut group), Wait::new(Flag::Tokens, of, &[]));
}

#[test]
fn a_grant_that_is_no_row_of_its_rank_is_refused() {
    let max = PAIR.shape().rows_max(RankId(1));
    // The second token would be one row too far.
    for seen in [max as u32 - 1, u32::MAX] {
        let mut group = group();
        let_the_other_run(&mut group);
        waits(&mut group);
        let [grant, word] = grant();
        group.memory.poke(RankId(0), grant, &seen.to_le_bytes());
        group.memory.poke_word(RankId(0), word, flag::ARRIVED);
        let error = ProtocolError::Grant { source: RankId(1), local_expert: 0, seen: seen.into(), max };
        assert_eq!(refused(&mut group), error, "{seen:#x}");
    }
}

/// The entry and the word of rank 1's grant.
fn grant() -> [Place; 2] {
    let (shape, of) = (PAIR.shape(), RankId(1));
    let (what, partition) = (Direct::Grants, Partition::P0);
    [what.entry(&shape, partition, of, 0), what.word(&shape, partition, of)]
}

#[test]
fn wrong_flags_and_impossible_counts_are_refused() {
    for seen in [1, u64::MAX, flag::status(7)] {
        let mut group = group();
        waits(&mut group);
        group.memory.poke_word(RankId(0), Direct::Counts.word(&PAIR.shape(), Partition::P0, RankId(1)), seen);
        assert_eq!(refused(&mut group), Wait::new(Flag::Counts, RankId(1), &[]).refused(seen));
    }
    let mut group = group();
    let (source, max, shape) = (RankId(1), 2, PAIR.shape());
    waits(&mut group);
    group.memory.poke(RankId(0), Direct::Counts.entry(&shape, Partition::P0, source, 0), &[3]);
    group.memory.poke_word(RankId(0), Direct::Counts.word(&shape, Partition::P0, source), flag::ARRIVED);
    assert_eq!(refused(&mut group), ProtocolError::Count { source, local_expert: 0, seen: 3, max });
}

fn combining() -> Group {
    let mut group = group();
    group.run(in_turn(), |_, _| ()).unwrap();
    group.begin_combine();
    group
}

#[test]
fn a_word_of_ready_results_that_is_not_the_flag_is_refused() {
    for seen in [1, u64::MAX, flag::status(7)] {
        let mut group = combining();
        assert_eq!(waits(&mut group), Wait::new(Flag::Results, RankId(1), &[]));
        group.memory.poke_word(RankId(0), results_ready(Partition::P0, RankId(1)), seen);
        assert_eq!(refused(&mut group), Wait::new(Flag::Results, RankId(1), &[]).refused(seen));
    }
}

#[test]
fn rows_and_areas_that_do_not_exist_are_refused() {
    let max = PAIR.shape().rows_max(RankId(1));
    for seen in [-1, max as i32, i32::MIN] {
        let mut group = combining();
        let_the_other_run(&mut group);
        group.members[0].returned[0].sent_rows[4..8].copy_from_slice(&seen.to_le_bytes());
        let error = ProtocolError::SentRow { token: 1, k: 0, seen: seen.into(), max };
        assert_eq!(refused(&mut group), error);
    }
    let mut group = combining();
    group.members[0].returned[0].row_table[8..16].copy_from_slice(&77u64.to_le_bytes());
    assert_eq!(refused(&mut group), ProtocolError::ResultsAt { seen: 77 });
}

#[test]
fn a_scratch_that_is_too_short_is_an_error_and_not_a_panic() {
    for len in 0..group().core(0).words.len() {
        let mut group = group();
        group.core(0).words.truncate(len);
        let error = refused(&mut group);
        assert!(matches!(error, ProtocolError::Given(_)), "{error} with {len} words");
    }
}

#[test]
fn no_corrupt_word_or_row_makes_a_machine_panic() {
    for seed in 0..300 {
        let mut dice = Dice(seed);
        let mut group = group();
        let combine = dice.below(2) == 1;
        group.one_by_one = if dice.below(2) == 0 { |_| true } else { |_| false };
        if combine {
            group.run(in_turn(), |_, _| ()).unwrap();
            group.begin_combine();
        }
        group.memory.rewrites = true;
        let bytes: Vec<u8> = (0..64).map(|_| dice.next() as u8).collect();
        for _ in 0..200 {
            if dice.below(8) == 0 {
                let rank = RankId(dice.below(2));
                let number = dice.below(2);
                let (what, source) = (Direct::ALL[dice.below(3) as usize], RankId(number));
                let at = match (combine, dice.below(2)) {
                    (true, _) => results_ready(Partition::P0, source),
                    (false, 0) => what.word(&PAIR.shape(), Partition::P0, source),
                    (false, _) => Direct::Counts.entry(&PAIR.shape(), Partition::P0, source, dice.below(2)),
                };
                group.memory.poke(rank, at, &bytes[..1 + dice.below(8) as usize]);
            }
            if group.step(dice.below(2) as usize).is_err() {
                break;
            }
        }
    }
}
