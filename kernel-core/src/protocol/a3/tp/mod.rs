//! TP = 2: messages between a rank and its peer, core by core. Each core lends the peer's core of the same number a stretch
//! of rows, announces it, and receives an announcement in return.
//!
//! ```text
//! rows put -> first row put -> slot published        (one core, one rank: no quiet)
//! slot `core` awaited -> first row read -> cleared
//! ```

mod add;
mod gather;

pub(crate) use add::Add;
pub(crate) use gather::Gather;

use crate::fabric::{Fabric, Flag, Progress, ProtocolError, Result, Wait};
use crate::layout::state::Operator;
use crate::layout::tp;
use crate::protocol::kit::{Context, Core, Outcome, copy_of};
use crate::sync::flag;
use crate::sync::selector::Turn;
use crate::units::RankId;
use core::ops::Range;

/// Rows that a core has put, or that were announced to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Rows {
    pub(crate) first: u32,
    pub(crate) end: u32,
}

impl From<Range<u32>> for Rows {
    fn from(Range { start, end }: Range<u32>) -> Self {
        Self { first: start, end }
    }
}

/// The announcement of a core's rows to the peer's core of the same number, which answers with its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Announcement {
    kind: Operator,
    turn: Turn,
    /// The rows that this core has put at the peer's.
    told: Rows,
    /// The rows that the peer's core has put here, once it has announced them.
    heard: Rows,
    phase: Phase,
}

phases! {
    enum Phase of "Announce." in Announcement {
        /// Put the number of the first row.
        PutFirst => Tell,
        /// Publish the slot of the peer's core.
        Tell => Await,
        /// Await its own slot.
        Await => Clear,
        /// Clear it.
        Clear =>,
    }
}

go! { Announcement }

/// Refuses features that this build lacks, so that the compiler drops the code after the call.
pub(crate) const fn built() -> Result<()> {
    if cfg!(feature = "tp") {
        Ok(())
    } else {
        Err(ProtocolError::Given("TP domains are left out of this build"))
    }
}

/// Returns the other rank of the TP domain.
pub(crate) fn peer(core: Core<'_>) -> RankId {
    RankId(core.tp_rank.0 ^ 1)
}

impl Announcement {
    /// Creates the announcement of the rows `told` in its first phase.
    pub(crate) const fn new(kind: Operator, turn: Turn, told: Rows) -> Self {
        Self { kind, turn, told, heard: Rows { first: 0, end: 0 }, phase: Phase::PutFirst }
    }

    /// Returns the rows that the peer's core has announced, once the announcement is done.
    pub(crate) const fn heard(&self) -> Rows {
        self.heard
    }

    /// Advances the announcement by one effect. The peer's rows must end by `max`, and be the `expected` ones if those are known.
    ///
    /// # Errors
    /// The peer has announced other rows, or the fabric refuses.
    pub(crate) fn step(
        &mut self,
        cx: &mut Context<'_, impl Fabric + ?Sized>,
        max: u64,
        expected: Option<Rows>,
    ) -> Outcome {
        let id = cx.core.id;
        let peer = peer(cx.core);
        let slot = tp::slot(self.kind, self.turn.partition, id);
        match self.phase {
            Phase::PutFirst => {
                cx.fabric.put(peer, tp::first_row(slot), &self.told.first.to_le_bytes(), &[])?;
                self.go(Phase::Tell)
            }
            Phase::Tell => {
                let word = flag::status(self.told.end - self.told.first);
                cx.fabric.publish(peer, slot, self.turn.tags.with(word))?;
                self.go(Phase::Await)
            }
            Phase::Await => {
                let awaited = Wait::new(Flag::Tp, peer, &[id.0]);
                let Some(rows) = flag::count(cx.fabric, slot, self.turn.tags, awaited)? else {
                    return Ok(Progress::Pending(awaited));
                };
                let first = u32::from_le_bytes(copy_of(cx.fabric, tp::first_row(slot))?);
                let heard = first.checked_add(rows).map(|end| Rows { first, end });
                let fits = |heard: &Rows| {
                    u64::from(heard.end) <= max && expected.is_none_or(|expected| expected == *heard)
                };
                let wrong = ProtocolError::TpRows { core: id, first, rows, max };
                self.heard = heard.filter(fits).ok_or(wrong)?;
                self.go(Phase::Clear)
            }
            Phase::Clear => {
                cx.fabric.store(slot, 0)?;
                Ok(Progress::Done)
            }
        }
    }
}
