//! The walk is compared with an independent computation that lists the pairs of each destination; and the table of
//! `plan/table.rs` with the walk.

use super::*;
use crate::plan::{accesses, split, table};
use crate::shape::{BatchSizes, Config};
use crate::testing::domain::{Dice, Domain, OwnedMask, PAIR, Tensors, not_all_idle, shape as shape_of};
use crate::testing::random;
use crate::units::CoreId;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

/// The sends of a rank, by pair: receiving rank, local expert, slot; and the number of rows for every destination.
#[derive(Debug, Default, PartialEq)]
struct Naive {
    sends: BTreeMap<(u32, u32), (u32, u32, u32)>,
    send_status: Vec<u32>,
}

fn naive(shape: &Shape, rank: u32, tensors: &Tensors) -> Naive {
    let (r, k, s) = (shape.ep_world_size(), shape.k(), shape.shared_expert_num());
    let shared_ranks = shape.shared_expert_rank_num();
    let active = |token: u32, k_index: u32| match &tensors.mask {
        OwnedMask::None => true,
        OwnedMask::Tokens(mask) => mask[token as usize],
        OwnedMask::Pairs(mask) => mask[(token * k + k_index) as usize],
    };
    let tokens = shape.bs(RankId(rank));
    let mut out = Naive::default();
    for to in 0..shared_ranks {
        let replicas = shared_ranks / s;
        let j = to / replicas;
        let mut slot = 0;
        for token in (0..tokens).filter(|&token| (0..k).any(|k| active(token, k))) {
            if to == j * replicas + rank % replicas {
                out.sends.insert((token, k + j), (to, 0, slot));
                slot += 1;
            }
        }
        out.send_status.push(slot);
    }
    let mut expert = 0;
    for to in shared_ranks..r {
        for local in 0..shape.moe_expert_num() / (r - shared_ranks) {
            let mut slot = 0;
            for (token, k_index) in (0..tokens).flat_map(|token| (0..k).map(move |k| (token, k))) {
                if tensors.ids[(token * k + k_index) as usize] == expert && active(token, k_index) {
                    out.sends.insert((token, k_index), (to, local, slot));
                    slot += 1;
                }
            }
            out.send_status.push(slot);
            expert += 1;
        }
    }
    out
}

/// Returns the plan of all cores of a rank together; each pair may occur only once.
fn planned(shape: &Shape, rank: u32, tensors: &Tensors, order: SendOrder) -> Naive {
    let (rank, inputs) = (RankId(rank), tensors.inputs());
    let mut out = Naive::default();
    for core in (0..shape.aiv_num()).map(CoreId) {
        let share = split::dispatch(shape, rank, core);
        // Not zeroed: a scratch holds its previous contents.
        let mut send_status = vec![77; destinations(shape) as usize];
        let mut slots = vec![77; share_len(&share) as usize];
        walk(shape, rank, &inputs, &share, &mut send_status, &mut slots);
        assert_table_agrees(shape, rank, tensors, &share, &send_status, &slots);
        if core.0 > 0 {
            assert_eq!(send_status, out.send_status, "core {core} counts differently");
        }
        out.send_status = send_status;
        let sends = Sends::new(shape, rank, order, &share);
        assert_eq!(sends.len() == 0, slots.is_empty());
        for Send { pair, home, slot } in sends.iter(&inputs, &slots) {
            let earlier = out.sends.insert((pair.token.0, pair.k), (home.rank.0, home.local_expert, slot));
            assert_eq!(earlier, None, "{pair:?} is sent twice");
        }
        assert_eq!(sends.get(&inputs, &slots, sends.len()), None, "after the last");
    }
    out
}

/// The pairs of a share in the order of a rank, from a list that is turned, and then picked from at even steps.
fn in_order(order: SendOrder, rank: u32, mut pairs: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    let count = pairs.len();
    if count == 0 || order == SendOrder::Plain {
        return pairs;
    }
    pairs.rotate_left(rank as usize % count);
    if order != SendOrder::Stride {
        return pairs;
    }
    let visits_all = |step: &usize| (1..count).all(|i| !(i * step).is_multiple_of(count));
    let step = (count * 618 / 1000..).find(|step| *step > 0 && visits_all(step)).unwrap();
    (0..count).map(|i| pairs[i * step % count]).collect()
}

