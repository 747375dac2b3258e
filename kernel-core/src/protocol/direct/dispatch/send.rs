//! The sending half: publish counts, put each row where it was granted, publish flags.

use super::{Dispatch, Info, Phase};
use crate::fabric::{Fabric, Progress, ProtocolError, Result, Wait};
use crate::layout::direct::{self, Parts};
use crate::layout::outputs;
use crate::layout::state::Direct;
use crate::place::Tensor;
use crate::placement::Home;
use crate::plan::route::{self, Send, Sends};
use crate::protocol::direct::ranks;
use crate::protocol::kit::{
    self, Context, Core, Outcome, Part, chunk_of, internal, split_words, was_taken, write_words,
};
use crate::sync::barrier::Meeting;
use crate::sync::flag;
use crate::units::RankId;

impl Dispatch {
    /// Returns the row that `send` was granted at a rank with these `parts`; what is missing if it has no grant yet.
    #[inline(always)]
    fn granted<F: Fabric + ?Sized>(
        &self,
        core: Core<'_>,
        fabric: &F,
        send: Send,
        parts: &Parts,
    ) -> Result<Result<u32, Wait>> {
        let Home { rank: source, local_expert } = send.home;
        if let Some(wait) = self.missing(core, fabric, Direct::Grants, source)? {
            return Ok(Err(wait));
        }
        let at = Direct::Grants.entry(core.shape, self.round.turn.partition, source, local_expert);
        let first = u32::from_le_bytes(kit::copy_of(fabric, at)?);
        match first.checked_add(send.slot) {
            Some(row) if parts.has(row) => Ok(Ok(row)),
            _ => {
                let max = core.shape.rows_max(source);
                Err(ProtocolError::Grant { source, local_expert, seen: first.into(), max })
            }
        }
    }

    /// Puts the next rows of this core's share that are granted, each followed by its scale and triple. If `info` is given,
    /// the row of item `next` is already put and only `info` is missing.
    pub(super) fn send(
        &mut self,
        cx: &mut Context<'_, impl Fabric + ?Sized>,
        mut next: u32,
        info: Option<Info>,
    ) -> Outcome {
        let (shape, share, area) = (cx.core.shape, &cx.core.work.sends, self.area(cx.core));
        let shared_ranks = shape.shared_expert_rank_num();
        // All ranks of a kind have the same parts.
        let [on_shared, on_moe] = [0, shared_ranks].map(|rank| Parts::of(shape, RankId(rank), area));
        let slots = split_words(cx.scratch.words, share)?.slots;
        let mut left = cx.core.run;
        if let Some(info) = info {
            cx.fabric.put(info.to, info.at, &info.bytes, &[])?;
            left -= 1;
            next += 1;
        }
        let sends = Sends::new(shape, cx.core.rank, cx.core.choices.order, share);
        while left > 0 {
            let Some((item, send)) = sends.next(cx.inputs, slots, next) else {
                return self.go(Phase::SentRows { index: 0 });
            };
            let index = sends.index(item);
            let to = send.home.rank;
            let parts = if to.0 < shared_ranks { &on_shared } else { &on_moe };
            let row = match self.granted(cx.core, cx.fabric, send, parts)? {
                Ok(row) => row,
                // A pending machine must not change, not even its next item.
                Err(wait) if left == cx.core.run && item == next => return Ok(Progress::Pending(wait)),
                Err(_) => return self.go(Phase::Send { next: item }),
            };
            let (payload, scale) =
                kit::payload(cx.core, cx.inputs, cx.scratch.row, &mut self.round.staged, send)?;
            let info =
                Info { to, at: parts.info(row), bytes: direct::info_of(scale, kit::triple(cx.core, send)) };
            let effect = cx.fabric.put(to, parts.row(row), payload, &[]);
            if !was_taken(left < cx.core.run, effect)? {
                return self.go(Phase::Send { next: item });
            }
            // The slot is no longer needed; its row is, for `sent_rows`.
            *slots.get_mut(index as usize).ok_or(internal("own pair outside the share"))? = row;
            left -= 1;
            if left == 0 || !was_taken(true, cx.fabric.put(info.to, info.at, &info.bytes, &[]))? {
                return self.go(Phase::SendInfo { item, info });
            }
            left -= 1;
            next = item + 1;
        }
        self.go(Phase::Send { next })
    }

    /// Writes `sent_rows` from the `index`-th own pair on. Sending has replaced the slots of all sent pairs by their rows.
    pub(super) fn sent_rows(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>, index: u32) -> Outcome {
        let (shape, share) = (cx.core.shape, &cx.core.work.sends);
        let moe = share.moe.end - share.moe.start;
        let rows = split_words(cx.scratch.words, share)?.slots;
        // The two ranges of a share are apart in the output.
        let is_moe = index < moe;
        let part = 0..if is_moe { moe } else { route::share_len(share) };
        if index >= part.end {
            return self.go(Phase::Part(Part::Meet(Meeting::Quiet)));
        }
        let end = chunk_of(&part, index).end;
        let pair = if is_moe {
            route::moe_pair(shape, share.moe.start + index)
        } else {
            route::shared_pair(shape, share.shared.start + index - moe)
        };
        let rows = rows.get(index as usize..end as usize).ok_or(internal("own pair outside the share"))?;
        let at = outputs::element(Tensor::SentRows, outputs::sent_row_number(shape, cx.core.rank, pair));
        // NO_SLOT is the bit pattern of -1.
        write_words(cx.fabric, at, rows.iter().copied())?;
        self.go(Phase::SentRows { index: end })
    }

    pub(super) fn publish_tokens(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>, to: u32) -> Outcome {
        let now = cx.core.run_of(&ranks(cx.core), to);
        if now.is_empty() {
            return self.go(Phase::AwaitTokens { slot: cx.core.work.slots.start });
        }
        let (end, word) =
            (now.end, Direct::TokenFlags.word(cx.core.shape, self.round.turn.partition, cx.core.rank));
        for rank in now {
            let effect = cx.fabric.publish(RankId(rank), word, self.round.turn.tags.with(flag::ARRIVED));
            if !was_taken(rank > to, effect)? {
                return self.go(Phase::PublishTokens { to: rank });
            }
        }
        self.go(Phase::PublishTokens { to: end })
    }
}
