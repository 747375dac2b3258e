//! What others write is foreign: each word that says what it cannot say is refused and named.

use crate::fabric::{Flag, ProtocolError, Wait};
use crate::layout::state::{Direct, Partition, results_ready};
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

/// Rank 1 goes on until it waits for what only rank 0 can tell.
fn let_the_other_run(group: &mut Group) {
    (0..100).for_each(|_| drop(group.step(1).unwrap()));
}

#[test]
fn a_rank_waits_for_counts_then_for_grants_then_for_tokens() {
    let mut group = group();
    let of = RankId(1);
    assert_eq!(waits(&mut group), Wait::new(Flag::Count, of, &[0]));
    // Rank 1 publishes its counts, but no grant before it has those of rank 0, which are there.
    while !matches!(group.step(1).unwrap().after.as_str(), "Await" | "Sums") {}
    assert_eq!(waits(&mut group), Wait::new(Flag::Grant, of, &[0]));
    while group.step(1).unwrap().after != "Quiet" {}
    assert_eq!(waits(&mut group), Wait::new(Flag::Token, of, &[0]));
}

#[test]
fn a_grant_that_is_no_row_of_its_rank_is_refused() {
    let max = PAIR.shape().rows_max(RankId(1));
    // The second token would be one row too far.
    for seen in [flag::status(max as u32 - 1), flag::status(u32::MAX), 1, 1 << 32] {
        let mut group = group();
        let_the_other_run(&mut group);
        waits(&mut group);
        group.memory.poke_word(RankId(0), Direct::Grants.word(Partition::P0, 1), seen);
        let error = ProtocolError::Grant { source: RankId(1), local_expert: 0, seen, max };
        assert_eq!(refused(&mut group), error, "{seen:#x}");
    }
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
                let table = [Direct::Counts, Direct::TokenFlags, Direct::Grants][dice.below(3) as usize];
                let at = if combine {
                    results_ready(Partition::P0, RankId(number))
                } else {
                    table.word(Partition::P0, number)
                };
                group.memory.poke(rank, at, &bytes[..1 + dice.below(8) as usize]);
            }
            if group.step(dice.below(2) as usize).is_err() {
                break;
            }
        }
    }
}
