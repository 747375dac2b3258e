//! TP = 2: every copied record also goes to the same row of the peer's; after the last, `Gather` brings the peer's rows.

use super::{Dispatch, Phase, first_to_send};
use crate::fabric::{Fabric, Result};
use crate::layout::state::Operator;
use crate::layout::tp;
use crate::protocol::a3::tp::{Gather, Rows, built, peer};
use crate::protocol::kit::{Context, Core, Cursor, Due, Outcome, Stretch, given, room, tail_of};
use crate::sync::selector::select;

impl Dispatch {
    pub(super) fn select_tp(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>) -> Outcome {
        let numbering = cx.core.numbering(Operator::Dispatch, cx.inputs);
        self.tp_turn = select(cx.fabric, tp::selector(Operator::Dispatch, cx.core.id), numbering)?;
        self.go(first_to_send(cx.core))
    }

    /// Puts the first record of `rows` at the peer's. It goes through the scratch, as on the device through the unified buffer,
    /// since a fabric lends its bytes only until its next call.
    pub(super) fn put_at_peer(
        &mut self,
        cx: &mut Context<'_, impl Fabric + ?Sized>,
        rows: &Stretch,
        at: Cursor,
    ) -> Result<()> {
        built()?;
        let record = self.records(cx.core, rows);
        // `at.token` is one above the record's own.
        let due = Due { row: at.row, token: at.token.saturating_sub(1) };
        let tail = tail_of(cx, record, rows.source, due)?;
        let shape = cx.core.shape;
        let len = shape.payload_bytes();
        let scratch = room(cx.scratch.row, len)?;
        let data = cx.fabric.bytes(record, len)?;
        if data.len() != scratch.len() {
            return Err(given("the fabric returned bytes of another length"));
        }
        scratch.copy_from_slice(data);
        let to = tp::record(shape, cx.core.rank, self.tp_turn.partition, at.row);
        cx.fabric.put(peer(cx.core), to, scratch, tail.as_bytes())?;
        Ok(())
    }

    /// Continues after its own share is copied out up to row `end`.
    pub(super) fn copied(&mut self, core: Core<'_>, end: u32) -> Outcome {
        let told = Rows { first: self.round.first_row, end };
        self.go(match core.shape.tp_world_size() {
            1 => Phase::Done,
            _ => Phase::Gather(Gather::new(self.tp_turn, self.round.total, told)),
        })
    }
}
