//! The suite of the agent's seam: one litmus for each sentence of the contract of
//! [`Nic`](crate::fabric::nic::Nic), and beside each promise the same without what it rests on.
//!
//! In all of them a core of rank 0 writes rows into WindowsOut and rings, by publishing to `A`; the agent of rank 0
//! then posts.

use super::Op::{Post, Quiet, Write};
use super::again_suite::stays;
use super::suite::{
    A, B, C, D, EIGHTS, LEN, ONES, ROW, ROW_2, SEVENS, TWOS, expect, on, open, publish, put, racy, required,
    row, store, wait,
};
use super::{Litmus, Op, Program, Who};
use crate::fabric::nic::Transfer;
use crate::place::Place;
use crate::units::RankId;

/// Two rows of WindowsOut.
const SENT: Place = Place::window_out(0);
const SENT_2: Place = Place::window_out(256);
/// Words of the rows of WindowsIn to which they go.
const FIRST: Place = ROW;
const MIDDLE: Place = Place::window(96);
const LAST: Place = Place::window(LEN as u64 - 8);
const LAST_2: Place = Place::window(256 + LEN as u64 - 8);

const fn write(at: Place, byte: u8) -> Op {
    Write { at, byte, len: LEN }
}

/// A row, whole.
const fn post(to: u32, from: Place, at: Place) -> Op {
    Post(Transfer { to: RankId(to), from, at, len: LEN as u64 })
}

/// Its last word alone.
const fn post_word(to: u32, from: Place, at: Place) -> Op {
    Post(Transfer { to: RankId(to), from, at, len: 8 })
}

const fn agent(rank: u32, ops: &'static [Op]) -> Program {
    Program { rank, who: Who::Agent, ops }
}

/// Writes a row of sevens and rings.
const RINGS: Program = on(0, 0, &[write(SENT, 7), Quiet, publish(0, A, 1)]);
const RINGS_FOR_TWO: Program = on(0, 0, &[write(SENT, 7), write(SENT_2, 8), Quiet, publish(0, A, 1)]);
/// Posts one to rank 1.
const POSTS: Program = agent(0, &[wait(A, 1), post(1, SENT, ROW)]);
/// Posts both to rank 1.
const POSTS_TWO: Program = agent(0, &[wait(A, 1), post(1, SENT, ROW), post(1, SENT_2, ROW_2)]);

