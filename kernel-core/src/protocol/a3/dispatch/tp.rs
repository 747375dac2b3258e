//! TP = 2: every copied record also goes to the same row of the peer's; after the last, `Gather` brings the peer's rows.

use super::{Dispatch, Field, Phase, first_to_send};
use crate::fabric::{Fabric, Result};
use crate::layout::record::Tail;
use crate::layout::state::Operator;
use crate::layout::tp;
use crate::place::Place;
use crate::protocol::a3::tp::{Gather, Rows, built, peer};
use crate::protocol::kit::{Bound, Cx, Outcome, Types, given, room};
use crate::sync::selector::select;

impl Dispatch {
    pub(super) fn select_tp(&mut self, cx: &mut Cx<'_, impl Types>) -> Outcome {
        self.tp_partition = select(cx.fabric, tp::selector(Operator::Dispatch, cx.env.core))?;
        self.go(first_to_send(cx.env))
    }

    /// Puts a received record at the peer's. It goes through the scratch, as on the device through the unified buffer,
    /// since a fabric lends its bytes only until its next call.
    pub(super) fn put_at_peer(
        &mut self,
        cx: &mut Cx<'_, impl Types>,
        (record, tail): (Place, &Tail),
        row: u32,
    ) -> Result<()> {
        built()?;
        let shape = cx.env.shape;
        let len = shape.payload_bytes();
        let scratch = room(cx.scratch.row, len)?;
        let data = cx.fabric.bytes(record, len)?;
        if data.len() != scratch.len() {
            return Err(given("the fabric returned bytes of another length"));
        }
        scratch.copy_from_slice(data);
        let at = tp::record(shape, cx.env.rank, self.tp_partition, row);
        cx.fabric.put(peer(cx.env), at, scratch, tail.as_bytes())?;
        Ok(())
    }

    /// Continues after the own share is copied out up to row `end`.
    pub(super) fn copied<V>(&mut self, env: Bound<'_, V>, end: u32) -> Outcome {
        let told = Rows { first: self.round.first_row, end };
        self.go(match env.shape.tp_world_size() {
            1 => Phase::Done,
            _ => Phase::Gather(Gather::new(self.tp_partition, self.round.total, told)),
        })
    }

    /// Returns the phase that follows a record whose own outputs are written.
    pub(super) fn behind_own_parts<V>(env: Bound<'_, V>, this: Phase, next: Phase) -> Phase {
        match (env.shape.tp_world_size(), this) {
            (2, Phase::CopyOut { slot, index, row, token, .. }) => {
                Phase::CopyOut { slot, index, row, token, field: Field::Peer }
            }
            _ => next,
        }
    }
}
