//! The suite: one litmus for each sentence of the contract of [`Fabric`](crate::fabric::Fabric), and
//! beside each promise the same without what it rests on.

use super::Claim::{Open, Reported, Required};
use super::Op::{
    Await, Expect, ExpectBytes, ExpectPeerBytes, ExpectWhole, Publish, Put, Quiet, SkipIf, Store,
};
use super::{Claim, Litmus, Op, Program, Who};
use crate::place::Place;

pub(super) const A: Place = Place::state(0);
pub(super) const B: Place = Place::state(64);
pub(super) const C: Place = Place::state(128);
pub(super) const D: Place = Place::state(192);
/// Two rows of a window.
pub(super) const ROW: Place = Place::window(0);
pub(super) const ROW_2: Place = Place::window(256);
pub(super) const LEN: usize = 200;

pub(super) const ONES: u64 = 0x1111_1111_1111_1111;
pub(super) const TWOS: u64 = 0x2222_2222_2222_2222;

pub(super) const fn put(to: u32, at: Place, byte: u8) -> Op {
    Put { to, at, byte, len: LEN }
}

pub(super) const fn publish(to: u32, at: Place, word: u64) -> Op {
    Publish { to, at, word }
}

pub(super) const fn store(at: Place, word: u64) -> Op {
    Store { at, word }
}

pub(super) const fn wait(at: Place, word: u64) -> Op {
    Await { at, word }
}

pub(super) const fn expect(at: Place, words: &'static [u64]) -> Op {
    Expect { at, words }
}

const fn skip_if(at: Place, word: u64, ops: usize) -> Op {
    SkipIf { at, word, ops }
}

pub(super) const fn row(at: Place, byte: u8) -> Op {
    ExpectBytes { at, byte, len: LEN }
}

const fn peer_row(rank: u32, at: Place, byte: u8) -> Op {
    ExpectPeerBytes { rank, at, byte, len: LEN }
}

pub(super) const fn on(rank: u32, core: u32, ops: &'static [Op]) -> Program {
    Program { rank, who: Who::Core(core), ops }
}

pub(super) const fn litmus(name: &'static str, claim: Claim, programs: &'static [Program]) -> Litmus {
    Litmus { name, claim, racy: false, programs }
}

/// For programs that read what no flag covers, or whose reader may be told too early.
pub(super) const fn racy(name: &'static str, programs: &'static [Program]) -> Litmus {
    Litmus { name, claim: Open, racy: true, programs }
}

