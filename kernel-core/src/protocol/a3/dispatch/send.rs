//! The sending half: take the partition, put the records of its own pairs, publish flags and counts.

use super::{Dispatch, Phase, first_to_send};
use crate::fabric::Fabric;
use crate::layout::data::dispatch_record;
use crate::plan::route::Sends;
use crate::protocol::Flags;
use crate::protocol::kit::{self, Context, Outcome, Part, split_words};
use crate::sync::barrier::Meeting;

impl Dispatch {
    pub(super) fn select(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>) -> Outcome {
        kit::begin(cx, &mut self.round)?;
        self.go(if cx.core.shape.tp_world_size() == 1 { first_to_send(cx.core) } else { Phase::SelectTp })
    }

    pub(super) fn send(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>, first: u32) -> Outcome {
        let (shape, share) = (cx.core.shape, &cx.core.work.sends);
        let slots = split_words(cx.scratch.words, share)?.slots;
        let sends = Sends::new(shape, cx.core.rank, cx.core.choices.order, share);
        let mut next = first;
        for _ in 0..cx.core.run {
            let Some((item, send)) = sends.next(cx.inputs, slots, next) else {
                return self.go(match cx.core.choices.flags {
                    Flags::Joint => Phase::Part(Part::Meet(Meeting::Quiet)),
                    Flags::Separate => Phase::Part(Part::expand_idx(cx.core)),
                });
            };
            let (row, tail) = kit::record(cx.core, cx.inputs, cx.scratch.row, &mut self.round.staged, send)?;
            let at = dispatch_record(shape, self.round.turn.partition, send.home, cx.core.rank, send.slot);
            let effect = cx.fabric.put(send.home.rank, at, row, tail.as_bytes());
            if !kit::was_taken(next > first, effect)? {
                break;
            }
            next = item + 1;
        }
        self.go(Phase::Send { next })
    }
}
