//! All limits at once: configurations of which no number can be raised, and every place that the layout has for them.

use super::a2_message::Task;
use super::affine::{INDICES_MAX, Index, Map, Mode, maps};
use super::map::{self, Area};
use super::quantity::Memory;
use super::record::Triple;
use super::state::{Operator, Partition};
use super::tests::assert_disjoint;
use super::{a2_window, direct, forward, outputs, relay};
use crate::place::{Place, Region, Tensor};
use crate::protocol::{Choices, Receive};
use crate::shape::{BatchSizes, Config, Limits, Protocol, Shape};
use crate::units::{RankId, Token};
use alloc::vec::Vec;

/// The first byte whose offset has a 33rd bit.
const BEYOND: u64 = 1 << 32;

/// Every whole number below this is a number of JSON, and an `f64`.
const EXACT: u64 = 1 << 53;

/// Raises one number of a configuration to the next one that could be legal.
type Raise = (&'static str, fn(&mut Config<'_>));

const RAISES: [Raise; 13] = [
    ("ep_world_size", |c| {
        let capacity = c.global_bs / c.ep_world_size;
        c.ep_world_size += if is_a3(c) { 1 } else { 8 };
        c.global_bs = capacity * c.ep_world_size;
    }),
    ("moe_expert_num", |c| c.moe_expert_num += c.ep_world_size - c.shared_expert_rank_num),
    ("shared_expert_num", |c| c.shared_expert_num += 1),
    ("shared_expert_rank_num", |c| c.shared_expert_rank_num += c.shared_expert_num.max(1)),
    ("zero_expert_num", |c| c.zero_expert_num += 1),
    ("copy_expert_num", |c| c.copy_expert_num += 1),
    ("const_expert_num", |c| c.const_expert_num += 1),
    ("k", |c| c.k += 1),
    ("h", |c| c.h += if is_a3(c) { 1 } else { 32 }),
    ("bs", |c| c.bs = BatchSizes::Uniform(uniform(c) + 1)),
    ("global_bs", |c| c.global_bs += c.ep_world_size),
    ("hccl_buffsize_mb", |c| c.hccl_buffsize_mb += 1),
    ("aiv_num", |c| c.aiv_num += 1),
];

fn is_a3(c: &Config<'_>) -> bool {
    matches!(c.comm_alg, Protocol::FullmeshV1 | Protocol::FullmeshV2)
}

fn uniform(c: &Config<'_>) -> i64 {
    let BatchSizes::Uniform(bs) = c.bs else { panic!("{c:?}") };
    bs
}

