//! Epochs, selectors and flag words, with the fabric of the tests.

use super::barrier::{arrive, current_epoch, missing, sum_of};
use super::call::{CALLS, Numbering, Tag, Tags};
use super::flag::{self, ARRIVED, FLAG, Seen};
use super::selector::{Chosen, Turn, chosen, select};
use crate::fabric::{Fabric, Flag, ProtocolError, Wait};
use crate::layout::state::{Operator, Partition, core_word, selector};
use crate::plan::counts::ShareSum;
use crate::testing::domain::{Dice, PAIR};
use crate::testing::group::{Memory, memory};
use crate::units::{CoreId, RankId};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

const UNCHECKED: Numbering = Numbering { kind: Operator::Combine, given: None, calls: 0 };
const RANK: RankId = RankId(0);
const SELF: CoreId = CoreId(0);
const OTHER: CoreId = CoreId(1);

fn world() -> Memory {
    memory(&PAIR.shape())
}

/// A core word with an epoch and sums.
fn word(epoch: u64, rows: u64, of_last_expert: u64) -> u64 {
    epoch << 62 | rows << 31 | of_last_expert
}

fn epoch_with(even: u64, odd: u64) -> Result<u32, ProtocolError> {
    let mut world = world();
    world.poke_word(RANK, core_word(SELF, 0), even);
    world.poke_word(RANK, core_word(SELF, 1), odd);
    current_epoch(&world.fabric(RANK, SELF, 0), SELF)
}

#[test]
fn the_epoch_is_the_later_of_the_two_words() {
    for (even, odd, epoch) in [(0, 1, 1), (2, 1, 2), (2, 3, 3), (0, 3, 0)] {
        assert_eq!(epoch_with(word(even, 5, 2), word(odd, 7, 7)), Ok(epoch), "({even}, {odd})");
    }
    assert_eq!(epoch_with(0, 0), Ok(0), "a group that was just created");
}

#[test]
fn own_words_that_cannot_follow_each_other_are_refused() {
    for (even, odd) in [(0, 0), (0, 2), (2, 0), (2, 2)].map(|(e, o)| (word(e, 1, 0), word(o, 1, 0))) {
        let error = ProtocolError::CoreWord { core: SELF, seen: odd, epoch: 1 };
        assert_eq!(epoch_with(even, odd), Err(error));
    }
    // Only both words at once are zero in a new group.
    for (even, odd) in [(0, word(0, 1, 0)), (word(0, 1, 0), 0)] {
        let error = ProtocolError::CoreWord { core: SELF, seen: odd, epoch: 1 };
        assert_eq!(epoch_with(even, odd), Err(error));
    }
    for (even, odd) in [(1, 0), (1, 1), (3, 2), (3, 3)].map(|(e, o)| (word(e, 0, 0), word(o, 0, 0))) {
        let error = ProtocolError::CoreWord { core: SELF, seen: even, epoch: 0 };
        assert_eq!(epoch_with(even, odd), Err(error));
    }
}

#[test]
fn an_epoch_survives_ten_barriers_in_the_words_alone() {
    let mut world = world();
    for n in 0..10 {
        let mut fabric = world.fabric(RANK, SELF, 0);
        let mut epoch = current_epoch(&fabric, SELF).unwrap();
        assert_eq!(epoch, n % 4);
        let sum = ShareSum { rows: n * 3, of_last_expert: n };
        arrive(&mut fabric, RANK, SELF, &mut epoch, sum).unwrap();
        assert_eq!(sum_of(&fabric, SELF, epoch), Ok(sum));
    }
}

#[test]
fn the_other_core_is_awaited_until_its_word_holds_the_epoch() {
    // The epoch of this core's barrier, the content of the other core's word, and the result.
    let pending = |seen, epoch| (epoch, seen, Ok(Some(OTHER)));
    let passed = |seen, epoch| (epoch, seen, Ok(None));
    let corrupt = |seen, epoch| (epoch, seen, Err(ProtocolError::CoreWord { core: OTHER, seen, epoch }));
    let table = [
        pending(0, 1),
        pending(word(3, 9, 1), 1),
        passed(word(1, 9, 1), 1),
        corrupt(word(0, 0, 1), 1),
        corrupt(word(2, 0, 0), 1),
        pending(0, 2),
        pending(word(0, 1, 1), 2),
        passed(word(2, 0, 0), 2),
        corrupt(word(1, 0, 0), 2),
        corrupt(word(3, 0, 0), 2),
        pending(word(1, 0, 0), 3),
        passed(word(3, 0, 0), 3),
        corrupt(0, 3),
        corrupt(word(2, 0, 0), 3),
        pending(word(2, 0, 0), 0),
        passed(word(0, 4, 4), 0),
        corrupt(word(1, 0, 0), 0),
        corrupt(word(3, 0, 0), 0),
    ];
    for (epoch, seen, expected) in table {
        let mut world = world();
        world.poke_word(RANK, core_word(OTHER, epoch), seen);
        assert_eq!(
            missing(&world.fabric(RANK, SELF, 0), 2, SELF, epoch),
            expected,
            "{seen:#x} in epoch {epoch}"
        );
    }
}

