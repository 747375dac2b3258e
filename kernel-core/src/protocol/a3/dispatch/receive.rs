//! The receiving half: compute the places of the own rows, copy the records out.

use super::{Dispatch, Field, Phase};
use crate::fabric::{Fabric, Progress, Result};
use crate::layout::data::dispatch_record;
use crate::layout::record::{scale_of, triple_of};
use crate::layout::{outputs, row_table};
use crate::place::Tensor;
use crate::plan::split;
use crate::protocol::kit::{
    self, Cx, Exchange, Outcome, ROWS, SHORT_WORDS, Stretch, Types, given, rows_within, split_words,
    write_first,
};
use crate::protocol::{Flags, Receive};
use crate::units::{CoreId, RankId};

impl Dispatch {
    /// Returns the first phase of copying with joint flags, after the exchange. All counted records have arrived, so any
    /// core may copy them. Where each core can compute the places of all rows, the cores split rows: on a shared-expert
    /// rank few slots have any.
    pub(super) fn first_to_copy(
        &mut self,
        cx: &mut Cx<'_, impl Types>,
        exchange: &Exchange,
    ) -> Result<Phase> {
        let (env, shape) = (cx.env, cx.env.shape);
        if shape.tp_world_size() > 1 || !split::copies_by_rows(shape, env.rank) {
            return Ok(first_record(env.work.slots.start, self.round.first_row));
        }
        let own = split::rows(shape, self.round.total, env.core);
        self.round.end = Some(own.end);
        // Slots of other cores have entries, too: there are fewer slots than destinations.
        let (_, counts) = split_words(cx.scratch.words, &env.work.sends)?;
        counts.fill(0);
        let (mut before, mut first) = (0, (0, 0));
        for core in (0..shape.aiv_num()).map(CoreId) {
            let mut sources = split::slots(shape, env.rank, core).map(RankId);
            let Some(source) = sources.find(|&source| shape.sends_to_shared(source, env.rank)) else {
                continue;
            };
            let rows = exchange.sum_of(env, cx.fabric, self.round.epoch, core)?.rows;
            rows_within(rows.into(), shape.rows_from(source, env.rank).into())?;
            *counts.get_mut(source.index()).ok_or(SHORT_WORDS)? = rows;
            if before <= own.start {
                first = (source.0, own.start - before);
            }
            before += rows;
        }
        let (slot, index) = first;
        Ok(Phase::CopyOut { slot, index, row: own.start, token: 0, field: Field::Triple })
    }

    pub(super) fn await_tokens(&mut self, cx: &mut Cx<'_, impl Types>, slot: u32, row: u32) -> Outcome {
        if slot >= cx.env.work.slots.end {
            return self.copied(cx.env, row);
        }
        match kit::await_token_flags(cx, self.round.partition, &(slot..slot + 1))? {
            Err(wait) => Ok(Progress::Pending(wait)),
            Ok(_) => self.go(first_record(slot, row)),
        }
    }

    pub(super) fn copy_out(
        &mut self,
        cx: &mut Cx<'_, impl Types>,
        (slot, index, row, token): (u32, u32, u32, u32),
        field: Field,
    ) -> Outcome {
        let shape = cx.env.shape;
        let (_, counts) = split_words(cx.scratch.words, &cx.env.work.sends)?;
        let (told, first) = match (cx.env.choices.flags, self.round.end) {
            (_, Some(end)) if row >= end => return self.copied(cx.env, row),
            (_, Some(_)) => (slot..shape.ep_world_size(), 0),
            (Flags::Joint, None) => (slot..cx.env.work.slots.end, cx.env.work.slots.start),
            (Flags::Separate, None) => (slot..slot + 1, cx.env.work.slots.start),
        };
        let most = match shape.tp_world_size() {
            // Where data stay in the window, the writes for each record are small.
            _ if cx.env.choices.receive.keeps_rows() => ROWS,
            1 => cx.env.run.min(ROWS),
            // A record goes to the peer as soon as it is copied.
            _ => 1,
        };
        let most = self.round.end.map_or(most, |end| most.min(end - row));
        let end = told.end;
        let (rows, (slot_behind, index_behind)) = kit::rows(cx.env, (counts, first), told, index, most)?;
        let Some(one) = rows.stretches.first() else {
            return match cx.env.choices.flags {
                Flags::Joint => self.copied(cx.env, row),
                Flags::Separate => self.go(Phase::AwaitTokens { slot: end, row }),
            };
        };
        let at =
            |rows: &Stretch| dispatch_record(shape, self.round.partition, rows.home, rows.source, rows.index);
        let pitch = shape.record_pitch();
        let row_behind = row + rows.len;
        let next = match cx.env.choices.flags {
            Flags::Separate if slot_behind == end => Phase::AwaitTokens { slot: end, row: row_behind },
            _ => Phase::CopyOut {
                slot: slot_behind,
                index: index_behind,
                row: row_behind,
                token,
                field: Field::Triple,
            },
        };
        match field {
            Field::Triple => {
                let triple = |rows: &_| triple_of(shape, at(rows));
                let token = kit::copy_triples(cx, &rows, (triple, pitch), (row, token))?;
                self.go(Phase::CopyOut { slot, index, row, token, field: Field::Data })
            }
            Field::Data => {
                match cx.env.choices.receive {
                    Receive::Copy => {
                        for rows in &rows.stretches {
                            let (mut to, mut from) = (outputs::expand_x(shape, row + rows.before), at(rows));
                            for _ in 0..rows.len {
                                cx.fabric.deliver(to, from, shape.payload_bytes())?;
                                (to.offset, from.offset) =
                                    (to.offset + shape.payload_bytes(), from.offset + pitch);
                            }
                        }
                    }
                    Receive::InPlace => {
                        let mut entries = [[0; row_table::ENTRY as usize]; ROWS as usize];
                        let mut left = entries.iter_mut();
                        for rows in &rows.stretches {
                            let mut at = at(rows);
                            for entry in left.by_ref().take(rows.len as usize) {
                                *entry = row_table::entry(at);
                                at.offset += pitch;
                            }
                        }
                        write_first(cx.fabric, outputs::element(Tensor::RowTable, row), &entries, rows.len)?;
                    }
                    Receive::Direct { .. } | Receive::Overwrite { .. } => {
                        return Err(given("direct placement has machines of its own"));
                    }
                }
                self.go(match shape.row_format().scale {
                    None => Self::behind_own_parts(cx.env, self.phase, next),
                    Some(_) => Phase::CopyOut { slot, index, row, token, field: Field::Scale },
                })
            }
            Field::Scale => {
                kit::copy_scales(cx.fabric, &rows, (|rows: &_| scale_of(shape, at(rows)), pitch), row)?;
                self.go(Self::behind_own_parts(cx.env, self.phase, next))
            }
            Field::Peer => {
                // `token` is one above the record's own.
                let rows = (row, token.saturating_sub(1));
                let tail = kit::tail_of(cx, at(one), one.source, rows)?;
                self.put_at_peer(cx, (at(one), &tail), row)?;
                self.go(next)
            }
        }
    }
}

pub(super) const fn first_record(slot: u32, row: u32) -> Phase {
    Phase::CopyOut { slot, index: 0, row, token: 0, field: Field::Triple }
}
