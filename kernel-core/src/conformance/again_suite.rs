//! Programs in which places are used again, are neighbours, or are many: an effect lands once, and changes nothing else.

use super::Litmus;
use super::Op::{
    self, Again, AwaitApart, ExpectApart, PublishApart, PutApart, PutParts, Quiet, Stays, StaysBytes,
};
use super::suite::{A, B, C, D, LEN, ROW, ROW_2, expect, on, publish, put, required, row, store, wait};
use crate::place::Place;

/// Two words of one line, however short it is, and after them two short tables, which begin at no line and at no word.
const LEFT: Place = Place::state(256);
const RIGHT: Place = Place::state(264);
const TABLE: Place = Place::state(276);
const TABLE_2: Place = Place::state(288);
/// A row of 12 bytes, and one of 44 that begins where it ends.
const SHORT: Place = Place::window(0);
const BESIDE: Place = Place::window(12);

/// A word of which every byte counts.
const WIDE: u64 = 0xF1E2_D3C4_B5A6_9788;
/// Looks that two cores take. An effect may land again a thousand calls later.
const LOOKS: u32 = 600;
/// Times that places are used again.
const TIMES: u32 = 40;

const fn parts(to: u32, at: Place, byte: u8, len: usize, parts: u32) -> Op {
    PutParts { to, at, byte, len, parts }
}

const fn short(to: u32, at: Place, byte: u8, len: usize) -> Op {
    parts(to, at, byte, len, 1)
}

const fn short_row(at: Place, byte: u8, len: usize) -> Op {
    Op::ExpectBytes { at, byte, len }
}

pub(super) const fn stays(at: Place, word: u64) -> Op {
    Stays { at, word, times: LOOKS }
}

