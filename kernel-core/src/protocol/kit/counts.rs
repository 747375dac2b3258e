//! Counts and flags of A3 dispatch: the plan of the sends, the words that announce rows, and the table of counts in the
//! scratch.

use super::part::Round;
use super::tables::{CHUNK, write_words};
use super::{Bound, Cx, SHORT_WORDS, Types, internal, take};
use crate::fabric::{Fabric, Flag, ProtocolError, Result, Wait};
use crate::layout::state::{Operator, Partition, dispatch_slot, dispatch_status, selector, token_flag};
use crate::place::Place;
use crate::plan::route;
use crate::plan::split::DispatchShare;
use crate::shape::Shape;
use crate::sync::{self, barrier, flag};
use crate::units::RankId;
use core::ops::Range;
/// Plans the sends, and begins a round with the partition and the last barrier. It has one store.
pub(crate) fn select(cx: &mut Cx<'_, impl Types>, round: &mut Round) -> Result<()> {
    let env = cx.env;
    let epoch = barrier::current_epoch(cx.fabric, env.core)?;
    let share = &env.work.sends;
    let (slots, mut table) = split_words(cx.scratch.words, share)?;
    let send_status = take(&mut table, route::destinations(env.shape) as usize)?;
    route::walk(env.shape, env.rank, cx.inputs, share, send_status, slots);
    *round = Round {
        partition: sync::selector::select(cx.fabric, selector(Operator::Dispatch, env.core))?,
        epoch,
        ..Round::new()
    };
    Ok(())
}

/// The two signals of the rows that a source sends to a local expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signal {
    /// The number of rows; with joint flags also that they have landed.
    Count,
    /// The rows have landed.
    TokenFlag,
}

impl Signal {
    /// Returns the place of the signal, in a status slot.
    const fn at(self, shape: &Shape, partition: Partition, local_expert: u32, source: RankId) -> Place {
        let slot = dispatch_slot(shape, local_expert, source);
        match self {
            Self::Count => dispatch_status(partition, slot),
            Self::TokenFlag => token_flag(partition, slot),
        }
    }

    /// Publishes `words` to the next destinations of this core's share, and returns the destination to continue with.
    #[inline]
    fn publish<F: Fabric + ?Sized, V>(
        self,
        env: Bound<'_, V>,
        fabric: &mut F,
        partition: Partition,
        first: u32,
        words: impl Iterator<Item = u64>,
    ) -> Result<u32> {
        let now = env.run_of(&env.work.destinations, first);
        for (destination, word) in now.clone().zip(words) {
            let home = route::destination_home(env.shape, destination);
            fabric.publish(home.rank, self.at(env.shape, partition, home.local_expert, env.rank), word)?;
        }
        Ok(now.end)
    }

    /// Awaits and clears the words of the first of `own` slots. `missing` gets the place of a word, slot, local expert and
    /// source, and returns the wait for it if it has not arrived. Returns the slot to continue with, or the first one's
    /// wait.
    #[inline]
    fn take<F: Fabric + ?Sized, V>(
        self,
        env: Bound<'_, V>,
        fabric: &mut F,
        partition: Partition,
        own: &Range<u32>,
        mut missing: impl FnMut(&F, Place, (u32, u32, RankId)) -> Result<Option<Wait>>,
    ) -> Result<Result<u32, Wait>> {
        let now = env.run_of(own, own.start);
        for (slot, local_expert, source) in sources_of(env.shape, now.clone()) {
            let at = self.at(env.shape, partition, local_expert, source);
            if let Some(wait) = missing(fabric, at, (slot, local_expert, source))? {
                return Ok(if slot == own.start { Err(wait) } else { Ok(slot) });
            }
            fabric.store(at, 0)?;
        }
        Ok(Ok(now.end))
    }
}

/// Publishes flag and count to the next destinations of this core's share, as [`select`] counted them for the whole rank.
/// Returns the destination to continue with.
pub(crate) fn publish_counts(cx: &mut Cx<'_, impl Types>, partition: Partition, first: u32) -> Result<u32> {
    let (_, send_status) = split_words(cx.scratch.words, &cx.env.work.sends)?;
    let left = first as usize..cx.env.work.destinations.end as usize;
    let counts = send_status.get(left).ok_or(internal("no such destination"))?;
    Signal::Count.publish(
        cx.env,
        cx.fabric,
        partition,
        first,
        counts.iter().map(|&count| flag::status(count)),
    )
}

