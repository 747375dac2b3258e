//! That areas are apart, inside their regions and aligned; their corners, by the formulas that machines use.

use crate::spec::has_column;
use veriep_core::layout::affine::{Mode, Named};
use veriep_core::layout::map::{self, Area};
use veriep_core::layout::state::Partition;
use veriep_core::layout::{a2_window, data, direct, record, relay, state, tp};
use veriep_core::place::{Place, Region};
use veriep_core::placement::Home;
use veriep_core::protocol::{Choices, Receive, Stage};
use veriep_core::shape::{Config, Limits, Product, Protocol, Shape};
use veriep_core::units::{RankId, Token};

const KINDS: [state::Operator; 2] = [state::Operator::Dispatch, state::Operator::Combine];

/// The areas of a rank are one behind the other, inside their regions.
pub(super) fn disjoint(shape: &Shape, rank: RankId, choices: Choices) {
    let areas = map::areas(shape, choices.mode(), rank);
    let mut areas: Vec<Area> = areas.filter(|area| area.count > 0).collect();
    areas.sort_by_key(|area| area.start);
    for area in &areas {
        let region = match area.start.region {
            Region::State | Region::TpState => state::STATE_BYTES,
            Region::Window => shape.window_bytes(),
            Region::WindowOut => shape.window_out_bytes(),
            Region::TpWindow => tp::window_bytes(shape, rank),
            Region::Output(tensor) => panic!("{tensor:?} is no area"),
        };
        let size = area.count.checked_mul(area.stride).and_then(|size| area.start.offset.checked_add(size));
        assert!(size.is_some_and(|end| end <= region), "{area:?} leaves its region of {region} bytes");
        assert!(0 < area.slot && area.slot <= area.stride, "{area:?}: slots overlap");
        let align = if matches!(area.start.region, Region::Window | Region::TpWindow) { 512 } else { 8 };
        // Model shapes of A2 have rows of any multiple of 8.
        let align = if shape.product() == Product::A2 { 8 } else { align };
        // With direct placement rows are side by side.
        let is_dense =
            matches!(area.named, Named::Rows | Named::OverwrittenRows | Named::Infos | Named::Results);
        let is_aligned = is_dense || area.stride.is_multiple_of(align);
        assert!(area.start.offset.is_multiple_of(align) && is_aligned, "{area:?}");
    }
    for [first, second] in areas.array_windows() {
        let apart = first.start.region != second.start.region
            || first.start.offset + first.size() <= second.start.offset;
        assert!(apart, "{first:?} and {second:?} overlap");
    }
}

/// Areas of direct placement, with the words that go with it, in a window that is just large enough for one batch and for
/// two.
pub(super) fn landings(config: &Config<'_>, limits: Limits, shape: &Shape) {
    let numbers = [shape.bs_max(), shape.ep_world_size(), shape.local_expert_num(), shape.k(), shape.h()];
    let [bs, r, l, k, h] = numbers.map(u128::from);
    let up = |n: u128| n.next_multiple_of(512);
    let of = |rows: u128, results: bool| {
        let results = if results { up(rows * 2 * h) } else { 0 };
        up(rows * u128::from(shape.payload_bytes())) + up(rows * 16) + results
    };
    let most = |results: bool| {
        let on_shared = match shape.shared_expert_num() {
            0 => 0,
            s => of(bs * r.div_ceil((shape.shared_expert_rank_num() / s).into()), results),
        };
        of(bs * r * l.min(k), results).max(on_shared)
    };
    // Rows that experts overwrite are as long as results.
    let ways = [1, 2].into_iter().flat_map(|areas| [Receive::Direct { areas }, Receive::Overwrite { areas }]);
    for receive in ways.filter(|receive| !receive.overwrites() || shape.payload_bytes() == shape.row_bytes())
    {
        let required = direct::required_bytes(shape, receive.areas(), receive.overwrites());
        let most = most(!receive.overwrites());
        assert_eq!(u128::from(required), u128::from(receive.areas()) * most, "required_bytes of {receive:?}");
        let mb = required.div_ceil(1 << 20).max(shape.window_bytes() >> 20);
        let config = Config { hccl_buffsize_mb: mb as i64, ..*config };
        let Ok(shape) = Shape::new(&config, limits) else {
            assert!(mb > u32::MAX.into(), "{mb} MiB are refused");
            continue;
        };
        let rs = shape.shared_expert_rank_num();
        for rank in [0, rs.saturating_sub(1), rs, shape.ep_world_size() - 1].map(RankId) {
            disjoint(&shape, rank, Choices { receive, ..Choices::default() });
        }
    }
}