/// Every litmus of this kind.
pub const AGAIN_SUITE: &[Litmus] = &[
    // 1 and 2: many puts, many cores.
    required(
        "a flag covers puts however many they are",
        &[
            on(0, 0, &[parts(1, ROW, 7, LEN, 24), parts(1, ROW_2, 8, LEN, 24), publish(1, A, 1)]),
            on(1, 0, &[wait(A, 1), row(ROW, 7), row(ROW_2, 8)]),
        ],
    ),
    required(
        "the flag of every core covers its puts",
        &[
            on(0, 0, &[put(1, ROW, 7), publish(1, A, 1)]),
            on(0, 1, &[put(1, ROW_2, 8), publish(1, B, 1)]),
            on(1, 0, &[wait(A, 1), row(ROW, 7)]),
            on(1, 1, &[wait(B, 1), row(ROW_2, 8)]),
        ],
    ),
    required(
        "all flags of a core land, however many and however near they are",
        &[
            on(
                0,
                0,
                &[
                    publish(1, A, 1),
                    publish(1, LEFT, 2),
                    publish(1, RIGHT, 3),
                    publish(1, B, 4),
                    publish(1, C, 5),
                ],
            ),
            on(1, 0, &[wait(RIGHT, 3), wait(LEFT, 2), wait(A, 1), wait(B, 4), wait(C, 5), expect(A, &[1])]),
        ],
    ),
    // 3: quiet.
    required(
        "quiet covers every kind of effect, at home and elsewhere",
        &[
            on(
                0,
                0,
                &[put(1, ROW, 7), put(0, ROW_2, 8), publish(2, D, 1), store(C, 1), Quiet, publish(0, A, 1)],
            ),
            on(0, 1, &[wait(A, 1), row(ROW_2, 8), expect(C, &[1]), publish(1, B, 1), publish(2, B, 1)]),
            on(1, 0, &[wait(B, 1), row(ROW, 7)]),
            on(2, 0, &[wait(B, 1), expect(D, &[1])]),
        ],
    ),
    // 4: causality of what a core sees of itself.
    required(
        "whom a core tells of its own publish finds it",
        &[
            on(0, 0, &[put(0, ROW, 7), publish(0, A, 1), wait(A, 1), publish(1, B, 1)]),
            on(1, 0, &[wait(B, 1), publish(0, C, 1)]),
            on(0, 1, &[wait(C, 1), expect(A, &[1]), row(ROW, 7)]),
        ],
    ),
    // 8: an effect lands once.
    required(
        "a flag that was cleared does not come back",
        &[
            on(0, 0, &[publish(1, A, WIDE), wait(B, 1), stays(B, 1)]),
            on(1, 0, &[wait(A, WIDE), store(A, 0), Quiet, publish(0, B, 1), stays(A, 0)]),
        ],
    ),
    required(
        "a clear does not come back over the next flag",
        &[
            on(0, 0, &[publish(1, A, 1), wait(B, 1), publish(1, A, 2), stays(B, 1)]),
            on(1, 0, &[wait(A, 1), store(A, 0), Quiet, publish(0, B, 1), wait(A, 2), stays(A, 2)]),
        ],
    ),
    required(
        "a row that was read does not come back over the next one",
        &[
            on(
                0,
                0,
                &[
                    put(1, ROW, 7),
                    publish(1, A, 1),
                    wait(B, 1),
                    put(1, ROW, 8),
                    publish(1, A, 2),
                    stays(B, 1),
                ],
            ),
            on(
                1,
                0,
                &[
                    wait(A, 1),
                    row(ROW, 7),
                    publish(0, B, 1),
                    wait(A, 2),
                    StaysBytes { at: ROW, byte: 8, len: LEN, times: LOOKS },
                ],
            ),
        ],
    ),
    // The same word is published each time, and the same place is cleared.
    required(
        "places can be used again as often as one likes",
        &[
            on(
                0,
                0,
                &[
                    put(1, ROW, 7),
                    publish(1, A, 1),
                    wait(B, 1),
                    store(B, 0),
                    Quiet,
                    put(1, ROW, 8),
                    publish(1, A, 1),
                    wait(B, 1),
                    store(B, 0),
                    Quiet,
                    Again { ops: 10, times: TIMES },
                ],
            ),
            on(
                1,
                0,
                &[
                    wait(A, 1),
                    row(ROW, 7),
                    store(A, 0),
                    Quiet,
                    publish(0, B, 1),
                    wait(A, 1),
                    row(ROW, 8),
                    store(A, 0),
                    Quiet,
                    publish(0, B, 1),
                    Again { ops: 10, times: TIMES },
                ],
            ),
        ],
    ),
    // 8: what is beside it stays as it is.
    required(
        "two ranks publish into one line beside cores that clear",
        &[
            on(0, 0, &[publish(2, LEFT, 1), wait(B, 1), store(B, 0), Quiet, Again { ops: 4, times: TIMES }]),
            on(1, 0, &[publish(2, RIGHT, 1), wait(B, 1), store(B, 0), Quiet, Again { ops: 4, times: TIMES }]),
            on(
                2,
                0,
                &[wait(LEFT, 1), store(LEFT, 0), Quiet, publish(0, B, 1), Again { ops: 4, times: TIMES }],
            ),
            on(
                2,
                1,
                &[wait(RIGHT, 1), store(RIGHT, 0), Quiet, publish(1, B, 1), Again { ops: 4, times: TIMES }],
            ),
        ],
    ),
    required(
        "a table lies beside words and another table",
        &[
            on(0, 0, &[short(2, TABLE, 7, 12), publish(2, LEFT, 1)]),
            on(1, 0, &[short(2, TABLE_2, 8, 20), publish(2, RIGHT, 1)]),
            on(
                2,
                0,
                &[
                    wait(LEFT, 1),
                    wait(RIGHT, 1),
                    short_row(TABLE, 7, 12),
                    short_row(TABLE_2, 8, 20),
                    expect(LEFT, &[1]),
                    expect(RIGHT, &[1]),
                ],
            ),
        ],
    ),
    required(
        "rows of two ranks lie beside each other",
        &[
            on(
                0,
                0,
                &[
                    short(2, SHORT, 7, 12),
                    publish(2, A, 1),
                    wait(C, 1),
                    short(2, SHORT, 9, 12),
                    publish(2, A, 2),
                ],
            ),
            on(1, 0, &[short(2, BESIDE, 8, 44), publish(2, B, 1)]),
            on(
                2,
                0,
                &[
                    wait(A, 1),
                    wait(B, 1),
                    short_row(SHORT, 7, 12),
                    short_row(BESIDE, 8, 44),
                    publish(0, C, 1),
                    wait(A, 2),
                    short_row(SHORT, 9, 12),
                    short_row(BESIDE, 8, 44),
                ],
            ),
        ],
    ),
    required(
        "rows and words that lie far apart are not one",
        &[
            on(0, 0, &[PutApart { to: 1, at: ROW, byte: 7 }, PublishApart { to: 1, at: A, word: 1 }]),
            on(
                1,
                0,
                &[
                    AwaitApart { at: A, word: 1 },
                    ExpectApart { at: ROW, byte: 7 },
                    AwaitApart { at: A, word: 1 },
                ],
            ),
        ],
    ),
];
