//! Dispatch with TP = 2, after its own records are copied out: the peers gather each other's rows.
//!
//! ```text
//! Announce -> (Triple -> Data -> Scale?)* -> Counts* -> TokenNums? -> RecvCounts? -> Done
//! ```
//!
//! Every rank has one expert, so a core's share of rows is that of some source ranks, the same on both peers: the peer's
//! counts follow from the triples of its rows.

use super::{Announcement, Rows};
use crate::fabric::{Fabric, Progress, ProtocolError, Result};
use crate::layout::record::{Triple, scale_of, triple_of};
use crate::layout::state::{Operator, Partition};
use crate::layout::{outputs, tp};
use crate::place::{Place, Tensor};
use crate::protocol::kit::{
    self, Context, Due, Outcome, copy_data, copy_scale, copy_triple, count_of, split_words, write_words,
};
use crate::sync::selector::Turn;
use crate::units::RankId;

/// The gathering of one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Gather {
    partition: Partition,
    /// The number of rows that the rank itself has received; the peer's follow them.
    own: u32,
    /// The rows that the peer's core has put here.
    heard: Rows,
    phase: Phase,
}

phases! {
    enum Phase of "Gather." in Gather within Announce {
        /// Announce its own rows, and await those of the peer's core.
        Announce(Announcement) => CopyOut,
        /// Copy a part of a row of the peer's.
        CopyOut { at: PeerRow, part: Part } => CopyOut | Counts,
        /// Write the peer's half of `ep_recv_counts` from `slot` on; `rows` rows precede it.
        Counts { slot: u32, rows: u32 } => Counts | TokenNums | Done,
        /// Write `expert_token_nums`, of both peers' rows (last core only).
        TokenNums => RecvCounts,
        /// Write `tp_recv_counts` (last core only).
        RecvCounts => Done,
        /// All rows have arrived.
        Done =>,
    }
}

go! { Gather }

/// A row of the peer's. Sources and, within a source, tokens rise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct PeerRow {
    row: u32,
    /// The least slot that its record may have.
    slot: u32,
    /// The least token that it may have in that slot.
    token: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Part {
    Triple,
    Data,
    Scale,
}

impl Gather {
    /// Creates the gathering of a core that has put the rows `told` at the peer's, on a rank with `own` rows.
    pub(crate) const fn new(turn: Turn, own: u32, told: Rows) -> Self {
        let phase = Phase::Announce(Announcement::new(Operator::Dispatch, turn, told));
        Self { partition: turn.partition, own, heard: Rows { first: 0, end: 0 }, phase }
    }

    /// Advances the gathering by at most one effect.
    ///
    /// # Errors
    /// A value read from the fabric contradicts the shape, or the fabric refuses.
    pub(crate) fn step(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>) -> Outcome {
        let core = cx.core;
        match self.phase {
            Phase::Announce(ref mut announcement) => {
                let progress = announcement.step(cx, core.shape.rows_max(core.rank), None)?;
                if progress != Progress::Done {
                    return Ok(progress);
                }
                self.heard = announcement.heard();
                let counts = split_words(cx.scratch.words, &core.work.sends)?.table;
                core.work
                    .slots
                    .clone()
                    .try_for_each(|slot| count_of(core, counts, slot).map(|count| *count = 0))?;
                let at = PeerRow { row: self.heard.first, slot: core.work.slots.start, token: 0 };
                self.go(Phase::CopyOut { at, part: Part::Triple })
            }
            Phase::CopyOut { at, .. } if at.row >= self.heard.end => {
                self.go(Phase::Counts { slot: core.work.slots.start, rows: self.heard.first })
            }
            Phase::CopyOut { at, part } => self.copy_out(cx, at, part),
            Phase::Counts { slot, rows } => self.counts(cx, slot, rows),
            Phase::TokenNums => {
                let num = i64::from(self.own) + i64::from(self.heard.end);
                cx.fabric.write(outputs::element(Tensor::ExpertTokenNums, 0), &num.to_le_bytes())?;
                self.go(Phase::RecvCounts)
            }
            Phase::RecvCounts => {
                let [first, second] =
                    if core.tp_rank.0 == 0 { [self.own, self.heard.end] } else { [self.heard.end, self.own] };
                let at = outputs::element(Tensor::TpRecvCounts, 0);
                write_words(cx.fabric, at, [first, second].into_iter())?;
                self.go(Phase::Done)
            }
            Phase::Done => Ok(Progress::Done),
        }
    }

    fn copy_out(
        &mut self,
        cx: &mut Context<'_, impl Fabric + ?Sized>,
        mut at: PeerRow,
        part: Part,
    ) -> Outcome {
        let core = cx.core;
        let shape = core.shape;
        let record = tp::record(shape, core.rank, self.partition, at.row);
        // Both totals are within the capacity, so the sum does not overflow.
        let row = self.own.saturating_add(at.row);
        let has_scale = shape.row_format().scale.is_some();
        let next = match part {
            Part::Triple => {
                at = self.take_triple(cx, at, triple_of(shape, record))?;
                Some(Part::Data)
            }
            Part::Data => {
                copy_data(shape, cx.fabric, record, row)?;
                has_scale.then_some(Part::Scale)
            }
            Part::Scale => {
                copy_scale(cx.fabric, scale_of(shape, record), row)?;
                None
            }
        };
        self.go(match next {
            Some(part) => Phase::CopyOut { at, part },
            None => Phase::CopyOut { at: PeerRow { row: at.row + 1, ..at }, part: Part::Triple },
        })
    }

    /// Copies the triple at `from` and counts the row. Returns what the next row must follow.
    fn take_triple(
        &self,
        cx: &mut Context<'_, impl Fabric + ?Sized>,
        at: PeerRow,
        from: Place,
    ) -> Result<PeerRow> {
        let core = cx.core;
        let row = self.own.saturating_add(at.row);
        let triple = Triple::from_bytes(core.shape, cx.fabric.bytes(from, Triple::BYTES)?)
            .map_err(|seen| ProtocolError::Triple { row, seen })?;
        // With one expert per rank, a slot is a source.
        let slot = triple.source.0;
        if slot < at.slot || slot >= core.work.slots.end {
            return Err(ProtocolError::Triple { row, seen: triple.words() });
        }
        let due = Due { row, token: if slot > at.slot { 0 } else { at.token } };
        let token = copy_triple(core, cx.fabric, from, RankId(slot), due)?;
        let counts = split_words(cx.scratch.words, &core.work.sends)?.table;
        *count_of(core, counts, slot)? += 1;
        Ok(PeerRow { slot, token, ..at })
    }

    fn counts(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>, slot: u32, rows: u32) -> Outcome {
        let core = cx.core;
        let own = &core.work.slots;
        if slot >= own.end {
            // The last core's stretch ends with the peer's last row.
            let is_last = core.id.0 + 1 == core.shape.aiv_num();
            return self.go(if is_last { Phase::TokenNums } else { Phase::Done });
        }
        let now = kit::chunk_of(own, slot);
        let end = now.end;
        let at = outputs::element(Tensor::EpRecvCounts, core.shape.ep_world_size() + slot);
        let rows = kit::write_sums(cx, now, at, rows)?;
        self.go(Phase::Counts { slot: end, rows })
    }
}
