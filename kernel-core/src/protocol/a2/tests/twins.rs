//! Duties and rules of the contract left out, one at a time: each must be seen failing, under the weakest conditions
//! that show it.

use super::{TWO, a2, plain_result, random_rounds, run};
use crate::layout::a2_window::half_start;
use crate::layout::state::Partition;
use crate::shape::{Config, Shape};
use crate::testing::a2_group::{Delivery, Group};
use crate::testing::domain::{Dice, Domain, shape as shape_of};
use crate::testing::nic::Bend;

fn shape(cores: i64) -> Shape {
    shape_of(&Config { aiv_num: cores, ..a2(Domain { r: 3, e: 6, h: 16, ..TWO }) })
}

/// How many of 60 seeds go wrong when that is left out.
fn fails(shape: &Shape, rounds: usize, delivery: Delivery, bend: &Bend) -> usize {
    let outcome = |seed| {
        let tensors = random_rounds(shape, rounds, false, &mut Dice(seed));
        let mut group = Group::new(shape, tensors, plain_result);
        group.world.bend = bend.clone();
        if bend != &Bend::None {
            group.world.forgive_second_writes();
        }
        usize::from(run(&mut group, delivery, seed).is_err())
    };
    (0..60).map(outcome).sum()
}

#[test]
fn nothing_goes_wrong_when_nothing_is_left_out() {
    for cores in 1..=3 {
        for delivery in [Delivery::Strong, Delivery::Weak] {
            assert_eq!(fails(&shape(cores), 3, delivery, &Bend::None), 0, "{cores} cores");
        }
    }
}

#[test]
fn a_clear_that_never_happens_is_caught_when_a_half_comes_round() {
    // Two operators use both halves once; the third finds the flags of the first.
    assert_eq!(fails(&shape(1), 1, Delivery::Weak, &Bend::NoClears), 0);
    assert!(fails(&shape(1), 2, Delivery::Weak, &Bend::NoClears) > 3);
}

#[test]
fn clears_that_land_behind_the_next_quiet_are_caught() {
    assert_eq!(fails(&shape(1), 1, Delivery::Weak, &Bend::LateClears), 0);
    assert!(fails(&shape(1), 3, Delivery::Weak, &Bend::LateClears) > 3);
}

#[test]
fn one_message_slot_is_caught() {
    assert!(fails(&shape(1), 2, Delivery::Weak, &Bend::OneMessageSlot) > 3);
}

#[test]
fn one_half_is_caught() {
    let bend = Bend::OneHalf(half_start(&shape(1), Partition::P1));
    assert!(fails(&shape(1), 1, Delivery::Weak, &bend) > 3);
}

#[test]
fn rows_that_land_behind_the_quiet_are_caught() {
    assert!(fails(&shape(1), 1, Delivery::Strong, &Bend::LateWrites) > 3);
}

#[test]
fn a_flip_that_has_not_landed_when_the_operator_ends_is_caught_with_two_cores() {
    // Core 0 sees its own store.
    assert_eq!(fails(&shape(1), 3, Delivery::Weak, &Bend::LateFlips), 0);
    assert!(fails(&shape(2), 3, Delivery::Weak, &Bend::LateFlips) > 3);
}

#[test]
fn a_core_barrier_that_does_not_wait_is_caught_with_two_cores() {
    assert_eq!(fails(&shape(1), 2, Delivery::Weak, &Bend::OpenBarrier), 0);
    assert!(fails(&shape(2), 1, Delivery::Weak, &Bend::OpenBarrier) > 3);
    assert!(fails(&shape(2), 1, Delivery::Strong, &Bend::OpenBarrier) > 3);
}

#[test]
fn a_last_word_that_comes_first_is_caught_where_windows_come_in_pieces() {
    assert_eq!(fails(&shape(1), 2, Delivery::Strong, &Bend::LastWordFirst), 0);
    assert!(fails(&shape(1), 1, Delivery::Weak, &Bend::LastWordFirst) > 3);
}
