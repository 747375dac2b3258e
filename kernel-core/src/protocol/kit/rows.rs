//! Received rows that are consecutive in the outputs.

use super::{Core, SHORT_WORDS, internal};
use crate::fabric::Result;
use crate::placement::Home;
use crate::units::RankId;

/// The maximum number of rows whose triples, scales or entries of the row table go into one write.
pub(crate) const ROWS: u32 = 16;

/// A received row: the first of those that a core copies next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Cursor {
    /// Its slot.
    pub(crate) slot: u32,
    /// The number of rows before it in the slot.
    pub(crate) index: u32,
    /// Its row in the outputs.
    pub(crate) row: u32,
    /// The least token that the next triple may have: tokens rise within a slot. The first row of a slot may have any. Once the
    /// triples of a batch are copied, this speaks of the first row after the batch.
    pub(crate) token: u32,
}

impl Cursor {
    /// Creates the cursor of the first row of `slot`, which goes to `row`.
    pub(crate) const fn first(slot: u32, row: u32) -> Self {
        Self { slot, index: 0, row, token: 0 }
    }

    /// Returns what is due at the cursor.
    pub(crate) const fn due(self) -> Due {
        Due { row: self.row, token: self.token }
    }
}

/// A row of the outputs, and the least token that it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Due {
    pub(crate) row: u32,
    pub(crate) token: u32,
}

/// Consecutive received rows of one slot: the `index`-th of `source` for an expert, and those that follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) home: Home,
    pub(crate) source: RankId,
    pub(crate) index: u32,
    pub(crate) len: u32,
    /// The number of the batch's rows before its first one, those left out included.
    pub(crate) before: u32,
}

/// Consecutive rows of the outputs, at most [`ROWS`], which one step copies.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) stretches: heapless::Vec<Stretch, { ROWS as usize }>,
    pub(crate) len: u32,
    /// The row after the last one, in this slot or a later one. Its token is that of the cursor at which the batch begins.
    pub(crate) next: Cursor,
}

impl Batch {
    /// Leaves out the first `done` rows. `len` and `next` stay those of the whole batch, so only effects of single rows may use what
    /// is left.
    pub(crate) fn leave_out(&mut self, done: u32) {
        for stretch in &mut self.stretches {
            let cut = done.saturating_sub(stretch.before).min(stretch.len);
            stretch.index += cut;
            stretch.len -= cut;
            stretch.before += cut;
        }
    }
}

/// The slots whose rows a core copies, up to `end`, with their counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slots<'c> {
    /// The counts of slot `first` and those after it.
    pub(crate) counts: &'c [u32],
    pub(crate) first: u32,
    pub(crate) end: u32,
}

impl Slots<'_> {
    /// Returns the rows from `from` on, at most `max`, which must not exceed [`ROWS`]. The batch is empty if the slots have no
    /// more rows.
    pub(crate) fn batch(&self, core: Core<'_>, from: Cursor, max: u32) -> Result<Batch> {
        let mut batch = Batch { stretches: heapless::Vec::new(), len: 0, next: from };
        let mut index = from.index;
        for slot in from.slot..self.end {
            let count = *self.counts.get((slot - self.first) as usize).ok_or(SHORT_WORDS)?;
            if index < count {
                let (local_expert, source) = core.shape.by_ranks(slot);
                let home = Home { rank: core.rank, local_expert };
                let len = (count - index).min(max - batch.len);
                let stretch = Stretch { home, source: RankId(source), index, len, before: batch.len };
                batch
                    .stretches
                    .push(stretch)
                    .map_err(|_| internal("a batch has more stretches than rows"))?;
                batch.len += len;
                if batch.len == max {
                    let is_rest = index + len == count;
                    batch.next.slot = if is_rest { slot + 1 } else { slot };
                    batch.next.index = if is_rest { 0 } else { index + len };
                    batch.next.row += batch.len;
                    return Ok(batch);
                }
            }
            index = 0;
        }
        batch.next = Cursor { slot: self.end, index: 0, row: from.row + batch.len, token: from.token };
        Ok(batch)
    }
}
