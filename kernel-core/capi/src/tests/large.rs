//! Numbers beyond 2^32 come through the C functions whole: sizes, areas, places of rows; and a core that is driven over a window
//! of 9 GiB, of which memory commits only what is touched, puts its rows there.

use super::misuse::{config, opaque, shape_of};
use crate::codes::*;
use crate::driver::{veriep_core_begin, veriep_core_new, veriep_core_step};
use crate::shape::{veriep_received_rows, veriep_shape_areas, veriep_shape_sizes};
use crate::types::*;
use core::alloc::Layout;
use core::mem::zeroed;
use core::ptr::{null, null_mut};
use kernel_core::layout::affine::Mode;
use kernel_core::layout::data::dispatch_record;
use kernel_core::layout::direct::{Area, Parts};
use kernel_core::layout::state::Partition;
use kernel_core::layout::{map, tp};
use kernel_core::place::Tensor;
use kernel_core::placement::Home;
use kernel_core::shape::{BatchSizes, Config, Limits, Protocol, Shape};
use kernel_core::units::RankId;
use std::alloc::{alloc_zeroed, dealloc};
use std::string::String;
use std::vec::Vec;

const BEYOND: u64 = 1 << 32;

/// Two ranks of one expert, and room for so many tokens of a rank.
fn wide(comm_alg: u32, protocol: Protocol, tokens: i64) -> (veriep_config, Shape) {
    let mb = 300 << 10;
    let (ranks, experts, k, h) = (2, 2, 1, 1 << 16);
    let c = veriep_config {
        comm_alg,
        ep_world_size: ranks,
        server_ranks: 2,
        tp_world_size: if protocol == Protocol::FullmeshV1 { 2 } else { 0 },
        moe_expert_num: experts,
        k,
        h,
        bs: 1,
        global_bs: ranks * tokens,
        hccl_buffsize_mb: mb,
        ..config()
    };
    let own = Config {
        comm_alg: protocol,
        ep_world_size: ranks,
        server_ranks: 2,
        tp_world_size: c.tp_world_size,
        moe_expert_num: experts,
        k,
        h,
        bs: BatchSizes::Uniform(1),
        global_bs: ranks * tokens,
        hccl_buffsize_mb: mb,
        aiv_num: 1,
        ..Config::default()
    };
    (c, Shape::new(&own, Limits::None).unwrap())
}

fn name_of(area: &veriep_area) -> String {
    area.name.iter().take_while(|&&byte| byte != 0).map(|&byte| char::from(byte as u8)).collect()
}

#[test]
fn sizes_and_areas_beyond_4_gib_come_whole() {
    for (comm_alg, protocol, tokens) in [
        (VERIEP_FULLMESH_V1, Protocol::FullmeshV1, 9600),
        (VERIEP_FULLMESH_V2, Protocol::FullmeshV2, 9600),
        (VERIEP_A2_FULLMESH, Protocol::Fullmesh, 60_000),
        (VERIEP_A2_HIERARCHY, Protocol::Hierarchy, 390),
    ] {
        let (config, own) = wide(comm_alg, protocol, tokens);
        let shape = shape_of(&config);
        let (mut sizes, mut count) = (opaque::<veriep_sizes>(), 0);
        let mut areas: Vec<veriep_area> = (0..64).map(|_| *opaque()).collect();
        // SAFETY: all is there.
        unsafe {
            assert_eq!(veriep_shape_sizes(&raw const *shape, 1, &raw mut *sizes), VERIEP_OK);
            let said =
                veriep_shape_areas(&raw const *shape, null(), 1, areas.as_mut_ptr(), areas.len(), &mut count);
            assert_eq!(said, VERIEP_OK);
        }
        let rank = RankId(1);
        let tp_window = if own.tp_world_size() > 1 { tp::window_bytes(&own, rank) } else { 0 };
        assert_eq!(
            (sizes.window, sizes.window_out, sizes.tp_window, sizes.rows_max),
            (own.window_bytes(), own.window_out_bytes(), tp_window, own.rows_max(rank))
        );
        assert!(sizes.window > BEYOND && (own.tp_world_size() == 1 || sizes.tp_window > BEYOND));
        for (tensor, bytes) in map::outputs(&own, rank) {
            assert_eq!(sizes.outputs[tensor as usize], bytes, "{tensor:?}");
        }
        let expand_x = sizes.outputs[Tensor::ExpandX as usize];
        assert!(protocol == Protocol::Hierarchy || expand_x > 1 << 31, "{protocol:?}: {expand_x}");
        let all: Vec<_> = map::areas(&own, Mode::default(), rank).collect();
        assert_eq!(count, all.len());
        for (seen, area) in areas.iter().zip(&all) {
            assert_eq!(name_of(seen), area.named.name());
            assert_eq!(
                (seen.start, seen.count, seen.stride, seen.slot),
                (area.start.offset, area.count, area.stride, area.slot),
                "{} of {protocol:?}",
                area.named.name()
            );
        }
        // Of a hierarchy the area begins early and ends late.
        let end = all.iter().map(|area| area.start.offset + area.size()).max();
        assert!(protocol == Protocol::Hierarchy || end > Some(BEYOND), "{protocol:?} ends at {end:?}");
    }
}

