//! Counts and grants: each is one table and one word for each ordered pair of ranks.

use super::{CLEARS, Dispatch, Phase};
use crate::fabric::{Fabric, Fault, Progress, ProtocolError, Result, Wait};
use crate::layout::state::{Direct, core_sums};
use crate::place::Place;
use crate::plan::{route, split};
use crate::protocol::direct::ranks;
use crate::protocol::kit::{
    CHUNK, Context, Core, Exchange, Outcome, Part, SHORT_WORDS, await_run, bytes_of, internal, rows_within,
    slots_of, split_words, was_taken,
};
use crate::shape::CORES_MAX;
use crate::sync::{barrier, flag};
use crate::units::{CoreId, RankId, div_ceil, div_rem};
use core::ops::Range;

/// Returns the number of effects for each rank: one for each piece of a table, and one for its word.
fn pieces_and_word(core: Core<'_>) -> u32 {
    div_ceil(core.shape.local_expert_num().into(), CHUNK.into()) as u32 + 1
}

/// Returns the numbers of the effects for the ranks of this core's share, `each` for one rank.
pub(super) fn effects(core: Core<'_>, each: u32) -> Range<u32> {
    let own = ranks(core);
    own.start * each..own.end * each
}

impl Dispatch {
    /// Clears the words of the previous dispatch, which used the other partition.
    pub(super) fn clear(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>, next: u32) -> Outcome {
        let now = cx.core.run_of(&effects(cx.core, CLEARS), next);
        if now.is_empty() {
            return self.go(Phase::PublishCounts { next: effects(cx.core, pieces_and_word(cx.core)).start });
        }
        let (end, partition) = (now.end, self.round.turn.partition.flipped());
        for effect in now {
            let (source, word) = div_rem(effect, CLEARS);
            let word = Direct::ALL.get(word as usize).ok_or(internal("no such word"))?;
            let at = word.word(cx.core.shape, partition, RankId(source));
            if !was_taken(effect > next, cx.fabric.store(at, 0))? {
                return self.go(Phase::Clear { next: effect });
            }
        }
        self.go(Phase::Clear { next: end })
    }

    /// Puts the counts that [`kit::begin`](crate::protocol::kit::begin) computed for the whole rank.
    pub(super) fn publish_counts(
        &mut self,
        cx: &mut Context<'_, impl Fabric + ?Sized>,
        next: u32,
    ) -> Outcome {
        let (core, partition) = (cx.core, self.round.turn.partition);
        let send_status = split_words(cx.scratch.words, &core.work.sends)?.table;
        let each = pieces_and_word(core);
        let now = core.run_of(&effects(core, each), next);
        if now.is_empty() {
            // The counts are no longer needed; their memory now holds sums.
            sums_of(core, send_status)?.1.fill(0);
            return self.go(Phase::Part(Part::expand_idx(core)));
        }
        let end = now.end;
        for effect in now {
            let (to, piece) = div_rem(effect, each);
            let to = RankId(to);
            let done = if piece + 1 < each {
                let first = route::destination_of(core.shape, to, 0) as usize;
                let own = first..first + core.shape.local_experts(to) as usize;
                let counts = send_status.get(own).ok_or(SHORT_WORDS)?;
                put(cx.fabric, to, Direct::Counts.entry(core.shape, partition, core.rank, 0), (counts, piece))
            } else {
                cx.fabric.publish(
                    to,
                    Direct::Counts.word(core.shape, partition, core.rank),
                    self.round.turn.tags.with(flag::ARRIVED),
                )
            };
            if !was_taken(effect > next, done)? {
                return self.go(Phase::PublishCounts { next: effect });
            }
        }
        self.go(Phase::PublishCounts { next: end })
    }

