//! Duties and rules of the contract, left out one at a time: each omission must be caught, under the weakest conditions
//! that show it.

use super::{Delivery, TWO, a2, plain_result, random_rounds, run};
use crate::shape::{Config, Shape};
use crate::sim::duty::{Double, Duty, Words};
use crate::testing::domain::{Dice, Domain, shape as shape_of};
use crate::testing::group::Group;

fn shape(cores: i64) -> Shape {
    shape_of(&Config { aiv_num: cores, ..a2(Domain { r: 3, e: 6, h: 16, ..TWO }) })
}

/// Returns how many of 60 seeds fail when that duty is left out.
fn fails(shape: &Shape, rounds: usize, delivery: Delivery, duty: Option<Duty>) -> usize {
    let outcome = |seed| {
        let tensors = random_rounds(shape, rounds, false, &mut Dice(seed));
        let group = Group::of(shape, tensors, plain_result);
        let mut group = match duty.clone() {
            Some(duty) => group.without(duty),
            None => group,
        };
        usize::from(run(&mut group, delivery, seed).is_err())
    };
    (0..60).map(outcome).sum()
}

#[test]
fn nothing_goes_wrong_when_nothing_is_left_out() {
    for cores in 1..=3 {
        for delivery in [Delivery::Strong, Delivery::Weak] {
            assert_eq!(fails(&shape(cores), 3, delivery, None), 0, "{cores} cores");
        }
    }
}

#[test]
fn a_clear_that_never_happens_is_caught_when_a_half_comes_round() {
    // Two operators use both halves once; the third reads the flags of the first.
    assert_eq!(fails(&shape(1), 1, Delivery::Weak, Some(Duty::Clear(Words::WindowsIn))), 0);
    assert!(fails(&shape(1), 2, Delivery::Weak, Some(Duty::Clear(Words::WindowsIn))) > 3);
}

#[test]
fn clears_that_land_after_the_next_quiet_are_caught() {
    assert_eq!(fails(&shape(1), 1, Delivery::Weak, Some(Duty::InTime(Words::WindowsIn))), 0);
    assert!(fails(&shape(1), 3, Delivery::Weak, Some(Duty::InTime(Words::WindowsIn))) > 3);
}

#[test]
fn one_message_slot_is_caught() {
    assert!(fails(&shape(1), 2, Delivery::Weak, Some(Duty::Second(Double::MessageSlot))) > 3);
}

#[test]
fn one_half_is_caught() {
    let duty = Duty::Second(Double::Half);
    assert!(fails(&shape(1), 1, Delivery::Weak, Some(duty)) > 3);
}

#[test]
fn rows_that_land_after_the_quiet_are_caught() {
    assert!(fails(&shape(1), 1, Delivery::Strong, Some(Duty::InTime(Words::WindowsOut))) > 3);
}

#[test]
fn a_flip_that_lands_after_its_operator_is_caught_with_two_cores() {
    // Core 0 sees its own store.
    assert_eq!(fails(&shape(1), 3, Delivery::Weak, Some(Duty::InTime(Words::BufferChosen))), 0);
    assert!(fails(&shape(2), 3, Delivery::Weak, Some(Duty::InTime(Words::BufferChosen))) > 3);
}

#[test]
fn a_core_barrier_that_does_not_wait_is_caught_with_two_cores() {
    assert_eq!(fails(&shape(1), 2, Delivery::Weak, Some(Duty::Barrier { even: true, odd: true })), 0);
    assert!(fails(&shape(2), 1, Delivery::Weak, Some(Duty::Barrier { even: true, odd: true })) > 3);
    assert!(fails(&shape(2), 1, Delivery::Strong, Some(Duty::Barrier { even: true, odd: true })) > 3);
}

#[test]
fn a_last_word_that_comes_first_is_caught_where_windows_come_in_pieces() {
    assert_eq!(fails(&shape(1), 2, Delivery::Strong, Some(Duty::LastWordLast)), 0);
    assert!(fails(&shape(1), 1, Delivery::Weak, Some(Duty::LastWordLast)) > 3);
}