#[test]
fn the_first_missing_core_is_named_and_the_own_word_is_not_read() {
    let mut world = world();
    for core in [0, 1, 3].map(CoreId) {
        world.poke_word(RANK, core_word(core, 1), word(1, 0, 0));
    }
    let fabric = world.fabric(RANK, SELF, 0);
    assert_eq!(missing(&fabric, 4, SELF, 1), Ok(Some(CoreId(2))));
    assert_eq!(missing(&fabric, 4, CoreId(2), 1), Ok(None));
    assert_eq!(missing(&fabric, 1, SELF, 2), Ok(None), "a core alone waits for no other");
}

#[test]
fn sums_that_contradict_each_other_are_refused() {
    let mut world = world();
    let seen = word(1, 4, 5);
    world.poke_word(RANK, core_word(OTHER, 1), seen);
    let error = ProtocolError::CoreWord { core: OTHER, seen, epoch: 1 };
    assert_eq!(sum_of(&world.fabric(RANK, SELF, 0), OTHER, 1), Err(error));
}

#[test]
fn the_largest_sums_leave_the_epoch_alone() {
    let mut world = world();
    let mut fabric = world.fabric(RANK, SELF, 0);
    let max = (1 << 31) - 1;
    arrive(&mut fabric, RANK, SELF, &mut 1, ShareSum { rows: max, of_last_expert: max }).unwrap();
    assert_eq!(sum_of(&fabric, SELF, 2), Ok(ShareSum { rows: max, of_last_expert: max }));
    arrive(&mut fabric, RANK, SELF, &mut 3, ShareSum { rows: u32::MAX, of_last_expert: 0 }).unwrap();
    assert_eq!(fabric.observe(core_word(SELF, 0)).unwrap() >> 62, 0);
}

#[test]
fn no_core_misses_the_sum_of_a_barrier_however_fast_the_others_are() {
    // Three cores, each: arrive with its number and the barrier's, await, read all sums.
    for seed in 0..200 {
        let (mut world, mut dice) = (world(), Dice(seed));
        let mut cores = [(0u32, false); 3];
        while cores.iter().any(|&(n, _)| n < 8) {
            let core = CoreId(dice.below(3));
            let (n, arrived) = cores[core.index()];
            let mut fabric = world.fabric(RANK, core, 0);
            let sum = |core: u32, n: u32| ShareSum { rows: 10 * n + core + 1, of_last_expert: core };
            if n == 8 {
                continue;
            }
            if !arrived {
                let mut epoch = current_epoch(&fabric, core).unwrap();
                arrive(&mut fabric, RANK, core, &mut epoch, sum(core.0, n)).unwrap();
                assert_eq!(epoch, (n + 1) % 4);
                cores[core.index()] = (n, true);
            } else if missing(&fabric, 3, core, (n + 1) % 4).unwrap().is_none() {
                for other in 0..3 {
                    let seen = sum_of(&fabric, CoreId(other), (n + 1) % 4);
                    assert_eq!(seen, Ok(sum(other, n)), "core {core} at barrier {n}, seed {seed}");
                }
                cores[core.index()] = (n + 1, false);
            }
        }
    }
}

#[test]
fn a_selector_alternates_by_core_and_kind() {
    let mut world = world();
    let mut take = |kind, core| {
        let turn = select(&mut world.fabric(RANK, core, 0), selector(kind, core), UNCHECKED).unwrap();
        assert_eq!(turn.tags, Tags::NONE);
        turn.partition.index()
    };
    let taken = [SELF, SELF, SELF, OTHER].map(|core| take(Operator::Dispatch, core));
    assert_eq!(taken, [0, 1, 0, 0]);
    assert_eq!([(); 2].map(|()| take(Operator::Combine, SELF)), [0, 1]);
}

#[test]
fn a_selector_that_numbers_calls_remembers_each_partitions_last_tag() {
    let mut world = world();
    let mut take = |given| {
        let numbering = Numbering { kind: Operator::Combine, given, calls: 5 };
        let at = selector(Operator::Combine, SELF);
        let Turn { partition, tags } = select(&mut world.fabric(RANK, SELF, 0), at, numbering).unwrap();
        assert!(tags.is_checked);
        (partition.index(), tags.tag.call(), tags.former.map(Tag::call))
    };
    let counted: Vec<_> = (0..7).map(|_| take(None)).collect();
    let expected = [
        (0, 0, None),
        (1, 1, None),
        (0, 2, Some(0)),
        (1, 3, Some(1)),
        (0, 4, Some(2)),
        (1, 0, Some(3)),
        (0, 1, Some(4)),
    ];
    assert_eq!(counted, expected);
    assert_eq!(take(Some(13)), (1, 3, Some(0)), "a given number is taken as it is, modulo the calls");
    assert_eq!(take(None), (0, 4, Some(1)), "and counted on from");
}