/// Every litmus, by the rules of the contract.
pub const NIC_SUITE: &[Litmus] = &[
    // 1: delivery.
    required(
        "a transfer is delivered whole, without another call",
        &[RINGS, POSTS, on(1, 0, &[wait(LAST, SEVENS), row(ROW, 7)])],
    ),
    required(
        "all transfers are delivered, to whomever they go",
        &[
            RINGS_FOR_TWO,
            agent(0, &[wait(A, 1), post(1, SENT, ROW), post(2, SENT, ROW), post(1, SENT_2, ROW_2)]),
            on(1, 0, &[wait(LAST_2, EIGHTS), row(ROW_2, 8), wait(LAST, SEVENS), row(ROW, 7)]),
            on(2, 0, &[wait(LAST, SEVENS), row(ROW, 7)]),
        ],
    ),
    // 2: order inside a transfer.
    required(
        "who sees a word of a transfer sees all words before it",
        &[
            RINGS,
            POSTS,
            on(
                1,
                0,
                &[
                    wait(MIDDLE, SEVENS),
                    expect(Place::window(88), &[SEVENS]),
                    expect(Place::window(8), &[SEVENS]),
                    expect(FIRST, &[SEVENS]),
                    wait(LAST, SEVENS),
                    row(ROW, 7),
                ],
            ),
        ],
    ),
    open(
        "who sees a word of a transfer may not yet see the next",
        &[RINGS, POSTS, on(1, 0, &[wait(FIRST, SEVENS), expect(Place::window(8), &[SEVENS])])],
    ),
    open(
        "all words of a transfer but the last may be there",
        &[RINGS, POSTS, on(1, 0, &[wait(Place::window(LEN as u64 - 16), SEVENS), expect(LAST, &[SEVENS])])],
    ),
    required(
        "a word of a transfer is never torn",
        &[
            on(0, 0, &[write(SENT, 0x11), write(SENT_2, 0x22), Quiet, publish(0, A, 1)]),
            agent(
                0,
                &[
                    wait(A, 1),
                    post(1, SENT, ROW),
                    post(1, SENT_2, ROW),
                    post(1, SENT, ROW),
                    post(1, SENT_2, ROW),
                ],
            ),
            on(1, 0, &[expect(MIDDLE, &[0, ONES, TWOS]); 12]),
        ],
    ),
    // 3: no order between transfers.
    open(
        "transfers to one peer have no order",
        &[RINGS_FOR_TWO, POSTS_TWO, on(1, 0, &[wait(LAST_2, EIGHTS), expect(LAST, &[SEVENS])])],
    ),
    open(
        "transfers to two peers have no order",
        &[
            RINGS,
            agent(0, &[wait(A, 1), post(1, SENT, ROW), post(2, SENT, ROW)]),
            on(2, 0, &[wait(LAST, SEVENS), publish(1, C, 1)]),
            on(1, 0, &[wait(C, 1), expect(LAST, &[SEVENS])]),
        ],
    ),
    // 4: when the source is read.
    required(
        "who has seen the last word may have the source written again",
        &[
            on(
                0,
                0,
                &[
                    write(SENT, 7),
                    Quiet,
                    publish(0, A, 1),
                    wait(B, 1),
                    write(SENT, 8),
                    Quiet,
                    publish(1, C, 1),
                ],
            ),
            POSTS,
            on(1, 0, &[wait(LAST, SEVENS), publish(0, B, 1), wait(C, 1), row(ROW, 7)]),
        ],
    ),
    racy(
        "what is written behind a post may be what is sent",
        &[
            // Another transfer tells that the agent has posted; it may be delivered first.
            on(0, 0, &[write(SENT, 7), Quiet, publish(0, A, 1), wait(B, 1), write(SENT, 8), Quiet]),
            agent(0, &[wait(A, 1), post(1, SENT, ROW), post_word(2, SENT, ROW)]),
            on(2, 0, &[wait(ROW, SEVENS), publish(0, B, 1)]),
            on(1, 0, &[wait(LAST, SEVENS)]),
        ],
    ),
    // 5: causality.
    required(
        "what cores wrote and were quiet about before the doorbell is what a transfer reads",
        &[
            on(0, 0, &[write(SENT, 7), Quiet, publish(0, B, 1)]),
            on(0, 1, &[write(SENT_2, 8), Quiet, wait(B, 1), publish(0, A, 1)]),
            POSTS_TWO,
            on(1, 0, &[wait(LAST, SEVENS), wait(LAST_2, EIGHTS), row(ROW, 7), row(ROW_2, 8)]),
        ],
    ),
    racy(
        "without quiet a transfer may read what was there before",
        &[on(0, 0, &[write(SENT, 7), publish(0, A, 1)]), POSTS, on(1, 0, &[wait(LAST, SEVENS)])],
    ),
    required(
        "what the agent has observed is before what an observer of the transfer does",
        &[
            on(0, 0, &[write(SENT, 7), Quiet, publish(0, B, 1)]),
            on(2, 0, &[put(1, ROW_2, 5), Quiet, publish(0, A, 1)]),
            agent(0, &[wait(B, 1), wait(A, 1), post(1, SENT, ROW)]),
            on(1, 0, &[wait(LAST, SEVENS), row(ROW_2, 5)]),
        ],
    ),
    racy(
        "a transfer does not speak for puts without a quiet",
        &[
            on(0, 0, &[write(SENT, 7), Quiet, publish(0, B, 1)]),
            on(2, 0, &[put(1, ROW_2, 5), publish(0, A, 1)]),
            agent(0, &[wait(B, 1), wait(A, 1), post(1, SENT, ROW)]),
            on(1, 0, &[wait(LAST, SEVENS), row(ROW_2, 5)]),
        ],
    ),
    required(
        "what the agent has observed is before all that is told of the transfer",
        &[
            on(0, 0, &[write(SENT, 7), Quiet, publish(0, B, 1)]),
            on(1, 0, &[publish(0, A, 1)]),
            agent(0, &[wait(B, 1), wait(A, 1), post(2, SENT, ROW)]),
            on(2, 0, &[wait(LAST, SEVENS), publish(0, C, 1)]),
            on(0, 1, &[wait(C, 1), expect(A, &[1])]),
        ],
    ),
    required(
        "a core that the observer of a transfer tells sees it",
        &[
            RINGS,
            POSTS,
            on(1, 0, &[wait(LAST, SEVENS), publish(1, C, 1)]),
            on(1, 1, &[wait(C, 1), row(ROW, 7)]),
        ],
    ),
    required(
        "a cleared word takes the word of the next transfer, after quiet",
        &[
            RINGS,
            agent(0, &[wait(A, 1), post(1, SENT, ROW), wait(B, 1), post(1, SENT, ROW)]),
            on(
                1,
                0,
                &[
                    wait(LAST, SEVENS),
                    store(LAST, 0),
                    Quiet,
                    publish(0, B, 1),
                    wait(LAST, SEVENS),
                    Quiet,
                    expect(LAST, &[SEVENS]),
                ],
            ),
        ],
    ),
    required(
        "what is sent is what was written last",
        &[
            on(
                0,
                0,
                &[
                    write(SENT, 7),
                    Quiet,
                    publish(0, A, 1),
                    wait(B, 1),
                    write(SENT, 8),
                    Quiet,
                    stays(B, 1),
                    publish(0, C, 1),
                ],
            ),
            agent(0, &[wait(A, 1), post(1, SENT, ROW), wait(C, 1), post(1, SENT, ROW)]),
            on(1, 0, &[wait(LAST, SEVENS), publish(0, B, 1), wait(LAST, EIGHTS), row(ROW, 8)]),
        ],
    ),
    required(
        "a transfer that was cleared does not come back",
        &[
            on(0, 0, &[write(SENT, 7), Quiet, publish(0, A, 1), wait(A, 1), stays(A, 1)]),
            POSTS,
            on(1, 0, &[wait(LAST, SEVENS), store(LAST, 0), Quiet, stays(LAST, 0)]),
        ],
    ),
    open(
        "a late clear may wipe the word of the next transfer",
        &[
            RINGS,
            agent(0, &[wait(A, 1), post(1, SENT, ROW), wait(B, 1), post(1, SENT, ROW)]),
            on(1, 0, &[wait(LAST, SEVENS), store(LAST, 0), publish(0, B, 1), wait(LAST, SEVENS)]),
        ],
    ),
    // 6: what the agent observes.
    required(
        "behind the doorbell the agent sees what all cores stored and were quiet about",
        &[
            on(0, 0, &[store(C, 5), Quiet, publish(0, B, 1)]),
            on(0, 1, &[store(D, 6), Quiet, wait(B, 1), publish(0, A, 1)]),
            agent(0, &[wait(A, 1), expect(C, &[5]), expect(D, &[6])]),
        ],
    ),
    open(
        "a doorbell does not speak for stores without a quiet",
        &[on(0, 0, &[store(C, 5), publish(0, A, 1)]), agent(0, &[wait(A, 1), expect(C, &[5])])],
    ),
];
