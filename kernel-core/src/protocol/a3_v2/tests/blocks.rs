//! Properties of blocks: what each step waits for, the order in which records are copied out, and refused values.

use crate::fabric::{Flag, Progress, ProtocolError, Wait};
use crate::layout::block;
use crate::layout::data::dispatch_record;
use crate::layout::state::Partition;
use crate::place::Place;
use crate::placement::Home;
use crate::shape::{Config, Protocol};
use crate::sync::flag;
use crate::testing::domain::{Domain, OwnedMask, PAIR, Tensors, shape as shape_of};
use crate::testing::group::Group;
use crate::units::RankId;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

const RANK: RankId = RankId(0);

/// Two ranks of one core, two experts on rank 0, records of three blocks: rank 0 keeps its token, rank 1 sends two
/// to each of the experts of rank 0.
fn group() -> Group {
    let domain = Domain { e: 4, k: 2, h: 500, ..PAIR };
    let shape = shape_of(&Config { comm_alg: Protocol::FullmeshV2, ..domain.config() });
    assert_eq!(block::count(&shape), 3);
    let tensors = [vec![2, 3, 2, 3], vec![0, 1, 1, 0]];
    let tensors =
        (0..).zip(tensors).map(|(rank, ids)| Tensors::new(&shape, RankId(rank), ids, OwnedMask::None));
    let mut group = Group::new(&shape, tensors.collect());
    group.begin_dispatch();
    group
}

/// Steps core `i` until it waits for anything but quiet; returns the wait and the effects before it.
fn until_pending(group: &mut Group, i: usize) -> (Option<Wait>, Vec<String>) {
    let mut effects = Vec::new();
    for _ in 0..1000 {
        let step = group.step(i).unwrap();
        effects.extend(step.effect);
        match step.progress {
            Progress::Pending(Wait::QUIET) | Progress::Stepped => {}
            Progress::Pending(wait) => return (Some(wait), effects),
            Progress::Done => return (None, effects),
        }
    }
    panic!("neither waiting nor done");
}

fn record_at(group: &Group, local_expert: u32, record: u32) -> Place {
    let home = Home { rank: RANK, local_expert };
    dispatch_record(group.shape, Partition::P0, home, RankId(1), record)
}

/// Returns a group in which rank 1 has sent everything, and rank 0 has only to copy out. The flags of rank 1 are removed,
/// and returned in the order of slots and blocks.
fn before_copying() -> (Group, Vec<Place>) {
    let mut group = group();
    assert_eq!(until_pending(&mut group, 0).0, Some(Wait::new(Flag::Count, RankId(1), &[0])));
    until_pending(&mut group, 1);
    group.memory.settle();
    let records = [(0, 0), (0, 1), (1, 0), (1, 1)];
    let records = records.map(|(local_expert, record)| record_at(&group, local_expert, record));
    let flags: Vec<_> = records.into_iter().flat_map(|at| (0..3).map(move |b| block::flag(at, b))).collect();
    for &at in &flags {
        assert_eq!(group.memory.word(RANK, at), flag::ARRIVED);
        group.memory.poke_word(RANK, at, 0);
    }
    (group, flags)
}

#[test]
fn a_record_waits_for_every_one_of_its_blocks_and_none_for_another_slot() {
    let (mut group, flags) = before_copying();
    let missing =
        |local_expert, record, block| Some(Wait::new(Flag::Block, RankId(1), &[local_expert, record, block]));
    assert_eq!(until_pending(&mut group, 0).0, missing(0, 0, 2));
    // The second record of expert 0 is complete; the first of each expert lacks one block.
    let complete = [2, 1, 3, 4, 5, 6, 8];
    for i in complete {
        group.memory.poke_word(RANK, flags[i], flag::ARRIVED);
        let (wait, effects) = until_pending(&mut group, 0);
        assert!(effects.is_empty(), "{effects:?} with {i}");
        assert!(wait == missing(0, 0, 1) || wait == missing(0, 0, 0), "{wait:?} with {i}");
    }
    // The first record of expert 1 is now complete and is copied, though that of expert 0 is not: it goes to row 2.
    group.memory.poke_word(RANK, flags[7], flag::ARRIVED);
    let (wait, effects) = until_pending(&mut group, 0);
    assert_eq!(wait, missing(0, 0, 0));
    let expected = [
        "write   assist_info_for_combine+0x18, 12 B",
        "deliver expand_x+0x7d0 <- window+",
        "deliver expand_x+0x9b0 <- window+",
        "deliver expand_x+0xb90 <- window+",
        "store   window+",
        "store   window+",
        "store   window+",
    ];
    assert_eq!(effects.len(), expected.len(), "{effects:?}");
    assert!(effects.iter().zip(expected).all(|(seen, start)| seen.starts_with(start)), "{effects:?}");
    // With its last block the first record of expert 0 is copied, and the complete one after it.
    group.memory.poke_word(RANK, flags[0], flag::ARRIVED);
    assert_eq!(until_pending(&mut group, 0).0, missing(1, 1, 2));
    for &at in &flags[9..] {
        group.memory.poke_word(RANK, at, flag::ARRIVED);
    }
    assert_eq!(until_pending(&mut group, 0).0, None);
    while until_pending(&mut group, 1).0.is_some() {}
    group.memory.settle();
    assert!(group.memory.no_flag_is_left(group.shape, group.choices.receive));
}

#[test]
fn a_block_flag_of_another_value_is_refused() {
    for seen in [1, flag::status(0), flag::status(3), u64::MAX] {
        let (mut group, flags) = before_copying();
        until_pending(&mut group, 0);
        group.memory.poke_word(RANK, flags[2], flag::ARRIVED);
        group.memory.poke_word(RANK, flags[1], seen);
        let expected = Wait::new(Flag::Block, RankId(1), &[0, 0, 1]).refused(seen);
        assert_eq!(group.step(0).unwrap_err(), expected);
    }
}

#[test]
fn rows_leave_x_block_by_block_each_followed_by_its_flag() {
    let mut group = group();
    let (_, effects) = until_pending(&mut group, 1);
    let puts: Vec<_> =
        effects.iter().filter(|effect| effect.starts_with("put") || effect.contains("window")).collect();
    // 1000 bytes of x, 24 of padding, scale, triple: 480, 480, and 40 with a tail of 68.
    let lens = ["480 + 0 B", "480 + 0 B", "40 + 68 B"];
    assert_eq!(puts.len(), 4 * 6);
    for (pair, len) in puts.chunks(2).zip(lens.into_iter().cycle()) {
        assert!(pair[0].starts_with("put") && pair[0].ends_with(len), "{pair:?}");
        assert!(pair[1].starts_with("publish") && pair[1].ends_with("= 0x3f8000003f800000"), "{pair:?}");
    }
}

#[test]
fn a_scratch_that_is_too_short_is_an_error_and_not_a_panic() {
    let words = group().core(0).words.len();
    for len in 0..words {
        let mut group = group();
        group.core(0).words.truncate(len);
        let error = (0..2000).find_map(|i| group.step(i % 2).err());
        assert!(matches!(error, Some(ProtocolError::Given(_))), "{error:?} with {len} of {words} words");
    }
}
