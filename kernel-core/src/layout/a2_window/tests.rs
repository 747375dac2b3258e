//! Places computed by hand, and checks that no two overlap.

use super::{
    FLAG_WORD, FLAG1, buffer_chosen, half_start, next_flag_place, record, record_scale, row, sent_bytes,
    tail_flag, window,
};
use crate::layout::a2_message::{Task, doorbell, task_word};
use crate::layout::affine::Mode;
use crate::layout::map::areas;
use crate::layout::state::{Operator, Partition, STATE_BYTES};
use crate::place::Region;
use crate::shape::{BatchSizes, Buffer, Config, Limits, Protocol, Shape};
use crate::testing::domain::{Domain, PAIR, shape as shape_of};
use crate::testing::random;
use crate::units::RankId;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const PARTITIONS: [Partition; 2] = [Partition::P0, Partition::P1];

/// 64 ranks of the product, 4 experts each, H = 7168, 16 tokens.
fn a2_64(quant_mode: i64) -> Shape {
    let config = Config {
        comm_alg: Protocol::Fullmesh,
        ep_world_size: 64,
        moe_expert_num: 256,
        hccl_buffsize_mb: 300,
        quant_mode,
        ..Config::default()
    };
    Shape::new(&config, Limits::Product).unwrap()
}

#[test]
fn the_windows_of_64_ranks_are_where_the_seed_puts_them() {
    let shape = a2_64(0);
    // (150 MiB - 1 MiB) / 64 = 2 441 216, a multiple of 512.
    assert_eq!(shape.rank_window(), 2_441_216);
    assert_eq!(half_start(&shape, Partition::P1), 150 * MIB);
    assert_eq!(buffer_chosen(&shape).offset, 149 * MIB);
    assert_eq!(window(&shape, Partition::P1, RankId(63)), 150 * MIB + 63 * 2_441_216);
    assert_eq!(FLAG1, 96);
    assert_eq!((record(&shape, 0), record(&shape, 3)), (512, 512 + 3 * 14336));
    assert_eq!(tail_flag(&shape, Operator::Dispatch, 3), 512 + 3 * 14336 + 512);
    assert_eq!((row(&shape, 3), tail_flag(&shape, Operator::Combine, 3)), (3 * 14336, 3 * 14336 + 32));
    assert_eq!(sent_bytes(&shape, Operator::Combine, 0), 40);
    let quantised = a2_64(2);
    assert_eq!((record(&quantised, 2), record_scale(&quantised, 2)), (512 + 2 * 7200, 512 + 2 * 7200 + 7168));
    assert_eq!(tail_flag(&quantised, Operator::Dispatch, 0), 1024);
}

#[test]
fn the_message_area_is_two_slots_of_task_records_and_a_doorbell() {
    assert_eq!(task_word(Partition::P0, RankId(0), 0).offset, 0);
    assert_eq!(task_word(Partition::P1, RankId(5), 3).offset, 32 * 1024 + 5 * 32 + 24);
    assert_eq!(doorbell().offset, 64 * 1024);
    let shape = a2_64(0);
    let task = Task::new(&shape, Partition::P1, Operator::Combine, RankId(7), RankId(9), 2);
    let expected = Task {
        local_buf: 150 * MIB + 9 * 2_441_216,
        remote_buf: 150 * MIB + 7 * 2_441_216,
        count: (2 * 14336 + 40) / 8,
        data_type: 6,
        remote_rank_id: 9,
    };
    assert_eq!(task, expected);
    assert_eq!(task.to_words()[3], 9 << 32 | 6);
}

proptest! {
    #![proptest_config(random::config(256))]

    #[test]
    fn a_task_is_read_as_it_was_written(words: [u64; 4]) {
        prop_assert_eq!(Task::from_words(words).to_words(), words);
    }
}

/// Small and large rows, quantised and not.
fn shapes() -> impl Iterator<Item = Shape> {
    let numbers = [(2, 8, 3), (3, 16, 2), (2, 256, 4), (5, 512, 3), (2, 7168, 2)];
    numbers.into_iter().flat_map(|(r, h, bs)| {
        [0, 2].map(|quant_mode| {
            let domain = Domain { r, e: 2 * r, k: 2, h, bs, ..PAIR };
            shape_of(&Config { comm_alg: Protocol::Fullmesh, quant_mode, ..domain.config() })
        })
    })
}

