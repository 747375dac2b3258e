//! Offsets computed by hand, complete maps as text, and checks that nothing overlaps.

use super::affine::{Mode, Named};
use super::block;
use super::data::{combine_row, dispatch_record, partition_start};
use super::map::{self, Area};
use super::record::{Tail, Triple, scale_of, sent_bytes, triple_of};
use super::row_table;
use super::state::{
    DISPATCH_STATUS, Direct, Operator, PARTITION, Partition, STATE_BYTES, Slots, combine_slot, core_sums,
    core_word, dispatch_slot, selector,
};
use super::{outputs, result, tp};
use crate::place::{Place, Region, Tensor};
use crate::placement::Home;
use crate::shape::{BatchSizes, Config, Limits, Protocol, Shape};
use crate::testing::domain::{Domain, PAIR, shape as shape_of, try_shape};
use crate::testing::golden;
use crate::testing::random;
use crate::units::{CoreId, RankId, Token};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;
use proptest::prelude::*;

const PARTITIONS: [Partition; 2] = [Partition::P0, Partition::P1];

/// 16 ranks with 16 experts each, H = 7168, 200 MiB.
fn decode() -> Config<'static> {
    Config { moe_expert_num: 256, ..Config::default() }
}

/// 256 MoE ranks and 32 with a shared expert.
fn a3_288() -> Config<'static> {
    Config {
        ep_world_size: 288,
        moe_expert_num: 256,
        shared_expert_num: 1,
        shared_expert_rank_num: 32,
        bs: BatchSizes::Uniform(48),
        hccl_buffsize_mb: 512,
        ..Config::default()
    }
}

fn product_shape(config: &Config<'_>) -> Shape {
    Shape::new(config, Limits::Product).unwrap()
}

/// The map, the record and the outputs of a rank as a table.
fn table(shape: &Shape, rank: u32) -> String {
    let mut out = String::new();
    let head = ["start", "end", "count", "stride", "used"];
    let [a, b, c, d, e] = head;
    writeln!(out, "{:<22}{:>4}  {:<18}{b:>12}{c:>8}{d:>8}{e:>8}", "area", "part", a).unwrap();
    for area in map::areas(shape, Mode::default(), RankId(rank)) {
        let partition = area.partition.map_or(String::from("-"), |p| format!("{}", p.index()));
        let Area { named, start, count, stride, slot, .. } = area;
        let end = format!("{:#x}", start.offset + area.size());
        let start = format!("{start}");
        let name = named.name();
        writeln!(out, "{name:<22}{partition:>4}  {start:<18}{end:>12}{count:>8}{stride:>8}{slot:>8}")
            .unwrap();
    }
    for map::Field { name, offset, size } in map::record_fields(shape) {
        writeln!(out, "record field {:<9}       +{offset:<17}{size:>12} B", name.name()).unwrap();
    }
    for (tensor, bytes) in map::outputs(shape, RankId(rank)) {
        writeln!(out, "output {:<35}{bytes:>20} B", tensor.name()).unwrap();
    }
    out
}

#[test]
fn the_maps_of_well_known_shapes_are_as_committed() {
    let tiny = Domain { r: 2, e: 4, k: 2, h: 1024, bs: 4, cores: 8, ..PAIR };
    let odd = Domain { r: 4, e: 6, s: 1, rs: 1, k: 3, h: 37, bs: 5, cores: 48 };
    let quantised = |config: Config<'static>| shape_of(&Config { quant_mode: 2, ..config });
    golden::check("map_decode_rank_0.txt", &table(&product_shape(&decode()), 0));
    golden::check("map_a3_288_rank_0.txt", &table(&product_shape(&a3_288()), 0));
    golden::check("map_a3_288_rank_287.txt", &table(&product_shape(&a3_288()), 287));
    golden::check("map_tiny_rank_1.txt", &table(&tiny.shape(), 1));
    golden::check("map_odd_int8_rank_3.txt", &table(&quantised(odd.config()), 3));
    let blocks = Config { comm_alg: Protocol::FullmeshV2, ..tiny.config() };
    golden::check("map_tiny_v2_rank_1.txt", &table(&shape_of(&blocks), 1));
}

