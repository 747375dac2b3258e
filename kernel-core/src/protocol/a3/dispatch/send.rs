//! The sending half: take the partition, put the records of the own pairs, publish flags and counts.

use super::{Dispatch, Phase, first_to_send};
use crate::fabric::{Fabric, Progress, ProtocolError};
use crate::inputs::Inputs;
use crate::layout::data::dispatch_record;
use crate::plan::route::Sends;
use crate::protocol::a3::Env;
use crate::protocol::a3::exchange::Exchange;
use crate::protocol::a3::steps::{self, split_words};
use crate::protocol::{Flags, Ub};
use crate::vector::Vector;

impl Dispatch {
    pub(super) fn select<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        inputs: &Inputs<'_>,
        ub: &mut Ub<'_>,
    ) -> Result<Progress, ProtocolError> {
        (self.partition, self.epoch) = steps::select(env, fabric, inputs, ub)?;
        self.go(if env.shape.tp_world_size() == 1 { first_to_send(env) } else { Phase::SelectTp })
    }

    pub(super) fn send<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        inputs: &Inputs<'_>,
        ub: &mut Ub<'_>,
        next: u32,
    ) -> Result<Progress, ProtocolError> {
        let (shape, share) = (env.shape, &env.work.sends);
        let (slots, _) = split_words(ub.words, share)?;
        let sends = Sends::new(shape, env.rank, env.choices.order, share);
        let mut next = next;
        for _ in 0..env.run {
            let Some((item, send)) = sends.next(inputs, slots, next) else {
                return self.go(match env.choices.flags {
                    Flags::Joint => Phase::Quiet,
                    Flags::Separate => Phase::ExpandIdx { pair: share.moe.start },
                });
            };
            let (row, tail) = steps::record(env, inputs, ub.row, &mut self.staged, send)?;
            let at = dispatch_record(shape, self.partition, send.home, env.rank, send.slot);
            fabric.put(send.home.rank, at, row, tail.as_bytes())?;
            next = item + 1;
        }
        self.go(Phase::Send { next })
    }

    pub(super) fn publish<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        ub: &mut Ub<'_>,
        destination: u32,
    ) -> Result<Progress, ProtocolError> {
        if destination >= env.work.destinations.end {
            return self.go(match env.choices.flags {
                Flags::Joint => Phase::ExpandIdx { pair: env.work.sends.moe.start },
                Flags::Separate => Phase::Send { next: 0 },
            });
        }
        let destination = steps::publish_counts(env, fabric, ub, self.partition, destination)?;
        self.go(Phase::Publish { destination })
    }

    pub(super) fn publish_tokens<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        destination: u32,
    ) -> Result<Progress, ProtocolError> {
        if destination >= env.work.destinations.end {
            return self.go(Phase::AwaitTokens { slot: env.work.slots.start, row: self.first_row });
        }
        let destination = steps::publish_token_flags(env, fabric, self.partition, destination)?;
        self.go(Phase::PublishTokens { destination })
    }

    pub(super) fn expand_idx<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        ub: &mut Ub<'_>,
        pair: u32,
    ) -> Result<Progress, ProtocolError> {
        let share = &env.work.sends;
        let (slots, _) = split_words(ub.words, share)?;
        self.go(match steps::expand_idx(fabric, &share.moe, slots, pair)? {
            Some(pair) => Phase::ExpandIdx { pair },
            None => Phase::Exchange(Exchange::new(env, self.partition, self.epoch)),
        })
    }
}
