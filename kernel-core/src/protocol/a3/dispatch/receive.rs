//! The receiving half: find the first row that this core copies, and copy records out.

use super::{Dispatch, Field, Phase};
use crate::fabric::{Fabric, Result};
use crate::layout::data::dispatch_record;
use crate::layout::record::{scale_of, triple_of};
use crate::layout::{outputs, row_table};
use crate::place::{Place, Tensor};
use crate::plan::split;
use crate::protocol::kit::{
    Batch, Column, Context, Core, Cursor, Exchange, Outcome, ROWS, SHORT_WORDS, Slots, Stretch,
    await_token_flags, copy_scales, copy_triples, given, rows_within, split_words, was_taken, write_first,
};
use crate::protocol::{Flags, Receive};
use crate::shape::Shape;
use crate::units::{CoreId, RankId};

impl Dispatch {
    /// Returns the first phase of copying with joint flags, after the exchange. All counted records have arrived, so any
    /// core may copy them. Where each core can compute the places of all rows, the cores split rows: on a shared-expert
    /// rank few slots have any.
    pub(super) fn first_to_copy(
        &mut self,
        cx: &mut Context<'_, impl Fabric + ?Sized>,
        exchange: &Exchange,
    ) -> Result<Phase> {
        let core = cx.core;
        let shape = core.shape;
        if shape.tp_world_size() > 1 || !split::copies_by_rows(shape, core.rank) {
            return Ok(first_record(core.work.slots.start, self.round.first_row));
        }
        let share = split::rows(shape, self.round.total, core.id);
        self.round.end = Some(share.end);
        // Slots of other cores have entries, too: there are fewer slots than destinations.
        let counts = split_words(cx.scratch.words, &core.work.sends)?.table;
        counts.fill(0);
        let mut before = 0;
        let mut first = Cursor::first(0, share.start);
        // No share has two sources that send here, so the sum of a share is the count of its source.
        for other in (0..shape.aiv_num()).map(CoreId) {
            let mut sources = split::slots(shape, core.rank, other).map(RankId);
            let Some(source) = sources.find(|&source| shape.sends_to_shared(source, core.rank)) else {
                continue;
            };
            let rows = exchange.sum_of(core, cx.fabric, self.round.epoch, other)?.rows;
            rows_within(rows.into(), shape.rows_from(source, core.rank).into())?;
            *counts.get_mut(source.index()).ok_or(SHORT_WORDS)? = rows;
            if before <= share.start {
                first.slot = source.0;
                first.index = share.start - before;
                // Tokens rise within a slot, so no row's token is below its index.
                first.token = first.index;
            }
            before += rows;
        }
        Ok(Phase::CopyOut { at: first, field: Field::Triple })
    }

    pub(super) fn await_tokens(
        &mut self,
        cx: &mut Context<'_, impl Fabric + ?Sized>,
        slot: u32,
        row: u32,
    ) -> Outcome {
        if slot >= cx.core.work.slots.end {
            return self.copied(cx.core, row);
        }
        let reached = await_token_flags(cx, self.round.turn, &(slot..slot + 1))?;
        reached.then(|_| self.go(first_record(slot, row)))
    }

    /// Copies one field of the next batch of rows, which begins at `at`. Each field of a batch is a step; after the last one
    /// comes the next batch. If the slots have no more rows, waits for the next slot, or ends. If the fabric has no room for a
    /// step's first effect, the error leaves the phase as it is, and the machine's step makes a wait of it.
    pub(super) fn copy_out(
        &mut self,
        cx: &mut Context<'_, impl Fabric + ?Sized>,
        mut at: Cursor,
        field: Field,
    ) -> Outcome {
        let core = cx.core;
        if self.round.end.is_some_and(|end| at.row >= end) {
            return self.copied(core, at.row);
        }
        let counts = split_words(cx.scratch.words, &core.work.sends)?.table;
        let mut batch =
            self.slots_up_to(core, counts, at.slot).batch(core, at, self.rows_max(core, at.row))?;
        let Some(first) = batch.stretches.first() else {
            // All slots that may be copied now are empty from here on.
            return match core.choices.flags {
                Flags::Joint => self.copied(core, at.row),
                Flags::Separate => self.go(after(core, at, batch.next)),
            };
        };
        match field {
            // From here on `at.token` is that of the row after the batch, and `batch.next` takes it over. Slot, index and row
            // still name the batch's start, from which the step of each field finds the batch again.
            Field::Triple => at.token = copy_triples(cx, &batch, &self.column(core, triple_of), at)?,
            Field::Data | Field::Rest { .. } => {
                if let Field::Rest { done } = field {
                    batch.leave_out(done.into());
                }
                if let Some(done) = self.copy_data(cx, &batch, at.row)? {
                    return self.go(Phase::CopyOut { at, field: Field::Rest { done: done as u8 } });
                }
            }
            Field::Scale => copy_scales(cx.fabric, &batch, &self.column(core, scale_of), at.row)?,
            Field::Peer => self.put_at_peer(cx, first, at)?,
        }
        self.go(match field.next(core.shape) {
            Some(field) => Phase::CopyOut { at, field },
            None => after(core, at, batch.next),
        })
    }