#[test]
fn status_slots_are_expert_major_and_records_rank_major() {
    let shape = product_shape(&decode());
    let (p1, home) = (Partition::P1, Home { rank: RankId(9), local_expert: 2 });
    let slot = dispatch_slot(&shape, 2, RankId(3));
    assert_eq!(slot, 2 * 16 + 3);
    assert_eq!(Slots::Shipped.dispatch_status(p1, slot), Place::state(384 * 1024 + 35 * 32));
    // Slot 5 of rank 3: pitch align(14336 + 32 + 12, 512) = 14848 after 16 * 8 combine rows of 14336.
    let record = (3 * 16 + 2) * 16 + 5;
    let area = 100 * 1024 * 1024 + 16 * 8 * 14336;
    assert_eq!(dispatch_record(&shape, p1, home, RankId(3), 5), Place::window(area + record * 14848));
    assert_eq!(area + record * 14848, 118_645_248);

    // The two orders differ: neighbours of one kind are far apart in the other.
    let block = |e, r| dispatch_record(&shape, p1, Home { local_expert: e, ..home }, RankId(r), 0).offset;
    assert!(dispatch_slot(&shape, 0, RankId(1)) < dispatch_slot(&shape, 1, RankId(0)));
    assert!(block(0, 1) > block(1, 0));
}

#[test]
fn a_record_of_7168_elements_takes_thirty_blocks() {
    let shape = shape_of(&Config { comm_alg: Protocol::FullmeshV2, ..decode() });
    let record = Place::window(512);
    // 14336 + 32 + 12 = 14380 = 29 * 480 + 460.
    assert_eq!((block::count(&shape), shape.record_pitch()), (30, 30 * 512));
    assert_eq!(block::stream(28, 14380), 13440..13920);
    assert_eq!(block::stream(29, 14380), 13920..14380);
    assert!(block::stream(30, 14380).is_empty());
    assert_eq!(block::block(record, 29), Place::window(512 + 29 * 512));
    assert_eq!(block::flag(record, 0), Place::window(512 + 480));
    assert_eq!(block::flag(record, 29), Place::window(512 + 29 * 512 + 480));
    assert_eq!(scale_of(&shape, record), Place::window(512 + 29 * 512 + 416));
    assert_eq!(triple_of(&shape, record), Place::window(512 + 29 * 512 + 448));
    // 210 elements: 448 bytes of data, and the triple begins the second block.
    let config = Config { comm_alg: Protocol::FullmeshV2, ..Domain { h: 210, ..PAIR }.config() };
    let shape = shape_of(&config);
    assert_eq!(
        (scale_of(&shape, record), triple_of(&shape, record)),
        (Place::window(960), Place::window(1024))
    );
}

#[test]
fn every_byte_of_a_stream_is_in_a_block_and_no_field_crosses_two() {
    for (h, quant_mode) in (1..1500).flat_map(|h| [0, 2].map(|quant_mode| (h, quant_mode))) {
        let config = Config { comm_alg: Protocol::FullmeshV2, quant_mode, ..Domain { h, ..PAIR }.config() };
        let (shape, record) = (shape_of(&config), Place::window(0));
        let len = sent_bytes(&shape);
        let mut next = 0;
        for b in 0..block::count(&shape) {
            let stream = block::stream(b, len);
            assert!(stream.start == next && stream.end > next, "h {h}, block {b}");
            for i in [stream.start, stream.end - 1] {
                assert_eq!(block::byte(i), block::block(record, b).offset + i - stream.start, "byte {i}");
                assert!(block::byte(i) < block::flag(record, b).offset, "byte {i}");
            }
            next = stream.end;
        }
        assert_eq!(next, len, "h {h}");
        for (at, size) in [(scale_of(&shape, record), 32), (triple_of(&shape, record), 12)] {
            assert!(at.offset % 512 + size <= 480, "h {h}: {at}");
        }
        assert_eq!(u64::from(block::count(&shape)) * 512, shape.record_pitch());
    }
}

