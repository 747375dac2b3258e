//! The sending half: publish counts, put the blocks of the records and publish their flags.

use super::{Dispatch, Phase, counts_first};
use crate::fabric::Fabric;
use crate::layout::block;
use crate::layout::data::dispatch_record;
use crate::layout::record::sent_bytes;
use crate::place::Place;
use crate::plan::experts::{Cursor, ExpertSends};
use crate::plan::route::{Send, Sends};
use crate::protocol::kit::{self, Context, Core, Outcome, Part, split_words};
use crate::sync::barrier::Meeting;
use crate::sync::flag;
use core::ops::Range;

impl Dispatch {
    pub(super) fn send(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>, at: Cursor) -> Outcome {
        let (core, share) = (cx.core, &cx.core.work.sends);
        let slots = split_words(cx.scratch.words, share)?.slots;
        let sends = Sends::new(core.shape, core.rank, core.choices.order, share);
        let sends = ExpertSends { sends, slots, experts: &core.work.experts };
        self.go(match sends.next(cx.inputs, at) {
            Some((send, next)) => Phase::Put { send, block: 0, next },
            None if counts_first(core) => Phase::Part(Part::expand_idx(core)),
            None => Phase::Part(Part::Meet(Meeting::Barrier)),
        })
    }

    /// Puts a block straight from the row and the tail after it, without a copy.
    pub(super) fn put(
        &mut self,
        cx: &mut Context<'_, impl Fabric + ?Sized>,
        (send, block, next): (Send, u32, Cursor),
    ) -> Outcome {
        let (row, tail) = kit::record(cx.core, cx.inputs, cx.scratch.row, &mut self.round.staged, send)?;
        let stream = block::stream(block, sent_bytes(cx.core.shape));
        let (in_row, in_tail) = (part(row, 0, &stream), part(tail.as_bytes(), row.len(), &stream));
        let at = block::block(self.record_at(cx.core, send), block);
        cx.fabric.put(send.home.rank, at, in_row, in_tail)?;
        self.go(Phase::PublishBlock { send, block, next })
    }

    pub(super) fn publish_block(
        &mut self,
        cx: &mut Context<'_, impl Fabric + ?Sized>,
        (send, block, next): (Send, u32, Cursor),
    ) -> Outcome {
        cx.fabric.publish(
            send.home.rank,
            block::flag(self.record_at(cx.core, send), block),
            self.round.turn.tags.with(flag::ARRIVED),
        )?;
        let block = block + 1;
        let more = block < block::count(cx.core.shape);
        self.go(if more { Phase::Put { send, block, next } } else { Phase::Send { at: next } })
    }

    fn record_at(&self, core: Core<'_>, send: Send) -> Place {
        dispatch_record(core.shape, self.round.turn.partition, send.home, core.rank, send.slot)
    }
}

/// Returns the part of `bytes`, which begin at byte `at` of a stream, that is in the range `stream`.
fn part<'b>(bytes: &'b [u8], at: usize, stream: &Range<u64>) -> &'b [u8] {
    let clamp = |i: u64| (i as usize).saturating_sub(at).min(bytes.len());
    bytes.get(clamp(stream.start)..clamp(stream.end)).unwrap_or(&[])
}
