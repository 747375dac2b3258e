//! The two-partition selector: one record per (core, operator kind), owned by that core alone.
//!
//! Invariant: every core of every rank has flipped the record of a kind once for each operator of that kind that it has
//! started, so all cores of all ranks agree on the partition of operator N. `docs/doubt/protocol.md` explains why reuse in
//! operator N + 2 is safe; this module does not ensure it.
//!
//! Where a group checks calls, the record also has the tag of each partition's last use:
//!
//! ```text
//! bit 0         the partition of the next operator
//! bits 16..32   the tag of partition 0's last use, plus 1; 0 before its first use
//! bits 32..48   the same of partition 1
//! ```
//!
//! On the A2 full mesh one word serves all cores and both operators. There it is the number of the operator, modulo the
//! number of tags; its parity names the half.

use super::call::{Numbering, Tag, Tags};
use crate::fabric::{Fabric, ProtocolError, Result};
use crate::layout::state::Partition;
use crate::place::Place;

/// The partition of an operator, and the tags of its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Turn {
    pub(crate) partition: Partition,
    pub(crate) tags: Tags,
}

impl Turn {
    /// The turn of an operator that has not begun.
    pub(crate) const NONE: Self = Self { partition: Partition::P0, tags: Tags::NONE };
}

/// Reads the record at `at` and flips it for the next operator. It has one store.
///
/// # Errors
/// The record holds what no core writes, or the fabric refuses.
pub(crate) fn select<F: Fabric + ?Sized>(fabric: &mut F, at: Place, numbering: Numbering) -> Result<Turn> {
    let seen = fabric.observe(at)?;
    let (turn, next) = if numbering.is_checked() {
        Record::of(seen).ok_or(ProtocolError::Selector { at, seen })?.take(numbering)
    } else {
        let partition = partition(seen).ok_or(ProtocolError::Selector { at, seen })?;
        (Turn { partition, tags: Tags::NONE }, u64::from(partition.flipped().index()))
    };
    fabric.store(at, next)?;
    Ok(turn)
}

const fn partition(seen: u64) -> Option<Partition> {
    match seen {
        0 => Some(Partition::P0),
        1 => Some(Partition::P1),
        _ => None,
    }
}

/// The record of a core that checks calls.
struct Record {
    next: Partition,
    /// The tag of each partition's last use.
    last: [Option<Tag>; 2],
}

impl Record {
    fn of(word: u64) -> Option<Self> {
        let last = [word >> 16, word >> 32].map(|tag| (tag & 0xFFFF).checked_sub(1).map(Tag::of));
        let record = Self { next: partition(word & 1)?, last };
        (record.word() == word).then_some(record)
    }

    fn word(&self) -> u64 {
        let [p0, p1] = self.last.map(|tag| tag.map_or(0, |tag| tag.bits() + 1));
        p1 << 32 | p0 << 16 | u64::from(self.next.index())
    }

    /// Returns the next operator's turn, and the word of the record after it.
    fn take(mut self, numbering: Numbering) -> (Turn, u64) {
        let partition = self.next;
        let [p0, p1] = self.last;
        let (former, of_last_call) = match partition {
            Partition::P0 => (p0, p1),
            Partition::P1 => (p1, p0),
        };
        let tag = numbering.tag(of_last_call);
        self.last = match partition {
            Partition::P0 => [Some(tag), p1],
            Partition::P1 => [p0, Some(tag)],
        };
        self.next = partition.flipped();
        (Turn { partition, tags: Tags { tag, former, is_checked: true } }, self.word())
    }
}

/// The tags of the last call that a core has begun and of the one before, by the record of a core that checks calls.
pub(crate) fn last_two(word: u64) -> Option<(Tag, Option<Tag>)> {
    let Record { next, last: [p0, p1] } = Record::of(word)?;
    match next {
        Partition::P0 => Some((p1?, p0)),
        Partition::P1 => Some((p0?, p1)),
    }
}

/// The operator that the word of the A2 full mesh names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    pub(crate) turn: Turn,
    /// The word for the operator after it.
    pub(crate) next: u64,
}

/// Reads the word at `at`. Flags are cleared with the words that hold them, so no former tag is possible.
///
/// # Errors
/// The word holds what no core writes, or the fabric refuses.
pub(crate) fn chosen<F: Fabric + ?Sized>(fabric: &F, at: Place, numbering: Numbering) -> Result<Chosen> {
    let seen = fabric.observe(at)?;
    let operators = if numbering.is_checked() { 2 * u64::from(numbering.calls) } else { 2 };
    if seen >= operators {
        return Err(ProtocolError::Selector { at, seen });
    }
    let partition = Partition::of(seen);
    let tags = match (numbering.is_checked(), numbering.given) {
        (false, _) => Tags::NONE,
        (true, Some(_)) => Tags { tag: numbering.tag(None), former: None, is_checked: true },
        (true, None) => Tags { tag: Tag::of(seen), former: None, is_checked: true },
    };
    let next = if seen + 1 == operators { 0 } else { seen + 1 };
    Ok(Chosen { turn: Turn { partition, tags }, next })
}