#[test]
fn places_of_received_rows_beyond_4_gib_come_whole() {
    let (mut config, _) = wide(VERIEP_FULLMESH_V1, Protocol::FullmeshV1, 9600);
    config.tp_world_size = 0;
    let shape = shape_of(&config);
    let own = Config {
        ep_world_size: 2,
        moe_expert_num: 2,
        k: 1,
        h: 1 << 16,
        bs: BatchSizes::Uniform(1),
        global_bs: 2 * 9600,
        hccl_buffsize_mb: config.hccl_buffsize_mb,
        aiv_num: 1,
        ..Config::default()
    };
    let own = Shape::new(&own, Limits::None).unwrap();
    let parts = Parts::of(&own, RankId(1), Area { number: 1, overwritten: false });
    let record =
        dispatch_record(&own, Partition::P1, Home { rank: RankId(1), local_expert: 0 }, RankId(1), 7);
    let direct = [parts.row(0), parts.result(0)];
    assert!(direct.iter().chain([&record]).all(|place| place.offset > BEYOND));
    let received = |receive, table: &[u64]| {
        let choices = veriep_choices { receive, ..crate::driver::veriep_choices_default() };
        let (mut rows, mut results, mut count) = (opaque::<veriep_rows>(), opaque::<veriep_rows>(), 0);
        let bytes = veriep_bytes { data: table.as_ptr().cast(), len: size_of_val(table) };
        // SAFETY: all is there.
        let said = unsafe {
            veriep_received_rows(
                &raw const *shape,
                &choices,
                1,
                bytes,
                &raw mut *rows,
                1,
                &mut count,
                &raw mut *results,
            )
        };
        (said, count, rows.at.offset, results.at.offset)
    };
    let table = direct.map(|place| place.offset);
    assert_eq!(received(VERIEP_RECEIVE_DIRECT_2, &table), (VERIEP_OK, 1, table[0], table[1]));
    let table = [record.offset];
    let (said, count, at, _) = received(VERIEP_RECEIVE_IN_PLACE, &table);
    assert_eq!((said, count, at), (VERIEP_OK, 1, record.offset));
}

/// Zeroed memory of which the system commits what is touched.
struct Pages(*mut u8, Layout);

impl Pages {
    fn new(bytes: u64) -> Self {
        // Memory of a wider alignment would be zeroed by hand, and so committed.
        let layout = Layout::from_size_align(bytes as usize, 8).unwrap();
        // SAFETY: not empty.
        let base = unsafe { alloc_zeroed(layout) };
        assert!(!base.is_null(), "no {bytes} bytes");
        Self(base, layout)
    }