/// Asserts that each core of a rank sends the pairs of its share in their order.
fn assert_order(shape: &Shape, rank: u32, tensors: &Tensors) {
    let (sent, inputs) = (naive(shape, rank, tensors).sends, tensors.inputs());
    for (order, core) in
        SendOrder::ALL.into_iter().flat_map(|o| (0..shape.aiv_num()).map(move |core| (o, core)))
    {
        let share = split::dispatch(shape, RankId(rank), CoreId(core));
        let mut send_status = vec![0; destinations(shape) as usize];
        let mut slots = vec![0; share_len(&share) as usize];
        walk(shape, RankId(rank), &inputs, &share, &mut send_status, &mut slots);
        let columns = |range: &Range<u32>, columns: u32, first: u32| {
            range.clone().map(|i| (i / columns, first + i % columns)).collect()
        };
        let moe = in_order(order, rank, columns(&share.moe, shape.k(), 0));
        let shared = in_order(order, rank, columns(&share.shared, shape.shared_expert_num(), shape.k()));
        let must: Vec<_> =
            [moe, shared].concat().into_iter().filter(|pair| sent.contains_key(pair)).collect();
        let sends = Sends::new(shape, RankId(rank), order, &share);
        let seen: Vec<_> = sends.iter(&inputs, &slots).map(|send| (send.pair.token.0, send.pair.k)).collect();
        assert_eq!(seen, must, "{order:?}, rank {rank} core {core}: {tensors:?} of {shape:?}");
    }
}

/// Asserts that the table of marks gives the same results as the walk.
fn assert_table_agrees(
    shape: &Shape,
    rank: RankId,
    tensors: &Tensors,
    share: &DispatchShare,
    walked_status: &[u32],
    walked_slots: &[u32],
) {
    let inputs = tensors.inputs();
    let mut marks = vec![77; table::table_len(shape, rank)];
    let (mut send_status, mut slots) = (vec![77; walked_status.len()], vec![77; walked_slots.len()]);
    table::mark(shape, rank, &inputs, &mut marks);
    table::add_up(shape, rank, &inputs, share, &marks, &mut send_status, &mut slots);
    assert_eq!(send_status, walked_status, "rank {rank}: {tensors:?} of {shape:?}");
    assert_eq!(slots, walked_slots, "rank {rank}, {share:?}: {tensors:?} of {shape:?}");
}

fn assert_plan(shape: &Shape, rank: u32, tensors: &Tensors) {
    let expected = naive(shape, rank, tensors);
    for order in [SendOrder::Plain, SendOrder::Staggered] {
        assert_eq!(planned(shape, rank, tensors, order), expected, "rank {rank}: {tensors:?} of {shape:?}");
    }
}

/// Returns all rows of `k` different ids below `end`.
fn id_rows(k: u32, end: i32) -> Vec<Vec<i32>> {
    match k {
        0 => vec![vec![]],
        _ => {
            let pairs =
                id_rows(k - 1, end).into_iter().flat_map(|row| (0..end).map(move |id| (row.clone(), id)));
            pairs.filter(|(row, id)| !row.contains(id)).map(|(row, id)| [row, vec![id]].concat()).collect()
        }
    }
}

fn masks(tokens: u32, k: u32) -> Vec<OwnedMask> {
    let first = |n| OwnedMask::Tokens((0..tokens).map(|token| token < n).collect());
    let pairs = |bits: u32| OwnedMask::Pairs((0..tokens * k).map(|i| bits >> i & 1 == 1).collect());
    let mut all = vec![OwnedMask::None];
    all.extend((0..=tokens).map(first));
    all.extend((0..1 << (tokens * k)).map(pairs));
    all
}

fn assert_all_routings(domain: Domain, zero_experts: i64, cores: &[i64]) {
    for &cores in cores {
        let config = Config { zero_expert_num: zero_experts, ..Domain { cores, ..domain }.config() };
        let shape = shape_of(&config);
        let (k, bs) = (shape.k(), shape.bs_max());
        let rows = id_rows(k, shape.expert_ids_end().cast_signed());
        let masks = masks(bs, k);
        for code in 0..rows.len().pow(bs) {
            let row = |token| rows[code / rows.len().pow(token) % rows.len()].clone();
            let ids: Vec<i32> = (0..bs).flat_map(row).collect();
            for mask in &masks {
                for rank in 0..shape.ep_world_size() {
                    let tensors = Tensors { ids: ids.clone(), mask: mask.clone(), ..Tensors::default() };
                    assert_plan(&shape, rank, &tensors);
                }
            }
        }
    }
}

