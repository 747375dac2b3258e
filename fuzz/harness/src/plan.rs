//! The plans of any routing against one made from the definition: no division shared, no slot counted twice.

use crate::domain::{Domain, Numbers, Tensors};
use crate::tape::Tape;
use std::collections::BTreeMap;
use veriep_core::inputs::{Inputs, Mask};
use veriep_core::plan::counts::{self, ShareSum};
use veriep_core::plan::experts::ExpertSends;
use veriep_core::plan::order::SendOrder;
use veriep_core::plan::permute::{Cumsum, RecvCounts, add_gather_adds, cumulate};
use veriep_core::plan::route::{self, NO_SLOT, Send, Sends};
use veriep_core::plan::{returns, split, table};
use veriep_core::shape::{Protocol, Shape};
use veriep_core::units::{CoreId, ExpertId, RankId};

/// A destination: rank and local expert.
type To = (u32, u32);

/// By the definition, of one rank: what goes where, in the order of slots.
type Sent = BTreeMap<To, Vec<(u32, u32)>>;

/// Plans what the bytes mean. `None` if they mean no domain; else how many records are sent in all.
pub fn run(bytes: &[u8]) -> Option<usize> {
    let (numbers, rest) = Numbers::from_bytes(bytes);
    let mut tape = Tape::new(rest, numbers.seed.into());
    let domain = Domain::new(numbers, &mut tape)?;
    let shape = &domain.shape;
    let ranks: Vec<RankId> = (0..shape.ep_world_size()).map(RankId).collect();
    let tensors: Vec<_> = ranks.iter().map(|&rank| Tensors::new(&domain, rank, &mut tape)).collect();
    let inputs: Vec<_> = tensors.iter().map(Tensors::inputs).collect();
    let sent: Vec<Sent> =
        ranks.iter().map(|&rank| by_definition(shape, rank, &inputs[rank.index()])).collect();
    for &rank in &ranks {
        sends(shape, rank, &inputs[rank.index()], &sent[rank.index()]);
        received(shape, rank, &inputs, &sent);
        splits(shape, rank);
    }
    Some(sent.iter().flat_map(BTreeMap::values).map(Vec::len).sum())
}

fn by_definition(shape: &Shape, rank: RankId, inputs: &Inputs<'_>) -> Sent {
    let (rs, s, k) = (shape.shared_expert_rank_num(), shape.shared_expert_num(), shape.k());
    let active = |token: u32, column: u32| match inputs.mask {
        Mask::None => true,
        Mask::Abstains => false,
        Mask::Tokens(mask) => mask[token as usize],
        Mask::Pairs(mask) => mask[(token * k + column) as usize],
    };
    let mut sent = Sent::new();
    for to in 0..shape.ep_world_size() {
        let experts = if to < rs { 1 } else { shape.moe_expert_num() / (shape.ep_world_size() - rs) };
        for local in 0..experts {
            let mut rows = Vec::new();
            for token in 0..shape.bs(rank) {
                if to < rs {
                    let replicas = rs / s;
                    let is_mine = to % replicas == rank.0 % replicas;
                    if is_mine && (0..k).any(|column| active(token, column)) {
                        rows.push((token, k + to / replicas));
                    }
                    continue;
                }
                for column in 0..k {
                    let id = inputs.expert_ids[(token * k + column) as usize];
                    if id == ((to - rs) * experts + local) as i32 && active(token, column) {
                        rows.push((token, column));
                    }
                }
            }
            sent.insert((to, local), rows);
        }
    }
    sent
}

