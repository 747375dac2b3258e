//! The sending half: take the partition, put each returned row at its owner and publish its flag.

use super::{Combine, Phase};
use crate::fabric::{Fabric, ProtocolError, Result};
use crate::layout::data::combine_row;
use crate::layout::record::Triple;
use crate::layout::result;
use crate::layout::state::{Operator, combine_slot, selector};
use crate::layout::tp;
use crate::plan::split;
use crate::protocol::CombineInputs;
use crate::protocol::a3::tp::{Add, built};
use crate::protocol::kit::{Context, Outcome, room, was_taken};
use crate::shape::Shape;
use crate::sync::flag;
use crate::sync::selector::select;
use crate::units::{RankId, Token, div_floor, nth_piece};

impl Combine {
    pub(super) fn select(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>) -> Outcome {
        let (rows, others) = cx.combine_inputs.rows(cx.core.shape, cx.core.rank)?;
        self.share = split::rows(cx.core.shape, rows, cx.core.id);
        let triple = |row: u32| cx.combine_inputs.triple(cx.core.shape, cx.core.rank, self.share.start + row);
        let source = |row: u32| triple(row).map(|triple| triple.source);
        let count = self.share.end - self.share.start;
        self.path = cx.core.choices.order.path_by(count, cx.core.rank, source)?;
        let numbering = cx.core.numbering(Operator::Combine, cx.inputs);
        self.turn = select(cx.fabric, selector(Operator::Combine, cx.core.id), numbering)?;
        self.go(match cx.core.shape.tp_world_size() {
            1 => Phase::Put { item: 0 },
            _ => Phase::Lend { add: Add::new(), rows, others },
        })
    }

    /// Puts rows from item `next` on and publishes the flag after each; that item may already be put but not published.
    pub(super) fn send(
        &mut self,
        cx: &mut Context<'_, impl Fabric + ?Sized>,
        mut next: u32,
        unpublished: Option<Triple>,
    ) -> Outcome {
        let mut left = cx.core.run;
        if let Some(triple) = unpublished {
            self.publish(cx, triple, false)?;
            left -= 1;
            next += 1;
        }
        while left > 0 {
            if next >= self.path.len() {
                return self.go(Phase::Await { token: Token(cx.core.work.tokens.start), k: 0 });
            }
            let row = self.share.start + self.path.item(next);
            let Some(triple) = self.put(cx, row, left < cx.core.run)? else { break };
            left -= 1;
            if left == 0 || !self.publish(cx, triple, true)? {
                return self.go(Phase::Publish { item: next, triple });
            }
            left -= 1;
            next += 1;
        }
        self.go(Phase::Put { item: next })
    }

    /// Publishes the flag of a row that has been put. Returns whether the fabric has taken it, as [`was_taken`].
    #[inline(always)]
    fn publish(
        &self,
        cx: &mut Context<'_, impl Fabric + ?Sized>,
        triple: Triple,
        begun: bool,
    ) -> Result<bool> {
        let slot = combine_slot(cx.core.shape, triple.token, triple.k);
        let at = cx.core.choices.slots.combine_status(self.turn.partition, slot);
        was_taken(begun, cx.fabric.publish(triple.source, at, self.turn.tags.with(flag::ARRIVED)))
    }

    /// Puts a row at its owner, and returns its triple; `None` if the fabric has not taken it, as [`was_taken`].
    #[inline(always)]
    fn put(
        &self,
        cx: &mut Context<'_, impl Fabric + ?Sized>,
        row: u32,
        begun: bool,
    ) -> Result<Option<Triple>> {
        let core = cx.core;
        let triple = cx.combine_inputs.triple(core.shape, core.rank, row)?;
        let y = cx.combine_inputs.result(core.shape, row)?;
        let at = combine_row(core.shape, self.turn.partition, triple.token, triple.k);
        let effect = if let Some(partition) = self.lent
            && built().is_ok()
        {
            let lent = tp::result(core.shape, core.rank, partition, row);
            let out = room(cx.scratch.row, core.shape.row_bytes())?;
            core.vector.add(core.shape.dtype(), y, cx.fabric.bytes(lent, core.shape.row_bytes())?, out);
            cx.fabric.put(triple.source, at, out, &[])
        } else if core.shape.result_format().scale.is_some() {
            let packed = room(cx.scratch.row, core.shape.result_bytes())?;
            let (data, scales) = result::split_mut(core.shape, packed);
            core.vector.quantise_blocks(core.shape.dtype(), y, data, scales);
            cx.fabric.put(triple.source, at, packed, &[])
        } else {
            cx.fabric.put(triple.source, at, y, &[])
        };
        Ok(was_taken(begun, effect)?.then_some(triple))
    }
}

impl CombineInputs<'_> {
    /// Returns the triple of a row, checked.
    #[inline(always)]
    fn triple(&self, shape: &Shape, rank: RankId, row: u32) -> Result<Triple> {
        let bytes = nth_piece(self.assist_info, row as usize, Triple::BYTES as usize);
        let triple = Triple::from_bytes(shape, bytes.unwrap_or(&[]))
            .map_err(|seen| ProtocolError::Triple { row, seen })?;
        if !triple.may_be_on(shape, rank) {
            return Err(ProtocolError::Triple { row, seen: triple.words() });
        }
        Ok(triple)
    }

    /// Returns the number of rows that `rank` returns, and with a TP domain the number of its peer's, which follow in `y`:
    /// the last entries of each rank's `ep_recv_counts`, checked.
    fn rows(&self, shape: &Shape, rank: RankId) -> Result<(u32, u32)> {
        let held = div_floor(self.y.len() as u64, shape.row_bytes());
        let own = self.total(shape, rank, 1, held)?;
        let others = match shape.tp_world_size() {
            1 => 0,
            _ => self.total(shape, rank, 2, held - u64::from(own))?,
        };
        Ok((own, others))
    }
}
