//! The receiving half: compute the places of the own rows, copy each record out as soon as all of its blocks have arrived.
//!
//! Slots are polled in turn, so that no slot waits for another. Within a slot records are copied in the order in which one
//! core sends them. The scratch holds the progress of each slot, three words each, in three rows:
//!
//! ```text
//! announced records | copied records | least token that the next record can have
//! ```

use super::{Dispatch, Phase};
use crate::fabric::{Fabric, Flag, Progress, ProtocolError, Wait};
use crate::layout::data::dispatch_record;
use crate::layout::record::{scale_of, triple_of};
use crate::layout::{block, outputs};
use crate::place::Place;
use crate::placement::Home;
use crate::protocol::a3::steps::{self, split_words};
use crate::protocol::a3::{Bound, Cx};
use crate::protocol::{Outcome, Scratch, Types, given, internal};
use crate::sync::flag;
use crate::units::RankId;

/// The progress of the slots of a core's share, by number in the share.
struct Left<'u> {
    counts: &'u mut [u32],
    copied: &'u mut [u32],
    tokens: &'u mut [u32],
}

impl<'u> Left<'u> {
    fn new<V>(env: Bound<'_, V>, scratch: &'u mut Scratch<'_>) -> Result<Self, ProtocolError> {
        let n = (env.work.slots.end - env.work.slots.start) as usize;
        let short = given("scratch is shorter than scratch_words");
        let (_, table) = split_words(scratch.words, &env.work.sends)?;
        let (counts, rest) = table.split_at_mut_checked(n).ok_or(short)?;
        let (copied, rest) = rest.split_at_mut_checked(n).ok_or(short)?;
        Ok(Self { counts, copied, tokens: rest.get_mut(..n).ok_or(short)? })
    }

    /// Returns the numbers of announced and of copied records of a slot.
    fn of(&self, i: u32) -> Result<(u32, u32), ProtocolError> {
        let (count, copied) = (self.counts.get(i as usize), self.copied.get(i as usize));
        count.zip(copied).map(|(&count, &copied)| (count, copied)).ok_or(internal("slot outside the share"))
    }

    /// Returns the row of the share to which the next record of a slot goes.
    fn row(&self, i: u32) -> Result<u32, ProtocolError> {
        let (_, copied) = self.of(i)?;
        Ok(self.counts.iter().take(i as usize).fold(copied, |sum, &count| sum.saturating_add(count)))
    }
}

/// Resets the progress at the start of a round.
pub(super) fn forget(cx: &mut Cx<'_, impl Types>) -> Result<(), ProtocolError> {
    let Left { copied, tokens, .. } = Left::new(cx.env, &mut cx.scratch)?;
    copied.fill(0);
    tokens.fill(0);
    Ok(())
}