#[test]
fn a_combine_row_and_its_flag_count_token_major() {
    let shape = product_shape(&decode());
    assert_eq!(combine_slot(&shape, Token(3), 4), 28);
    assert_eq!(Slots::Shipped.combine_status(Partition::P0, 28), Place::state(66_432));
    assert_eq!(Slots::Shipped.combine_status(Partition::P1, 28), Place::state(66_432 + 393_216));
    assert_eq!(combine_row(&shape, Partition::P0, Token(3), 4), Place::window(401_408));
    assert_eq!(combine_row(&shape, Partition::P1, Token(3), 4), Place::window(104_857_600 + 401_408));
    // With a shared expert a token has nine columns.
    assert_eq!(combine_slot(&product_shape(&a3_288()), Token(3), 8), 35);
}

#[test]
fn selectors_and_core_words_lie_at_768_818_and_848_kib() {
    let core = CoreId(7);
    assert_eq!(selector(Operator::Dispatch, core), Place::state(768 * 1024 + 7 * 512));
    assert_eq!(selector(Operator::Combine, core), Place::state(818 * 1024 + 7 * 512));
    let words = [0, 1, 2, 3].map(|epoch| core_word(core, epoch).offset - 848 * 1024 - 7 * 512);
    assert_eq!(words, [0, 64, 0, 64]);
}

#[test]
fn a_shared_expert_rank_has_one_block_for_each_source() {
    let shape = product_shape(&a3_288());
    let home = Home { rank: RankId(5), local_expert: 0 };
    let at = |source, slot| dispatch_record(&shape, Partition::P0, home, RankId(source), slot).offset;
    assert_eq!(at(37, 2) - at(0, 0), (37 * 48 + 2) * 14848);
    assert_eq!(at(0, 0), 48 * 9 * 14336, "after the combine area");

    // The same holds where MoE ranks have three experts: (source * max_bs + token) * pitch.
    let domain = Domain { r: 4, e: 9, s: 1, rs: 1, k: 2, h: 8, bs: 5, cores: 1 };
    let shape = shape_of(&Config { port_offset: 1024, ..domain.config() });
    let at = |rank, local_expert, source, slot| {
        let home = Home { rank: RankId(rank), local_expert };
        dispatch_record(&shape, Partition::P0, home, RankId(source), slot).offset - shape.combine_area()
    };
    assert_eq!(at(0, 0, 3, 2), (3 * 5 + 2) * 512 + 3 * 1024);
    assert_eq!(at(1, 2, 3, 2), ((3 * 3 + 2) * 5 + 2) * 512 + (3 + 1) * 1024);
}

#[test]
fn a_port_offset_moves_blocks_by_source_and_owner_and_widens_pitch() {
    let config = |port_offset| Config { hccl_buffsize_mb: 512, port_offset, ..decode() };
    let (plain, moved) = (product_shape(&config(0)), product_shape(&config(1536)));
    let home = Home { rank: RankId(9), local_expert: 2 };
    for partition in PARTITIONS {
        for source in 0..16 {
            let at = |shape: &Shape| {
                let record = dispatch_record(shape, partition, home, RankId(source), 5);
                record.offset - partition_start(shape, partition) - shape.combine_area()
            };
            assert_eq!(at(&moved), at(&plain) + u64::from(source + 9) * 1536);
        }
        // H = 7168: 28 packets, a multiple of the seven ports.
        let at =
            |shape| combine_row(shape, partition, Token(3), 4).offset - partition_start(shape, partition);
        assert_eq!([at(&plain), at(&moved)], [28, 29].map(|packets| 28 * packets * 512));
    }
    // There is one area per source, each as long as before, 1536 B apart.
    let records = |shape| -> Vec<Area> {
        map::areas(shape, Mode::default(), RankId(9))
            .filter(|area| area.named == Named::DispatchRecords)
            .collect()
    };
    let (plain, moved) = (records(&plain), records(&moved));
    assert_eq!((plain.len(), moved.len()), (2, 32));
    assert_eq!(moved.iter().map(|area| area.count).sum::<u64>(), plain.iter().map(|area| area.count).sum());
    assert!(moved[..16].windows(2).all(|p| p[1].start.offset == p[0].start.offset + p[0].size() + 1536));
}