    /// Adds up the counts of its own sources, by local expert.
    pub(super) fn await_counts(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>, first: u32) -> Outcome {
        let (core, own) = (cx.core, ranks(cx.core));
        let table = split_words(cx.scratch.words, &core.work.sends)?.table;
        let (_, sums) = sums_of(core, table)?;
        let run = core.run_of(&own, first);
        if run.is_empty() {
            return self.go(match (core.shape.aiv_num(), own.is_empty()) {
                (1, _) => Phase::Sums,
                (_, true) => Phase::ArriveWithSums,
                (_, false) => Phase::PutSums { piece: 0 },
            });
        }
        let reached = await_run(run.start, run.map(RankId), |source| {
            let wait = self.missing(core, cx.fabric, Direct::Counts, source)?;
            if wait.is_none() {
                self.add_counts(core, cx.fabric, source, sums)?;
            }
            Ok(wait)
        })?;
        reached.then(|source| self.go(Phase::Await { source }))
    }

    pub(super) fn put_sums(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>, piece: u32) -> Outcome {
        let table = split_words(cx.scratch.words, &cx.core.work.sends)?.table;
        let (_, sums) = sums_of(cx.core, table)?;
        put(cx.fabric, cx.core.rank, core_sums(cx.core.shape, cx.core.id), (sums, piece))?;
        let is_last = (piece + 1) * CHUNK >= sums.len() as u32;
        self.go(if is_last { Phase::ArriveWithSums } else { Phase::PutSums { piece: piece + 1 } })
    }

    /// Computes from all cores' sums where the rows of its own sources begin, expert by expert, and where the rows of the
    /// own slots do; and stores the counts of those slots.
    pub(super) fn sums(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>) -> Outcome {
        let (core, shape) = (cx.core, cx.core.shape);
        let (cores, ranks) = (shape.aiv_num(), shape.ep_world_size());
        if let Some(late) = barrier::missing(cx.fabric, cores, core.id, self.round.epoch)? {
            return Ok(Progress::Pending(Wait::barrier(late)));
        }
        let mut of_cores: [&[[u8; 4]]; CORES_MAX] = [&[]; CORES_MAX];
        let with_sources = cores.min(ranks);
        for (of_core, other) in of_cores.iter_mut().zip((0..with_sources).map(CoreId)) {
            if other != core.id {
                let len = u64::from(shape.local_experts(core.rank)) * 4;
                *of_core = cx.fabric.bytes(core_sums(shape, other), len)?.as_chunks().0;
            }
        }
        let slots = &core.work.slots;
        let (expert, source) = shape.by_ranks(slots.start);
        let before = split::even_owner(ranks, cores, source);
        let table = split_words(cx.scratch.words, &core.work.sends)?.table;
        let (counts, firsts) = sums_of(core, table)?;
        let (mut rows, mut of_expert) = (0u64, 0);
        for (local_expert, first) in (0..).zip(firsts) {
            let (own, start) = (*first, rows);
            for (other, of_core) in (0..with_sources).zip(&of_cores) {
                if other == core.id.0 {
                    *first = u32::try_from(rows).unwrap_or(u32::MAX);
                }
                if (local_expert, other) == (expert, before) {
                    (self.round.first_row, of_expert) = (rows as u32, (rows - start) as u32);
                }
                let told = of_core.get(local_expert as usize).map_or(0, |&sum| u32::from_le_bytes(sum));
                rows += u64::from(if other == core.id.0 { own } else { told });
            }
        }
        rows_within(rows, shape.rows_max(core.rank))?;
        self.round.total = rows as u32;
        // The sources of that core that precede the first own one.
        for source in split::ranks(shape, CoreId(before)).start..source {
            let count = self.counts_of(core, cx.fabric, RankId(source))?.nth(expert as usize).unwrap_or(0);
            self.round.first_row = self.round.first_row.saturating_add(count);
            of_expert = of_expert.saturating_add(count);
        }
        for (index, slot) in slots_of(shape, first_slots(core)).enumerate() {
            let of_source = self.counts_of(core, cx.fabric, slot.source)?.skip(slot.local_expert as usize);
            // `step_by` would panic where there are no ranks.
            let mut at = index;
            for told in of_source {
                let Some(count) = counts.get_mut(at) else { break };
                *count = told;
                at += ranks as usize;
            }
        }
        self.go(Phase::Grant { next: effects(core, pieces_and_word(core)).start, of_expert })
    }

