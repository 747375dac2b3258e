//! Each word that a machine reads is corrupted: the error names it with the right numbers.

use super::super::Combine;
use crate::fabric::{Fault, Flag, Progress, ProtocolError, Wait};
use crate::layout::data::dispatch_record;
use crate::layout::record::{Triple, triple_of};
use crate::layout::state::{Operator, Partition, Slots, combine_slot, core_word, dispatch_slot, selector};
use crate::place::Place;
use crate::placement::Home;
use crate::protocol::Flags;
use crate::protocol::Machine;
use crate::shape::Config;
use crate::sync::flag;
use crate::testing::domain::{Domain, OwnedMask, PAIR, Tensors, row, shape as shape_of};
use crate::testing::group::{Group, in_turn};
use crate::units::{CoreId, RankId, Token};
use alloc::vec;
use alloc::vec::Vec;

const RANK: RankId = RankId(0);
const P0: Partition = Partition::P0;

/// Two ranks, two experts each, two tokens; both ranks send to experts 0 and 2.
fn group(cores: i64) -> Group {
    with_config(Domain { e: 4, k: 2, cores, ..PAIR }.config())
}

fn with_config(config: Config<'_>) -> Group {
    let shape = shape_of(&config);
    let tensors = [0, 1].map(|rank| Tensors::new(&shape, RankId(rank), vec![0, 2, 0, 2], OwnedMask::None));
    let mut group = Group::new(&shape, tensors.to_vec());
    group.begin_dispatch();
    group
}

/// A group whose dispatch has ended, at the start of combine.
fn at_combine(cores: i64) -> Group {
    let mut group = group(cores);
    group.run(in_turn(), |_, _| ()).unwrap();
    group.begin_combine();
    group
}

/// Steps core 0 of rank 0 until it waits or has reached `phase`, and returns its wait.
fn until(group: &mut Group, phase: &str) -> Option<Wait> {
    for _ in 0..1000 {
        if group.phase(0) == phase {
            return None;
        }
        match group.step(0).unwrap().progress {
            Progress::Pending(Wait::QUIET) | Progress::Stepped => {}
            Progress::Pending(wait) => return Some(wait),
            Progress::Done => panic!("done before {phase}"),
        }
    }
    panic!("never in {phase}");
}

/// Steps core 0 of rank 0 until it fails.
fn error(group: &mut Group) -> ProtocolError {
    for _ in 0..1000 {
        match group.step(0) {
            Err(error) => return error,
            Ok(step) => assert_ne!(step.progress, Progress::Done, "nothing was refused"),
        }
    }
    panic!("nothing was refused: {:?}", group.core(0));
}

#[test]
fn a_selector_out_of_range_is_refused_by_both_operators() {
    for (kind, mut group) in [(Operator::Dispatch, group(2)), (Operator::Combine, at_combine(2))] {
        let at = selector(kind, CoreId(0));
        group.memory.settle();
        group.memory.poke_word(RANK, at, 7);
        assert_eq!(error(&mut group), ProtocolError::Selector { at, seen: 7 });
    }
}

#[test]
fn an_own_core_word_that_no_barrier_leaves_is_refused_at_the_start() {
    let mut group = group(2);
    group.memory.poke_word(RANK, core_word(CoreId(0), 0), 1 << 62);
    let expected = ProtocolError::CoreWord { core: CoreId(0), seen: 1 << 62, epoch: 0 };
    assert_eq!(error(&mut group), expected);
}

#[test]
fn a_core_in_an_impossible_epoch_is_refused_at_the_first_barrier() {
    let mut group = group(2);
    assert_eq!(until(&mut group, "Done"), Some(Wait::barrier(CoreId(1))));
    group.memory.poke_word(RANK, core_word(CoreId(1), 1), 2 << 62);
    assert_eq!(error(&mut group), ProtocolError::CoreWord { core: CoreId(1), seen: 2 << 62, epoch: 1 });
}

/// Core 0 of two, waiting for the sums of core 1; all other cores have reached their own sums.
fn at_sums() -> Group {
    let mut group = group(2);
    for _ in 0..1000 {
        for i in 0..group.cores() {
            let phase = group.phase(i);
            // Core 1 of rank 0 stops short of its arrival with sums.
            if i != 1 && !["Sums", "Done"].contains(&&*phase) || i == 1 && phase != "ArriveWithSums" {
                group.step(i).unwrap();
            }
        }
    }
    assert_eq!(group.phase(0), "Sums");
    assert_eq!(until(&mut group, "Counts"), Some(Wait::barrier(CoreId(1))));
    group
}

