//! Reordering for A2: rows for one rank are side by side, so that one task carries them all (A2 design, sections
//! 2.2 to 2.4 and 3.2).
//!
//! The sender knows its rows by expert ([`Cumsum`]), the receiver its rows by expert and source ([`RecvCounts`]). From
//! these alone both compute the place of a row in the window between them: by local expert, then in slot order. So no row
//! needs a triple.

use crate::layout::a2_window::{FLAG, STATUS_FLAG, STATUS_WORDS};
use crate::placement::Home;
use crate::shape::Shape;
use crate::units::{ExpertId, RankId, div_rem};

/// Makes prefix sums of the rows per expert: the entry of an expert becomes the number of rows of all experts before it,
/// and the last entry, after the experts, the number of all rows.
pub fn cumulate(table: &mut [u32]) {
    let mut before = 0u32;
    for entry in table {
        let rows = core::mem::replace(entry, before);
        before = before.saturating_add(rows);
    }
}

/// A rank's own rows by expert, as prefix sums (CANN: `expertCumsum`).
#[derive(Clone, Copy, Debug)]
pub struct Cumsum<'a> {
    /// The domain.
    pub shape: &'a Shape,
    /// The number of rows before each expert, then of all rows: `E + 1` entries. See [`cumulate`].
    pub sums: &'a [u32],
}

impl Cumsum<'_> {
    /// Returns the number of rows of all experts before `e`.
    fn before(&self, e: u32) -> u32 {
        self.sums.get(e as usize).copied().unwrap_or(0)
    }

    /// Returns the first expert of a rank.
    const fn first_of(&self, rank: RankId) -> u32 {
        rank.0 * self.shape.local_expert_num()
    }

    /// Returns the number of rows for one expert.
    #[must_use]
    pub fn rows(&self, e: ExpertId) -> u32 {
        self.before(e.0 + 1).saturating_sub(self.before(e.0))
    }

    /// Returns the number of rows for all experts of a rank.
    #[must_use]
    pub fn rows_to(&self, rank: RankId) -> u32 {
        let first = self.first_of(rank);
        self.before(first + self.shape.local_expert_num()).saturating_sub(self.before(first))
    }

    /// Returns the position of row `slot` for the expert at `home` among the rows for its rank.
    #[must_use]
    pub fn position(&self, home: Home, slot: u32) -> u32 {
        let first = self.first_of(home.rank);
        self.before(first + home.local_expert).saturating_sub(self.before(first)).saturating_add(slot)
    }

    /// Returns the head of the window to `rank` (CANN: a row of `sendStatus`): the number of rows for each of its experts,
    /// then FLAG1.
    #[must_use]
    pub fn status(&self, rank: RankId) -> [u32; STATUS_WORDS] {
        let mut words = [0; STATUS_WORDS];
        let experts = (0..self.shape.local_expert_num()).map(|local| ExpertId(self.first_of(rank) + local));
        for (word, e) in words.iter_mut().take(STATUS_FLAG).zip(experts) {
            *word = self.rows(e);
        }
        if let Some(word) = words.get_mut(STATUS_FLAG) {
            *word = FLAG;
        }
        words
    }
}

/// `ep_recv_counts` (A2 design, section 3.2.2: `sendCounts`): inclusive prefix sums over (local expert, source).
#[derive(Clone, Copy, Debug)]
pub struct RecvCounts<'a> {
    /// The domain.
    pub shape: &'a Shape,
    /// `L * R` entries, local expert major.
    pub sums: &'a [u32],
}

impl RecvCounts<'_> {
    /// Returns the first row of `expand_x` from `source` for `local_expert`.
    #[must_use]
    pub fn first_row(&self, local_expert: u32, source: RankId) -> u32 {
        let slot = local_expert * self.shape.ep_world_size() + source.0;
        slot.checked_sub(1).and_then(|before| self.sums.get(before as usize)).copied().unwrap_or(0)
    }

    /// Returns the number of rows from `source` for `local_expert`.
    #[must_use]
    pub fn rows(&self, local_expert: u32, source: RankId) -> u32 {
        let slot = local_expert * self.shape.ep_world_size() + source.0;
        let end = self.sums.get(slot as usize).copied().unwrap_or(0);
        end.saturating_sub(self.first_row(local_expert, source))
    }

    /// Returns the number of rows from `source` for all local experts before this one: the start of its rows in the window.
    pub(crate) fn position(&self, local_expert: u32, source: RankId) -> u32 {
        (0..local_expert).map(|before| self.rows(before, source)).fold(0, u32::saturating_add)
    }

    /// Returns the number of rows from `source`.
    #[must_use]
    pub fn rows_from(&self, source: RankId) -> u32 {
        self.position(self.shape.local_expert_num(), source)
    }

    /// Returns the source of that row of `expand_x`, and its position in the window between the two.
    #[must_use]
    pub fn source_of(&self, row: u32) -> (RankId, u32) {
        let slot = self.sums.partition_point(|&sum| sum <= row) as u32;
        let (local_expert, source) = div_rem(slot, self.shape.ep_world_size());
        let source = RankId(source);
        let index = row.saturating_sub(self.first_row(local_expert, source));
        (source, self.position(local_expert, source).saturating_add(index))
    }
}

/// Transposes counts and computes their prefix sums like a vector unit (A2 design, section 2.4.2: Add, GatherMask, Adds).
/// `counts` has a row per source and a column per local expert; the inclusive prefix sums go to `sums`, a row per local
/// expert. `counts` is overwritten.
///
/// [`transposed_prefix`](super::counts::transposed_prefix) computes the same in the simplest form.
pub fn add_gather_adds(counts: &mut [u32], experts: usize, sums: &mut [u32]) {
    let Some(sources) = counts.len().checked_div(experts).filter(|&sources| sources > 0) else { return };
    // Add: each row is added to the one below it, so that a column holds prefix sums.
    let mut at = experts;
    while let Some((done, below)) = counts.split_at_mut_checked(at)
        && !below.is_empty()
    {
        let above = done.get(at - experts..).unwrap_or(&[]);
        below.iter_mut().zip(above).for_each(|(to, &from)| *to = to.saturating_add(from));
        at += experts;
    }
    // GatherMask: a column becomes a row.
    let mut rest = &mut *sums;
    for expert in 0..experts {
        let Some((row, later)) = rest.split_at_mut_checked(sources) else { break };
        for (source, to) in row.iter_mut().enumerate() {
            *to = counts.get(source * experts + expert).copied().unwrap_or(0);
        }
        rest = later;
    }
    // Adds: the last entry of a row is added to all entries of the next.
    let (mut rest, mut before) = (sums, 0u32);
    for _ in 0..experts {
        let Some((row, later)) = rest.split_at_mut_checked(sources) else { break };
        row.iter_mut().for_each(|sum| *sum = sum.saturating_add(before));
        before = row.last().copied().unwrap_or(before);
        rest = later;
    }
}

#[cfg(test)]
mod tests;