/// Returns the configuration with as many special experts, cores and bytes of window as there may be, and batches of
/// `capacity` tokens, of which only some may be there.
fn filled(config: Config<'static>, capacity: i64) -> Config<'static> {
    let specials = if config.comm_alg == Protocol::Hierarchy { 0 } else { i64::from(i32::MAX) };
    Config {
        copy_expert_num: (specials - config.moe_expert_num).max(0),
        global_bs: capacity * config.ep_world_size,
        hccl_buffsize_mb: i64::from(u32::MAX),
        aiv_num: 48,
        port_offset: if is_a3(&config) { 1 << 30 } else { 0 },
        ..config
    }
}

/// Returns the largest configurations of each protocol, each with the numbers of it that the others would let be larger.
fn corners() -> Vec<(Config<'static>, &'static [&'static str])> {
    let a3 = Config {
        ep_world_size: 768,
        shared_expert_num: 4,
        shared_expert_rank_num: 256,
        moe_expert_num: 1024,
        k: 16,
        h: 8192,
        bs: BatchSizes::Uniform(512),
        ..Config::default()
    };
    let alone = Config { shared_expert_num: 1, shared_expert_rank_num: 0, moe_expert_num: 768, k: 1, ..a3 };
    let blocks = |config: Config<'static>| Config { comm_alg: Protocol::FullmeshV2, ..config };
    let a2 = Config {
        comm_alg: Protocol::Fullmesh,
        ep_world_size: 256,
        shared_expert_num: 1,
        moe_expert_num: 1024,
        k: 16,
        h: 10240,
        bs: BatchSizes::Uniform(256),
        ..Config::default()
    };
    let tree = |h, bs| Config {
        comm_alg: Protocol::Hierarchy,
        ep_world_size: 64,
        shared_expert_num: 1,
        moe_expert_num: 512,
        k: 16,
        h,
        bs: BatchSizes::Uniform(bs),
        ..Config::default()
    };
    let mut all = Vec::new();
    for a3 in [a3, blocks(a3)] {
        // The combine slots are full: 512 * (16 + 4) = 10240.
        all.push((filled(a3, 512), &[][..]));
    }
    for alone in [alone, blocks(alone)] {
        all.push((filled(alone, 10240), &[][..]));
    }
    // The most experts of a rank: all on two.
    let two = Config { ep_world_size: 2, moe_expert_num: 1024, k: 16, ..alone };
    all.push((filled(two, 640), &[]));
    // TP peers have one expert each.
    let tp = Config { tp_world_size: 2, shared_expert_rank_num: 4, moe_expert_num: 764, ..a3 };
    all.push((filled(tp, 512), &[]));
    all.push((filled(a2, 65535), &[]));
    // 24 experts a rank, whose counts end where the first flag begins.
    all.push((filled(Config { ep_world_size: 40, moe_expert_num: 960, ..a2 }, 65535), &["ep_world_size"]));
    // The relay area is full: with the longest rows, with the largest batches, and with the most tokens.
    for (h, bs, capacity) in [(10240, 323, 323), (6400, 512, 514), (32, 512, 26111)] {
        all.push((filled(tree(h, bs), capacity), &[]));
    }
    all
}

/// Returns a configuration and its forms on the wire.
fn formats(config: &Config<'static>) -> Vec<Config<'static>> {
    let modes = [(0, 0), (2, 0), (0, 2), (2, 2)].into_iter();
    let all = modes.map(|(quant_mode, comm_quant_mode)| Config { quant_mode, comm_quant_mode, ..*config });
    all.filter(|config| Shape::new(config, Limits::Product).is_ok()).collect()
}

fn shapes() -> Vec<Shape> {
    let of = |(config, _): (Config<'static>, _)| formats(&config);
    corners().into_iter().flat_map(of).map(|config| Shape::new(&config, Limits::Product).unwrap()).collect()
}

/// Returns the ways to place rows directly that a shape allows, for as many batches in flight as there may be.
fn landings(shape: &Shape) -> impl Iterator<Item = Receive> {
    let all = [Receive::Direct { areas: 2 }, Receive::Overwrite { areas: 2 }].into_iter();
    all.filter(|receive| receive.suits(shape))
}

/// Returns the modes of a shape, each once.
fn modes(shape: &Shape) -> Vec<Mode> {
    let mut modes: Vec<Mode> = Vec::new();
    let landing = landings(shape).map(|receive| Choices { receive, ..Choices::default() });
    for mode in Choices::all(shape).chain(landing).map(|choices| choices.mode()) {
        if !modes.contains(&mode) {
            modes.push(mode);
        }
    }
    modes
}

/// Returns the first rank, the first without a shared expert, and the last.
fn ranks(shape: &Shape) -> [RankId; 3] {
    [0, shape.shared_expert_rank_num(), shape.ep_world_size() - 1].map(RankId)
}

/// Returns the smallest and the largest value of each index, in all combinations. A rank of fewer tokens than the capacity has
/// only the first entries of its outputs.
fn ends(shape: &Shape, rank: RankId, map: &Map) -> Vec<[u32; INDICES_MAX]> {
    let mut all = alloc::vec![[0; INDICES_MAX]];
    for (n, dim) in map.dims().iter().enumerate() {
        let is_of_output = matches!((map.region, dim.index), (Region::Output(_), Index::Token));
        let extent = if is_of_output { shape.bs(rank) } else { dim.extent };
        let last = all.clone().into_iter().map(|mut indices| {
            indices[n] = extent.saturating_sub(1);
            indices
        });
        all.extend(last.collect::<Vec<_>>());
    }
    all
}

#[test]
fn no_number_of_the_largest_configurations_can_be_raised() {
    for (config, free) in corners() {
        Shape::new(&config, Limits::Product).unwrap_or_else(|e| panic!("{config:?}: {e:?}"));
        for (name, raise) in RAISES {
            let mut raised = config;
            raise(&mut raised);
            let is_legal = Shape::new(&raised, Limits::Product).is_ok();
            assert_eq!(is_legal, free.contains(&name), "{name} of {config:?}");
        }
    }
}

#[test]
fn areas_of_the_largest_shapes_are_disjoint_and_in_their_regions() {
    let mut beyond = Vec::new();
    for shape in shapes() {
        for (mode, rank) in modes(&shape).into_iter().flat_map(|mode| ranks(&shape).map(|rank| (mode, rank)))
        {
            let areas: Vec<_> = map::areas(&shape, mode, rank).collect();
            for area in &areas {
                assert!(area.slot <= area.stride && area.start.offset.is_multiple_of(8), "{area:?}");
            }
            if areas.iter().any(|area| area.start.offset >= BEYOND && area.stride > 0) {
                beyond.push(shape.protocol());
            }
            assert_disjoint(areas.iter().map(|area| (area.start, Area::size(area))).collect(), &shape, rank);
        }
    }
    for protocol in [Protocol::FullmeshV1, Protocol::FullmeshV2, Protocol::Fullmesh] {
        assert!(beyond.contains(&protocol), "{protocol:?}: nothing begins beyond 4 GiB");
    }
}

/// Bytes of the memory in which a map lies: those of its region, of the output, or of a slot of what it is inside. The table
/// says the same.
fn room(shape: &Shape, mode: Mode, rank: RankId, map: &Map) -> u64 {
    let slots = map.named.inside().iter().filter_map(|outer| outer.map(shape, mode, rank));
    if let Some(slot) = slots.map(|outer| outer.bytes).min() {
        return slot;
    }
    let room = match map.region {
        // The table has the counts alone, which the formulas of A2 follow with more.
        Region::Output(Tensor::EpRecvCounts) => outputs::ep_recv_counts_bytes(shape, rank),
        Region::Output(tensor) => outputs::capacity(shape, rank, tensor),
        Region::State => super::state::STATE_BYTES,
        Region::TpState => super::tp::TP_STATE_BYTES,
        Region::TpWindow => super::tp::window_bytes(shape, rank),
        Region::Window | Region::WindowOut => shape.window_bytes(),
    };
    assert_eq!(Memory { shape, mode, rank }.value(&map.region.room()), room, "{map:?}");
    room
}

#[test]
fn every_place_of_the_largest_shapes_is_in_range_and_an_exact_number() {
    for shape in shapes() {
        for (mode, rank) in modes(&shape).into_iter().flat_map(|mode| ranks(&shape).map(|rank| (mode, rank)))
        {
            for map in maps(&shape, mode, rank) {
                let room = room(&shape, mode, rank, &map);
                assert!(room < EXACT, "{map:?}");
                // Other ranks of the same kind have the same map, their own offsets added.
                let owner = rank.0.checked_sub(shape.shared_expert_rank_num()).unwrap_or(rank.0);
                for indices in ends(&shape, rank, &map) {
                    let place = forward::place(map.named, &shape, mode, rank, indices);
                    assert_eq!(place.offset, map.offset(indices), "{indices:?} of {map:?}");
                    let is_other = map
                        .dims()
                        .iter()
                        .zip(indices)
                        .any(|(dim, index)| dim.index == Index::Owner && index != owner);
                    let end = place.offset + map.bytes;
                    assert!(is_other || end <= room, "{indices:?} of {map:?}: {end} of {room}");
                }
            }
        }
    }
}

#[test]
fn numbers_of_rows_of_the_largest_shapes_are_numbers_of_32_bits() {
    for shape in shapes() {
        for rank in ranks(&shape) {
            let rows = shape.rows_max(rank) * u64::from(shape.tp_world_size());
            assert!(rows > 0 && rows <= u32::MAX.into(), "{rows} rows");
            for (tensor, bytes) in map::outputs(&shape, rank) {
                // Machines neither write nor read what follows the counts.
                let used = match tensor {
                    Tensor::EpRecvCounts => outputs::ep_recv_counts_bytes(&shape, rank),
                    _ => bytes,
                };
                let entry = outputs::entry(&shape, tensor, 1).offset;
                assert!(used / entry <= u32::MAX.into() && bytes < EXACT, "{tensor:?}: {bytes}");
            }
            let (token, of_tokens) =
                (Token(shape.bs(rank) - 1), outputs::capacity(&shape, rank, Tensor::XOut));
            assert_eq!(outputs::x_out(&shape, token).offset + shape.row_bytes(), of_tokens);
        }
        let (source, k) = (RankId(shape.ep_world_size() - 1), shape.combine_columns() - 1);
        let triple = Triple { source, token: Token(shape.bs(source) - 1), k };
        assert_eq!(Triple::from_bytes(&shape, &triple.to_bytes()), Ok(triple));
    }
}

/// Counts of rows and records travel in 16 bits beside an epoch, and pairs of a token beside a position.
#[test]
fn the_largest_counts_of_a_hierarchy_come_back() {
    for shape in shapes().iter().filter(|shape| shape.protocol() == Protocol::Hierarchy) {
        for number in [0, 1, 255, 256, shape.bs_max() - 1, shape.bs_max()] {
            assert_eq!(relay::unmark(relay::mark(0xFFFF_FFFF_FFFF, number)), (0xFFFF_FFFF_FFFF, number));
        }
        let pairs = relay::pairs_max(shape);
        let (source, token) = (RankId(shape.ep_world_size() - 1), Token(shape.bs_max() - 1));
        let part = relay::Part { pairs, position: pairs - 1 };
        let at = relay::combine_slot(shape, shape.servers() - 1, token, pairs - 1);
        assert_eq!(
            relay::returned_at(shape, relay::behind(at, relay::ROW)),
            Some((shape.servers() - 1, token, pairs - 1))
        );
        if token.0 < shape.bs(source) {
            let tail = relay::Tail { scale: 1.0, source, token, part, weight: 1.0 };
            let bytes = tail.to_bytes();
            let triple = bytes.as_flattened().get(4..16).unwrap();
            assert_eq!(relay::read_triple(shape, triple), Ok((source, token, part)));
        }
    }
}

/// The task of a window that is full ends in the window, at both ends, and its words come back whole.
#[test]
fn the_largest_tasks_lie_in_their_windows() {
    let mut last = 0;
    for shape in shapes().iter().filter(|shape| shape.window_out_bytes() > 0) {
        let ends = [0, shape.ep_world_size() - 1].map(RankId);
        for (rank, peer) in [(ends[0], ends[1]), (ends[1], ends[0])] {
            for half in [Partition::P0, Partition::P1] {
                for kind in [Operator::Dispatch, Operator::Combine] {
                    let task = if shape.protocol() == Protocol::Fullmesh {
                        let rows = shape.bs_max() * shape.local_expert_num().min(shape.k());
                        assert!(
                            a2_window::sent_bytes(shape, kind, rows) <= shape.rank_window(),
                            "{rows} rows"
                        );
                        Task::new(shape, half, kind, rank, peer, rows)
                    } else {
                        let (server, _) = shape.server_of(peer);
                        Task::stream(shape, (half, kind), rank, server, shape.bs_max())
                    };
                    for start in [task.local_buf, task.remote_buf] {
                        let end = start + 8 * task.count;
                        assert!(end <= shape.window_bytes(), "{task:?}");
                        last = last.max(end);
                    }
                    assert_eq!(Task::from_words(task.to_words()), task);
                }
            }
        }
    }
    assert!(last > BEYOND, "no task ends beyond 4 GiB");
}

/// Row tables carry whole places.
#[test]
fn places_of_row_tables_beyond_4_gib_come_back() {
    let mut seen = 0;
    for shape in shapes() {
        for overwritten in landings(&shape).map(Receive::overwrites) {
            for rank in ranks(&shape) {
                let parts = direct::Parts::of(&shape, rank, direct::Area { number: 1, overwritten });
                let row = shape.rows_max(rank) as u32 - 1;
                for place in [parts.row(row), parts.result(row)] {
                    assert!(place.offset + shape.payload_bytes() <= shape.window_bytes());
                    let table = super::row_table::entry(place);
                    let back: Vec<Place> = super::row_table::records(&table, 1).collect();
                    assert_eq!(back, [place]);
                    seen += u32::from(place.offset >= BEYOND);
                }
            }
        }
    }
    assert!(seen > 0);
}