    /// Grants rows. Their places may be overwritten now: the previous rows have been read, since this rank has reached this
    /// dispatch. Where experts overwrite, results have been read too: every rank has ended its combine before it sent the
    /// counts that have arrived here.
    pub(super) fn grant(
        &mut self,
        cx: &mut Context<'_, impl Fabric + ?Sized>,
        next: u32,
        of_expert: u32,
    ) -> Outcome {
        let (core, partition) = (cx.core, self.round.turn.partition);
        let each = pieces_and_word(core);
        let now = core.run_of(&effects(core, each), next);
        if now.is_empty() {
            return self.go(Phase::Part(Part::Exchange(Exchange::of_counts(core, &self.round, of_expert))));
        }
        let table = split_words(cx.scratch.words, &core.work.sends)?.table;
        let (_, firsts) = sums_of(core, table)?;
        let end = now.end;
        for effect in now {
            let (to, piece) = div_rem(effect, each);
            let to = RankId(to);
            let done = if piece + 1 < each {
                put(cx.fabric, to, Direct::Grants.entry(core.shape, partition, core.rank, 0), (firsts, piece))
            } else {
                cx.fabric.publish(
                    to,
                    Direct::Grants.word(core.shape, partition, core.rank),
                    self.round.turn.tags.with(flag::ARRIVED),
                )
            };
            if !was_taken(effect > next, done)? {
                return self.go(Phase::Grant { next: effect, of_expert });
            }
            if piece + 2 == each {
                self.add_counts(core, cx.fabric, to, firsts)?;
            }
        }
        self.go(Phase::Grant { next: end, of_expert })
    }

    /// Returns the counts of `source` for each local expert, after a check of all of them. The caller must have seen the word,
    /// or passed a barrier after a core that did.
    fn counts_of<F: Fabric + ?Sized>(
        &self,
        core: Core<'_>,
        fabric: &F,
        source: RankId,
    ) -> Result<impl Iterator<Item = u32>> {
        let at = Direct::Counts.entry(core.shape, self.round.turn.partition, source, 0);
        let told = fabric.bytes(at, u64::from(core.shape.local_experts(core.rank)) * 4)?.as_chunks().0;
        let max = core.shape.rows_from(source, core.rank);
        let counts = told.iter().map(|&told| u32::from_le_bytes(told));
        if let Some((local_expert, seen)) = (0..).zip(counts.clone()).find(|&(_, seen)| seen > max) {
            return Err(ProtocolError::Count { source, local_expert, seen, max });
        }
        Ok(counts)
    }

    fn add_counts<F: Fabric + ?Sized>(
        &self,
        core: Core<'_>,
        fabric: &F,
        source: RankId,
        sums: &mut [u32],
    ) -> Result<()> {
        for (sum, count) in sums.iter_mut().zip(self.counts_of(core, fabric, source)?) {
            *sum = sum.saturating_add(count);
        }
        Ok(())
    }
}

/// Splits the table into the counts of its own slots and one entry for each local expert.
fn sums_of<'t>(core: Core<'_>, table: &'t mut [u32]) -> Result<(&'t mut [u32], &'t mut [u32])> {
    let (counts, rest) = table.split_at_mut_checked(core.work.slots.len()).ok_or(SHORT_WORDS)?;
    let sums = rest.get_mut(..core.shape.local_experts(core.rank) as usize).ok_or(SHORT_WORDS)?;
    Ok((counts, sums))
}

/// Returns the first own slot of each source that has one.
pub(super) fn first_slots(core: Core<'_>) -> Range<u32> {
    let Range { start, end } = core.work.slots;
    start..end.min(start.saturating_add(core.shape.ep_world_size()))
}

/// Puts a piece of a table that begins at `at`. A rank of fewer experts than others lacks the last pieces.
fn put<F: Fabric + ?Sized>(
    fabric: &mut F,
    to: RankId,
    at: Place,
    (table, piece): (&[u32], u32),
) -> Result<(), Fault> {
    let first = piece * CHUNK;
    let Some(words) = table.get(first as usize..).filter(|words| !words.is_empty()) else { return Ok(()) };
    let (bytes, len) = bytes_of(words.iter().copied().take(CHUNK as usize));
    let at = Place { offset: at.offset + 4 * u64::from(first), ..at };
    fabric.put(to, at, bytes.get(..len).unwrap_or_default(), &[])
}