/// Every litmus, by the rules of the contract.
pub const SUITE: &[Litmus] = &[
    // 1: puts.
    litmus(
        "a put lands whole before the flag behind it",
        Required,
        &[on(0, 0, &[put(1, ROW, 7), publish(1, A, 1)]), on(1, 0, &[wait(A, 1), row(ROW, 7)])],
    ),
    racy(
        "a put may be seen in pieces before its flag",
        &[on(0, 0, &[put(1, ROW, 7), publish(1, A, 1)]), on(1, 0, &[ExpectWhole { at: ROW, len: LEN }; 12])],
    ),
    litmus(
        "two puts to one place may land in any order",
        Open,
        &[
            on(0, 0, &[put(1, ROW, 7), put(1, ROW, 8), publish(1, A, 1)]),
            on(1, 0, &[wait(A, 1), row(ROW, 8)]),
        ],
    ),
    litmus(
        "a quiet between them orders two puts to one place",
        Required,
        &[
            on(0, 0, &[put(1, ROW, 7), Quiet, put(1, ROW, 8), publish(1, A, 1)]),
            on(1, 0, &[wait(A, 1), row(ROW, 8)]),
        ],
    ),
    litmus(
        "a put to the own rank is before the own flag",
        Required,
        &[on(0, 0, &[put(0, ROW, 7), publish(0, A, 1), wait(A, 1), row(ROW, 7)])],
    ),
    // 2: publishes.
    litmus(
        "a flag covers all earlier puts of its core to that rank",
        Required,
        &[
            on(0, 0, &[put(1, ROW, 7), put(2, ROW, 5), put(1, ROW_2, 8), publish(1, A, 1)]),
            on(1, 0, &[wait(A, 1), row(ROW_2, 8), row(ROW, 7)]),
        ],
    ),
    racy(
        "a flag covers no puts to another rank",
        &[
            on(0, 0, &[put(2, ROW, 7), publish(1, A, 1)]),
            on(1, 0, &[wait(A, 1), publish(2, B, 1)]),
            on(2, 0, &[wait(B, 1), row(ROW, 7)]),
        ],
    ),
    racy(
        "a flag covers no puts of another core",
        &[
            on(0, 0, &[put(1, ROW, 7), publish(0, A, 1)]),
            on(0, 1, &[wait(A, 1), publish(1, B, 1)]),
            on(1, 0, &[wait(B, 1), row(ROW, 7)]),
        ],
    ),
    litmus(
        "publishes to one rank have no order",
        Open,
        &[on(0, 0, &[publish(1, A, 1), publish(1, B, 1)]), on(1, 0, &[wait(B, 1), expect(A, &[1])])],
    ),
    litmus(
        "publishes to two ranks have no order",
        Open,
        &[
            on(0, 0, &[publish(1, A, 1), publish(2, B, 1)]),
            on(2, 0, &[wait(B, 1), publish(1, C, 1)]),
            on(1, 0, &[wait(C, 1), expect(A, &[1])]),
        ],
    ),
    litmus(
        "publishes to one word have no order",
        Open,
        &[
            on(0, 0, &[publish(1, A, 1), publish(1, A, 2), Quiet, publish(1, B, 1)]),
            on(1, 0, &[wait(B, 1), expect(A, &[2])]),
        ],
    ),
    litmus(
        "a quiet between them orders publishes to one word",
        Required,
        &[
            on(0, 0, &[publish(1, A, 1), Quiet, publish(1, A, 2), Quiet, publish(1, B, 1)]),
            on(1, 0, &[wait(B, 1), expect(A, &[2])]),
        ],
    ),
    litmus(
        "a word is never torn",
        Required,
        &[
            on(0, 0, &[publish(1, A, ONES), Quiet, publish(1, A, TWOS), Quiet, publish(1, A, ONES)]),
            on(2, 0, &[publish(1, A, TWOS), Quiet, publish(1, A, ONES)]),
            on(1, 0, &[expect(A, &[0, ONES, TWOS]); 12]),
        ],
    ),
    // 3: quiet.
    litmus(
        "after quiet and a core barrier another core's flag covers the puts",
        Required,
        &[
            on(0, 0, &[put(1, ROW, 7), Quiet, publish(0, A, 1)]),
            on(0, 1, &[put(1, ROW_2, 8), Quiet, publish(0, B, 1), wait(A, 1), publish(1, C, 1)]),
            on(1, 0, &[wait(C, 1), row(ROW, 7), row(ROW_2, 8)]),
        ],
    ),
    litmus(
        "quiet covers publishes",
        Required,
        &[
            on(0, 0, &[publish(1, A, 1), Quiet, publish(2, B, 1)]),
            on(2, 0, &[wait(B, 1), publish(1, C, 1)]),
            on(1, 0, &[wait(C, 1), expect(A, &[1])]),
        ],
    ),
    litmus(
        "quiet covers stores",
        Required,
        &[on(0, 0, &[store(A, 1), Quiet, publish(0, B, 1)]), on(0, 1, &[wait(B, 1), expect(A, &[1])])],
    ),
    // 4: causality.
    litmus(
        "what has landed is before all that is told of it, over three ranks",
        Required,
        &[
            on(0, 0, &[put(2, ROW, 7), Quiet, publish(1, A, 1)]),
            on(1, 0, &[wait(A, 1), put(2, ROW_2, 8), publish(2, B, 1)]),
            on(2, 0, &[wait(B, 1), row(ROW, 7), row(ROW_2, 8)]),
        ],
    ),
    litmus(
        "what the publisher has observed is before what its observer does",
        Required,
        &[
            on(0, 0, &[put(1, ROW, 7), publish(1, A, 1)]),
            on(1, 0, &[wait(A, 1), publish(2, B, 1)]),
            on(2, 0, &[wait(B, 1), publish(1, C, 1)]),
            on(1, 1, &[wait(C, 1), expect(A, &[1]), row(ROW, 7)]),
        ],
    ),
    litmus(
        "a word that was passed on inside a rank is there for who hears of it",
        Required,
        &[
            on(0, 0, &[put(1, ROW, 7), publish(1, A, 1)]),
            on(1, 0, &[wait(A, 1), publish(1, B, 1)]),
            on(1, 1, &[wait(B, 1), expect(A, &[1]), row(ROW, 7)]),
        ],
    ),
    // A reader that does not find the word of the other writer says so, in C or by expecting that the other reader did not.
    litmus(
        "two readers agree which of two ranks' words came first",
        Reported,
        &[
            on(0, 0, &[publish(2, A, 1)]),
            on(1, 0, &[publish(2, B, 1)]),
            on(2, 0, &[wait(A, 1), skip_if(B, 1, 1), publish(2, C, 1), Quiet, publish(2, D, 1)]),
            on(2, 1, &[wait(B, 1), skip_if(A, 1, 2), wait(D, 1), expect(C, &[0])]),
        ],
    ),
    litmus(
        "what has landed stays landed",
        Required,
        &[
            on(0, 0, &[publish(1, A, 1)]),
            on(1, 0, &[wait(A, 1), expect(A, &[1]), expect(A, &[1]), expect(A, &[1])]),
        ],
    ),
    // 5: stores.
    litmus(
        "a core observes its own stores, in their order",
        Required,
        &[on(
            0,
            0,
            &[
                store(A, 1),
                expect(A, &[1]),
                store(A, 2),
                expect(A, &[2]),
                Quiet,
                expect(A, &[2]),
                store(A, 0),
                expect(A, &[0]),
            ],
        )],
    ),
    litmus(
        "a core may not yet observe its own publish",
        Open,
        &[on(0, 0, &[publish(0, A, 1), expect(A, &[1])])],
    ),
    litmus(
        "one core's stores to one word land in their order",
        Required,
        &[
            on(0, 0, &[store(A, 1), store(A, 2), Quiet, publish(0, B, 1)]),
            on(0, 1, &[wait(B, 1), expect(A, &[2])]),
        ],
    ),
    litmus(
        "a store may land behind a later publish",
        Open,
        &[on(0, 0, &[store(A, 1), publish(0, B, 1)]), on(0, 1, &[wait(B, 1), expect(A, &[1])])],
    ),
    litmus(
        "a cleared word takes the next flag, after quiet",
        Required,
        &[
            on(0, 0, &[publish(1, A, 1), wait(B, 1), publish(1, A, 2)]),
            on(1, 0, &[wait(A, 1), store(A, 0), Quiet, publish(0, B, 1), wait(A, 2), Quiet, expect(A, &[2])]),
        ],
    ),
    litmus(
        "a late clear may wipe the next flag",
        Open,
        &[
            on(0, 0, &[publish(1, A, 1), wait(B, 1), publish(1, A, 2)]),
            on(1, 0, &[wait(A, 1), store(A, 0), publish(0, B, 1), wait(A, 2), Quiet, expect(A, &[2])]),
        ],
    ),
    litmus(
        "a cleared word takes the flag that a third rank publishes at the end of a chain",
        Required,
        &[
            on(0, 0, &[publish(1, A, 1)]),
            on(1, 0, &[wait(A, 1), store(A, 0), Quiet, publish(2, B, 1), wait(A, 2), publish(0, D, 1)]),
            on(2, 0, &[wait(B, 1), publish(0, C, 1)]),
            on(0, 1, &[wait(C, 1), publish(1, A, 2), wait(D, 1)]),
        ],
    ),
    // 6: reading at a peer's.
    litmus(
        "rows that a rank was quiet about are there for the peer that it tells",
        Required,
        &[on(0, 0, &[put(0, ROW, 7), Quiet, publish(1, A, 1)]), on(1, 0, &[wait(A, 1), peer_row(0, ROW, 7)])],
    ),
    litmus(
        "rows at one peer's are there for who hears of them at the end of a chain",
        Required,
        &[
            on(0, 0, &[put(0, ROW, 7), Quiet, publish(1, A, 1)]),
            on(1, 0, &[put(1, ROW, 9), Quiet, wait(A, 1), publish(2, B, 1)]),
            on(2, 0, &[wait(B, 1), peer_row(0, ROW, 7), peer_row(1, ROW, 9)]),
        ],
    ),
    racy(
        "without quiet a publish to a peer says nothing of rows at home",
        &[on(0, 0, &[put(0, ROW, 7), publish(1, A, 1)]), on(1, 0, &[wait(A, 1), peer_row(0, ROW, 7)])],
    ),
];