#[test]
fn an_odd_row_is_padded_to_32_bytes_before_its_scale() {
    let record = Place::window(512);
    let odd = Domain { h: 37, ..PAIR };
    let plain = odd.shape();
    assert_eq!(
        (scale_of(&plain, record), triple_of(&plain, record)),
        (Place::window(608), Place::window(640))
    );
    let int8 = shape_of(&Config { quant_mode: 2, ..odd.config() });
    assert_eq!((scale_of(&int8, record), triple_of(&int8, record)), (Place::window(576), Place::window(608)));
    // With 32 + 1 B the next record starts once the triple no longer fits.
    let pitch = |h| Domain { h, ..PAIR }.shape().record_pitch();
    assert_eq!([233, 234, 240, 241].map(pitch), [1024, 1024, 1024, 1024]);
    assert_eq!([1, 224, 225].map(pitch), [512, 512, 1024]);
}

#[test]
fn a_tail_holds_padding_then_scale_then_triple() {
    let triple = Triple { source: RankId(1), token: Token(0x0203), k: 4 };
    let shape = shape_of(&Config { quant_mode: 2, ..Domain { h: 37, bs: 600, ..PAIR }.config() });
    let tail = Tail::new(&shape, 1.0, triple);
    let mut expected = [0; 27 + 32 + 12];
    expected[27..31].copy_from_slice(&[0, 0, 0x80, 0x3F]);
    expected[59..].copy_from_slice(&[1, 0, 0, 0, 3, 2, 0, 0, 4, 0, 0, 0]);
    assert_eq!(tail.as_bytes(), expected);
    for h in 1..100 {
        for quant_mode in [0, 2] {
            let shape = shape_of(&Config { quant_mode, ..Domain { h, ..PAIR }.config() });
            let whole = shape.payload_bytes() + Tail::new(&shape, 0.5, triple).as_bytes().len() as u64;
            assert_eq!(whole, triple_of(&shape, Place::window(0)).offset + 12, "h = {h}");
        }
    }
}

#[test]
fn a_combine_row_of_blocks_is_data_then_scales_and_fits_the_pitch() {
    let shape = |h| shape_of(&Config { comm_quant_mode: 2, ..Domain { h, ..PAIR }.config() });
    // 37 elements of int8 up to 64, then five scales: the last block has five elements.
    let fields: Vec<_> = map::combine_fields(&shape(37)).map(|f| (f.name.name(), f.offset, f.size)).collect();
    assert_eq!(fields, [("data", 0, 37), ("scales", 64, 10)]);
    let mut row: Vec<u8> = (0..74).collect();
    let expected = ((0..37).collect::<Vec<u8>>(), (64..74).collect::<Vec<u8>>());
    let (data, scales) = result::split(&shape(37), &row);
    assert_eq!((data.to_vec(), scales.to_vec()), expected);
    let (data, scales) = result::split_mut(&shape(37), &mut row);
    assert_eq!((data.to_vec(), scales.to_vec()), expected);
    assert_eq!(result::split(&shape(37), &row[..63]), Default::default(), "cut short");
    let plain = Domain { h: 37, ..PAIR }.shape();
    let fields: Vec<_> = map::combine_fields(&plain).map(|f| (f.name.name(), f.offset, f.size)).collect();
    assert_eq!(fields, [("data", 0, 74)]);
    for h in 1..=8192 {
        let shape = shape(h);
        assert!(shape.result_bytes() <= shape.combine_pitch(), "h = {h}");
        let end = map::combine_fields(&shape).last().map(|field| field.offset + field.size);
        assert_eq!(end, Some(shape.result_bytes()), "h = {h}");
    }
}

