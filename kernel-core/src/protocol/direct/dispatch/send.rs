//! The sending half: publish counts, put each row where it was granted, tell of it.

use super::{Dispatch, Info, Phase};
use crate::fabric::{Fabric, Flag, Progress, ProtocolError, Wait};
use crate::layout::direct::{self, Parts};
use crate::layout::outputs;
use crate::layout::state::Direct;
use crate::placement::Home;
use crate::plan::route::{self, Send, Sends};
use crate::protocol::a3::part::Part;
use crate::protocol::a3::steps::{self, chunk_of, split_words, write_words};
use crate::protocol::a3::{Bound, Cx};
use crate::protocol::{Outcome, Types, internal};
use crate::sync::flag;
use crate::units::RankId;

impl Dispatch {
    /// The first row that a destination has granted; what is missing if it has not yet.
    #[inline(always)]
    fn grant_of<F: Fabric + ?Sized, V>(
        &self,
        env: Bound<'_, V>,
        fabric: &F,
        destination: u32,
    ) -> Result<Result<u32, Wait>, ProtocolError> {
        let home = || route::destination_home(env.shape, destination);
        let seen = fabric.observe(Direct::Grants.word(self.round.partition, destination))?;
        match flag::dispatch(seen) {
            flag::Seen::Empty => {
                let Home { rank: source, local_expert } = home();
                Ok(Err(Wait::new(Flag::Grant, source, &[local_expert])))
            }
            flag::Seen::Corrupt => Err(corrupt(env, home(), seen)),
            flag::Seen::Flag(first) => Ok(Ok(first)),
        }
    }

    /// The row that a rank, with such parts, has granted to `send`; what is missing if it has not yet.
    #[inline(always)]
    fn granted<F: Fabric + ?Sized, V>(
        &self,
        env: Bound<'_, V>,
        fabric: &F,
        send: Send,
        parts: &Parts,
    ) -> Result<Result<u32, Wait>, ProtocolError> {
        let Home { rank, local_expert } = send.home;
        let first = match self.grant_of(env, fabric, route::destination_of(env.shape, rank, local_expert))? {
            Ok(first) => first,
            wait => return Ok(wait),
        };
        match first.checked_add(send.slot) {
            Some(row) if parts.has(row) => Ok(Ok(row)),
            _ => Err(corrupt(env, send.home, flag::status(first))),
        }
    }

    /// Puts the next rows of this core's share, and behind each its scale and triple, as far as they are granted. Of item
    /// `next` the row may be put and `info` left.
    pub(super) fn send(&mut self, cx: &mut Cx<'_, impl Types>, mut next: u32, info: Option<Info>) -> Outcome {
        let (shape, share, area) = (cx.env.shape, &cx.env.work.sends, self.area(cx.env));
        let shared_ranks = shape.shared_expert_rank_num();
        // All ranks of a kind have the same.
        let [on_shared, on_moe] = [0, shared_ranks].map(|rank| Parts::of(shape, RankId(rank), area));
        let (slots, _) = split_words(cx.scratch.words, share)?;
        let mut left = cx.env.run;
        if let Some(info) = info {
            cx.fabric.put(info.to, info.at, &info.bytes, &[])?;
            left -= 1;
            next += 1;
        }
        let sends = Sends::new(shape, cx.env.rank, cx.env.choices.order, share);
        while left > 0 {
            let Some((item, send)) = sends.next(cx.inputs, slots, next) else {
                return self.go(Phase::SentRows { index: 0 });
            };
            let index = sends.index(item);
            let to = send.home.rank;
            let parts = if to.0 < shared_ranks { &on_shared } else { &on_moe };
            let row = match self.granted(cx.env, cx.fabric, send, parts)? {
                Ok(row) => row,
                // A machine that waits has not changed: not even the item that it looked at first.
                Err(wait) if left == cx.env.run && item == next => return Ok(Progress::Pending(wait)),
                Err(_) => return self.go(Phase::Send { next: item }),
            };
            let (payload, scale) = steps::payload(
                shape,
                cx.env.vector,
                cx.inputs,
                cx.scratch.row,
                &mut self.round.staged,
                send,
            )?;
            let info =
                Info { to, at: parts.info(row), bytes: direct::info_of(scale, steps::triple(cx.env, send)) };
            cx.fabric.put(to, parts.row(row), payload, &[])?;
            // The slot is not needed any more: `sent_rows` is what will be written next.
            *slots.get_mut(index as usize).ok_or(internal("own pair outside the share"))? = row;
            left -= 1;
            if left == 0 {
                return self.go(Phase::SendInfo { item, info });
            }
            cx.fabric.put(info.to, info.at, &info.bytes, &[])?;
            left -= 1;
            next = item + 1;
        }
        self.go(Phase::Send { next })
    }

    /// Writes `sent_rows` from the `index`-th own pair on: sending has left the rows in place of the slots, of all pairs
    /// that have one.
    pub(super) fn sent_rows(&mut self, cx: &mut Cx<'_, impl Types>, index: u32) -> Outcome {
        let (shape, share) = (cx.env.shape, &cx.env.work.sends);
        let moe = share.moe.end - share.moe.start;
        let (rows, _) = split_words(cx.scratch.words, share)?;
        // Both parts of a share are stretches of the output, with a gap between.
        let is_moe = index < moe;
        let part = 0..if is_moe { moe } else { route::share_len(share) };
        if index >= part.end {
            return self.go(Phase::Part(Part::Quiet));
        }
        let end = chunk_of(&part, index).end;
        let pair = if is_moe {
            route::moe_pair(shape, share.moe.start + index)
        } else {
            route::shared_pair(shape, share.shared.start + index - moe)
        };
        let rows = rows.get(index as usize..end as usize).ok_or(internal("own pair outside the share"))?;
        let at = outputs::sent_row(outputs::sent_row_number(shape, cx.env.rank, pair));
        // NO_SLOT is the bit pattern of -1.
        write_words(cx.fabric, at, rows.iter().copied())?;
        self.go(Phase::SentRows { index: end })
    }

    /// Grants are awaited also where nothing was sent: else they would come when the operator is over.
    pub(super) fn clear(&mut self, cx: &mut Cx<'_, impl Types>, first: u32) -> Outcome {
        let own = &cx.env.work.destinations;
        if first >= own.end {
            return self.go(Phase::AwaitTokens { slot: cx.env.work.slots.start });
        }
        let now = cx.env.run_of(own, first);
        let end = now.end;
        for destination in now {
            match self.grant_of(cx.env, cx.fabric, destination)? {
                Err(wait) if destination == first => return Ok(Progress::Pending(wait)),
                Err(_) => return self.go(Phase::Clear { destination }),
                Ok(_) => cx.fabric.store(Direct::Grants.word(self.round.partition, destination), 0)?,
            }
        }
        self.go(Phase::Clear { destination: end })
    }
}

/// A grant that there cannot be.
#[cold]
fn corrupt<V>(env: Bound<'_, V>, Home { rank: source, local_expert }: Home, seen: u64) -> ProtocolError {
    ProtocolError::Grant { source, local_expert, seen, max: env.shape.rows_max(source) }
}