#[test]
fn a_sum_beyond_its_share_is_refused() {
    let mut group = at_sums();
    // Core 1 has the two slots of expert 1, of two tokens each at most.
    let word = |rows: u64| 2 << 62 | rows << 31;
    group.memory.poke_word(RANK, core_word(CoreId(1), 2), word(5));
    assert_eq!(error(&mut group), ProtocolError::Rows { seen: 5, max: 4 });
    let mut group = at_sums();
    group.memory.poke_word(RANK, core_word(CoreId(1), 2), word((1 << 31) - 1));
    assert_eq!(error(&mut group), ProtocolError::Rows { seen: (1 << 31) - 1, max: 4 });
}

#[test]
fn sums_that_contradict_each_other_are_refused() {
    let mut group = at_sums();
    let seen = 2 << 62 | 1 << 31 | 2;
    group.memory.poke_word(RANK, core_word(CoreId(1), 2), seen);
    assert_eq!(error(&mut group), ProtocolError::CoreWord { core: CoreId(1), seen, epoch: 2 });
}

#[test]
fn counts_of_one_core_beyond_the_capacity_are_refused() {
    // K = 1 and L = 2: the capacity is 4, the largest counts of four slots are 8.
    let mut group = with_config(Domain { e: 4, k: 1, ..PAIR }.config());
    *group.tensors() =
        [0, 1].map(|rank| Tensors::new(group.shape, RankId(rank), vec![0, 0], OwnedMask::None)).to_vec();
    assert!(until(&mut group, "Done").is_some());
    for slot in 0..4 {
        group.memory.poke_word(RANK, Slots::Shipped.dispatch_status(P0, slot), flag::status(2));
    }
    // Core 0 took its own count of expert 0 before the words were overwritten.
    assert_eq!(error(&mut group), ProtocolError::Rows { seen: 8, max: 4 });
}

#[test]
fn a_status_word_that_is_no_flag_is_refused() {
    for seen in [1, 5 << 32, u64::MAX] {
        let mut group = group(1);
        let waits = Wait::new(Flag::Dispatch, RankId(1), &[0]);
        assert_eq!(until(&mut group, "Done"), Some(waits));
        let slot = dispatch_slot(group.shape, 0, RankId(1));
        group.memory.poke_word(RANK, Slots::Shipped.dispatch_status(P0, slot), seen);
        assert_eq!(error(&mut group), Wait::new(Flag::Dispatch, RankId(1), &[0]).refused(seen));
    }
}

#[test]
fn separate_counts_and_token_flags_are_each_awaited_and_checked() {
    let source = RankId(1);
    let mut group = group(1);
    group.change_choices(|choices| choices.flags = Flags::Separate);
    let waits = Wait::new(Flag::Count, source, &[0]);
    assert_eq!(until(&mut group, "Done"), Some(waits));
    let slots = [0, 1].map(|local| dispatch_slot(group.shape, local, source));
    for (slot, count) in slots.into_iter().zip([2, 0]) {
        group.memory.poke_word(RANK, Slots::Shipped.dispatch_status(P0, slot), flag::status(count));
    }
    assert_eq!(until(&mut group, "Done"), Some(Wait::new(Flag::Token, source, &[0])));
    for seen in [1, flag::status(0), flag::status(2), u64::MAX] {
        let mut group = group.clone();
        group.memory.poke_word(RANK, Slots::Shipped.token_flag(P0, slots[0]), seen);
        assert_eq!(error(&mut group), Wait::new(Flag::Token, source, &[0]).refused(seen));
    }
    let home = Home { rank: RANK, local_expert: 0 };
    for token in 0..2 {
        let at = triple_of(group.shape, dispatch_record(group.shape, P0, home, source, token));
        let triple = Triple { source, token: Token(token), k: 0 };
        group.memory.poke(RANK, at, &triple.to_bytes());
    }
    group.memory.poke_word(RANK, Slots::Shipped.token_flag(P0, slots[0]), flag::ARRIVED);
    // A slot without rows has a token flag too.
    assert_eq!(until(&mut group, "Done"), Some(Wait::new(Flag::Token, source, &[1])));
    group.memory.poke_word(RANK, Slots::Shipped.token_flag(P0, slots[1]), flag::ARRIVED);
    assert_eq!(until(&mut group, "Done"), None);
    for slot in 0..4 {
        for at in [Slots::Shipped.dispatch_status(P0, slot), Slots::Shipped.token_flag(P0, slot)] {
            group.memory.settle();
            assert_eq!(group.memory.word(RANK, at), 0, "{at} is not cleared");
        }
    }
}

