//! The sending half: publish counts, put each row where it was granted, tell of it.

use super::{Dispatch, Phase};
use crate::a3::exchange::Exchange;
use crate::a3::steps::{self, CHUNK, split_words, write_words};
use crate::a3::{Env, Ub, internal};
use crate::fabric::{Fabric, Progress, ProtocolError, Wait};
use crate::inputs::Inputs;
use crate::layout::landing::{self, INFO};
use crate::layout::outputs;
use crate::layout::state::{grant, token_flag};
use crate::placement::Home;
use crate::plan::route::{self, NO_SLOT, Pair, Send, Sends};
use crate::sync::flag;
use crate::units::RankId;
use crate::vector::Vector;

impl Dispatch {
    pub(super) fn publish<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        ub: &mut Ub<'_>,
        destination: u32,
    ) -> Result<Progress, ProtocolError> {
        if destination >= env.work.destinations.end {
            return self.go(Phase::ExpandIdx { pair: env.work.sends.moe.start });
        }
        steps::publish_count(env, fabric, ub, self.partition, destination)?;
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
        let (slots, _) = split_words(ub.words, share)?;
        self.go(match steps::expand_idx(fabric, &share.moe, slots, pair)? {
            Some(pair) => Phase::ExpandIdx { pair },
            None => Phase::Exchange(Exchange::new(env, self.partition, self.epoch)),
        })
    }

    /// The first row that a destination has granted; what is missing if it has not yet.
    fn grant_of<F: Fabric + ?Sized, V>(
        &self,
        env: &Env<'_, V>,
        fabric: &F,
        destination: u32,
    ) -> Result<Result<u32, Wait>, ProtocolError> {
        let Home { rank: source, local_expert } = route::destination_home(env.shape, destination);
        let seen = fabric.observe(grant(self.partition, destination))?;
        match flag::dispatch(seen) {
            flag::Seen::Empty => Ok(Err(Wait::Grant { source, local_expert })),
            flag::Seen::Corrupt => Err(corrupt(env, source, local_expert, seen)),
            flag::Seen::Flag(first) => Ok(Ok(first)),
        }
    }

    /// The row that a rank has granted to `send`; what is missing if it has not yet.
    fn granted<F: Fabric + ?Sized, V>(
        &self,
        env: &Env<'_, V>,
        fabric: &F,
        send: Send,
    ) -> Result<Result<u32, Wait>, ProtocolError> {
        let Home { rank: source, local_expert } = send.home;
        let first =
            match self.grant_of(env, fabric, route::destination_of(env.shape, source, local_expert))? {
                Ok(first) => first,
                wait => return Ok(wait),
            };
        match first.checked_add(send.slot) {
            Some(row) if u64::from(row) < env.shape.rows_max(source) => Ok(Ok(row)),
            _ => Err(corrupt(env, source, local_expert, flag::status(first))),
        }
    }

    pub(super) fn send<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        inputs: &Inputs<'_>,
        ub: &mut Ub<'_>,
        next: u32,
    ) -> Result<Progress, ProtocolError> {
        let sends = sends(env, ub.words)?;
        let sent = (next..sends.len()).find_map(|item| Some((item, sends.get(inputs, item)?)));
        let Some((item, send)) = sent else {
            return self.go(Phase::SentRows { index: 0 });
        };
        let row = match self.granted(env, fabric, send)? {
            Ok(row) => row,
            // A machine that waits has not changed: not even the item that it looked at first.
            Err(wait) if item == next => return Ok(Progress::Pending(wait)),
            Err(_) => return self.go(Phase::Send { next: item }),
        };
        let at = landing::row(env.shape, send.home.rank, self.area(env), row);
        let (payload, scale) = steps::payload(env, inputs, ub.row, &mut self.staged, send)?;
        fabric.put(send.home.rank, at, payload, &[])?;
        self.go(Phase::SendInfo { item, sent: send, row, scale_bits: scale.to_bits() })
    }

    pub(super) fn send_info<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        item: u32,
        (send, row, scale_bits): (Send, u32, u32),
    ) -> Result<Progress, ProtocolError> {
        let mut info = [0; INFO as usize];
        let triple = steps::triple(env, send).to_bytes();
        for (to, from) in info.iter_mut().zip(scale_bits.to_le_bytes().into_iter().chain(triple)) {
            *to = from;
        }
        let at = landing::info(env.shape, send.home.rank, self.area(env), row);
        fabric.put(send.home.rank, at, &info, &[])?;
        self.go(Phase::Send { next: item + 1 })
    }

    pub(super) fn sent_rows<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        inputs: &Inputs<'_>,
        ub: &mut Ub<'_>,
        index: u32,
    ) -> Result<Progress, ProtocolError> {
        let (shape, share) = (env.shape, &env.work.sends);
        let moe = share.moe.end - share.moe.start;
        let (slots, _) = split_words(ub.words, share)?;
        // Both parts of a share are stretches of the output, with a gap between.
        let is_moe = index < moe;
        let end = if is_moe { moe } else { route::share_len(share) }.min(index + CHUNK);
        if index >= end {
            return self.go(Phase::Quiet);
        }
        let pair = |index: u32| -> Pair {
            if is_moe {
                route::moe_pair(shape, share.moe.start + index)
            } else {
                route::shared_pair(shape, share.shared.start + index - moe)
            }
        };
        let mut rows = [NO_SLOT; CHUNK as usize];
        for (row, index) in rows.iter_mut().zip(index..end) {
            let slot = *slots.get(index as usize).ok_or(internal("own pair outside the share"))?;
            let pair = pair(index);
            if slot == NO_SLOT {
                continue;
            }
            let home = route::home(shape, env.rank, inputs, pair).ok_or(internal("a slot without a home"))?;
            let Ok(granted) = self.granted(env, fabric, Send { pair, home, slot })? else {
                return Err(internal("a grant has been withdrawn"));
            };
            *row = granted;
        }
        let at = outputs::sent_row(outputs::sent_row_number(shape, env.rank, pair(index)));
        // NO_SLOT is the bit pattern of -1.
        write_words(fabric, at, rows.iter().copied().take((end - index) as usize))?;
        self.go(Phase::SentRows { index: end })
    }

    pub(super) fn clear<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        destination: u32,
    ) -> Result<Progress, ProtocolError> {
        if destination >= env.work.destinations.end {
            return self.go(Phase::AwaitTokens { slot: env.work.slots.start, row: self.first_row });
        }
        match self.grant_of(env, fabric, destination)? {
            Err(wait) => Ok(Progress::Pending(wait)),
            Ok(_) => {
                fabric.store(grant(self.partition, destination), 0)?;
                self.go(Phase::PublishTokens { destination })
            }
        }
    }

    pub(super) fn publish_tokens<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        destination: u32,
    ) -> Result<Progress, ProtocolError> {
        let (to, slot) = steps::slot_at(env, destination);
        fabric.publish(to, token_flag(self.partition, slot), flag::ARRIVED)?;
        self.go(Phase::Clear { destination: destination + 1 })
    }
}

/// The sends of the core, as planned.
fn sends<'u, V>(env: &'u Env<'_, V>, words: &'u mut [u32]) -> Result<Sends<'u>, ProtocolError> {
    let share = &env.work.sends;
    let (slots, _) = split_words(words, share)?;
    Ok(Sends { shape: env.shape, rank: env.rank, order: env.choices.order, share, slots })
}

/// A grant that there cannot be.
fn corrupt<V>(env: &Env<'_, V>, source: RankId, local_expert: u32, seen: u64) -> ProtocolError {
    ProtocolError::Grant { source, local_expert, seen, max: env.shape.rows_max(source) }
}