#[test]
fn triples_out_of_range_are_refused_with_their_words() {
    let bs = [2, 1, 3];
    let domain = Domain { r: 3, e: 2, s: 1, rs: 1, k: 2, ..PAIR };
    let config = Config { bs: BatchSizes::PerRank(&bs), global_bs: 9, ..domain.config() };
    let shape = shape_of(&config);
    let edges = [i32::MIN, -2, -1, 0, 1, 2, 3, 4, i32::MAX];
    for words in edges.map(|r| edges.map(|t| edges.map(|k| [r, t, k]))).as_flattened().as_flattened() {
        let [r, t, k] = words.map(i64::from);
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let legal = (0..3).contains(&r) && (0..bs[r as usize]).contains(&t) && (0..3).contains(&k);
        match Triple::from_bytes(&shape, &bytes) {
            Ok(triple) => {
                assert!(legal, "{words:?}");
                assert_eq!(triple.to_bytes(), *bytes);
            }
            Err(seen) => {
                assert!(!legal, "{words:?}");
                assert_eq!(seen, *words);
            }
        }
    }
    assert_eq!(Triple::from_bytes(&shape, &[0; 11]), Err([0, 0, -1]), "cut short");
}

#[test]
fn the_records_of_direct_placement_are_in_lines_of_their_own_and_disjoint() {
    let shape = product_shape(&decode());
    let experts = u64::from(shape.local_expert_num());
    let pitch = (24 + 8 * experts).next_multiple_of(64);
    assert_eq!(Direct::pitch(&shape), pitch);
    assert_eq!(Direct::Grants.word(&shape, Partition::P0, RankId(2)), Place::state(2 * pitch + 8));
    assert_eq!(
        Direct::TokenFlags.word(&shape, Partition::P1, RankId(2)),
        Place::state(384 * 1024 + 2 * pitch + 16)
    );
    let entry = |what: Direct| what.entry(&shape, Partition::P0, RankId(1), 3);
    assert_eq!(entry(Direct::Counts), Place::state(pitch + 24 + 12));
    assert_eq!(entry(Direct::Grants), Place::state(pitch + 24 + 4 * experts + 12));
    // The maximum number of experts, on few ranks and on many.
    for (ranks, experts) in
        [(1, 1024), (2, 1024), (3, 1023), (128, 1024), (340, 1020), (682, 682), (768, 768)]
    {
        let domain = Domain { r: ranks, e: experts, h: 1, bs: 1, cores: 48, ..PAIR };
        let shape = shape_of(&Config { hccl_buffsize_mb: 4096, ..domain.config() });
        for partition in PARTITIONS {
            let mut seen = direct_parts(&shape, partition);
            seen.sort_by_key(|(at, _)| at.offset);
            assert!(seen.is_sorted_by(|(a, len), (b, _)| a.offset + len <= b.offset), "{shape:?}");
            let (last, len) = seen.last().unwrap();
            assert!(last.offset % PARTITION + len <= DISPATCH_STATUS, "{shape:?}");
            for (what, source) in
                Direct::ALL.into_iter().flat_map(|what| [0, ranks as u32 - 1].map(|n| (what, n)))
            {
                assert_eq!(Direct::of(&shape, what.word(&shape, partition, RankId(source))), Some(what));
            }
        }
        let last = CoreId((ranks as u32).min(48) - 1);
        assert!(core_sums(&shape, last).offset + 4 * u64::from(shape.local_expert_num()) <= STATE_BYTES);
    }
    assert_eq!(Direct::of(&shape, Slots::Shipped.combine_status(Partition::P0, 0)), None);
}