#[test]
fn a_count_beyond_the_batch_of_its_source_is_refused() {
    for seen in [3, u32::MAX] {
        let mut group = group(1);
        assert!(until(&mut group, "Done").is_some());
        let slot = dispatch_slot(group.shape, 0, RankId(1));
        group.memory.poke_word(RANK, Slots::Shipped.dispatch_status(P0, slot), flag::status(seen));
        let expected = ProtocolError::Count { source: RankId(1), local_expert: 0, seen, max: 2 };
        assert_eq!(error(&mut group), expected);
    }
}

#[test]
fn a_triple_that_contradicts_its_slot_or_the_shape_is_refused() {
    // Row 3 of rank 0 is the second token of rank 1 for expert 0; [1, 0, 0] would repeat its first.
    for seen in [
        [0, 1, 0],
        [1, 0, 0],
        [2, 1, 0],
        [1, 2, 0],
        [1, 1, 2],
        [-1, 1, 0],
        [1, i32::MIN, 0],
        [1, 1, i32::MAX],
    ] {
        let mut group = group(1);
        for _ in 0..200 {
            group.step(1).unwrap();
        }
        assert_eq!(until(&mut group, "CopyOut"), None);
        let home = Home { rank: RANK, local_expert: 0 };
        let at = triple_of(group.shape, dispatch_record(group.shape, P0, home, RankId(1), 1));
        let bytes: Vec<u8> = seen.iter().flat_map(|word: &i32| word.to_le_bytes()).collect();
        group.memory.poke(RANK, at, &bytes);
        assert_eq!(error(&mut group), ProtocolError::Triple { row: 3, seen });
    }
}

#[test]
fn a_shared_expert_takes_only_rows_of_its_own_column() {
    for (seen, refused) in [([1, 0, 1], false), ([1, 0, 0], true), ([1, 0, 2], true)] {
        let shape = Domain { r: 4, e: 2, s: 2, rs: 2, bs: 1, ..PAIR }.shape();
        let ranks = (0..4).map(RankId);
        let tensors = ranks.map(|rank| Tensors::new(&shape, rank, vec![0], OwnedMask::None)).collect();
        let mut group = Group::new(&shape, tensors);
        group.begin_dispatch();
        for _ in 0..200 {
            (1..4).for_each(|i| assert!(group.step(i).is_ok()));
        }
        assert_eq!(until(&mut group, "CopyOut"), None);
        let home = Home { rank: RANK, local_expert: 0 };
        let at = triple_of(&shape, dispatch_record(&shape, P0, home, RankId(1), 0));
        let bytes: Vec<u8> = seen.iter().flat_map(|word: &i32| word.to_le_bytes()).collect();
        group.memory.poke(RANK, at, &bytes);
        if refused {
            assert_eq!(error(&mut group), ProtocolError::Triple { row: 1, seen });
        } else {
            assert_eq!(until(&mut group, "Done"), None);
        }
    }
}

/// Cores of a shared expert's rank split rows, and a share may begin within a slot.
#[test]
fn a_core_whose_share_begins_within_a_slot_refuses_a_token_below_its_rows_index() {
    for (token, is_refused) in [(0, true), (2, true), (3, false)] {
        let shape = Domain { r: 2, e: 1, s: 1, rs: 1, bs: 4, cores: 3, ..PAIR }.shape();
        let ranks = (0..2).map(RankId);
        let tensors = ranks.map(|rank| Tensors::new(&shape, rank, vec![0; 4], OwnedMask::None)).collect();
        let mut group = Group::new(&shape, tensors);
        group.begin_dispatch();
        let cores = group.cores();
        for i in (0..cores).cycle().take(400 * cores) {
            if i != 1 || group.phase(1) != "CopyOut" {
                group.step(i).unwrap();
            }
        }
        assert_eq!(group.phase(1), "CopyOut");
        // Of eight rows, four of each source, core 1 copies three: the last one of rank 0 comes first.
        let home = Home { rank: RANK, local_expert: 0 };
        let at = triple_of(&shape, dispatch_record(&shape, P0, home, RankId(0), 3));
        let triple = Triple { source: RankId(0), token: Token(token), k: 1 };
        group.memory.poke(RANK, at, &triple.to_bytes());
        let seen = [0, token as i32, 1];
        let expected = is_refused.then_some(ProtocolError::Triple { row: 3, seen });
        assert_eq!(group.step(1).err(), expected, "token {token}");
    }
}