#[test]
fn all_routings_of_three_tokens_with_one_expert_each_are_planned_right() {
    for (r, e, s, rs) in [(2, 2, 0, 0), (2, 4, 0, 0), (3, 3, 0, 0), (2, 1, 1, 1), (3, 2, 1, 1), (3, 1, 2, 2)]
    {
        assert_all_routings(Domain { r, e, s, rs, k: 1, h: 1, bs: 3, cores: 1 }, 1, &[1, 2, 4]);
    }
}

#[test]
fn all_routings_of_two_tokens_with_two_experts_each_are_planned_right() {
    for (r, e, s, rs) in [(2, 4, 0, 0), (3, 3, 0, 0), (2, 2, 1, 1), (3, 4, 1, 1), (3, 2, 1, 2), (3, 2, 2, 2)]
    {
        assert_all_routings(Domain { r, e, s, rs, k: 2, h: 1, bs: 2, cores: 1 }, 1, &[1, 3]);
    }
}

#[test]
fn all_routings_of_three_tokens_with_two_experts_each_are_planned_right() {
    assert_all_routings(Domain { r: 2, e: 2, s: 0, rs: 0, k: 2, h: 1, bs: 3, cores: 1 }, 1, &[2]);
    assert_all_routings(Domain { r: 3, e: 2, s: 1, rs: 1, k: 2, h: 1, bs: 3, cores: 1 }, 0, &[3]);
}

#[test]
fn slots_count_the_pairs_of_a_destination_not_of_a_token() {
    // Tokens 0 and 1 swap their experts: both experts get slots 0 and 1.
    let shape = Domain { k: 2, ..PAIR }.shape();
    let tensors = Tensors::new(&shape, RankId(0), vec![0, 1, 1, 0], OwnedMask::None);
    let share = split::dispatch(&shape, RankId(0), CoreId(0));
    let (mut send_status, mut slots) = ([0; 2], [0; 4]);
    walk(&shape, RankId(0), &tensors.inputs(), &share, &mut send_status, &mut slots);
    assert_eq!((send_status, slots), ([2, 2], [0, 0, 1, 1]));
}

#[test]
fn column_sums_of_the_marked_table_are_the_send_status() {
    // Tokens 0 and 1 swap experts 0 and 2; token 1's second pair is off; expert 3 is a zero expert.
    let config = Config { zero_expert_num: 1, ..Domain { r: 3, e: 3, k: 2, ..PAIR }.config() };
    let shape = shape_of(&config);
    let mask = OwnedMask::Pairs(vec![true, true, true, false]);
    let tensors = Tensors::new(&shape, RankId(0), vec![0, 2, 2, 0], mask);
    let mut marks = [9; 6];
    table::mark(&shape, RankId(0), &tensors.inputs(), &mut marks);
    assert_eq!(marks, [1, 0, 1, 0, 0, 1]);
    let share = split::dispatch(&shape, RankId(0), CoreId(0));
    let (mut send_status, mut slots) = ([9; 3], [9; 4]);
    let inputs = tensors.inputs();
    table::add_up(&shape, RankId(0), &inputs, &share, &marks, &mut send_status, &mut slots);
    assert_eq!((send_status, slots), ([1, 0, 2], [0, 0, 1, NO_SLOT]));
}

#[test]
fn a_pair_that_is_not_sent_has_the_slot_that_reads_minus_one() {
    assert_eq!(NO_SLOT.cast_signed(), -1);
    let config = Config { zero_expert_num: 1, ..Domain { k: 2, ..PAIR }.config() };
    let shape = shape_of(&config);
    let mask = OwnedMask::Pairs(vec![true, true, false, true]);
    let tensors = Tensors::new(&shape, RankId(0), vec![2, 0, 1, 0], mask);
    let share = split::dispatch(&shape, RankId(0), CoreId(0));
    let (mut send_status, mut slots) = ([0; 2], [0; 4]);
    walk(&shape, RankId(0), &tensors.inputs(), &share, &mut send_status, &mut slots);
    assert_eq!((send_status, slots), ([2, 0], [NO_SLOT, 0, NO_SLOT, 1]));
}