/// Returns every word and table that ranks exchange in dispatch, with its bytes.
pub(super) fn direct_parts(shape: &Shape, partition: Partition) -> Vec<(Place, u64)> {
    let table = 4 * u64::from(shape.local_expert_num());
    let of = |source| {
        let words = Direct::ALL.map(|what| (what.word(shape, partition, source), 8));
        let tables =
            [Direct::Counts, Direct::Grants].map(|what| (what.entry(shape, partition, source, 0), table));
        words.into_iter().chain(tables)
    };
    (0..shape.ep_world_size()).map(RankId).flat_map(of).collect()
}

#[test]
fn elements_of_outputs_follow_each_other_up_to_the_capacity() {
    for (rank, tp) in [(0, 1), (2, 1), (0, 2), (2, 2)] {
        let rank = RankId(rank);
        let domain = Domain { r: 3, e: 4 / i64::from(tp), s: 1, rs: 1, k: 2, h: 5, bs: 3, cores: 1 };
        let shape = shape_of(&Config { quant_mode: 2, tp_world_size: tp.into(), ..domain.config() });
        // With a TP domain the peer's rows and counts follow its own.
        let (rows, slots) = (tp * shape.rows_max(rank) as u32, tp * shape.local_experts(rank) * 3);
        let has_modes = row_table::is_possible(&shape);
        let entries = [
            (Tensor::ExpandX, rows),
            (Tensor::DynamicScales, rows),
            (Tensor::AssistInfo, rows),
            (Tensor::ExpandIdx, shape.bs(rank) * shape.k()),
            (Tensor::ExpertTokenNums, shape.local_experts(rank)),
            (Tensor::EpRecvCounts, slots),
            (Tensor::XOut, shape.bs(rank)),
            (Tensor::X, shape.bs(rank)),
            (Tensor::Rstd, shape.bs(rank)),
            (Tensor::Y, shape.bs(rank)),
            (Tensor::TpRecvCounts, if tp == 2 { 2 } else { 0 }),
            (Tensor::RowTable, if has_modes { rows.max(2) } else { 0 }),
            (Tensor::SentRows, if has_modes { shape.bs(rank) * shape.combine_columns() } else { 0 }),
            // Only the hierarchy has them.
            (Tensor::ExpandScales, 0),
        ];
        let ends = entries.map(|(tensor, number)| outputs::entry(&shape, tensor, number));
        let capacities = map::outputs(&shape, rank).map(|(tensor, bytes)| Place::output(tensor, bytes));
        assert!(capacities.eq(ends));
    }
    assert_eq!(outputs::capacity(&PAIR.shape(), RankId(0), Tensor::DynamicScales), 0);
    // A2 has no AddRmsNorm.
    let mesh = shape_of(&Config { comm_alg: Protocol::Fullmesh, ..Domain { h: 8, ..PAIR }.config() });
    for tensor in [Tensor::X, Tensor::Rstd, Tensor::Y] {
        assert_eq!(outputs::capacity(&mesh, RankId(0), tensor), 0);
    }
}

/// Fails if two `(start, end)` in one region share a byte, or one leaves it.
pub(super) fn assert_disjoint(mut stretches: Vec<(Place, u64)>, shape: &Shape, rank: RankId) {
    stretches.sort_unstable();
    for pair in stretches.windows(2) {
        let [(a, len), (b, _)] = pair else { unreachable!() };
        assert!(a.region != b.region || a.offset + len <= b.offset, "{a} + {len} reaches {b}: {shape:?}");
    }
    for (at, len) in stretches {
        let size = match at.region {
            Region::State => STATE_BYTES,
            Region::TpState => tp::TP_STATE_BYTES,
            Region::TpWindow => tp::window_bytes(shape, rank),
            _ => shape.window_bytes(),
        };
        assert!(at.offset + len <= size, "{at} + {len} leaves its region: {shape:?}");
    }
}

