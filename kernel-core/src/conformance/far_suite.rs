//! The suite of rule 7: what messages between servers promise, and beside it what they do not.
//!
//! Ranks 0 and 1 are one server, 2 and 3 the other.

use super::Litmus;
use super::Op::{self, Quiet, Send};
use super::again_suite::stays;
use super::suite::{
    A, B, C, D, EIGHTS, LEN, ONES, ROW, ROW_2, SEVENS, TWOS, expect, on, open, publish, put, racy, required,
    row, store, wait,
};
use crate::place::Place;

/// A word inside a row, and its last one.
const MIDDLE_2: Place = Place::window(ROW_2.offset + 96);
const LAST: Place = Place::window(ROW.offset + LEN as u64 - 8);

/// A row as a message.
const fn send(to: u32, at: Place, word: u64) -> Op {
    Send { to, at, word, len: LEN }
}

/// A word as a message.
const fn tell(to: u32, at: Place, word: u64) -> Op {
    Send { to, at, word, len: 8 }
}

/// Every litmus of messages.
pub const FAR_SUITE: &[Litmus] = &[
    // One core, one rank.
    required(
        "a message is whole before the next one",
        &[on(0, 0, &[send(2, ROW, SEVENS), tell(2, A, 1)]), on(2, 0, &[wait(A, 1), row(ROW, 7)])],
    ),
    required(
        "a message is whole before any word of the next one",
        &[
            on(0, 0, &[send(2, ROW, SEVENS), send(2, ROW_2, EIGHTS)]),
            on(2, 0, &[wait(MIDDLE_2, EIGHTS), row(ROW, 7)]),
        ],
    ),
    required(
        "messages to other ranks between them change nothing",
        &[
            on(0, 0, &[send(2, ROW, SEVENS), send(3, ROW, EIGHTS), put(1, ROW, 9), tell(2, A, 1)]),
            on(2, 0, &[wait(A, 1), row(ROW, 7)]),
        ],
    ),
    required(
        "messages to one place land in their order",
        &[
            on(0, 0, &[send(2, ROW, SEVENS), send(2, ROW, EIGHTS), tell(2, A, 1)]),
            on(2, 0, &[wait(A, 1), row(ROW, 8)]),
        ],
    ),
    required(
        "a word of a message is never torn",
        &[
            on(0, 0, &[send(2, ROW, ONES), send(2, ROW, TWOS), send(2, ROW, ONES)]),
            on(2, 0, &[expect(LAST, &[0, ONES, TWOS]); 12]),
        ],
    ),
    required(
        "what has landed of a message stays landed",
        &[
            on(0, 0, &[send(2, ROW, SEVENS)]),
            on(2, 0, &[wait(LAST, SEVENS), expect(LAST, &[SEVENS]), expect(LAST, &[SEVENS])]),
        ],
    ),
    racy(
        "the front word of a message says nothing of the others",
        &[on(0, 0, &[send(2, ROW, SEVENS)]), on(2, 0, &[wait(ROW, SEVENS), row(ROW, 7)])],
    ),
    racy(
        "the last word of a message says nothing of the others",
        &[on(0, 0, &[send(2, ROW, SEVENS)]), on(2, 0, &[wait(LAST, SEVENS), row(ROW, 7)])],
    ),
    // Several.
    open(
        "messages of two cores have no order, and quiet does not speak for them",
        &[
            on(0, 0, &[tell(2, A, 1), Quiet, publish(0, B, 1)]),
            on(0, 1, &[wait(B, 1), tell(2, C, 1)]),
            on(2, 0, &[wait(C, 1), expect(A, &[1])]),
        ],
    ),
    open(
        "messages to two ranks have no order",
        &[
            on(0, 0, &[tell(2, A, 1), tell(3, B, 1)]),
            on(3, 0, &[wait(B, 1), publish(2, C, 1)]),
            on(2, 0, &[wait(C, 1), expect(A, &[1])]),
        ],
    ),
    open(
        "a publish does not wait for earlier messages",
        &[
            on(0, 0, &[tell(2, A, 1), publish(1, B, 1)]),
            on(1, 0, &[wait(B, 1), tell(3, C, 1)]),
            on(3, 0, &[wait(C, 1), publish(2, D, 1)]),
            on(2, 0, &[wait(D, 1), expect(A, &[1])]),
        ],
    ),
    racy(
        "a message does not wait for earlier puts",
        &[
            on(0, 0, &[put(1, ROW, 7), tell(2, A, 1)]),
            on(2, 0, &[wait(A, 1), tell(1, B, 1)]),
            on(1, 0, &[wait(B, 1), row(ROW, 7)]),
        ],
    ),
    // Causality.
    required(
        "rows that were put and quiet are there for who hears of them over another server",
        &[
            on(0, 0, &[put(1, ROW, 7), Quiet, tell(2, A, 1)]),
            on(2, 0, &[wait(A, 1), tell(1, B, 1)]),
            on(1, 0, &[wait(B, 1), row(ROW, 7)]),
        ],
    ),
    required(
        "what a relay has seen is there for who hears of it inside its server",
        &[
            on(0, 0, &[send(2, ROW, SEVENS), tell(2, A, 1)]),
            on(2, 0, &[wait(A, 1), put(3, ROW_2, 8), publish(3, B, 1)]),
            on(3, 0, &[wait(B, 1), row(ROW_2, 8), publish(2, C, 1)]),
            on(2, 1, &[wait(C, 1), expect(A, &[1]), row(ROW, 7)]),
        ],
    ),
    required(
        "a place takes the next message when its reader has said that it has read",
        &[
            on(0, 0, &[send(2, ROW, SEVENS), tell(2, A, 1), wait(B, 1), send(2, ROW, EIGHTS), tell(2, A, 2)]),
            on(2, 0, &[wait(A, 1), row(ROW, 7), tell(0, B, 1), wait(A, 2), row(ROW, 8)]),
        ],
    ),
    required(
        "a message that was read does not come back",
        &[
            on(0, 0, &[send(2, ROW, SEVENS), tell(2, A, 1), wait(B, 1), send(2, ROW, EIGHTS), stays(B, 1)]),
            on(
                2,
                0,
                &[
                    wait(A, 1),
                    row(ROW, 7),
                    store(A, 0),
                    Quiet,
                    tell(0, B, 1),
                    wait(LAST, EIGHTS),
                    stays(A, 0),
                    expect(LAST, &[EIGHTS]),
                ],
            ),
        ],
    ),
];
