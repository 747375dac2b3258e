//! The sending half: take the partition, put the records of the own pairs, publish flags and counts.

use super::{Dispatch, Phase, first_to_send};
use crate::fabric::Fabric;
use crate::layout::data::dispatch_record;
use crate::plan::route::Sends;
use crate::protocol::a3::Cx;
use crate::protocol::a3::exchange::Exchange;
use crate::protocol::a3::steps::{self, split_words};
use crate::protocol::{Flags, Outcome, Types};

impl Dispatch {
    pub(super) fn select(&mut self, cx: &mut Cx<'_, impl Types>) -> Outcome {
        (self.partition, self.epoch) = steps::select(cx)?;
        self.go(if cx.env.shape.tp_world_size() == 1 { first_to_send(cx.env) } else { Phase::SelectTp })
    }

    pub(super) fn send(&mut self, cx: &mut Cx<'_, impl Types>, next: u32) -> Outcome {
        let (shape, share) = (cx.env.shape, &cx.env.work.sends);
        let (slots, _) = split_words(cx.ub.words, share)?;
        let sends = Sends::new(shape, cx.env.rank, cx.env.choices.order, share);
        let mut next = next;
        for _ in 0..cx.env.run {
            let Some((item, send)) = sends.next(cx.inputs, slots, next) else {
                return self.go(match cx.env.choices.flags {
                    Flags::Joint => Phase::Quiet,
                    Flags::Separate => Phase::ExpandIdx { pair: share.moe.start },
                });
            };
            let (row, tail) = steps::record(cx.env, cx.inputs, cx.ub.row, &mut self.staged, send)?;
            let at = dispatch_record(shape, self.partition, send.home, cx.env.rank, send.slot);
            cx.fabric.put(send.home.rank, at, row, tail.as_bytes())?;
            next = item + 1;
        }
        self.go(Phase::Send { next })
    }

    pub(super) fn publish(&mut self, cx: &mut Cx<'_, impl Types>, destination: u32) -> Outcome {
        if destination >= cx.env.work.destinations.end {
            return self.go(match cx.env.choices.flags {
                Flags::Joint => Phase::ExpandIdx { pair: cx.env.work.sends.moe.start },
                Flags::Separate => Phase::Send { next: 0 },
            });
        }
        let destination = steps::publish_counts(cx, self.partition, destination)?;
        self.go(Phase::Publish { destination })
    }

    pub(super) fn publish_tokens(&mut self, cx: &mut Cx<'_, impl Types>, destination: u32) -> Outcome {
        if destination >= cx.env.work.destinations.end {
            return self.go(Phase::AwaitTokens { slot: cx.env.work.slots.start, row: self.first_row });
        }
        let destination = steps::publish_token_flags(cx.env, cx.fabric, self.partition, destination)?;
        self.go(Phase::PublishTokens { destination })
    }

    pub(super) fn expand_idx(&mut self, cx: &mut Cx<'_, impl Types>, pair: u32) -> Outcome {
        let share = &cx.env.work.sends;
        let (slots, _) = split_words(cx.ub.words, share)?;
        self.go(match steps::expand_idx(cx.fabric, &share.moe, slots, pair)? {
            Some(pair) => Phase::ExpandIdx { pair },
            None => Phase::Exchange(Exchange::new(cx.env, self.partition, self.epoch)),
        })
    }
}