/// Returns every single slot, record, row and word of a rank.
fn everything(shape: &Shape, rank: RankId) -> Vec<(Place, u64)> {
    let mut all = Vec::new();
    for partition in PARTITIONS {
        for source in (0..shape.ep_world_size()).map(RankId) {
            for local_expert in 0..shape.local_experts(rank) {
                all.push((
                    Slots::Shipped.dispatch_status(partition, dispatch_slot(shape, local_expert, source)),
                    32,
                ));
                let home = Home { rank, local_expert };
                for slot in 0..shape.bs_max() {
                    let record = dispatch_record(shape, partition, home, source, slot);
                    if shape.protocol() == Protocol::FullmeshV2 {
                        all.extend(
                            (0..block::count(shape))
                                .flat_map(|b| [(block::block(record, b), 480), (block::flag(record, b), 32)]),
                        );
                    } else {
                        all.push((record, triple_of(shape, record).offset + Triple::BYTES - record.offset));
                    }
                }
            }
        }
        for token in (0..shape.bs_max()).map(Token) {
            for k in 0..shape.combine_columns() {
                all.push((Slots::Shipped.combine_status(partition, combine_slot(shape, token, k)), 32));
                all.push((combine_row(shape, partition, token, k), shape.result_bytes()));
            }
        }
    }
    for core in (0..shape.aiv_num()).map(CoreId) {
        all.extend([Operator::Dispatch, Operator::Combine].map(|kind| (selector(kind, core), 8)));
        all.extend([0, 1].map(|epoch| (core_word(core, epoch), 8)));
    }
    all
}

/// Any domain, without the product's limits.
pub(super) fn any_config() -> impl Strategy<Value = Config<'static>> {
    let sizes = (1i64..12, 1i64..6, 0i64..=4, 1i64..4, 1i64..=16, 1i64..700, 1i64..40, 1i64..=48);
    let port_offset = prop_oneof![Just(0i64), 1i64..20, 1i64..5000].prop_map(|steps| steps * 512);
    (sizes, any::<[bool; 2]>(), port_offset).prop_map(|(sizes, quantised, port_offset)| {
        let (moe_ranks, local, s, replicas, k, h, bs, cores) = sizes;
        let (rs, e) = (s * replicas, moe_ranks * local);
        let domain = Domain { r: moe_ranks + rs, e, s, rs, k: k.min(e), h, bs, cores };
        let [quant_mode, comm_quant_mode] = quantised.map(|quantised| if quantised { 2 } else { 0 });
        Config { quant_mode, comm_quant_mode, port_offset, ..domain.config() }
    })
}