/// All cores of a rank together send each record once, into its slot, and count alike.
fn sends(shape: &Shape, rank: RankId, inputs: &Inputs<'_>, want: &Sent) {
    let status: Vec<u32> = want.values().map(|rows| rows.len() as u32).collect();
    for order in [SendOrder::Plain, SendOrder::Staggered] {
        let mut seen = BTreeMap::new();
        for core in (0..shape.aiv_num()).map(CoreId) {
            let work = split::work(shape, rank, core);
            let mut counted = vec![77; route::destinations(shape) as usize];
            let mut slots = vec![77; route::share_len(&work.sends) as usize];
            route::walk(shape, rank, inputs, &work.sends, &mut counted, &mut slots);
            assert_eq!(counted, status, "send status of core {core} of rank {rank}");
            let mut marks = vec![77; table::table_len(shape, rank)];
            let (mut again, mut slots_again) = (vec![5; counted.len()], vec![5; slots.len()]);
            table::mark(shape, rank, inputs, &mut marks);
            table::add_up(shape, rank, inputs, &work.sends, &marks, &mut again, &mut slots_again);
            assert_eq!((&again, &slots_again), (&counted, &slots), "the table and the walk");
            let sends = Sends::new(shape, rank, order, &work.sends);
            let all: Vec<Send> = match shape.protocol() {
                Protocol::FullmeshV2 => {
                    ExpertSends { sends, slots: &slots, experts: &work.experts }.iter(inputs).collect()
                }
                _ => sends.iter(inputs, &slots).collect(),
            };
            for Send { pair, home, slot } in all {
                assert_ne!(slot, NO_SLOT);
                let place = (home.rank.0, home.local_expert, slot);
                let twice = seen.insert(place, (pair.token.0, pair.k));
                assert_eq!(twice, None, "{pair:?} goes where another went");
            }
        }
        let want = want.iter().flat_map(|(&(to, local), rows)| {
            (0..).zip(rows).map(move |(slot, &pair)| ((to, local, slot), pair))
        });
        assert_eq!(seen, want.collect(), "sends of rank {rank}");
    }
}

