//! Combine with TP = 2, before any row is returned: each peer gives the other its results for the other's rows.
//!
//! ```text
//! Select -> Put* -> PutFirst -> Tell -> Await -> Clear -> Done
//! ```

use super::{Slots, peer};
use crate::fabric::{Fabric, Progress, ProtocolError};
use crate::layout::state::{Operator, Partition};
use crate::layout::tp;
use crate::plan::split;
use crate::protocol::a3::Cx;
use crate::protocol::{Outcome, Types};
use crate::sync::selector::select;

/// The exchange of results of one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Add {
    partition: Partition,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Take the partition.
    Select,
    /// Put the result of row `row` of the peer's.
    Put { row: u32 },
    /// Put the first row of the own share of them.
    PutFirst,
    /// Announce them to the peer's core.
    Tell,
    /// Await the peer's results for the own share of the own rows.
    Await,
    /// Clear its slot.
    Clear,
    /// The results are here.
    Done,
}

phase_names! { Phase of "Lend." in Add: Select Put PutFirst Tell Await Clear Done }
go! { Add }

impl Add {
    /// Creates the exchange in its first phase.
    pub(crate) const fn new() -> Self {
        Self { partition: Partition::P0, phase: Phase::Select }
    }

    /// Returns the partition that holds the peer's results once the exchange is done.
    pub(crate) const fn partition(&self) -> Partition {
        self.partition
    }

    /// Advances the exchange by at most one effect. The rank has `own` rows, its peer `others`.
    ///
    /// # Errors
    /// A value read from the fabric contradicts the shape, or the fabric refuses.
    pub(crate) fn step(&mut self, cx: &mut Cx<'_, impl Types>, (own, others): (u32, u32)) -> Outcome {
        let env = cx.env;
        let slots = Slots { kind: Operator::Combine, partition: self.partition };
        let share = |rows| split::rows(env.shape, rows, env.core);
        match self.phase {
            Phase::Select => {
                self.partition = select(cx.fabric, tp::selector(Operator::Combine, env.core))?;
                self.go(Phase::Put { row: share(others).start })
            }
            Phase::Put { row } if row >= share(others).end => self.go(Phase::PutFirst),
            Phase::Put { row } => {
                let y = cx.operands.result(env.shape, own.saturating_add(row))?;
                cx.fabric.put(peer(env), tp::result(env.shape, env.rank, self.partition, row), y, &[])?;
                self.go(Phase::Put { row: row + 1 })
            }
            Phase::PutFirst => {
                slots.put_first(cx, share(others).into())?;
                self.go(Phase::Tell)
            }
            Phase::Tell => {
                slots.tell(cx, share(others).into())?;
                self.go(Phase::Await)
            }
            Phase::Await => match slots.heard(cx, own.into())? {
                Err(wait) => Ok(Progress::Pending(wait)),
                // The peer splits the same rows in the same way.
                Ok(heard) if heard == share(own).into() => self.go(Phase::Clear),
                Ok(heard) => Err(ProtocolError::TpRows {
                    core: env.core,
                    first: heard.first,
                    rows: heard.end - heard.first,
                    max: own.into(),
                }),
            },
            Phase::Clear => {
                slots.clear(cx)?;
                self.go(Phase::Done)
            }
            Phase::Done => Ok(Progress::Done),
        }
    }
}