proptest! {
    #![proptest_config(random::config(256))]

    #[test]
    fn no_two_areas_overlap_and_all_are_aligned_and_inside(config in any_config()) {
        let shape = shape_of(&config);
        for rank in [0, shape.ep_world_size() - 1].map(RankId) {
            let areas: Vec<_> = map::areas(&shape, Mode::default(), rank).collect();
            prop_assert!(areas.is_sorted_by_key(|area| area.start), "address order");
            for area in &areas {
                let is_window = matches!(area.start.region, Region::Window | Region::TpWindow);
                let step = if is_window { 512 } else { 32 };
                prop_assert!(area.start.offset.is_multiple_of(step) && area.stride.is_multiple_of(step), "{area:?}");
                prop_assert!(area.slot <= area.stride, "{area:?}");
            }
            assert_disjoint(areas.iter().map(|area| (area.start, area.size())).collect(), &shape, rank);
        }
    }

    #[test]
    fn with_a_tp_domain_too(
        moe_ranks in 1i64..12, s in 0i64..=4, replicas in 1i64..4, k in 1i64..=16, h in 1i64..700,
        bs in 1i64..40, cores in 1i64..=48, quantised: bool,
    ) {
        let domain = Domain { r: moe_ranks + s * replicas, e: moe_ranks, s, rs: s * replicas, k: k.min(moe_ranks), h, bs, cores };
        let quant_mode = if quantised { 2 } else { 0 };
        let shape = shape_of(&Config { tp_world_size: 2, quant_mode, ..domain.config() });
        for rank in [0, shape.ep_world_size() - 1].map(RankId) {
            let areas: Vec<_> = map::areas(&shape, Mode::default(), rank).collect();
            prop_assert!(areas.is_sorted_by_key(|area| area.start), "address order");
            // Two partitions of A * pitch + A * align(2H, 512), and nothing else.
            let of_a_row = shape.record_pitch() + (2 * u64::from(shape.h())).next_multiple_of(512);
            prop_assert_eq!(tp::window_bytes(&shape, rank), 2 * shape.rows_max(rank) * of_a_row);
            let in_window = |area: &&Area| area.start.region == Region::TpWindow;
            let all: u64 = areas.iter().filter(in_window).map(Area::size).sum();
            prop_assert_eq!(all, tp::window_bytes(&shape, rank));
            assert_disjoint(areas.iter().map(|area| (area.start, area.size())).collect(), &shape, rank);
        }
    }

    #[test]
    fn areas_of_real_sizes_do_not_overlap(
        moe_ranks in 2i64..300, local in 1i64..8, s in 0i64..=4, h in 1024i64..=8192, bs in 1i64..=64,
        steps in 0i64..5000,
    ) {
        let (rs, e) = (s * 4, moe_ranks * local);
        let domain = Domain { r: moe_ranks + rs, e, s, rs, k: 8.min(e), h, bs, cores: 48 };
        if let Some(shape) = try_shape(&Config { port_offset: 512 * steps, ..domain.config() }) {
            for rank in [0, shape.ep_world_size() - 1].map(RankId) {
                let areas = map::areas(&shape, Mode::default(), rank).map(|area| (area.start, area.size()));
                assert_disjoint(areas.collect(), &shape, rank);
            }
        }
    }
}

#[test]
fn slots_records_rows_and_words_of_small_shapes_are_disjoint() {
    for (s, rs) in [(0, 0), (1, 1), (1, 2), (2, 2), (3, 3)] {
        for (moe_ranks, local, k, h, bs) in
            [(1, 1, 1, 1, 1), (2, 3, 2, 5, 4), (3, 2, 4, 300, 3), (5, 1, 3, 16, 7)]
        {
            let plain =
                [(0, 0), (2, 0), (0, 512), (2, 512 * 4097)].map(|(q, p)| (Protocol::FullmeshV1, q, p));
            let blocks = [0, 2].map(|quant_mode| (Protocol::FullmeshV2, quant_mode, 512));
            for (comm_alg, quant_mode, port_offset) in plain.into_iter().chain(blocks) {
                let domain = Domain { r: moe_ranks + rs, e: moe_ranks * local, s, rs, k, h, bs, cores: 48 };
                let comm_quant_mode = quant_mode;
                let shape = shape_of(&Config {
                    comm_alg,
                    quant_mode,
                    comm_quant_mode,
                    port_offset,
                    ..domain.config()
                });
                for rank in (0..shape.ep_world_size()).map(RankId) {
                    assert_disjoint(everything(&shape, rank), &shape, rank);
                }
            }
        }
    }
}

#[test]
fn the_two_partitions_split_the_window_in_half() {
    for mb in [200, 201] {
        let shape = product_shape(&Config { hccl_buffsize_mb: mb, ..decode() });
        let starts = PARTITIONS.map(|partition| partition_start(&shape, partition));
        assert_eq!(starts, [0, mb as u64 * 512 * 1024]);
        assert!(PARTITIONS.iter().all(|p| p.flipped() != *p && p.flipped().flipped() == *p));
    }
}
