use super::*;
use crate::shape::Config;
use crate::testing::domain::{Domain, shape as shape_of};
use alloc::vec::Vec;

#[test]
fn areas_of_a_hierarchy_do_not_overlap_and_fit_the_window_that_is_asked_for() {
    let sizes = [
        (16, 256, 8, 7168, 16, 8),
        (64, 256, 8, 7168, 16, 8),
        (64, 512, 16, 32, 256, 48),
        (16, 16, 1, 32, 1, 1),
    ];
    for (r, e, k, h, bs, cores) in sizes {
        for quant_mode in [0, 2] {
            let domain = Domain { r, e, s: 0, rs: 0, k, h, bs, cores };
            let config = Config { product: "a2", comm_alg: "hierarchy", quant_mode, ..domain.config() };
            let shape = shape_of(&config);
            let mut end = 0;
            for area in areas(&shape) {
                assert!(area.start.offset >= end, "{area:?} begins inside another");
                assert!(area.slot <= area.stride && area.start.offset.is_multiple_of(8), "{area:?}");
                assert!(area.stride.is_multiple_of(8), "{area:?}: flags are words");
                end = area.start.offset + area.size();
            }
            assert!(end <= shape.window_bytes(), "{end} of {} {config:?}", shape.window_bytes());
            let pitch = record_pitch(&shape);
            assert!(token_bytes(&shape) <= pitch && partial_bytes(&shape) <= pitch);
            // The last combine slot is the last slot, or lies before it.
            let last =
                combine_slot(&shape, shape.servers() - 1, Token(shape.bs_max() - 1), pairs_max(&shape) - 1);
            let slots = areas(&shape).last().unwrap();
            assert!(last.offset + slots.stride <= slots.start.offset + slots.size());
        }
    }
}

#[test]
fn marks_and_tails_come_back() {
    assert_eq!(unmark(mark(0xFFFF_FFFF_FFFF, 0xFFFF)), (0xFFFF_FFFF_FFFF, 0xFFFF));
    assert_eq!(unmark(mark(7, 3)), (7, 3));
    let domain = Domain { r: 4, e: 8, s: 0, rs: 0, k: 3, h: 8, bs: 5, cores: 1 };
    let config = Config { product: "a2", comm_alg: "hierarchy", server_ranks: 2, ..domain.config() };
    let shape = shape_of(&config);
    let part = Part { pairs: 3, position: 2 };
    let tail = Tail { scale: 0.5, source: RankId(3), token: Token(4), part, weight: -2.0 };
    let bytes = tail.to_bytes();
    let triple = &bytes[Tail::TRIPLE as usize..Tail::WEIGHT as usize];
    assert_eq!(read_triple(&shape, triple), Ok((RankId(3), Token(4), part)));
    assert_eq!(bytes[..4], 0.5f32.to_le_bytes());
    assert_eq!(bytes[Tail::WEIGHT as usize..], (-2.0f32).to_le_bytes());
    let words = |words: [i32; 3]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let wrong =
        [[4, 0, 1 << 16], [0, 5, 1 << 16], [-1, 0, 1 << 16], [0, 0, 0], [0, 0, 4 << 16], [0, 0, 2 << 16 | 2]];
    for wrong in wrong {
        assert_eq!(read_triple(&shape, &words(wrong)), Err(wrong));
    }
}

#[test]
fn a_returned_row_is_known_by_its_place() {
    let domain = Domain { r: 6, e: 12, s: 0, rs: 0, k: 3, h: 8, bs: 5, cores: 1 };
    let config = Config { product: "a2", comm_alg: "hierarchy", server_ranks: 2, ..domain.config() };
    let shape = shape_of(&config);
    for server in 0..3 {
        for (token, position) in (0..5).flat_map(|token| (0..3).map(move |position| (token, position))) {
            let slot = combine_slot(&shape, server, Token(token), position);
            let seen = returned_at(&shape, behind(slot, ROW));
            assert_eq!(seen, Some((server, Token(token), position)));
            assert_eq!(returned_at(&shape, slot), None, "that is its flag");
        }
    }
    assert_eq!(returned_at(&shape, behind(combine_slot(&shape, 3, Token(0), 0), ROW)), None);
    assert_eq!(returned_at(&shape, Place::window(0)), None);
}
