//! The suite: one litmus for each sentence of the contract of [`Fabric`](crate::fabric::Fabric), and
//! beside each promise the same without what it rests on.

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
pub(super) const SEVENS: u64 = 0x0707_0707_0707_0707;
pub(super) const EIGHTS: u64 = 0x0808_0808_0808_0808;

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

pub(super) const fn required(name: &'static str, programs: &'static [Program]) -> Litmus {
    Litmus { name, claim: Claim::Required, racy: false, programs }
}

pub(super) const fn open(name: &'static str, programs: &'static [Program]) -> Litmus {
    Litmus { claim: Claim::Open, ..required(name, programs) }
}

/// For programs that read what no flag covers, or whose reader may be told too early.
pub(super) const fn racy(name: &'static str, programs: &'static [Program]) -> Litmus {
    Litmus { racy: true, ..open(name, programs) }
}

const fn reported(name: &'static str, programs: &'static [Program]) -> Litmus {
    Litmus { claim: Claim::Reported, ..required(name, programs) }
}

/// Every litmus, by the rules of the contract.
pub const SUITE: &[Litmus] = &[
    // 1: puts.
    required(
        "a put lands whole before the flag behind it",
        &[on(0, 0, &[put(1, ROW, 7), publish(1, A, 1)]), on(1, 0, &[wait(A, 1), row(ROW, 7)])],
    ),
    racy(
        "a put may be seen in pieces before its flag",
        &[on(0, 0, &[put(1, ROW, 7), publish(1, A, 1)]), on(1, 0, &[ExpectWhole { at: ROW, len: LEN }; 12])],
    ),
    open(
        "two puts to one place may land in any order",
        &[
            on(0, 0, &[put(1, ROW, 7), put(1, ROW, 8), publish(1, A, 1)]),
            on(1, 0, &[wait(A, 1), row(ROW, 8)]),
        ],
    ),
    required(
        "a quiet between them orders two puts to one place",
        &[
            on(0, 0, &[put(1, ROW, 7), Quiet, put(1, ROW, 8), publish(1, A, 1)]),
            on(1, 0, &[wait(A, 1), row(ROW, 8)]),
        ],
    ),
    required(
        "a put to this rank is before its own flag",
        &[on(0, 0, &[put(0, ROW, 7), publish(0, A, 1), wait(A, 1), row(ROW, 7)])],
    ),
    // 2: publishes.
    required(
        "a flag covers all earlier puts of its core to that rank",
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
    open(
        "publishes to one rank have no order",
        &[on(0, 0, &[publish(1, A, 1), publish(1, B, 1)]), on(1, 0, &[wait(B, 1), expect(A, &[1])])],
    ),
    open(
        "publishes to two ranks have no order",
        &[
            on(0, 0, &[publish(1, A, 1), publish(2, B, 1)]),
            on(2, 0, &[wait(B, 1), publish(1, C, 1)]),
            on(1, 0, &[wait(C, 1), expect(A, &[1])]),
        ],
    ),
    open(
        "publishes to one word have no order",
        &[
            on(0, 0, &[publish(1, A, 1), publish(1, A, 2), Quiet, publish(1, B, 1)]),
            on(1, 0, &[wait(B, 1), expect(A, &[2])]),
        ],
    ),
    required(
        "a quiet between them orders publishes to one word",
        &[
            on(0, 0, &[publish(1, A, 1), Quiet, publish(1, A, 2), Quiet, publish(1, B, 1)]),
            on(1, 0, &[wait(B, 1), expect(A, &[2])]),
        ],
    ),
    required(
        "a word is never torn",
        &[
            on(0, 0, &[publish(1, A, ONES), Quiet, publish(1, A, TWOS), Quiet, publish(1, A, ONES)]),
            on(2, 0, &[publish(1, A, TWOS), Quiet, publish(1, A, ONES)]),
            on(1, 0, &[expect(A, &[0, ONES, TWOS]); 12]),
        ],
    ),
    // 3: quiet.
    required(
        "after quiet and a core barrier another core's flag covers the puts",
        &[
            on(0, 0, &[put(1, ROW, 7), Quiet, publish(0, A, 1)]),
            on(0, 1, &[put(1, ROW_2, 8), Quiet, publish(0, B, 1), wait(A, 1), publish(1, C, 1)]),
            on(1, 0, &[wait(C, 1), row(ROW, 7), row(ROW_2, 8)]),
        ],
    ),
    required(
        "quiet covers publishes",
        &[
            on(0, 0, &[publish(1, A, 1), Quiet, publish(2, B, 1)]),
            on(2, 0, &[wait(B, 1), publish(1, C, 1)]),
            on(1, 0, &[wait(C, 1), expect(A, &[1])]),
        ],
    ),
    required(
        "quiet covers stores",
        &[on(0, 0, &[store(A, 1), Quiet, publish(0, B, 1)]), on(0, 1, &[wait(B, 1), expect(A, &[1])])],
    ),
    // 4: causality.
    required(
        "what has landed is before all that is told of it, over three ranks",
        &[
            on(0, 0, &[put(2, ROW, 7), Quiet, publish(1, A, 1)]),
            on(1, 0, &[wait(A, 1), put(2, ROW_2, 8), publish(2, B, 1)]),
            on(2, 0, &[wait(B, 1), row(ROW, 7), row(ROW_2, 8)]),
        ],
    ),
    required(
        "what the publisher has observed is before what its observer does",
        &[
            on(0, 0, &[put(1, ROW, 7), publish(1, A, 1)]),
            on(1, 0, &[wait(A, 1), publish(2, B, 1)]),
            on(2, 0, &[wait(B, 1), publish(1, C, 1)]),
            on(1, 1, &[wait(C, 1), expect(A, &[1]), row(ROW, 7)]),
        ],
    ),
    required(
        "a word that was passed on inside a rank is there for who hears of it",
        &[
            on(0, 0, &[put(1, ROW, 7), publish(1, A, 1)]),
            on(1, 0, &[wait(A, 1), publish(1, B, 1)]),
            on(1, 1, &[wait(B, 1), expect(A, &[1]), row(ROW, 7)]),
        ],
    ),
    // A reader that does not find the word of the other writer says so, in C or by expecting that the other reader did not.
    reported(
        "two readers agree which of two ranks' words came first",
        &[
            on(0, 0, &[publish(2, A, 1)]),
            on(1, 0, &[publish(2, B, 1)]),
            on(2, 0, &[wait(A, 1), skip_if(B, 1, 1), publish(2, C, 1), Quiet, publish(2, D, 1)]),
            on(2, 1, &[wait(B, 1), skip_if(A, 1, 2), wait(D, 1), expect(C, &[0])]),
        ],
    ),
    required(
        "what has landed stays landed",
        &[
            on(0, 0, &[publish(1, A, 1)]),
            on(1, 0, &[wait(A, 1), expect(A, &[1]), expect(A, &[1]), expect(A, &[1])]),
        ],
    ),
    // 5: stores.
    required(
        "a core observes its own stores, in their order",
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
    open("a core may not yet observe its own publish", &[on(0, 0, &[publish(0, A, 1), expect(A, &[1])])]),
    required(
        "one core's stores to one word land in their order",
        &[
            on(0, 0, &[store(A, 1), store(A, 2), Quiet, publish(0, B, 1)]),
            on(0, 1, &[wait(B, 1), expect(A, &[2])]),
        ],
    ),
    open(
        "a store may land behind a later publish",
        &[on(0, 0, &[store(A, 1), publish(0, B, 1)]), on(0, 1, &[wait(B, 1), expect(A, &[1])])],
    ),
    required(
        "a cleared word takes the next flag, after quiet",
        &[
            on(0, 0, &[publish(1, A, 1), wait(B, 1), publish(1, A, 2)]),
            on(1, 0, &[wait(A, 1), store(A, 0), Quiet, publish(0, B, 1), wait(A, 2), Quiet, expect(A, &[2])]),
        ],
    ),
    open(
        "a late clear may wipe the next flag",
        &[
            on(0, 0, &[publish(1, A, 1), wait(B, 1), publish(1, A, 2)]),
            on(1, 0, &[wait(A, 1), store(A, 0), publish(0, B, 1), wait(A, 2), Quiet, expect(A, &[2])]),
        ],
    ),
    required(
        "a cleared word takes the flag that a third rank publishes at the end of a chain",
        &[
            on(0, 0, &[publish(1, A, 1)]),
            on(1, 0, &[wait(A, 1), store(A, 0), Quiet, publish(2, B, 1), wait(A, 2), publish(0, D, 1)]),
            on(2, 0, &[wait(B, 1), publish(0, C, 1)]),
            on(0, 1, &[wait(C, 1), publish(1, A, 2), wait(D, 1)]),
        ],
    ),
    // Reading at a peer's.
    required(
        "rows that a rank was quiet about are there for the peer that it tells",
        &[on(0, 0, &[put(0, ROW, 7), Quiet, publish(1, A, 1)]), on(1, 0, &[wait(A, 1), peer_row(0, ROW, 7)])],
    ),
    required(
        "rows at one peer's are there for who hears of them at the end of a chain",
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