#[test]
fn a_replica_takes_no_rows_of_a_source_that_sends_to_another() {
    // Two replicas of one shared expert: ranks 0 and 1; rank 1 keeps its tokens, rank 2 sends to rank 0.
    for (source, refused) in [(1, true), (2, false)] {
        let shape = Domain { r: 4, e: 2, s: 1, rs: 2, bs: 1, ..PAIR }.shape();
        let ranks = (0..4).map(RankId);
        let tensors = ranks.map(|rank| Tensors::new(&shape, rank, vec![0], OwnedMask::None)).collect();
        let mut group = Group::new(&shape, tensors);
        group.begin_dispatch();
        let slot = dispatch_slot(group.shape, 0, RankId(source));
        group.memory.poke_word(RANK, Slots::Shipped.dispatch_status(P0, slot), flag::status(1));
        if refused {
            for _ in 0..200 {
                (1..4).for_each(|i| assert!(group.step(i).is_ok()));
                group.memory.poke_word(RANK, Slots::Shipped.dispatch_status(P0, slot), flag::status(1));
            }
            let source = RankId(source);
            let expected = ProtocolError::Count { source, local_expert: 0, seen: 1, max: 0 };
            assert_eq!(error(&mut group), expected);
        } else {
            // The triple that rank 2 would have sent itself.
            assert!(until(&mut group, "Sums").is_some());
        }
    }
}

#[test]
fn combine_refuses_a_column_that_its_rank_cannot_return() {
    // K = 2: column 1 is legal on both ranks, column 2 would belong to a shared expert.
    let mut group = at_combine(1);
    let shared = Triple { source: RankId(0), token: Token(0), k: 2 };
    group.members[0].returned[0].assist_info[..12].copy_from_slice(&shared.to_bytes());
    assert_eq!(error(&mut group), ProtocolError::Triple { row: 0, seen: [0, 0, 2] });
    let shape = Domain { r: 4, e: 2, s: 2, rs: 2, bs: 1, ..PAIR }.shape();
    for (rank, k, may) in
        [(0, 0, false), (0, 1, true), (0, 2, false), (1, 2, true), (2, 0, true), (2, 1, false)]
    {
        let triple = Triple { source: RankId(3), token: Token(0), k };
        assert_eq!(triple.may_be_on(&shape, RankId(rank)), may, "rank {rank}, column {k}");
    }
}

#[test]
fn an_expert_that_is_not_shared_takes_no_rows_of_a_shared_column() {
    let shape = Domain { r: 4, e: 2, s: 2, rs: 2, bs: 1, ..PAIR }.shape();
    let tensors = (0..4).map(|rank| Tensors::new(&shape, RankId(rank), vec![0], OwnedMask::None)).collect();
    let mut group = Group::new(&shape, tensors);
    group.begin_dispatch();
    // Expert 0 lives on rank 2, after the shared-expert ranks.
    let host = 2;
    while group.phase(host) != "CopyOut" {
        (0..4).for_each(|i| assert!(group.phase(host) == "CopyOut" || group.step(i).is_ok()));
    }
    let (home, seen) = (Home { rank: RankId(2), local_expert: 0 }, [1, 0, 1]);
    let at = triple_of(&shape, dispatch_record(&shape, P0, home, RankId(1), 0));
    let bytes: Vec<u8> = seen.iter().flat_map(|word: &i32| word.to_le_bytes()).collect();
    group.memory.poke(RankId(2), at, &bytes);
    let refused = (0..100).find_map(|_| group.step(host).err());
    assert_eq!(refused, Some(ProtocolError::Triple { row: 1, seen }));
}

#[test]
fn a_combine_flag_of_another_value_is_refused() {
    let mut group = at_combine(1);
    // Expert 2 lives on rank 1, which has not begun.
    let waits = Wait::new(Flag::Combine, RankId(1), &[0, 1]);
    assert_eq!(until(&mut group, "Done"), Some(waits));
    let slot = combine_slot(group.shape, Token(0), 1);
    group.memory.poke_word(RANK, Slots::Shipped.combine_status(P0, slot), u64::from(flag::FLAG));
    let seen = u64::from(flag::FLAG);
    assert_eq!(error(&mut group), Wait::new(Flag::Combine, RankId(1), &[0, 1]).refused(seen));
}

#[test]
fn ep_recv_counts_that_y_or_the_capacity_does_not_hold_are_refused() {
    for (last, y_rows, seen, max) in [
        (Some(-1), 4, -1, 4),
        (Some(i32::MIN), 4, i32::MIN.into(), 4),
        (Some(5), 4, 5, 4),
        (Some(9), 100, 9, 8),
        (Some(i32::MAX), 100, i32::MAX.into(), 8),
        (None, 4, -1, 4),
    ] {
        let mut group = at_combine(1);
        let y_len = y_rows * group.shape.row_bytes() as usize;
        let rows = &mut group.members[0].returned[0];
        rows.y.resize(y_len, 0);
        rows.ep_recv_counts.truncate(12);
        rows.ep_recv_counts.extend(last.into_iter().flat_map(i32::to_le_bytes));
        assert_eq!(error(&mut group), ProtocolError::RecvCounts { seen, max });
        assert_eq!(
            group.core(0).machine,
            Some(Machine::A3Combine(Combine::new())),
            "refused before any effect"
        );
    }
}