#[test]
fn the_word_of_a2_counts_operators_and_goes_round() {
    let mut world = world();
    let at = selector(Operator::Combine, SELF);
    let numbering = |given| Numbering { kind: Operator::Combine, given, calls: 3 };
    let mut seen = Vec::new();
    for _ in 0..8 {
        let Chosen { turn, next } = chosen(&world.fabric(RANK, SELF, 0), at, numbering(None)).unwrap();
        seen.push((turn.partition.index(), turn.tags.tag.bits()));
        world.poke_word(RANK, at, next);
    }
    assert_eq!(seen, [(0, 0), (1, 1), (0, 2), (1, 3), (0, 4), (1, 5), (0, 0), (1, 1)]);
    let given = chosen(&world.fabric(RANK, SELF, 0), at, numbering(Some(4))).unwrap().turn;
    assert_eq!((given.partition, given.tags.tag.call()), (Partition::P0, 1));
    world.poke_word(RANK, at, 6);
    let refused = chosen(&world.fabric(RANK, SELF, 0), at, numbering(None));
    assert_eq!(refused, Err(ProtocolError::Selector { at, seen: 6 }));
}

#[test]
fn a_selector_that_numbers_calls_refuses_what_no_core_writes() {
    for seen in [2, 1 << 15, 1 << 48, 1 << 29, u64::MAX] {
        let mut world = world();
        let at = selector(Operator::Combine, OTHER);
        world.poke_word(RANK, at, seen);
        let numbering = Numbering { calls: CALLS, ..UNCHECKED };
        let result = select(&mut world.fabric(RANK, OTHER, 0), at, numbering);
        assert_eq!(result, Err(ProtocolError::Selector { at, seen }), "{seen:#x}");
    }
}

#[test]
fn a_selector_that_holds_neither_0_nor_1_is_refused_and_left_alone() {
    for seen in [2, 3, 1 << 32, u64::MAX] {
        let mut world = world();
        let at = selector(Operator::Combine, OTHER);
        world.poke_word(RANK, at, seen);
        let result = select(&mut world.fabric(RANK, OTHER, 0), at, UNCHECKED);
        assert_eq!(result, Err(ProtocolError::Selector { at, seen }));
        assert_eq!(world.word(RANK, at), seen);
    }
    assert_eq!(Partition::P0.flipped(), Partition::P1);
}

#[test]
fn dispatch_status_words_decode_to_empty_count_or_corrupt() {
    for (word, seen) in [
        (0, Seen::Empty),
        (0x3F80_0000, Seen::Flag(0)),
        (0x0000_0005_3F80_0000, Seen::Flag(5)),
        (0xFFFF_FFFF_3F80_0000, Seen::Flag(u32::MAX)),
        (0x0000_0005_0000_0000, Seen::Corrupt),
        (0x0000_0000_3F80_0001, Seen::Corrupt),
        (1, Seen::Corrupt),
        (u64::MAX, Seen::Corrupt),
    ] {
        assert_eq!(flag::dispatch(word), seen, "{word:#x}");
    }
    for count in [0, 1, 512, u32::MAX] {
        assert_eq!(flag::dispatch(flag::status(count)), Seen::Flag(count));
    }
    assert_eq!(f32::from_bits(FLAG).to_bits(), 1.0f32.to_bits());
}

#[test]
fn a_flag_without_a_count_is_missing_there_or_refused() {
    assert_eq!(ARRIVED, 0x3F80_0000_3F80_0000);
    let awaited = Wait::new(Flag::Results, RankId(1), &[]);
    let refused = |seen| (seen, Err(ProtocolError::Flag { awaited, seen }));
    for (word, missing) in [
        (0, Ok(Some(awaited))),
        (0x3F80_0000_3F80_0000, Ok(None)),
        refused(0x0000_0000_3F80_0000),
        refused(0x3F80_0000_0000_0000),
        refused(1),
        refused(u64::MAX),
    ] {
        let (mut world, at) = (world(), core_word(SELF, 0));
        world.poke_word(RANK, at, word);
        assert_eq!(
            flag::missing(&world.fabric(RANK, SELF, 0), at, Tags::NONE, awaited),
            missing,
            "{word:#x}"
        );
    }
}

#[test]
fn only_pairs_of_words_that_barriers_produce_are_taken_for_an_epoch() {
    let accepted: BTreeSet<_> = (0..4)
        .flat_map(|even| (0..4).map(move |odd| (even, odd)))
        .filter(|&(even, odd)| epoch_with(word(even, 1, 1), word(odd, 1, 1)).is_ok())
        .collect();
    assert_eq!(accepted, BTreeSet::from([(0, 1), (2, 1), (2, 3), (0, 3)]));
}