    /// Returns the slots up to `slot` whose rows may be copied in one batch with those of `slot`: with separate flags no later
    /// one, since its `TokenFlag` may not have come. Counts are by number from the share's start.
    fn slots_up_to<'c>(&self, core: Core<'_>, counts: &'c [u32], slot: u32) -> Slots<'c> {
        let share = &core.work.slots;
        match (self.round.end, core.choices.flags) {
            // Cores split rows only on a rank with one expert, which has a slot for each source.
            (Some(_), _) => Slots { counts, first: 0, end: core.shape.ep_world_size() },
            (None, Flags::Joint) => Slots { counts, first: share.start, end: share.end },
            (None, Flags::Separate) => Slots { counts, first: share.start, end: slot + 1 },
        }
    }

    /// Returns the maximum number of rows that a step copies from `row` on.
    fn rows_max(&self, core: Core<'_>, row: u32) -> u32 {
        let max = match core.shape.tp_world_size() {
            // Where data stay in the window, the writes for each record are small. This is never so with a TP domain.
            _ if core.choices.receive.keeps_rows() => ROWS,
            1 => core.run.min(ROWS),
            // A record goes to the peer as soon as it is copied.
            _ => 1,
        };
        self.round.end.map_or(max, |end| max.min(end - row))
    }

    /// Returns the place of the first record of a stretch.
    #[inline(always)]
    pub(super) fn records(&self, core: Core<'_>, rows: &Stretch) -> Place {
        dispatch_record(core.shape, self.round.turn.partition, rows.home, rows.source, rows.index)
    }

    /// Returns the column of a field. `field_of` returns the place of the field in a record.
    #[inline(always)]
    fn column<'s>(
        &'s self,
        core: Core<'s>,
        field_of: impl Fn(&Shape, Place) -> Place + 's,
    ) -> Column<impl Fn(&Stretch) -> Place + 's> {
        let first = move |rows: &Stretch| field_of(core.shape, self.records(core, rows));
        Column { first, pitch: core.shape.record_pitch() }
    }

    /// Copies the data of a batch to `row` of the outputs and those after it, or writes their places to those entries of the row
    /// table. Returns the number of the batch's rows, from its start, that are copied, if the fabric has no room for the next
    /// one ([`was_taken`]); `None` if all are.
    #[inline(always)]
    fn copy_data(
        &self,
        cx: &mut Context<'_, impl Fabric + ?Sized>,
        batch: &Batch,
        row: u32,
    ) -> Result<Option<u32>> {
        match cx.core.choices.receive {
            Receive::Copy => self.deliver(cx, batch, row),
            Receive::InPlace => self.write_table(cx, batch, row).map(|()| None),
            Receive::Direct { .. } | Receive::Overwrite { .. } => {
                Err(given("direct placement has machines of its own"))
            }
        }
    }

    #[inline(always)]
    fn deliver(
        &self,
        cx: &mut Context<'_, impl Fabric + ?Sized>,
        batch: &Batch,
        row: u32,
    ) -> Result<Option<u32>> {
        let shape = cx.core.shape;
        let mut begun = false;
        for rows in &batch.stretches {
            let mut from = self.records(cx.core, rows);
            let mut to = outputs::expand_x(shape, row + rows.before);
            for i in 0..rows.len {
                if !was_taken(begun, cx.fabric.deliver(to, from, shape.payload_bytes()))? {
                    return Ok(Some(rows.before + i));
                }
                begun = true;
                from.offset += shape.record_pitch();
                to.offset += shape.payload_bytes();
            }
        }
        Ok(None)
    }

    #[inline(always)]
    fn write_table(&self, cx: &mut Context<'_, impl Fabric + ?Sized>, batch: &Batch, row: u32) -> Result<()> {
        let mut entries = [[0; row_table::ENTRY as usize]; ROWS as usize];
        let mut left = entries.iter_mut();
        for rows in &batch.stretches {
            let mut at = self.records(cx.core, rows);
            for entry in left.by_ref().take(rows.len as usize) {
                *entry = row_table::entry(at);
                at.offset += cx.core.shape.record_pitch();
            }
        }
        write_first(cx.fabric, outputs::element(Tensor::RowTable, row), &entries, batch.len)
    }
}

/// Returns the phase that follows the last field of the rows from `at` to `next`.
fn after(core: Core<'_>, at: Cursor, next: Cursor) -> Phase {
    match core.choices.flags {
        // Each slot has a `TokenFlag` of its own.
        Flags::Separate if next.slot > at.slot => Phase::AwaitTokens { slot: next.slot, row: next.row },
        _ => Phase::CopyOut { at: next, field: Field::Triple },
    }
}

pub(super) const fn first_record(slot: u32, row: u32) -> Phase {
    Phase::CopyOut { at: Cursor::first(slot, row), field: Field::Triple }
}
