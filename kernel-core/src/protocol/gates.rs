//! The order of a rank's own operators, judged before each one's first effect.
//!
//! A rank may write into a partition again when every rank has read what lay there. No message says so; a *gate* does: an
//! operator that waits for all ranks, which they begin after they have read. If all ranks take their operators and halves in one order,
//! a rank can tell from its own order alone:
//!
//! ```text
//! its operator N ends  ->  it begins a gate  ->  that gate ends  ->  it may begin the operator that uses N's partition again
//! ```
//!
//! Dispatch is a gate, on A2 combine too. A dispatch that begins before the one before it has been received would be none for that one,
//! since its flag leaves while the former rows are still unread here. So it is refused.

use super::kit::given;
use super::{Choices, Operator, Receive};
use crate::fabric::ProtocolError;
use crate::layout::state::Partition;
use crate::shape::{Product, Shape};

const IN_USE: ProtocolError = given("an operator begins before the one before in its partition has ended");
const UNREAD: ProtocolError = given(
    "an operator begins while other ranks may still read its partition: a dispatch must begin and end before",
);
const UNREAD_YET: ProtocolError = given(
    "an operator begins while other ranks may still read its partition: the dispatch that has begun must end before",
);
const ROWS_IN_USE: ProtocolError =
    given("a dispatch begins while the rows of its area are in use: their combine must end before");
const NOT_RECEIVED: ProtocolError = given("a dispatch begins before the one before it has been received");
const NOT_ALONE: ProtocolError = given("an operator begins on A2 before the one before has ended");
const NO_ROWS: ProtocolError =
    given("a combine begins of a dispatch that has not been received, or is combined already");

/// An operator that a rank has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct Ticket {
    operator: Operator,
    partition: Partition,
    /// The partition of the dispatch whose rows a combine returns.
    rows: Partition,
    /// The use of the partition, counted modulo [`TURNS`].
    turn: u8,
}

/// Uses of a partition that tickets tell apart, so that a copy of an older ticket ends nothing.
const TURNS: u8 = 16;

impl Ticket {
    /// Returns the operator.
    #[must_use]
    pub const fn operator(self) -> Operator {
        self.operator
    }
}

/// What is known of the last use of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Use {
    /// All ranks have ended it, or there was none.
    Over,
    /// This rank has begun it, and not ended it.
    Begun,
    /// This rank has ended it.
    Ended,
    /// This rank has ended it, and begun a gate since, whose partition this is.
    Gated(Partition),
}

/// The rows of a dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Rows {
    /// There are none, or their combine has ended.
    None,
    /// Their combine has not begun.
    There,
    /// Their combine has begun.
    Combined,
}

/// The gates of one rank: which operators and halves it may begin. It holds for a group whose ranks all take their operators and halves in
/// one order, and combine batches in the order of their dispatches unless told otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gates {
    receive: Receive,
    /// Whether both operators share the partitions, and both are gates.
    shared: bool,
    /// The last uses, by operator and partition; in a shared group all are in the first pair.
    uses: [[Use; 2]; 2],
    next: [Partition; 2],
    /// The number of uses of each partition, modulo [`TURNS`].
    turns: [[u8; 2]; 2],
    /// The rows of the last dispatch of each partition. Those that stay in the window may not be written over: a rank awaits their
    /// results, and with direct placement others await its own.
    held: [Rows; 2],
}

impl Gates {
    /// Creates the gates of a rank in a new group.
    #[must_use]
    pub const fn new(shape: &Shape, choices: &Choices) -> Self {
        Self {
            receive: choices.receive,
            shared: matches!(shape.product(), Product::A2),
            uses: [[Use::Over; 2]; 2],
            next: [Partition::P0; 2],
            turns: [[0; 2]; 2],
            held: [Rows::None; 2],
        }
    }

