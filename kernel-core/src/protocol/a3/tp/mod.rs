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

use super::steps::copy_of;
use super::{Bound, Cx};
use crate::fabric::{Fabric, Fault, Flag, ProtocolError, Wait};
use crate::layout::state::{Operator, Partition};
use crate::layout::tp;
use crate::protocol::Types;
use crate::sync::flag;
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

/// The slots of one operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Slots {
    pub(crate) kind: Operator,
    pub(crate) partition: Partition,
}

/// Refuses features that this build lacks, so that the compiler drops the code after the call.
pub(crate) const fn built() -> Result<(), ProtocolError> {
    if cfg!(feature = "tp") {
        Ok(())
    } else {
        Err(ProtocolError::Given("TP domains are left out of this build"))
    }
}

/// Returns the other rank of the TP domain.
pub(crate) fn peer<V>(env: Bound<'_, V>) -> RankId {
    RankId(env.tp_rank.0 ^ 1)
}

impl Slots {
    /// Puts the number of the first row that the core is about to announce.
    pub(crate) fn put_first(self, cx: &mut Cx<'_, impl Types>, rows: Rows) -> Result<(), Fault> {
        let at = tp::first_row(tp::slot(self.kind, self.partition, cx.env.core));
        cx.fabric.put(peer(cx.env), at, &rows.first.to_le_bytes(), &[])
    }

    /// Announces the rows that this core has put to the peer.
    pub(crate) fn tell(self, cx: &mut Cx<'_, impl Types>, rows: Rows) -> Result<(), Fault> {
        let at = tp::slot(self.kind, self.partition, cx.env.core);
        cx.fabric.publish(peer(cx.env), at, flag::status(rows.end - rows.first))
    }

    /// Returns the rows that the peer's core announced, if they end by `max`; or the missing word.
    pub(crate) fn heard(
        self,
        cx: &Cx<'_, impl Types>,
        max: u64,
    ) -> Result<Result<Rows, Wait>, ProtocolError> {
        let (core, at) = (cx.env.core, tp::slot(self.kind, self.partition, cx.env.core));
        let rows = match flag::count(cx.fabric, at, Wait::new(Flag::Tp, peer(cx.env), &[core.0]))? {
            Ok(rows) => rows,
            Err(wait) => return Ok(Err(wait)),
        };
        let first = u32::from_le_bytes(copy_of(cx.fabric, tp::first_row(at))?);
        match first.checked_add(rows) {
            Some(end) if u64::from(end) <= max => Ok(Ok(Rows { first, end })),
            _ => Err(ProtocolError::TpRows { core, first, rows, max }),
        }
    }

    /// Clears the slot that was read.
    pub(crate) fn clear(self, cx: &mut Cx<'_, impl Types>) -> Result<(), Fault> {
        cx.fabric.store(tp::slot(self.kind, self.partition, cx.env.core), 0)
    }
}
