//! Combine with TP = 2, before any row is returned: each peer gives the other its results for the other's rows.
//!
//! ```text
//! Select -> Put* -> Announce -> Done
//! ```

use super::{Announcement, peer};
use crate::fabric::{Fabric, Progress};
use crate::layout::state::{Operator, Partition};
use crate::layout::tp;
use crate::plan::split;
use crate::protocol::kit::{Context, Outcome};
use crate::sync::selector::{Turn, select};

/// The exchange of results of one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Add {
    turn: Turn,
    phase: Phase,
}

phases! {
    enum Phase of "Lend." in Add within Announce {
        /// Take the partition.
        Select => Put,
        /// Put the result of row `row` of the peer's.
        Put { row: u32 } => Put | Announce,
        /// Announce them, and await the peer's results for its own share of its own rows.
        Announce(Announcement) => Done,
        /// The results are here.
        Done =>,
    }
}

go! { Add }

impl Add {
    /// Creates the exchange in its first phase.
    pub(crate) const fn new() -> Self {
        Self { turn: Turn::NONE, phase: Phase::Select }
    }

    /// Returns the partition that holds the peer's results once the exchange is done.
    pub(crate) const fn partition(&self) -> Partition {
        self.turn.partition
    }

    /// Advances the exchange by at most one effect. The rank has `own` rows, its peer `others`.
    ///
    /// # Errors
    /// A value read from the fabric contradicts the shape, or the fabric refuses.
    pub(crate) fn step(
        &mut self,
        cx: &mut Context<'_, impl Fabric + ?Sized>,
        own: u32,
        others: u32,
    ) -> Outcome {
        let core = cx.core;
        let share = |rows| split::rows(core.shape, rows, core.id);
        match self.phase {
            Phase::Select => {
                let numbering = core.numbering(Operator::Combine, cx.inputs);
                self.turn = select(cx.fabric, tp::selector(Operator::Combine, core.id), numbering)?;
                self.go(Phase::Put { row: share(others).start })
            }
            Phase::Put { row } if row >= share(others).end => {
                let told = share(others).into();
                self.go(Phase::Announce(Announcement::new(Operator::Combine, self.turn, told)))
            }
            Phase::Put { row } => {
                let y = cx.combine_inputs.result(core.shape, own.saturating_add(row))?;
                cx.fabric.put(
                    peer(core),
                    tp::result(core.shape, core.rank, self.turn.partition, row),
                    y,
                    &[],
                )?;
                self.go(Phase::Put { row: row + 1 })
            }
            Phase::Announce(ref mut announcement) => {
                // The peer splits the same rows in the same way.
                announcement.step(cx, own.into(), Some(share(own).into()))?.then(|| self.go(Phase::Done))
            }
            Phase::Done => Ok(Progress::Done),
        }
    }
}
