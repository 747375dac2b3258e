//! One flag in a row, in each of its words in turn, with every value that any protocol here uses: it disturbs nothing, and
//! no flag is left at a place where one could be read.

use super::{Delivery, TWO, a2, routed};
use crate::shape::{Config, Shape};
use crate::sim::cluster::schedule;
use crate::sync::flag;
use crate::testing::domain::{Domain, Tensors, row, shape as shape_of};
use crate::testing::group::Group;
use alloc::vec::Vec;

/// The operators at one position: dispatch and combine read places of each other's payload in both halves.
const UNIT: &str = "DDCCDDCC";
/// The number of rounds in it.
const ROUNDS: usize = 4;

/// Two ranks with three tokens, whose rows end in the middle of a place that the other operator, or another count, reads.
fn shape(quant_mode: i64) -> Shape {
    let domain = Domain { e: 2, k: 1, h: if quant_mode == 2 { 512 } else { 256 }, bs: 3, ..TWO };
    shape_of(&Config { quant_mode, ..a2(domain) })
}

/// Words in a row of dtype, which is the longest.
fn positions(shape: &Shape) -> usize {
    shape.row_bytes() as usize / 4
}

/// Returns a row of dtype in which that word is `flag` and all others are 0.
fn with_flag(shape: &Shape, word: usize, flag: u32) -> Vec<u8> {
    let mut row = [0].repeat(shape.row_bytes() as usize);
    row[word * 4..][..4].copy_from_slice(&flag.to_le_bytes());
    row
}

/// Returns the experts' result in the four rounds of a position.
fn result<const FLAG: u32>(shape: &Shape, round: usize, _: u32, _: u32, _: u32) -> Vec<u8> {
    with_flag(shape, round / ROUNDS % positions(shape), FLAG)
}

/// Returns a token that travels with the flag in that word.
fn token(shape: &Shape, position: usize, flag: u32) -> Vec<u8> {
    match shape.row_format().scale {
        None => with_flag(shape, position, flag),
        // Four elements of -1 in a row that quantising does not change, with the peak elsewhere. Its scale is 1.0f.
        Some(_) => {
            let word = position as u32 % (shape.h() / 4);
            let peak = (word * 4 + 8) % shape.h();
            row(shape.dtype(), shape.h(), |i| match i {
                i if i / 4 == word => -1.0,
                i if i == peak => 127.0,
                _ => 0.0,
            })
        }
    }
}

/// All rounds of all positions: the rows to the other rank fall from three to none, and rise again.
fn rounds(shape: &Shape, flag: u32) -> Vec<Vec<Tensors>> {
    let ids: [[&[i32]; 2]; ROUNDS] = [
        [&[1, 1, 1], &[0, 0, 0]],
        [&[1, 0, 0], &[0, 1, 1]],
        [&[0, 0, 0], &[1, 0, 1]],
        [&[1, 1, 0], &[0, 0, 1]],
    ];
    let of = |number: usize| {
        let x = token(shape, number / ROUNDS, flag).repeat(3);
        let ranks = (0..).zip(ids[number % ROUNDS]);
        ranks.map(|(rank, ids)| Tensors { x: x.clone(), ..routed(shape, rank, ids) }).collect()
    };
    (0..positions(shape) * ROUNDS).map(of).collect()
}

/// Runs a group through all positions, checks repeatedly that no flag is left, and returns the positions of errors.
fn wrong<const FLAG: u32>(shape: &Shape) -> Vec<usize> {
    let rounds = rounds(shape, FLAG);
    let all = schedule(UNIT, positions(shape));
    // A group with an error is finished; a new one continues with the next position.
    let from = |position: usize| {
        let mut group = Group::of(shape, rounds.clone(), result::<FLAG>);
        for member in &mut group.members {
            member.ended = position * UNIT.len();
            member.cores.iter_mut().for_each(|core| core.ended = position * UNIT.len());
        }
        group
    };
    let mut group = from(0);
    let is_wrong = |&position: &usize| {
        // After two operators both halves hold what dispatch left, and combine has not cleared it.
        let wrong = (1..=UNIT.len() / 2).map(|pair| position * UNIT.len() + 2 * pair).any(|end| {
            group.operators = all[..end].to_vec();
            let ran = group.play(Delivery::Weak, end as u64);
            ran.is_err() || !group.flags_left().is_empty()
        });
        if wrong {
            group = from(position + 1);
        }
        wrong
    };
    (0..positions(shape)).filter(is_wrong).collect()
}

#[test]
fn a_flag_of_any_value_in_any_word_of_a_row_disturbs_nothing() {
    assert_eq!(wrong::<{ flag::WINDOW_FLAG }>(&shape(0)), []);
    assert_eq!(wrong::<{ flag::FLAG }>(&shape(0)), []);
    assert_eq!(wrong::<{ flag::WINDOW_FLAG }>(&shape(2)), []);
}