/// The corners of A3's areas, by the formulas that machines use.
pub(super) fn places(shape: &Shape) {
    let (ranks, bs) = (shape.ep_world_size(), shape.bs_max());
    let rs = shape.shared_expert_rank_num();
    for (rank, p) in [(0, Partition::P0), (rs.min(ranks - 1), Partition::P1)] {
        let rank = RankId(rank);
        let home = Home { rank, local_expert: shape.local_experts(rank) - 1 };
        let last = data::dispatch_record(shape, p, home, RankId(ranks - 1), bs - 1);
        let end = data::partition_start(shape, p) + shape.window_bytes() / 2;
        assert!(last.offset + shape.record_pitch() <= end, "the last record leaves its partition");
        let triple = record::triple_of(shape, last).offset + record::Triple::BYTES;
        assert!(triple <= last.offset + shape.record_pitch(), "the triple leaves its record");
        let row = data::combine_row(shape, p, Token(bs - 1), shape.combine_columns() - 1).offset;
        let first = data::dispatch_record(shape, p, Home { rank, local_expert: 0 }, RankId(0), 0).offset;
        assert!(row + shape.result_bytes() <= first, "the last result lies in the dispatch area");
        let slot = state::dispatch_slot(shape, home.local_expert, RankId(ranks - 1));
        let slots = state::Slots::Shipped;
        let first = slots.combine_status(p, 0).offset;
        assert!(slots.dispatch_status(p, slot).offset < first);
        let last = RankId(ranks - 1);
        let grant = state::Direct::Grants.entry(shape, p, last, shape.local_expert_num() - 1);
        assert!(grant.offset + 4 <= first, "grants reach combine's status");
        let word = state::Direct::TokenFlags.word(shape, p, last);
        assert_eq!(state::Direct::of(shape, word), Some(state::Direct::TokenFlags));
        let slot = state::combine_slot(shape, Token(bs - 1), shape.combine_columns() - 1);
        let end = (u64::from(p.index()) + 1) * state::PARTITION;
        assert!(slots.combine_status(p, slot).offset + slots.bytes() <= end);
    }
}

/// The corners of a hierarchy's areas, and streams as an agent sends them.
pub(super) fn relays(shape: &Shape) {
    disjoint(shape, RankId(0), Choices { stage: Stage::Two, ..Choices::default() });
    let (servers, bs) = (shape.servers(), shape.bs_max());
    let experts = shape.local_expert_num();
    let end_of = |name, p| {
        let area = map::areas(shape, Mode::default(), RankId(0))
            .find(|area| (area.named, area.partition) == (name, p));
        area.map_or(0, |area| area.start.offset + area.size())
    };
    let slots = end_of(Named::NearSlots, None);
    let (last, token) = (RankId(shape.ep_world_size() - 1), Token(bs - 1));
    let row = relay::behind(relay::dispatch_slot(shape, experts - 1, last, bs - 1), relay::ROW);
    assert!(
        row.offset + shape.payload_bytes() + relay::Tail::BYTES <= slots,
        "the last tail leaves its slot"
    );
    let row = relay::behind(
        relay::combine_slot(shape, servers - 1, token, relay::pairs_max(shape) - 1),
        relay::ROW,
    );
    assert_eq!(relay::returned_at(shape, row), Some((servers - 1, token, relay::pairs_max(shape) - 1)));
    let beyond = relay::behind(relay::combine_slot(shape, servers, Token(0), 0), relay::ROW);
    for at in [relay::behind(row, 8), beyond] {
        assert_eq!(relay::returned_at(shape, at), None);
    }
    assert!(row.offset + shape.row_bytes() + relay::WEIGHT_BYTES <= slots, "the last weight leaves its slot");
    // Relay areas are after the words, the second one behind the first, the near area after both.
    let mut before = end_of(Named::Counts, Some(Partition::P1));
    for p in [Partition::P0, Partition::P1] {
        let behind = end_of(Named::RelayRecords, Some(p));
        for (kind, server) in KINDS.into_iter().flat_map(|kind| [0, servers - 1].map(|server| (kind, server)))
        {
            let record = relay::record(shape, p, server, bs - 1).offset;
            assert!(record + relay::record_bytes(shape, kind) <= behind, "the last record leaves its area");
            let (first, end) =
                (relay::gathered(shape, (p, kind), server, bs - 1), relay::gathered_end(shape, p, server));
            let earlier = server.checked_sub(1).map_or(before, |n| relay::gathered_end(shape, p, n) + 8);
            assert!(earlier <= first && first.is_multiple_of(8), "a stream begins in another");
            assert_eq!(first + relay::gathered_bytes(shape, kind, bs), end + 8);
            for at in [first, end].map(Place::window_out) {
                assert_eq!(relay::gathered_for(shape, at), Some(server));
                assert_eq!(relay::gathered_for(shape, Place::window(at.offset)), None);
            }
        }
        before = relay::gathered_end(shape, p, servers - 1) + 8;
    }
    assert!(before <= relay::near_area(), "a stream reaches the near area");
}

