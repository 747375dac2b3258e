//! Every map is compared with the layout at every index, and areas with values computed by hand.

use super::*;
use crate::layout::forward;
use crate::layout::locate::{Spot, locate};
use crate::layout::quantity::Quantity;
use crate::layout::tests::any_config;
use crate::place::Place;
use crate::plan::order::SendOrder;
use crate::protocol::{Choices, Flags, Receive, Stage};
use crate::shape::{BatchSizes, Config, Limits};
use crate::testing::domain::{Domain, PAIR, shape as shape_of};
use crate::testing::random;
use alloc::vec::Vec;
use proptest::prelude::*;

/// Compares a map at all indices, the last one fastest; returns their number.
fn prove(shape: &Shape, mode: Mode, rank: RankId, map: &Map) -> u64 {
    let mut indices = [0; INDICES_MAX];
    let mut seen = 0;
    if map.dims().iter().any(|dim| dim.extent == 0) {
        return 0;
    }
    loop {
        let place = forward::place(map.named, shape, mode, rank, indices);
        assert_eq!(place, Place { region: map.region, offset: map.offset(indices) }, "{map:?} {indices:?}");
        assert!(place.offset.is_multiple_of(map.named.alignment()), "{map:?} {indices:?}");
        come_back(&Memory { shape, mode, rank }, map, indices, place);
        seen += 1;
        let mut dims = map.dims().iter().zip(&mut indices).rev();
        let advanced = dims.find_map(|(dim, index)| {
            *index = (*index + 1) % dim.extent;
            (*index > 0).then_some(())
        });
        if advanced.is_none() {
            return seen;
        }
    }
}

/// Looks up the first and the last byte of a slot by what is there, and by the place alone.
fn come_back(memory: &Memory<'_>, map: &Map, indices: [u32; INDICES_MAX], place: Place) {
    let is_own = map
        .dims()
        .iter()
        .zip(indices)
        .all(|(dim, index)| dim.index != Index::Owner || index == memory.owner());
    if !is_own {
        return;
    }
    for inside in [0, map.bytes - 1] {
        let spot = Some(Spot { map: *map, indices, inside });
        assert_eq!(map.named.find(memory, place.offset + inside), spot);
        if map.named.inside().is_empty() && map.named != Named::ReturnedSlots {
            assert_eq!(locate(memory, Place { offset: place.offset + inside, ..place }), spot);
        }
    }
}

/// Compares the formula of each quantity with the number that machines use; returns how many have one.
fn defined(shape: &Shape, mode: Mode, rank: RankId) -> usize {
    let memory = Memory { shape, mode, rank };
    let formulas = Quantity::ALL.iter().filter_map(|of| Some((of, of.definition(Kind::of(shape, mode))?)));
    formulas
        .map(|(of, formula)| assert_eq!(memory.value(&formula), of.value(&memory), "{of:?} of {shape:?}"))
        .count()
}

/// Returns all modes of a shape, on the first rank and on the last.
fn all(shape: &Shape) -> Vec<(Mode, RankId)> {
    let ranks = [0, shape.ep_world_size() - 1].map(RankId);
    let orders = [SendOrder::Plain, SendOrder::default()];
    let modes = Choices::all(shape).filter(|choices| orders.contains(&choices.order));
    modes.flat_map(|choices| ranks.map(|rank| (choices.mode(), rank))).collect()
}

fn proved(shape: &Shape) -> Vec<Named> {
    let mut names = Vec::new();
    for (mode, rank) in all(shape) {
        assert!(defined(shape, mode, rank) > 20);
        for map in maps(shape, mode, rank) {
            assert!(prove(shape, mode, rank, &map) > 0 || map.dims().iter().any(|dim| dim.extent == 0));
            names.push(map.named);
        }
    }
    names
}

fn a2(comm_alg: Protocol, r: i64, e: i64, k: i64, h: i64, bs: i64) -> Config<'static> {
    let domain = Domain { r, e, s: 0, rs: 0, k, h: 8 * h, bs, cores: 3 };
    Config { comm_alg, server_ranks: 2, ..domain.config() }
}

