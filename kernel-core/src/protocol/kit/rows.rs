//! Received rows that are consecutive in the outputs.

use super::{Bound, SHORT_WORDS};
use crate::fabric::Result;
use crate::placement::Home;
use crate::units::RankId;
use core::ops::Range;
/// The maximum number of rows whose triples, scales or entries of the row table go into one write.
pub(crate) const ROWS: u32 = 16;

/// Consecutive received rows of one slot: the `index`-th of `source` for an expert, and those that follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) home: Home,
    pub(crate) source: RankId,
    pub(crate) index: u32,
    pub(crate) len: u32,
    /// The number of rows of earlier stretches.
    pub(crate) before: u32,
}

/// Some consecutive rows of the outputs, at most [`ROWS`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Rows {
    pub(crate) stretches: heapless::Vec<Stretch, { ROWS as usize }>,
    pub(crate) len: u32,
}

/// Returns the rows from the `index`-th of slot `own.start` on, at most `most`, of the `own` slots, whose counts are
/// `counts` from slot `first` on; and the slot and index to continue with.
pub(crate) fn rows<V>(
    env: Bound<'_, V>,
    (counts, first): (&[u32], u32),
    own: Range<u32>,
    index: u32,
    most: u32,
) -> Result<(Rows, (u32, u32))> {
    let mut rows = Rows::default();
    let mut index = index;
    let end_of_own = own.end;
    for slot in own {
        let count = counts.get((slot - first) as usize);
        let count = *count.ok_or(SHORT_WORDS)?;
        if index < count {
            let (local_expert, source) = env.shape.by_ranks(slot);
            let home = Home { rank: env.rank, local_expert };
            let (len, before) = ((count - index).min(most - rows.len), rows.len);
            // There is room: `most` is not above it, and no stretch is empty.
            _ = rows.stretches.push(Stretch { home, source: RankId(source), index, len, before });
            rows.len += len;
            if rows.len == most {
                let behind = index + len;
                return Ok((rows, if behind == count { (slot + 1, 0) } else { (slot, behind) }));
            }
        }
        index = 0;
    }
    Ok((rows, (end_of_own, 0)))
}
