//! Counts and flags of A3 dispatch: the plan of the sends, the words that announce rows, and the table of counts in the
//! scratch.

use super::part::Round;
use super::tables::{CHUNK, write_words};
use super::{Context, Core, Reached, SHORT_WORDS, await_run, internal, take, was_taken};
use crate::fabric::{Fabric, Flag, ProtocolError, Result, Wait};
use crate::layout::state::{Operator, Partition, dispatch_slot, selector};
use crate::place::Place;
use crate::plan::route;
use crate::plan::split::DispatchShare;
use crate::shape::Shape;
use crate::sync::selector::{Turn, select};
use crate::sync::{barrier, flag};
use crate::units::RankId;
use core::ops::Range;

/// Plans the sends, and begins a round with the partition and the last barrier. It has one store.
pub(crate) fn begin(cx: &mut Context<'_, impl Fabric + ?Sized>, round: &mut Round) -> Result<()> {
    let core = cx.core;
    let epoch = barrier::current_epoch(cx.fabric, core.id)?;
    let share = &core.work.sends;
    let Words { slots, mut table } = split_words(cx.scratch.words, share)?;
    let send_status = take(&mut table, route::destinations(core.shape) as usize)?;
    route::walk(core.shape, core.rank, cx.inputs, share, send_status, slots);
    let numbering = core.numbering(Operator::Dispatch, cx.inputs);
    let turn = select(cx.fabric, selector(Operator::Dispatch, core.id), numbering)?;
    *round = Round { turn, epoch, ..Round::new() };
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
    #[inline(always)]
    fn at(self, core: Core<'_>, partition: Partition, local_expert: u32, source: RankId) -> Place {
        let (slots, slot) = (core.choices.slots, dispatch_slot(core.shape, local_expert, source));
        match self {
            Self::Count => slots.dispatch_status(partition, slot),
            Self::TokenFlag => slots.token_flag(partition, slot),
        }
    }

    /// Publishes `words`, each with the operator's tag, to the next destinations of this core's share, and returns the destination to continue with.
    #[inline]
    fn publish<F: Fabric + ?Sized>(
        self,
        core: Core<'_>,
        fabric: &mut F,
        turn: Turn,
        first: u32,
        words: impl Iterator<Item = u64>,
    ) -> Result<u32> {
        let now = core.run_of(&core.work.destinations, first);
        for (destination, word) in now.clone().zip(words) {
            let home = route::destination_home(core.shape, destination);
            let at = self.at(core, turn.partition, home.local_expert, core.rank);
            let effect = fabric.publish(home.rank, at, turn.tags.with(word));
            if !was_taken(destination > first, effect)? {
                return Ok(destination);
            }
        }
        Ok(now.end)
    }

    /// Awaits and clears the words of the first of `own` slots. `read` gets the place of a slot's word, and returns what it
    /// says, or the wait for it; `note` gets what it says once the word is cleared.
    #[inline]
    fn take<F: Fabric + ?Sized, W>(
        self,
        core: Core<'_>,
        fabric: &mut F,
        partition: Partition,
        own: &Range<u32>,
        read: impl Fn(&F, Place, Slot) -> Result<Result<W, Wait>>,
        mut note: impl FnMut(Slot, W) -> Result<()>,
    ) -> Result<Reached> {
        let run = core.run_of(own, own.start);
        await_run(run.start, slots_of(core.shape, run), |slot| {
            let at = self.at(core, partition, slot.local_expert, slot.source);
            match read(fabric, at, slot)? {
                Err(wait) => Ok(Some(wait)),
                Ok(word) => {
                    if !was_taken(slot.number > own.start, fabric.store(at, 0))? {
                        return Ok(Some(Wait::ROOM));
                    }
                    note(slot, word).map(|()| None)
                }
            }
        })
    }
}

/// Publishes flag and count to the next destinations of this core's share, as [`begin`] counted them for the whole rank.
/// Returns the destination to continue with.
pub(crate) fn publish_counts(
    cx: &mut Context<'_, impl Fabric + ?Sized>,
    turn: Turn,
    first: u32,
) -> Result<u32> {
    let send_status = split_words(cx.scratch.words, &cx.core.work.sends)?.table;
    let left = first as usize..cx.core.work.destinations.end as usize;
    let counts = send_status.get(left).ok_or(internal("no such destination"))?;
    Signal::Count.publish(cx.core, cx.fabric, turn, first, counts.iter().map(|&count| flag::status(count)))
}