/// The longest windows of A2 fit.
pub(super) fn windows(shape: &Shape) {
    let most = shape.bs_max() * shape.local_expert_num().min(shape.k());
    for kind in KINDS {
        let sent = a2_window::sent_bytes(shape, kind, most);
        assert!(sent <= shape.rank_window(), "{sent} bytes do not fit {}", shape.rank_window());
        assert!(sent.is_multiple_of(8));
        for rows in [0, 1, most] {
            let flag = a2_window::tail_flag(shape, kind, rows);
            assert_eq!(a2_window::next_flag_place(shape, flag), flag, "a flag that no rank would clear");
        }
    }
    assert_eq!(a2_window::next_flag_place(shape, a2_window::FLAG1), a2_window::FLAG1);
}

/// The fields of records and rows are one behind the other, inside them.
pub(super) fn fields(shape: &Shape) {
    let (records, len): (Vec<_>, _) = match shape.protocol() {
        Protocol::FullmeshV1 => (map::record_fields(shape).collect(), record::sent_bytes(shape)),
        // The data goes on after the flag of each block.
        Protocol::FullmeshV2 => (map::record_fields(shape).skip(1).take(2).collect(), shape.record_pitch()),
        Protocol::Fullmesh => (map::record_fields(shape).collect(), shape.window_record()),
        Protocol::Hierarchy => (map::record_fields(shape).collect(), relay::token_bytes(shape)),
        other => unreachable!("{other:?} is not fuzzed"),
    };
    for (fields, len) in [(records, len), (map::combine_fields(shape).collect(), shape.result_bytes())] {
        let end = fields.iter().fold(0, |end, field| {
            assert!(end <= field.offset, "{field:?} begins in another");
            field.offset + field.size
        });
        assert!(0 < end && end <= len, "{fields:?} leave the {len} bytes");
    }
}

/// Of foreign triples, at the ends of their ranges and beyond, those are taken that a row can have.
pub(super) fn triples(shape: &Shape) {
    let ends = |n: u32| [-1, 0, n.cast_signed() - 1, n.cast_signed(), i32::MAX];
    let [ranks, bs, k] = [shape.ep_world_size(), shape.bs_max(), shape.k()];
    let pairs = k.min(shape.server_ranks() * shape.local_expert_num()).cast_signed();
    let columns = (k + shape.shared_expert_num()).cast_signed();
    for (source, token) in ends(ranks).into_iter().flat_map(|source| ends(bs).map(|token| (source, token))) {
        let bytes = |k: i32| [source, token, k].map(i32::to_le_bytes).concat();
        let is_row = (0..ranks.cast_signed()).contains(&source)
            && (0..shape.bs(RankId(source.cast_unsigned())).cast_signed()).contains(&token);
        if shape.protocol() == Protocol::Hierarchy {
            for (of, position) in [(0, 0), (1, 0), (1, 1), (pairs, pairs - 1), (pairs, pairs), (pairs + 1, 0)]
            {
                let can_be = is_row && position < of && of <= pairs;
                assert_eq!(relay::read_triple(shape, &bytes(of << 16 | position)).is_ok(), can_be);
            }
        } else {
            for k in ends(columns.cast_unsigned()) {
                let can_be = is_row && (0..columns).contains(&k);
                let triple = record::Triple::from_bytes(shape, &bytes(k));
                assert_eq!(triple.is_ok(), can_be);
                for rank in [0, ranks - 1].map(RankId).into_iter().filter(|_| can_be) {
                    let seen = triple.is_ok_and(|triple| triple.may_be_on(shape, rank));
                    assert_eq!(seen, has_column(shape, rank, source.cast_unsigned(), k.into()));
                }
            }
        }
    }
}
