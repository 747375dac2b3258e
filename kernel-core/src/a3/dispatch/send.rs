//! The sending half: take the partition, put the records of the own pairs, publish flags and counts.

use super::{CHUNK, Dispatch, Phase, split_words, write_words};
use crate::a3::{Env, Ub, internal};
use crate::fabric::{Fabric, Progress, ProtocolError};
use crate::inputs::Inputs;
use crate::layout::data::dispatch_record;
use crate::layout::outputs;
use crate::layout::record::{Tail, Triple};
use crate::layout::state::{Kind, dispatch_slot, dispatch_status};
use crate::plan::route::{self, Send, Sends};
use crate::shape::QuantMode;
use crate::sync::{barrier, flag, selector};
use crate::vector::Vector;

impl Dispatch {
    pub(super) fn select<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        inputs: &Inputs<'_>,
        ub: &mut Ub<'_>,
    ) -> Result<Progress, ProtocolError> {
        self.epoch = barrier::current_epoch(fabric, env.core)?;
        let share = &env.work.sends;
        let (slots, table) = split_words(ub.words, share)?;
        let send_status = table
            .get_mut(..route::destinations(env.shape) as usize)
            .ok_or(internal("scratch is shorter than ub_words"))?;
        route::walk(env.shape, env.rank, inputs, share, send_status, slots);
        self.partition = selector::select(fabric, Kind::Dispatch, env.core)?;
        self.go(Phase::Send { next: 0 })
    }

    pub(super) fn send<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        inputs: &Inputs<'_>,
        ub: &mut Ub<'_>,
        next: u32,
    ) -> Result<Progress, ProtocolError> {
        let share = &env.work.sends;
        let (slots, _) = split_words(ub.words, share)?;
        let sends = Sends { shape: env.shape, rank: env.rank, order: env.order, share, slots };
        let sent = (next..sends.len()).find_map(|item| Some((item, sends.get(inputs, item)?)));
        match sent {
            Some((item, send)) => {
                self.put(env, fabric, inputs, ub.row, send)?;
                self.go(Phase::Send { next: item + 1 })
            }
            None => self.go(Phase::Quiet),
        }
    }

    fn put<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        inputs: &Inputs<'_>,
        scratch: &mut [u8],
        Send { pair, home, slot }: Send,
    ) -> Result<(), ProtocolError> {
        let (shape, token) = (env.shape, pair.token);
        let x = inputs.row(shape, token);
        if x.is_empty() {
            return Err(internal("x is shorter than its rows"));
        }
        let triple = Triple { source: env.rank, token, k: pair.k };
        let at = dispatch_record(shape, self.partition, home, env.rank, slot);
        if shape.quant_mode() == QuantMode::None {
            fabric.put(home.rank, at, x, Tail::new(shape, 0.0, triple).as_bytes())?;
            return Ok(());
        }
        let row = scratch
            .get_mut(..shape.payload_bytes() as usize)
            .ok_or(internal("scratch is shorter than ub_bytes"))?;
        let smooth = inputs.smooth(shape, shape.expert_row(home));
        // Without smooth scales a token is the same for all its experts: quantise it once.
        let scale = match self.staged {
            Some((staged, bits)) if staged == token && smooth.is_none() => f32::from_bits(bits),
            _ => env
                .vector
                .quantise(shape.dtype(), x, smooth, row)
                .map_err(|_| ProtocolError::NotFinite { token: token.0 })?,
        };
        self.staged = Some((token, scale.to_bits()));
        fabric.put(home.rank, at, row, Tail::new(shape, scale, triple).as_bytes())?;
        Ok(())
    }

    pub(super) fn publish<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        ub: &mut Ub<'_>,
        destination: u32,
    ) -> Result<Progress, ProtocolError> {
        let share = &env.work.sends;
        if destination >= env.work.destinations.end {
            return self.go(Phase::ExpandIdx { pair: share.moe.start });
        }
        let (_, send_status) = split_words(ub.words, share)?;
        let count = *send_status.get(destination as usize).ok_or(internal("no such destination"))?;
        let home = route::destination_home(env.shape, destination);
        let slot = dispatch_slot(env.shape, home.local_expert, env.rank);
        fabric.publish(home.rank, dispatch_status(self.partition, slot), flag::status(count))?;
        self.go(Phase::Publish { destination: destination + 1 })
    }

    pub(super) fn expand_idx<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        ub: &mut Ub<'_>,
        pair: u32,
    ) -> Result<Progress, ProtocolError> {
        let share = &env.work.sends;
        if pair >= share.moe.end {
            return self.go(Phase::Await { slot: env.work.slots.start });
        }
        let end = share.moe.end.min(pair + CHUNK);
        let (slots, _) = split_words(ub.words, share)?;
        let own = (pair - share.moe.start) as usize..(end - share.moe.start) as usize;
        let slots = slots.get(own).ok_or(internal("own pair outside the share"))?;
        // NO_SLOT is the bit pattern of -1.
        write_words(fabric, outputs::expand_idx(pair), slots.iter().copied())?;
        self.go(Phase::ExpandIdx { pair: end })
    }
}