proptest! {
    #![proptest_config(random::config(48))]

    #[test]
    fn every_map_agrees_with_the_layout_at_every_index(
        config in any_config(), blocks: bool, (servers, local, k, h, bs) in (1i64..4, 1i64..4, 1i64..4, 1i64..40, 1i64..7),
    ) {
        let comm_alg = if blocks { Protocol::FullmeshV2 } else { Protocol::FullmeshV1 };
        proved(&shape_of(&Config { comm_alg, ..config }));
        for comm_alg in [Protocol::Fullmesh, Protocol::Hierarchy] {
            proved(&shape_of(&a2(comm_alg, 2 * servers, 2 * servers * local, k.min(2 * servers * local), h, bs)));
        }
    }
}

/// A name that no shape has, or that is never proved, would be detected.
#[test]
fn every_name_is_proved_for_some_shape() {
    let tp = Config { tp_world_size: 2, ..PAIR.config() };
    let direct = Config { hccl_buffsize_mb: 2, quant_mode: 2, ..PAIR.config() };
    let mut names = proved(&Shape::new(&direct, Limits::None).unwrap());
    for config in [
        tp,
        Config { quant_mode: 0, ..direct },
        Domain { r: 3, s: 1, rs: 1, ..PAIR }.config(),
        Config { comm_alg: Protocol::FullmeshV2, ..PAIR.config() },
        a2(Protocol::Fullmesh, 2, 2, 1, 1, 1),
        a2(Protocol::Hierarchy, 4, 4, 2, 1, 1),
    ] {
        names.extend(proved(&shape_of(&config)));
    }
    let missing: Vec<_> = Named::ALL.iter().filter(|named| !names.contains(named)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_maps_of_a_small_shape_are_those_of_the_drawings() {
    let config = Config { bs: BatchSizes::Uniform(5), port_offset: 512, ..Domain { e: 6, ..PAIR }.config() };
    let shape = shape_of(&config);
    let map = |named: Named, mode| named.map(&shape, mode, RankId(1)).unwrap();
    let strides = |map: &Map| map.dims().iter().map(|dim| (dim.extent, dim.stride)).collect::<Vec<_>>();
    let records = map(Named::DispatchRecords, Mode::default());
    // Records of 512 B; two partitions in 1 MiB; for each (token, k) a result of 512 B before them.
    assert_eq!(
        (strides(&records), records.base),
        (alloc::vec![(2, 1 << 19), (2, 512), (2, 3 * 5 * 512 + 512), (3, 5 * 512), (5, 512)], 5 * 512)
    );
    let status = map(Named::DispatchStatus, Mode::default());
    assert_eq!(strides(&status), [(2, 384 * 1024), (3, 64), (2, 32)]);
    let choices = Choices { receive: Receive::Copy, flags: Flags::Separate, ..Choices::default() };
    let fields = |named: Named| -> Vec<_> {
        named.fields(&shape, choices.mode()).map(|f| (f.name.name(), f.offset, f.size)).collect()
    };
    assert_eq!(fields(Named::DispatchStatus), [("status", 0, 8), ("token flag", 8, 8)]);
    assert_eq!(
        fields(Named::DirectRecords),
        [("counts told", 0, 8), ("grants told", 8, 8), ("rows landed", 16, 8)]
    );
    assert_eq!(fields(Named::CoreWords), [("even epochs", 0, 8), ("odd epochs", 64, 8)]);
    assert_eq!(fields(Named::TpCombineSlots), [("rows", 0, 8), ("first row", 8, 4)]);
    assert_eq!(fields(Named::Infos), [("scale", 0, 4), ("triple", 4, 12)]);
    assert_eq!(fields(Named::WindowsIn), [("flag 1", 96, 8)]);
}

/// An agent's stream ends with its end flag; the record just before the flag is the first one.
#[test]
fn records_of_a_stream_lie_backwards() {
    let shape = shape_of(&a2(Protocol::Hierarchy, 4, 4, 2, 1, 3));
    let mode = Choices { stage: Stage::Two, ..Choices::default() }.mode();
    let map = Named::TokenRecords.map(&shape, mode, RankId(0)).unwrap();
    let stream = Named::StreamsIn.map(&shape, mode, RankId(0)).unwrap();
    assert!(
        map.dims()[0].stride == -(map.bytes as i64) && map.base + map.bytes + 8 == stream.bytes,
        "{map:?}"
    );
}
