//! Payload of two operators ago that could pass for a flag now.

use super::{Delivery, TWO, a2, flag_result, flag_tokens, plain_result, routed, run};
use crate::layout::a2_window::{record, tail_flag};
use crate::layout::state::Operator;
use crate::shape::{Config, Shape};
use crate::sim::cluster::Failure;
use crate::testing::domain::{Dice, Domain, Tensors, shape as shape_of};
use crate::testing::group::Group;
use alloc::vec;
use alloc::vec::Vec;

/// Two ranks with two tokens; the rows that they send each other fall from two to one, and rise again.
fn falling(shape: &Shape, flags: bool) -> Vec<Vec<Tensors>> {
    let mut dice = Dice(1);
    let rounds: [[&[i32]; 2]; 4] =
        [[&[1, 1], &[0, 0]], [&[1, 0], &[0, 1]], [&[0, 0], &[1, 1]], [&[1, 1], &[0, 0]]];
    let mut tensors = |rank, ids| match (flags, routed(shape, rank, ids)) {
        (true, tensors) => flag_tokens(shape, tensors, &mut dice),
        (false, tensors) => tensors,
    };
    rounds.iter().map(|[first, second]| vec![tensors(0, first), tensors(1, second)]).collect()
}

fn shape(quant_mode: i64) -> Shape {
    let domain = Domain { e: 2, k: 1, h: if quant_mode == 2 { 1024 } else { 512 }, ..TWO };
    shape_of(&Config { quant_mode, ..a2(domain) })
}

/// Returns how many of 150 seeds fail, with the seed's scheme or with ours; and how many of them have wrong bytes.
fn wrong(shape: &Shape, delivery: Delivery, seed_clears: bool, rows: [bool; 2]) -> (usize, usize) {
    let result = if rows[1] { flag_result } else { plain_result };
    let outcome = |seed| {
        let mut group = Group::of(shape, falling(shape, rows[0]), result);
        group.judge.seed_clears = seed_clears;
        run(&mut group, delivery, seed)
    };
    let outcomes: Vec<_> = (0..150).map(outcome).collect();
    let wrong = |outcome: &&Result<(), Failure>| matches!(outcome, Err(Failure::Wrong(_)));
    (outcomes.iter().filter(|outcome| outcome.is_err()).count(), outcomes.iter().filter(wrong).count())
}

#[test]
fn a_second_row_lies_at_the_place_of_the_flag_after_one_row() {
    for shape in [shape(0), shape(2)] {
        let place = tail_flag(&shape, Operator::Dispatch, 1);
        let second = record(&shape, 1);
        assert!((second..second + shape.payload_bytes()).contains(&place), "{place} in {shape:?}");
    }
}

#[test]
fn with_the_seeds_clears_a_token_of_minus_ones_ends_dispatchs_wait_early() {
    for shape in [shape(0), shape(2)] {
        let (_, bytes) = wrong(&shape, Delivery::Weak, true, [true, false]);
        assert!(bytes > 3, "{bytes} of {shape:?}");
        // FLAG1 has been cleared, so part of the window has arrived, which suffices where a window arrives whole.
        assert_eq!(wrong(&shape, Delivery::Strong, true, [true, false]), (0, 0), "{shape:?}");
        // Rows that hold no flag cause no error.
        assert_eq!(wrong(&shape, Delivery::Weak, true, [false, false]), (0, 0), "{shape:?}");
    }
}

#[test]
fn with_the_seeds_clears_a_result_of_minus_ones_ends_combines_wait_early() {
    for delivery in [Delivery::Weak, Delivery::Strong] {
        let (_, bytes) = wrong(&shape(0), delivery, true, [false, true]);
        assert!(bytes > 3, "{bytes}, {delivery:?}");
    }
}

#[test]
fn with_our_clears_neither_does() {
    for shape in [shape(0), shape(2)] {
        for delivery in [Delivery::Weak, Delivery::Strong] {
            assert_eq!(wrong(&shape, delivery, false, [true, true]), (0, 0), "{shape:?}");
        }
    }
}