#[test]
fn the_places_of_flags_are_those_of_any_count_of_either_operator_in_order() {
    for shape in shapes() {
        let end = shape.rank_window();
        let (h, quantised) = (u64::from(shape.h()), shape.payload_bytes() == u64::from(shape.h()));
        let record = if quantised { h + 32 } else { 2 * h };
        let dispatch = (0..).map(|n| 512 + n * record + 512).take_while(|&at| at < end);
        let combine = (0..).map(|n| n * 2 * h + 32).take_while(|&at| at < end);
        let expected: BTreeSet<u64> = [96].into_iter().chain(dispatch).chain(combine).collect();
        let mut seen = Vec::new();
        let mut at = next_flag_place(&shape, 0);
        while at < end {
            seen.push(at);
            at = next_flag_place(&shape, at + 1);
        }
        assert!(seen.iter().eq(&expected), "{shape:?}");
        assert!(seen.iter().all(|at| at.is_multiple_of(FLAG_WORD)), "words must be aligned: {shape:?}");
        // From any offset.
        for from in 0..4000 {
            assert_eq!(
                Some(&next_flag_place(&shape, from)),
                expected.range(from..).next(),
                "{from} {shape:?}"
            );
        }
    }
}

#[test]
fn windows_hold_all_sent_rows_and_flags_lie_outside_them() {
    for shape in shapes() {
        let most = shape.rows_to_peer_max(RankId(0));
        for kind in [Operator::Dispatch, Operator::Combine] {
            assert!(sent_bytes(&shape, kind, most) <= shape.rank_window(), "{kind:?} of {shape:?}");
            for rows in 0..=most {
                let end = match kind {
                    Operator::Dispatch => record(&shape, rows),
                    Operator::Combine => row(&shape, rows),
                };
                assert!(end <= tail_flag(&shape, kind, rows));
                assert!(sent_bytes(&shape, kind, rows).is_multiple_of(8));
            }
        }
    }
}

fn assert_disjoint(shape: &Shape) {
    let mut areas: Vec<_> = areas(shape, Mode::default(), RankId(0)).collect();
    let named = areas.clone();
    areas.sort_by_key(|area| (area.start.region, area.start.offset));
    for pair in areas.windows(2) {
        let (a, b) = (pair[0], pair[1]);
        let apart = a.start.region != b.start.region || a.start.offset + a.size() <= b.start.offset;
        assert!(apart, "{a:?} and {b:?} of {shape:?}");
    }
    assert_eq!(areas, named, "areas come in the order of their places");
    for area in areas {
        let size = match area.start.region {
            Region::State => STATE_BYTES,
            Region::Window => shape.window_bytes(),
            Region::WindowOut => shape.window_out_bytes(),
            Region::TpState | Region::TpWindow | Region::Output(_) => 0,
        };
        assert!(area.start.offset + area.size() <= size, "{area:?} of {shape:?}");
        assert!(area.slot <= area.stride);
    }
}

#[test]
fn the_areas_of_a_rank_do_not_overlap_and_fit_their_regions() {
    shapes().for_each(|shape| assert_disjoint(&shape));
    assert_disjoint(&a2_64(0));
    for half in PARTITIONS {
        let last = window(&a2_64(2), half, RankId(63)) + a2_64(2).rank_window();
        assert!(last <= half_start(&a2_64(2), half) + 149 * MIB);
    }
}

proptest! {
    #![proptest_config(random::config(256))]

    #[test]
    fn a_valid_window_holds_the_most_rows(
        r in 2i64..12, local in 1i64..=24, k in 1i64..=16, h in 1i64..30, bs in 1i64..40, quantised: bool,
    ) {
        let config = Config {
            comm_alg: Protocol::Fullmesh,
            ep_world_size: r,
            moe_expert_num: r * local,
            k: k.min(r * local),
            h: 8 * h,
            bs: BatchSizes::Uniform(bs),
            quant_mode: if quantised { 2 } else { 0 },
            ..Config::default()
        };
        let required = Buffer::with(&config, Limits::None).required_mb.cast_signed();
        let shape = Shape::new(&Config { hccl_buffsize_mb: required, ..config }, Limits::None).unwrap();
        let most = shape.rows_to_peer_max(RankId(0));
        for kind in [Operator::Dispatch, Operator::Combine] {
            prop_assert!(sent_bytes(&shape, kind, most) <= shape.rank_window());
        }
        assert_disjoint(&shape);
    }
}