/// Publishes `TokenFlag` to the next destinations of this core's share, and returns the destination to continue with.
pub(crate) fn publish_token_flags(
    cx: &mut Context<'_, impl Fabric + ?Sized>,
    turn: Turn,
    first: u32,
) -> Result<u32> {
    Signal::TokenFlag.publish(cx.core, cx.fabric, turn, first, core::iter::repeat(flag::ARRIVED))
}

/// A slot of a core's share: a local expert and a source of its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) number: u32,
    pub(crate) local_expert: u32,
    pub(crate) source: RankId,
}

/// Returns slots with their local experts and sources.
pub(crate) fn slots_of(shape: &Shape, slots: Range<u32>) -> impl Iterator<Item = Slot> {
    let (mut local_expert, mut source) = shape.by_ranks(slots.start);
    let ranks = shape.ep_world_size();
    slots.map(move |number| {
        let slot = Slot { number, local_expert, source: RankId(source) };
        source += 1;
        if source == ranks {
            local_expert += 1;
            source = 0;
        }
        slot
    })
}

/// Awaits and clears the counts of the first of `own` slots, and stores each in the count table. `note` gets each slot's
/// number and its count.
#[inline]
pub(crate) fn await_counts(
    cx: &mut Context<'_, impl Fabric + ?Sized>,
    turn: Turn,
    own: &Range<u32>,
    mut note: impl FnMut(u32, u32),
) -> Result<Reached> {
    let core = cx.core;
    let counts = split_words(cx.scratch.words, &core.work.sends)?.table;
    let read = |fabric: &_, at, Slot { local_expert, source, .. }| {
        let awaited = core.waits_for_count(source, local_expert);
        let Some(count) = flag::count(fabric, at, turn.tags, awaited)? else { return Ok(Err(awaited)) };
        let max = core.shape.rows_from(source, core.rank);
        if count > max {
            return Err(ProtocolError::Count { source, local_expert, seen: count, max });
        }
        Ok(Ok(count))
    };
    Signal::Count.take(core, cx.fabric, turn.partition, own, read, |Slot { number, .. }, count| {
        *count_of(core, counts, number)? = count;
        note(number, count);
        Ok(())
    })
}

/// Awaits and clears the `TokenFlag`s of the first of `own` slots.
pub(crate) fn await_token_flags(
    cx: &mut Context<'_, impl Fabric + ?Sized>,
    turn: Turn,
    own: &Range<u32>,
) -> Result<Reached> {
    let read = |fabric: &_, at, Slot { local_expert, source, .. }| {
        let awaited = Wait::new(Flag::Token, source, &[local_expert]);
        Ok(flag::missing(fabric, at, turn.tags, awaited)?.map_or(Ok(()), Err))
    };
    Signal::TokenFlag.take(cx.core, cx.fabric, turn.partition, own, read, |_, ()| Ok(()))
}

/// The scratch words of a core in A3 dispatch.
pub(crate) struct Words<'u> {
    /// The slot of each pair of the core's share.
    pub(crate) slots: &'u mut [u32],
    /// The number of rows for each destination while the core publishes, then the number of rows in each of its slots.
    pub(crate) table: &'u mut [u32],
}

/// Splits the scratch words.
#[inline(always)]
pub(crate) fn split_words<'u>(mut words: &'u mut [u32], share: &DispatchShare) -> Result<Words<'u>> {
    let slots = take(&mut words, route::share_len(share) as usize)?;
    Ok(Words { slots, table: words })
}

/// Returns the entry of the count table for a slot of the core's share.
pub(crate) fn count_of<'u>(core: Core<'_>, counts: &'u mut [u32], slot: u32) -> Result<&'u mut u32> {
    counts.get_mut((slot - core.work.slots.start) as usize).ok_or(SHORT_WORDS)
}

/// Writes the running sums of the counts of some slots, at most [`CHUNK`], starting from `rows`: entries of
/// `ep_recv_counts`. Returns the last sum.
pub(crate) fn write_sums(
    cx: &mut Context<'_, impl Fabric + ?Sized>,
    slots: Range<u32>,
    at: Place,
    mut rows: u32,
) -> Result<u32> {
    let counts = split_words(cx.scratch.words, &cx.core.work.sends)?.table;
    let len = slots.len();
    let mut sums = [0; CHUNK as usize];
    for (sum, slot) in sums.iter_mut().zip(slots) {
        // This cannot overflow: the sums of all cores are within the capacity.
        rows = rows.saturating_add(*count_of(cx.core, counts, slot)?);
        *sum = rows;
    }
    write_words(cx.fabric, at, sums.iter().copied().take(len))?;
    Ok(rows)
}