#[test]
fn slices_that_are_too_short_are_filled_as_far_as_they_go() {
    let shape = Domain { r: 3, e: 4, s: 1, rs: 1, k: 2, ..PAIR }.shape();
    let tensors = Tensors::new(&shape, RankId(0), vec![0, 3, 3, 1], OwnedMask::None);
    let share = split::dispatch(&shape, RankId(0), CoreId(0));
    for (n, m) in (0..6).flat_map(|n| (0..7).map(move |m| (n, m))) {
        let (mut send_status, mut slots) = (vec![9; n], vec![9; m]);
        walk(&shape, RankId(0), &tensors.inputs(), &share, &mut send_status, &mut slots);
        assert_eq!(send_status, [2, 1, 1, 0, 2][..n.min(5)], "{n}, {m}");
    }
}

#[test]
fn destinations_are_numbered_shared_ranks_first_and_then_moe_experts() {
    for (r, e, s, rs) in [(2, 6, 0, 0), (3, 4, 1, 1), (5, 6, 2, 2), (6, 8, 2, 4), (4, 3, 3, 3)] {
        let shape = Domain { r, e, s, rs, ..PAIR }.shape();
        let homes = (0..shape.ep_world_size()).map(RankId).flat_map(|rank| {
            (0..shape.local_experts(rank)).map(move |local_expert| Home { rank, local_expert })
        });
        assert!((0..destinations(&shape)).map(|d| destination_home(&shape, d)).eq(homes), "{shape:?}");
        let back = |d| destination_home(&shape, d);
        assert!((0..destinations(&shape)).all(|d| destination_of(
            &shape,
            back(d).rank,
            back(d).local_expert
        ) == d));
    }
}

#[test]
fn flat_pairs_count_off_tokens_and_columns() {
    let shape = Domain { r: 4, e: 4, s: 2, rs: 2, k: 2, ..PAIR }.shape();
    let flat = |pair: Pair| (pair.token.0, pair.k);
    assert_eq!([0, 1, 2, 3].map(|i| flat(moe_pair(&shape, i))), [(0, 0), (0, 1), (1, 0), (1, 1)]);
    assert_eq!([0, 1, 2, 3].map(|i| flat(shared_pair(&shape, i))), [(0, 2), (0, 3), (1, 2), (1, 3)]);
}

proptest! {
    #![proptest_config(random::config(256))]

    #[test]
    fn every_core_sends_in_the_order_of_its_rank(
        moe_ranks in 1i64..6, local in 1i64..4, s in 0i64..=2, replicas in 1i64..3,
        k in 1i64..=4, bs in 1i64..=12, cores in 1i64..=9, even: bool, seed: u64,
    ) {
        let (rs, e) = (s * replicas, moe_ranks * local);
        let domain = Domain { r: moe_ranks + rs, e, s, rs, k: k.min(e), h: 1, bs, cores };
        let mut dice = Dice(seed);
        let sizes: Vec<_> = (0..domain.r).map(|_| i64::from(dice.below(bs as u32 + 1))).collect();
        let sizes = not_all_idle(&sizes);
        let uneven = Config { bs: BatchSizes::PerRank(&sizes), global_bs: bs * domain.r, ..domain.config() };
        let shape = shape_of(&if even { domain.config() } else { uneven });
        for rank in 0..shape.ep_world_size() {
            assert_order(&shape, rank, &Tensors::random(&shape, RankId(rank), &mut dice));
        }
    }

    #[test]
    fn larger_domains_are_planned_right(
        moe_ranks in 1i64..9, local in 1i64..5, s in 0i64..=4, replicas in 1i64..4,
        k in 1i64..=8, bs in 1i64..=20, cores in 1i64..=48, zero_expert_num in 0i64..3, seed: u64,
    ) {
        let (rs, e) = (s * replicas, moe_ranks * local);
        let domain = Domain { r: moe_ranks + rs, e, s, rs, k: k.min(e), h: 1, bs, cores };
        let shape = shape_of(&Config { zero_expert_num, ..domain.config() });
        let mut dice = Dice(seed);
        let rank = dice.below(shape.ep_world_size());
        assert_plan(&shape, rank, &Tensors::random(&shape, RankId(rank), &mut dice));
    }
}

