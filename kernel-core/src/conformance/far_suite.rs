//! The suite of rule 7: what messages between servers promise, and beside it what they do not.
//!
//! Ranks 0 and 1 are one server, 2 and 3 the other.

use super::Claim::{Open, Required};
use super::Litmus;
use super::Op::{self, Quiet, Send};
use super::suite::{
    A, B, C, D, LEN, ONES, ROW, ROW_2, TWOS, expect, litmus, on, publish, put, racy, row, wait,
};
use crate::place::Place;

const SEVENS: u64 = 0x0707_0707_0707_0707;
const EIGHTS: u64 = 0x0808_0808_0808_0808;
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
    litmus(
        "a message is whole before the next one",
        Required,
        &[on(0, 0, &[send(2, ROW, SEVENS), tell(2, A, 1)]), on(2, 0, &[wait(A, 1), row(ROW, 7)])],
    ),
    litmus(
        "a message is whole before any word of the next one",
        Required,
        &[
            on(0, 0, &[send(2, ROW, SEVENS), send(2, ROW_2, EIGHTS)]),
            on(2, 0, &[wait(MIDDLE_2, EIGHTS), row(ROW, 7)]),
        ],
    ),
    litmus(
        "messages to other ranks between them change nothing",
        Required,
        &[
            on(0, 0, &[send(2, ROW, SEVENS), send(3, ROW, EIGHTS), put(1, ROW, 9), tell(2, A, 1)]),
            on(2, 0, &[wait(A, 1), row(ROW, 7)]),
        ],
    ),
    litmus(
        "messages to one place land in their order",
        Required,
        &[
            on(0, 0, &[send(2, ROW, SEVENS), send(2, ROW, EIGHTS), tell(2, A, 1)]),
            on(2, 0, &[wait(A, 1), row(ROW, 8)]),
        ],
    ),
    litmus(
        "a word of a message is never torn",
        Required,
        &[
            on(0, 0, &[send(2, ROW, ONES), send(2, ROW, TWOS), send(2, ROW, ONES)]),
            on(2, 0, &[expect(LAST, &[0, ONES, TWOS]); 12]),
        ],
    ),
    litmus(
        "what has landed of a message stays landed",
        Required,
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
    litmus(
        "messages of two cores have no order, and quiet does not speak for them",
        Open,
        &[
            on(0, 0, &[tell(2, A, 1), Quiet, publish(0, B, 1)]),
            on(0, 1, &[wait(B, 1), tell(2, C, 1)]),
            on(2, 0, &[wait(C, 1), expect(A, &[1])]),
        ],
    ),
    litmus(
        "messages to two ranks have no order",
        Open,
        &[
            on(0, 0, &[tell(2, A, 1), tell(3, B, 1)]),
            on(3, 0, &[wait(B, 1), publish(2, C, 1)]),
            on(2, 0, &[wait(C, 1), expect(A, &[1])]),
        ],
    ),
    litmus(
        "a publish does not wait for earlier messages",
        Open,
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
    litmus(
        "rows that were put and quiet are there for who hears of them over another server",
        Required,
        &[
            on(0, 0, &[put(1, ROW, 7), Quiet, tell(2, A, 1)]),
            on(2, 0, &[wait(A, 1), tell(1, B, 1)]),
            on(1, 0, &[wait(B, 1), row(ROW, 7)]),
        ],
    ),
    litmus(
        "what a relay has seen is there for who hears of it inside its server",
        Required,
        &[
            on(0, 0, &[send(2, ROW, SEVENS), tell(2, A, 1)]),
            on(2, 0, &[wait(A, 1), put(3, ROW_2, 8), publish(3, B, 1)]),
            on(3, 0, &[wait(B, 1), row(ROW_2, 8), publish(2, C, 1)]),
            on(2, 1, &[wait(C, 1), expect(A, &[1]), row(ROW, 7)]),
        ],
    ),
    litmus(
        "a place takes the next message when its reader has said that it has read",
        Required,
        &[
            on(0, 0, &[send(2, ROW, SEVENS), tell(2, A, 1), wait(B, 1), send(2, ROW, EIGHTS), tell(2, A, 2)]),
            on(2, 0, &[wait(A, 1), row(ROW, 7), tell(0, B, 1), wait(A, 2), row(ROW, 8)]),
        ],
    ),
];