/// Counts, prefixes and places of the rows that a rank receives.
fn received(shape: &Shape, rank: RankId, inputs: &[Inputs<'_>], sent: &[Sent]) {
    let (ranks, experts) = (shape.ep_world_size(), shape.local_experts(rank));
    let slots = (0..experts).flat_map(|local| (0..ranks).map(move |source| (local, source)));
    let count = |local, source: u32| sent[source as usize][&(rank.0, local)].len() as u32;
    let counts: Vec<u32> = slots.clone().map(|(local, source)| count(local, source)).collect();
    let mut sum = 0;
    let sums: Vec<u32> = counts.iter().map(|count| (sum += count, sum).1).collect();
    let rows: Vec<_> = returns::received(shape, rank, |source| inputs[source.index()]).collect();
    let want = slots.clone().flat_map(|(local, source)| {
        sent[source as usize][&(rank.0, local)].iter().map(move |&pair| (local, source, pair))
    });
    let seen = rows.iter().map(|r| (r.local_expert, r.source.0, (r.pair.token.0, r.pair.k)));
    assert!(seen.eq(want), "rows of rank {rank}");
    assert!(u64::from(sum) <= shape.rows_max(rank), "more rows than the capacity");
    for (slot, (_, source)) in slots.clone().enumerate() {
        assert!(counts[slot] <= shape.rows_from(RankId(source), rank));
    }
    let shares = (0..shape.aiv_num()).map(|core| split::slots(shape, rank, CoreId(core)));
    let told: Vec<ShareSum> = shares
        .clone()
        .map(|share| {
            let end = share.end;
            share.fold(ShareSum::default(), |sum, slot| sum.with(shape, slot, end, counts[slot as usize]))
        })
        .collect();
    for (core, share) in shares.enumerate().filter(|(_, share)| !share.is_empty()) {
        let prefix = counts::prefix(shape, rank, CoreId(core as u32), told.iter().copied());
        let before = share.start.checked_sub(1).map_or(0, |slot| sums[slot as usize]);
        let of_expert = share.start / ranks * ranks;
        let expert: u32 = counts[of_expert as usize..share.start as usize].iter().sum();
        assert_eq!((prefix.rows_before, prefix.expert_rows_before), (before, expert), "core {core}");
    }
    // A matrix of sources and experts comes to the same, in either way.
    let matrix: Vec<u32> =
        (0..ranks).flat_map(|s| (0..experts).map(move |e| (e, s))).map(|(e, s)| count(e, s)).collect();
    let (mut plain, mut added, mut used) = (vec![9; sums.len()], vec![9; sums.len()], matrix.clone());
    counts::transposed_prefix(&matrix, experts as usize, &mut plain);
    add_gather_adds(&mut used, experts as usize, &mut added);
    assert_eq!((&plain, &added), (&sums, &sums));
    if shape.shared_expert_rank_num() == 0 {
        permuted(shape, rank, &sums, sent);
    }
}

/// The places of rows in the windows of A2, as the sender and as the receiver computes them.
fn permuted(shape: &Shape, rank: RankId, sums: &[u32], sent: &[Sent]) {
    let mut own: Vec<u32> = sent[rank.index()].values().map(|rows| rows.len() as u32).chain([0]).collect();
    let by_expert = own.clone();
    cumulate(&mut own);
    let (cumsum, counts) = (Cumsum { shape, sums: &own }, RecvCounts { shape, sums });
    for (e, &rows) in (0..shape.moe_expert_num()).zip(&by_expert) {
        assert_eq!(cumsum.rows(ExpertId(e)), rows);
        let mut before = 0;
        let home = shape.moe_home(ExpertId(e));
        (e - home.local_expert..e).for_each(|other| before += by_expert[other as usize]);
        assert_eq!(cumsum.position(home, 0), before);
    }
    let mut row = 0;
    for local in 0..shape.local_expert_num() {
        for source in (0..shape.ep_world_size()).map(RankId) {
            let rows = sent[source.index()][&(rank.0, local)].len() as u32;
            assert_eq!((counts.first_row(local, source), counts.rows(local, source)), (row, rows));
            let before: usize = (0..local).map(|e| sent[source.index()][&(rank.0, e)].len()).sum();
            for index in 0..rows {
                assert_eq!(counts.source_of(row + index), (source, before as u32 + index));
            }
            row += rows;
        }
    }
}

/// Shares are in order, cover everything once and differ by one at most.
fn splits(shape: &Shape, rank: RankId) {
    let cores = || (0..shape.aiv_num()).map(CoreId);
    let covers = |what: &str, n: u32, shares: Vec<core::ops::Range<u32>>| {
        let shares: Vec<_> = shares.into_iter().filter(|share| !share.is_empty()).collect();
        let mut next = 0;
        for share in &shares {
            assert_eq!(share.start, next, "{what}");
            next = share.end;
        }
        assert_eq!(next, n, "{what}");
        let longest = shares.iter().map(|share| share.end - share.start).max().unwrap_or(0);
        assert!(shares.iter().all(|share| share.end - share.start + 1 >= longest), "{what}: uneven");
    };
    let (bs, k, s) = (shape.bs(rank), shape.k(), shape.shared_expert_num());
    let sends = |core| split::dispatch(shape, rank, core);
    covers("pairs", bs * k, cores().map(|core| sends(core).moe).collect());
    covers("shared pairs", bs * s, cores().map(|core| sends(core).shared).collect());
    covers("destinations", route::destinations(shape), cores().map(|c| split::publish(shape, c)).collect());
    let slots = shape.local_experts(rank) * shape.ep_world_size();
    covers("slots", slots, cores().map(|core| split::slots(shape, rank, core)).collect());
    covers("tokens", bs, cores().map(|core| split::tokens(shape, rank, core)).collect());
    for n in [0, 1, 7, 30] {
        covers("rows", n, cores().map(|core| split::rows(shape, n, core)).collect());
        for item in 0..n {
            let owner = split::even_owner(n, shape.aiv_num(), item);
            assert!(split::even(n, shape.aiv_num(), owner).contains(&item));
        }
    }
}