impl Dispatch {
    pub(super) fn look(&mut self, cx: &mut Cx<'_, impl Types>, from: u32) -> Outcome {
        let own = &cx.env.work.slots;
        let left = Left::new(cx.env, &mut cx.scratch)?;
        let mut missing = None;
        for slot in (from..own.end).chain(own.start..from) {
            let (count, copied) = left.of(slot - own.start)?;
            if copied >= count {
                continue;
            }
            match self.missing_block(cx.env, cx.fabric, slot, copied)? {
                Some(wait) => missing = missing.or(Some(wait)),
                None => {
                    let row = self.round.first_row.saturating_add(left.row(slot - own.start)?);
                    return self.go(Phase::Triple { slot, row });
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
    fn missing_block<F: Fabric + ?Sized, V>(
        &self,
        env: Bound<'_, V>,
        fabric: &F,
        slot: u32,
        record: u32,
    ) -> Result<Option<Wait>, ProtocolError> {
        let (home, source) = ends(env, slot);
        let local_expert = home.local_expert;
        let at = dispatch_record(env.shape, self.round.partition, home, source, record);
        for block in (0..block::count(env.shape)).rev() {
            let seen = fabric.observe(block::flag(at, block))?;
            let awaited = Wait::new(Flag::Block, source, &[local_expert, record, block]);
            match flag::arrived(seen) {
                flag::Seen::Flag(_) => {}
                flag::Seen::Empty => return Ok(Some(awaited)),
                flag::Seen::Corrupt => return Err(awaited.refused(seen)),
            }
        }
        Ok(None)
    }

    pub(super) fn triple(&mut self, cx: &mut Cx<'_, impl Types>, slot: u32, row: u32) -> Outcome {
        let record = self.next_record(cx.env, &mut cx.scratch, slot)?;
        let Left { tokens, .. } = Left::new(cx.env, &mut cx.scratch)?;
        let first = tokens.get_mut((slot - cx.env.work.slots.start) as usize);
        let first = first.ok_or(internal("slot outside the share"))?;
        *first = steps::copy_triple(
            cx.env.shape,
            cx.fabric,
            triple_of(cx.env.shape, record),
            ends(cx.env, slot),
            (row, *first),
        )?;
        self.go(Phase::Data { slot, row, block: 0 })
    }

    pub(super) fn data(
        &mut self,
        cx: &mut Cx<'_, impl Types>,
        (slot, row, block): (u32, u32, u32),
    ) -> Outcome {
        let shape = cx.env.shape;
        let stream = block::stream(block, shape.payload_bytes());
        if stream.is_empty() {
            return self.go(match shape.row_format().scale {
                None => Phase::Clear { slot, block: 0 },
                Some(_) => Phase::Scale { slot, row },
            });
        }
        let from = block::block(self.next_record(cx.env, &mut cx.scratch, slot)?, block);
        let row_at = outputs::expand_x(shape, row);
        let output = Place { offset: row_at.offset + stream.start, ..row_at };
        cx.fabric.deliver(output, from, stream.end - stream.start)?;
        self.go(Phase::Data { slot, row, block: block + 1 })
    }

    pub(super) fn scale(&mut self, cx: &mut Cx<'_, impl Types>, slot: u32, row: u32) -> Outcome {
        steps::copy_scale(
            cx.fabric,
            scale_of(cx.env.shape, self.next_record(cx.env, &mut cx.scratch, slot)?),
            row,
        )?;
        self.go(Phase::Clear { slot, block: 0 })
    }

    /// Clears the flag of a block of the record that has been copied out; the last one completes the record.
    pub(super) fn clear(&mut self, cx: &mut Cx<'_, impl Types>, slot: u32, block: u32) -> Outcome {
        let own = &cx.env.work.slots;
        cx.fabric.store(block::flag(self.next_record(cx.env, &mut cx.scratch, slot)?, block), 0)?;
        if block + 1 < block::count(cx.env.shape) {
            return self.go(Phase::Clear { slot, block: block + 1 });
        }
        let Left { copied, .. } = Left::new(cx.env, &mut cx.scratch)?;
        let copied = copied.get_mut((slot - own.start) as usize).ok_or(internal("slot outside the share"))?;
        *copied = copied.saturating_add(1);
        self.go(Phase::Look { slot: if slot + 1 < own.end { slot + 1 } else { own.start } })
    }

    /// Returns the record of `slot` that is copied out next.
    fn next_record<V>(
        &self,
        env: Bound<'_, V>,
        scratch: &mut Scratch<'_>,
        slot: u32,
    ) -> Result<Place, ProtocolError> {
        let (home, source) = ends(env, slot);
        let (_, copied) = Left::new(env, scratch)?.of(slot - env.work.slots.start)?;
        Ok(dispatch_record(env.shape, self.round.partition, home, source, copied))
    }
}

/// Returns the expert and the source of a slot's records.
fn ends<V>(env: Bound<'_, V>, slot: u32) -> (Home, RankId) {
    let (local_expert, source) = env.shape.by_ranks(slot);
    (Home { rank: env.rank, local_expert }, RankId(source))
}
