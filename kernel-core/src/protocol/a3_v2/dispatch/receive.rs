//! The receiving half: compute the places of its own rows, copy each record out as soon as all of its blocks have arrived.
//!
//! Slots are polled in turn, so that no slot waits for another. Within a slot records are copied in the order in which one
//! core sends them. The scratch holds the progress of each slot, three words each, in three rows:
//!
//! ```text
//! announced records | copied records | least token that the next record can have
//! ```

use super::{Dispatch, Field, Phase};
use crate::fabric::{Fabric, Flag, Progress, ProtocolError, Result, Wait};
use crate::layout::data::dispatch_record;
use crate::layout::record::{scale_of, triple_of};
use crate::layout::{block, outputs};
use crate::place::Place;
use crate::placement::Home;
use crate::protocol::kit::{self, Context, Core, Due, Outcome, Scratch, internal, split_words, take};
use crate::sync::flag;
use crate::units::RankId;

/// The progress of the slots of a core's share, by number in the share.
struct Left<'u> {
    counts: &'u mut [u32],
    copied: &'u mut [u32],
    tokens: &'u mut [u32],
}

impl<'u> Left<'u> {
    #[inline(always)]
    fn new(core: Core<'_>, scratch: &'u mut Scratch<'_>) -> Result<Self> {
        let n = (core.work.slots.end - core.work.slots.start) as usize;
        let mut table = split_words(scratch.words, &core.work.sends)?.table;
        let (counts, copied) = (take(&mut table, n)?, take(&mut table, n)?);
        Ok(Self { counts, copied, tokens: take(&mut table, n)? })
    }
}

const OUTSIDE: ProtocolError = internal("slot outside the share");

/// Resets the progress at the start of a round.
pub(super) fn forget(cx: &mut Context<'_, impl Fabric + ?Sized>) -> Result<()> {
    let Left { copied, tokens, .. } = Left::new(cx.core, &mut cx.scratch)?;
    copied.fill(0);
    tokens.fill(0);
    Ok(())
}

impl Dispatch {
    pub(super) fn look(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>, from: u32) -> Outcome {
        let own = &cx.core.work.slots;
        let left = Left::new(cx.core, &mut cx.scratch)?;
        let mut missing = None;
        for slot in (from..own.end).chain(own.start..from) {
            let i = (slot - own.start) as usize;
            let (Some(&count), Some(&record)) = (left.counts.get(i), left.copied.get(i)) else {
                return Err(OUTSIDE);
            };
            if record >= count {
                continue;
            }
            match self.missing_block(cx.core, cx.fabric, slot, record)? {
                Some(wait) => missing = missing.or(Some(wait)),
                None => {
                    let before = left.counts.iter().take(i).fold(record, |sum, &n| sum.saturating_add(n));
                    let row = self.round.first_row.saturating_add(before);
                    return self.go(Phase::CopyOut { slot, record, row, field: Field::Triple });
                }
            }
        }
        match missing {
            Some(wait) => Ok(Progress::Pending(wait)),
            None => self.go(Phase::Done),
        }
    }

    /// Returns a block of a record that has not arrived; `None` if all have. The last block is checked first: it usually
    /// arrives last, so one read suffices.
    fn missing_block<F: Fabric + ?Sized>(
        &self,
        core: Core<'_>,
        fabric: &F,
        slot: u32,
        record: u32,
    ) -> Result<Option<Wait>> {
        let (Home { local_expert, .. }, source) = ends(core, slot);
        let at = self.record_of(core, slot, record);
        for block in (0..block::count(core.shape)).rev() {
            let awaited = Wait::new(Flag::Block, source, &[local_expert, record, block]);
            let missing = flag::missing(fabric, block::flag(at, block), self.round.turn.tags, awaited)?;
            if missing.is_some() {
                return Ok(missing);
            }
        }
        Ok(None)
    }

    /// Copies a field of a record to `row` of the outputs, or clears the flag of a block; the last one completes the record.
    pub(super) fn copy_out(
        &mut self,
        cx: &mut Context<'_, impl Fabric + ?Sized>,
        (slot, record, row): (u32, u32, u32),
        field: Field,
    ) -> Outcome {
        let (core, shape, own) = (cx.core, cx.core.shape, &cx.core.work.slots);
        let at = self.record_of(core, slot, record);
        let Left { copied, tokens, .. } = Left::new(core, &mut cx.scratch)?;
        let i = (slot - own.start) as usize;
        let field = match field {
            Field::Triple => {
                let first = tokens.get_mut(i).ok_or(OUTSIDE)?;
                let (_, source) = ends(core, slot);
                let due = Due { row, token: *first };
                *first = kit::copy_triple(core, cx.fabric, triple_of(shape, at), source, due)?;
                Field::Data { block: 0 }
            }
            Field::Data { block } => {
                let stream = block::stream(block, shape.payload_bytes());
                if !stream.is_empty() {
                    let output = outputs::expand_x(shape, row);
                    let output = Place { offset: output.offset + stream.start, ..output };
                    cx.fabric.deliver(output, block::block(at, block), stream.end - stream.start)?;
                    Field::Data { block: block + 1 }
                } else if shape.row_format().scale.is_some() {
                    Field::Scale
                } else {
                    Field::Clear { block: 0 }
                }
            }
            Field::Scale => {
                kit::copy_scale(cx.fabric, scale_of(shape, at), row)?;
                Field::Clear { block: 0 }
            }
            Field::Clear { block } => {
                cx.fabric.store(block::flag(at, block), 0)?;
                if block + 1 >= block::count(shape) {
                    *copied.get_mut(i).ok_or(OUTSIDE)? = record.saturating_add(1);
                    return self
                        .go(Phase::Look { slot: if slot + 1 < own.end { slot + 1 } else { own.start } });
                }
                Field::Clear { block: block + 1 }
            }
        };
        self.go(Phase::CopyOut { slot, record, row, field })
    }

    fn record_of(&self, core: Core<'_>, slot: u32, record: u32) -> Place {
        let (home, source) = ends(core, slot);
        dispatch_record(core.shape, self.round.turn.partition, home, source, record)
    }
}

/// Returns the expert and the source of a slot's records.
fn ends(core: Core<'_>, slot: u32) -> (Home, RankId) {
    let (local_expert, source) = core.shape.by_ranks(slot);
    (Home { rank: core.rank, local_expert }, RankId(source))
}