    /// Begins an operator or its sending half. A combine is of `dispatched`, or else of the older one of the last two dispatches that
    /// is not combined.
    ///
    /// # Errors
    /// Another rank may still read what is in the operator's partition or area, on A2 another operator has not ended, or a combine has
    /// no dispatch that has been received. Nothing is begun.
    pub fn begin(&mut self, operator: Operator, dispatched: Option<Ticket>) -> Result<Ticket, ProtocolError> {
        let kind = self.kind(operator);
        let partition = self.next_of(kind);
        if self.shared && self.uses.iter().flatten().any(|last| *last == Use::Begun) {
            return Err(NOT_ALONE);
        }
        match self.use_of(kind, partition) {
            Use::Over => {}
            Use::Begun => return Err(IN_USE),
            Use::Ended => return Err(UNREAD),
            Use::Gated(_) => return Err(UNREAD_YET),
        }
        let rows = match (operator, dispatched) {
            (Operator::Dispatch, _) => partition,
            (Operator::Combine, Some(ticket)) => ticket.partition,
            (Operator::Combine, None) => self.oldest(),
        };
        // A later dispatch may have the partition of `dispatched` by now, unless its rows stay there.
        let is_known = dispatched.is_none() || self.receive.keeps_rows();
        // Its flags would leave before this rank has read the former rows, so it would be no gate for them, and no later dispatch could begin.
        // With direct placement it would also clear words that are still awaited.
        if operator == Operator::Dispatch && self.use_of(0, partition.flipped()) == Use::Begun {
            return Err(NOT_RECEIVED);
        }
        if operator == Operator::Dispatch && self.area_is_held(partition) {
            return Err(ROWS_IN_USE);
        }
        if operator == Operator::Combine && is_known && !self.has_rows(rows) {
            return Err(NO_ROWS);
        }
        if operator == Operator::Dispatch || self.shared {
            for last in self.uses.iter_mut().flatten().filter(|last| **last == Use::Ended) {
                *last = Use::Gated(partition);
            }
        }
        self.set(kind, partition, Use::Begun);
        if let Some(next) = self.next.get_mut(kind) {
            *next = partition.flipped();
        }
        match operator {
            Operator::Dispatch => self.hold(rows, Rows::There),
            Operator::Combine if is_known => self.hold(rows, Rows::Combined),
            Operator::Combine => {}
        }
        Ok(Ticket { operator, partition, rows, turn: self.take_turn(kind, partition) })
    }

    /// Ends an operator, with its receiving half if it has two.
    pub fn end(&mut self, ticket: Ticket) {
        let Ticket { operator, partition, rows, turn } = ticket;
        let kind = self.kind(operator);
        // It has ended already.
        if self.use_of(kind, partition) != Use::Begun || self.turn_of(kind, partition) != turn {
            return;
        }
        let is_gate = operator == Operator::Dispatch || self.shared;
        self.set(kind, partition, Use::Ended);
        if is_gate {
            for last in self.uses.iter_mut().flatten().filter(|last| **last == Use::Gated(partition)) {
                *last = Use::Over;
            }
        }
        if operator == Operator::Combine && self.rows_of(rows) == Rows::Combined {
            self.hold(rows, Rows::None);
        }
    }

    const fn kind(&self, operator: Operator) -> usize {
        match operator {
            Operator::Combine if !self.shared => 1,
            Operator::Dispatch | Operator::Combine => 0,
        }
    }

    fn next_of(&self, kind: usize) -> Partition {
        self.next.get(kind).copied().unwrap_or(Partition::P0)
    }

    fn use_of(&self, kind: usize, partition: Partition) -> Use {
        let uses = self.uses.get(kind).and_then(|uses| uses.get(partition.index() as usize));
        uses.copied().unwrap_or(Use::Begun)
    }

    fn set(&mut self, kind: usize, partition: Partition, now: Use) {
        if let Some(last) = self.uses.get_mut(kind).and_then(|uses| uses.get_mut(partition.index() as usize))
        {
            *last = now;
        }
    }

    fn turn_of(&self, kind: usize, partition: Partition) -> u8 {
        let turns = self.turns.get(kind).and_then(|turns| turns.get(partition.index() as usize));
        turns.copied().unwrap_or(0)
    }

    /// Counts a use of a partition, and returns its number.
    fn take_turn(&mut self, kind: usize, partition: Partition) -> u8 {
        let now = (self.turn_of(kind, partition) + 1) % TURNS;
        if let Some(turn) =
            self.turns.get_mut(kind).and_then(|turns| turns.get_mut(partition.index() as usize))
        {
            *turn = now;
        }
        now
    }

    fn hold(&mut self, partition: Partition, now: Rows) {
        if let Some(held) = self.held.get_mut(partition.index() as usize) {
            *held = now;
        }
    }

    /// Returns whether rows stay in the area of a dispatch of this partition. Only direct placement may have one area for both.
    fn area_is_held(&self, partition: Partition) -> bool {
        let is_held = |partition| self.receive.keeps_rows() && self.rows_of(partition) != Rows::None;
        is_held(partition) || self.receive.areas() == 1 && is_held(partition.flipped())
    }

    fn rows_of(&self, partition: Partition) -> Rows {
        self.held.get(partition.index() as usize).copied().unwrap_or(Rows::None)
    }

    /// Returns the older one of two dispatches whose rows are there: the next dispatch would use its partition.
    fn oldest(&self) -> Partition {
        let next = self.next_of(0);
        if self.has_rows(next) { next } else { next.flipped() }
    }

    /// Returns whether the rows of a dispatch have been received, and no combine of them has begun.
    fn has_rows(&self, partition: Partition) -> bool {
        self.rows_of(partition) == Rows::There && self.use_of(0, partition) != Use::Begun
    }
}