/// Publishes `TokenFlag` to the next destinations of this core's share, and returns the destination to continue with.
pub(crate) fn publish_token_flags(
    cx: &mut Cx<'_, impl Types>,
    partition: Partition,
    first: u32,
) -> Result<u32> {
    Signal::TokenFlag.publish(cx.env, cx.fabric, partition, first, core::iter::repeat(flag::ARRIVED))
}

/// Returns the slots with their local experts and sources.
pub(crate) fn sources_of(shape: &Shape, slots: Range<u32>) -> impl Iterator<Item = (u32, u32, RankId)> {
    let (mut local_expert, mut source) = shape.by_ranks(slots.start);
    let ranks = shape.ep_world_size();
    slots.map(move |slot| {
        let now = (slot, local_expert, RankId(source));
        source += 1;
        if source == ranks {
            (local_expert, source) = (local_expert + 1, 0);
        }
        now
    })
}

/// Awaits and clears the counts of the first of `own` slots, and stores each in the count table. `note` gets them with their
/// slots. Returns the slot to continue with, or the wait if the first one's count is missing.
#[inline]
pub(crate) fn await_counts(
    cx: &mut Cx<'_, impl Types>,
    partition: Partition,
    own: &Range<u32>,
    mut note: impl FnMut(u32, u32),
) -> Result<Result<u32, Wait>> {
    let env = cx.env;
    let (_, counts) = split_words(cx.scratch.words, &env.work.sends)?;
    Signal::Count.take(env, cx.fabric, partition, own, |fabric, at, (slot, local_expert, source)| {
        let count = match flag::count(fabric, at, env.waits_for_count(source, local_expert))? {
            Ok(count) => count,
            Err(wait) => return Ok(Some(wait)),
        };
        let max = env.shape.rows_from(source, env.rank);
        if count > max {
            return Err(ProtocolError::Count { source, local_expert, seen: count, max });
        }
        *count_of(env, counts, slot)? = count;
        note(slot, count);
        Ok(None)
    })
}

/// Awaits and clears the `TokenFlag`s of the first of `own` slots, and returns like [`await_counts`].
pub(crate) fn await_token_flags(
    cx: &mut Cx<'_, impl Types>,
    partition: Partition,
    own: &Range<u32>,
) -> Result<Result<u32, Wait>> {
    Signal::TokenFlag.take(cx.env, cx.fabric, partition, own, |fabric, at, (_, local_expert, source)| {
        flag::missing(fabric, at, Wait::new(Flag::Token, source, &[local_expert]))
    })
}

/// Splits the scratch words into the slots of the share and the table of counts.
#[inline(always)]
pub(crate) fn split_words<'u>(
    mut words: &'u mut [u32],
    share: &DispatchShare,
) -> Result<(&'u mut [u32], &'u mut [u32])> {
    Ok((take(&mut words, route::share_len(share) as usize)?, words))
}

/// Returns the entry of the count table for a slot of the own share.
pub(crate) fn count_of<'u, V>(env: Bound<'_, V>, counts: &'u mut [u32], slot: u32) -> Result<&'u mut u32> {
    counts.get_mut((slot - env.work.slots.start) as usize).ok_or(SHORT_WORDS)
}

/// Writes the running sums of the counts of some slots, at most [`CHUNK`], starting from `rows`: entries of
/// `ep_recv_counts`. Returns the last sum.
pub(crate) fn write_sums(
    cx: &mut Cx<'_, impl Types>,
    slots: Range<u32>,
    at: Place,
    mut rows: u32,
) -> Result<u32> {
    let (_, counts) = split_words(cx.scratch.words, &cx.env.work.sends)?;
    let len = slots.len();
    let mut sums = [0; CHUNK as usize];
    for (sum, slot) in sums.iter_mut().zip(slots) {
        // This cannot overflow: the sums of all cores are within the capacity.
        rows = rows.saturating_add(*count_of(cx.env, counts, slot)?);
        *sum = rows;
    }
    write_words(cx.fabric, at, sums.iter().copied().take(len))?;
    Ok(rows)
}