/// The 910C guide, section 2.2: five accesses for each pair, and two with a table.
#[test]
fn the_walk_takes_five_accesses_for_each_pair_and_the_table_two() {
    for (r, e, k, bs, cores) in [(2, 8, 4, 16, 1), (8, 64, 8, 48, 1), (8, 64, 8, 48, 8), (4, 256, 16, 64, 3)]
    {
        let shape = Domain { r, e, k, bs, h: 1, cores, ..PAIR }.shape();
        let pairs = (bs * k) as u64;
        let ids: Vec<_> = (0..bs * k).map(|i| ((i / k * 7 + i % k * (e / k)) % e) as i32).collect();
        let masks = [(OwnedMask::None, 0), (OwnedMask::Pairs(vec![true; pairs as usize]), pairs)];
        for (mask, masked) in masks {
            let tensors = Tensors::new(&shape, RankId(0), ids.clone(), mask);
            let share = split::dispatch(&shape, RankId(0), CoreId(0));
            let own = u64::from(share_len(&share));
            let (mut status, mut slots) = (vec![0; e as usize], vec![0; own as usize]);
            let mut marks = vec![0; table::table_len(&shape, RankId(0))];
            accesses::take();
            walk(&shape, RankId(0), &tensors.inputs(), &share, &mut status, &mut slots);
            assert_eq!(accesses::take(), 3 * pairs + own + masked);
            table::mark(&shape, RankId(0), &tensors.inputs(), &mut marks);
            assert_eq!(accesses::take(), 2 * pairs + masked);
            let inputs = tensors.inputs();
            table::add_up(&shape, RankId(0), &inputs, &share, &marks, &mut status, &mut slots);
            assert_eq!(accesses::take(), 4 * own + if masked > 0 { own } else { 0 });
        }
    }
}

/// Prints the nanoseconds of walk and table for one of eight cores. Other processors may favour other shapes.
#[test]
#[ignore = "a measurement: cargo test --release -p veriep-core --all-features --lib by_the_clock -- --ignored --nocapture"]
fn the_walk_and_the_table_by_the_clock() {
    extern crate std;
    let clock = |work: &mut dyn FnMut()| {
        let once = |work: &mut dyn FnMut()| {
            let start = std::time::Instant::now();
            (0..200).for_each(|_| work());
            start.elapsed().as_nanos() / 200
        };
        (0..20).map(|_| once(work)).min().unwrap()
    };
    for (e, k, bs) in
        [(8, 8, 48), (16, 8, 48), (32, 8, 48), (64, 8, 48), (256, 8, 48), (256, 8, 512), (1024, 16, 512)]
    {
        let shape = Domain { r: 8, e, k, bs, h: 1, cores: 8, ..PAIR }.shape();
        let ids = (0..bs * k).map(|i| ((i / k * 7 + i % k * (e / k)) % e) as i32).collect();
        for mask in [OwnedMask::None, OwnedMask::Pairs(vec![true; (bs * k) as usize])] {
            let masked = !matches!(mask, OwnedMask::None);
            let tensors = Tensors::new(&shape, RankId(0), Clone::clone(&ids), mask);
            let inputs = tensors.inputs();
            let share = split::dispatch(&shape, RankId(0), CoreId(3));
            let (mut status, mut slots) = (vec![0; e as usize], vec![0; share_len(&share) as usize]);
            let mut marks = vec![0; table::table_len(&shape, RankId(0))];
            let walked = clock(&mut || {
                walk(&shape, RankId(0), core::hint::black_box(&inputs), &share, &mut status, &mut slots);
            });
            let marked =
                clock(&mut || table::mark(&shape, RankId(0), core::hint::black_box(&inputs), &mut marks));
            let added = clock(&mut || {
                table::add_up(
                    &shape,
                    RankId(0),
                    &inputs,
                    &share,
                    core::hint::black_box(&marks),
                    &mut status,
                    &mut slots,
                );
            });
            std::println!("E {e} K {k} BS {bs} mask {masked}: walk {walked}, mark {marked} + add {added}");
        }
    }
}