    fn segment(&self) -> veriep_segment {
        veriep_segment { base: self.0, len: self.1.size() as u64 }
    }

    fn byte(&self, offset: u64) -> u8 {
        assert!(offset < self.1.size() as u64);
        // SAFETY: inside, and initialised with zeros.
        unsafe { self.0.wrapping_add(offset as usize).read() }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: as it was allocated.
        unsafe { dealloc(self.0, self.1) };
    }
}

/// The second dispatch uses the second partition, which begins beyond 4 GiB.
#[test]
fn a_core_of_c_puts_rows_beyond_4_gib() {
    let mut config = config();
    (config.bs, config.hccl_buffsize_mb, config.k) = (1, 9 << 10, 1);
    let shape = shape_of(&config);
    let own = Config {
        ep_world_size: 1,
        moe_expert_num: 2,
        k: 1,
        h: 32,
        bs: BatchSizes::Uniform(1),
        aiv_num: 1,
        hccl_buffsize_mb: 9 << 10,
        ..Config::default()
    };
    let own = Shape::new(&own, Limits::None).unwrap();
    let home = Home { rank: RankId(0), local_expert: 1 };
    let [first, second] =
        [Partition::P0, Partition::P1].map(|half| dispatch_record(&own, half, home, RankId(0), 0).offset);
    assert!(second > BEYOND && second as u32 != first as u32);
    let (state, window, unused) = (Pages::new(VERIEP_STATE_BYTES), Pages::new(9 << 30), Pages::new(64));
    let outputs: Vec<_> = Tensor::ALL.iter().map(|_| Pages::new(1 << 16)).collect();
    let mut x = [0_u8; 64];
    let (ids, scales) = ([1_i32], [1.0_f32]);
    let of = |data: *const u8, len| veriep_bytes { data: data.cast(), len };
    let mut core = opaque::<veriep_core>();
    // SAFETY: all is there and apart.
    unsafe {
        let window_out = unused.segment();
        let peer = veriep_peer { state: state.segment(), window: window.segment(), window_out };
        let mut mapped: veriep_mapped = zeroed();
        (mapped.peers, mapped.peers_len) = (&peer, 1);
        mapped.outputs.iter_mut().zip(&outputs).for_each(|(to, pages)| *to = pages.segment());
        let (mut words, mut bytes) = ([0_u32; 4096], [0_u8; 4096]);
        let said = veriep_core_new(&raw mut *core, &raw const *shape, 0, 0, 0, null(), 0, null_mut(), 0);
        assert_eq!(said, VERIEP_OK);
        for number in 1..=2_u8 {
            x.fill(number);
            let inputs = veriep_inputs {
                x: of(x.as_ptr(), x.len()),
                expert_ids: of(ids.as_ptr().cast(), 4),
                expert_scales: of(scales.as_ptr().cast(), 4),
                ..zeroed()
            };
            let mut cx: veriep_context = zeroed();
            (cx.shape, cx.inputs, cx.mapped) = (&raw const *shape, &inputs, &mapped);
            (cx.words, cx.words_len) = (words.as_mut_ptr(), words.len());
            (cx.bytes, cx.bytes_len) = (bytes.as_mut_ptr(), bytes.len());
            assert_eq!(veriep_core_begin(&raw mut *core, VERIEP_DISPATCH), VERIEP_OK);
            let said = (0..999)
                .map(|_| veriep_core_step(&raw mut *core, &cx, 100, null_mut()))
                .find(|&said| said != VERIEP_STEPPED);
            assert_eq!(said, Some(VERIEP_OK), "dispatch {number}");
            assert_eq!(outputs[Tensor::ExpandX as usize].byte(0), number);
        }
    }
    assert_eq!([window.byte(first), window.byte(second)], [1, 2]);
    assert_eq!(window.byte(second - BEYOND), 0, "the place without its 33rd bit");
}