#[test]
fn assist_info_out_of_range_or_too_short_is_refused_by_combine() {
    let mut group = at_combine(1);
    group.members[0].returned[0].assist_info[12..24].copy_from_slice(&[0xFF; 12]);
    assert_eq!(error(&mut group), ProtocolError::Triple { row: 1, seen: [-1; 3] });
    let mut group = at_combine(1);
    group.members[0].returned[0].assist_info.truncate(3 * Triple::BYTES as usize);
    assert_eq!(error(&mut group), ProtocolError::Triple { row: 3, seen: [-1; 3] });
}

#[test]
fn a_token_that_is_not_finite_is_refused_when_it_is_quantised() {
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let config = Config { quant_mode: 2, ..Domain { e: 4, k: 2, ..PAIR }.config() };
        let mut group = with_config(config);
        let dtype = group.shape.dtype();
        group.tensors()[0].x = row(dtype, 8, |i| if i == 6 { value } else { 1.0 });
        assert_eq!(error(&mut group), ProtocolError::NotFinite { token: 1 });
    }
}

#[test]
fn a_refusal_of_the_fabric_stops_the_machine() {
    let mut group = group(1);
    group.memory.truncate_window(RANK, 100);
    let at = dispatch_record(group.shape, P0, Home { rank: RANK, local_expert: 0 }, RANK, 0);
    let fault = Fault::new(RANK, at, 8 + 24 + 32 + 12);
    assert_eq!(error(&mut group), ProtocolError::Fault(fault));
    assert_eq!(at, Place::window(group.shape.combine_area()));
}

#[test]
fn a_scratch_that_is_too_short_is_an_error_and_not_a_panic() {
    for quant_mode in [0, 2] {
        let config = Config { quant_mode, ..Domain { e: 4, k: 2, ..PAIR }.config() };
        // The words for local experts are used by direct placement.
        let words = with_config(config).core(0).words.len() - 2;
        for len in 0..words {
            let mut group = with_config(config);
            group.core(0).words.truncate(len);
            let error = error(&mut group);
            assert!(matches!(error, ProtocolError::Given(_)), "{error} with {len} of {words} words");
        }
    }
    for len in 0..4 {
        let mut group = with_config(Config { quant_mode: 2, ..Domain { e: 4, k: 2, ..PAIR }.config() });
        group.core(0).row.truncate(len);
        assert!(matches!(error(&mut group), ProtocolError::Given(_)));
    }
    for len in 0..8 {
        let mut group = at_combine(1);
        group.core(0).row.truncate(len);
        for _ in 0..100 {
            group.step(1).unwrap();
        }
        assert!(matches!(error(&mut group), ProtocolError::Given(_)));
    }
}

#[test]
fn unchecked_inputs_are_an_error_and_not_a_panic() {
    let mut group = group(1);
    group.tensors()[0].x.truncate(8);
    assert!(matches!(error(&mut group), ProtocolError::Given(_)), "x");
}

/// Rank 0 alone calls combine with AddRmsNorm, and rank 1 has sent it everything.
fn at_combine_with_norm() -> Group {
    let mut group = at_combine(1);
    let shape = group.shape;
    let plain = group.tensors()[0].clone();
    group.tensors()[0] = plain.with_add_rms_norm(shape, RANK);
    for _ in 0..100 {
        group.step(1).unwrap();
    }
    group
}

#[test]
fn add_rms_norm_that_is_taken_away_between_its_outputs_is_an_error() {
    for phase in ["Add", "Rstd", "Norm"] {
        let mut group = at_combine_with_norm();
        assert_eq!(until(&mut group, phase), None);
        group.tensors()[0].add_rms_norm = None;
        assert!(matches!(error(&mut group), ProtocolError::Given(_)), "{phase}");
    }
}

#[test]
fn add_rms_norm_without_room_for_a_row_of_f32_is_an_error() {
    let mut group = at_combine_with_norm();
    let len = group.core(0).row.len();
    // The row of four elements has 8 bytes, and 16 as f32.
    assert!(len >= 8 + 16);
    group.core(0).row.truncate(8 + 16 - 1);
    assert!(matches!(error(&mut group), ProtocolError::Given(_)));
}
