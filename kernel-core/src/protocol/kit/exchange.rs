//! The exchange of counts, a part of dispatch in every layout: await the counts of this core's slots, send their sum to the
//! other cores, compute the places of this core's rows, write the counts.
//!
//! ```text
//! Await* -> ArriveWithSums -> Sums -> (Counts -> TokenNums?)* -> Done
//! ```

use super::part::Round;
use super::{
    CHUNK, Context, Core, Outcome, await_counts, chunk_of, count_of, rows_within, slots_of, split_words,
    write_sums,
};
use crate::fabric::{Fabric, Progress, Result, Wait};
use crate::layout::outputs;
use crate::place::Tensor;
use crate::plan::counts::{self, ShareSum, expert_of_slot};
use crate::plan::split;
use crate::shape::{CORES_MAX, TokenNums};
use crate::sync::barrier;
use crate::units::CoreId;

/// The exchange of one core. What it finds out is in the core's [`Round`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Exchange {
    sum: ShareSum,
    phase: Phase,
}

/// The next entries to write: those of `slot` and the slots after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Entries {
    slot: u32,
    /// The number of rows before the slot.
    rows: u32,
    /// The number of these rows that are of the slot's own expert.
    of_expert: u32,
}

phases! {
    enum Phase of "Exchange." in Exchange {
        /// Await and clear the status words of the next slots of this core's share.
        Await { slot: u32 } => Await | ArriveWithSums | Sums,
        /// Send the sum of the share's counts to the other cores.
        ArriveWithSums => Sums,
        /// Await the sums of all cores.
        Sums => Counts,
        /// Write the next entries of `ep_recv_counts`, up to the limit of one write.
        Counts(Entries) => Counts | TokenNums,
        /// Write `expert_token_nums` of the experts that end within those slots.
        TokenNums(Entries) => Counts,
    }
}

go! { Exchange }

impl Exchange {
    /// Creates the exchange of a core.
    pub(crate) fn new(core: Core<'_>) -> Self {
        Self { sum: ShareSum::default(), phase: Phase::Await { slot: core.work.slots.start } }
    }

    /// Creates the writing half alone, for a core that has determined its counts and their predecessors in another way.
    pub(crate) fn of_counts(core: Core<'_>, round: &Round, of_expert: u32) -> Self {
        let first = Entries { slot: core.work.slots.start, rows: round.first_row, of_expert };
        Self { phase: Phase::Counts(first), ..Self::new(core) }
    }

    /// Returns the sum of any core's share after the barrier `epoch`.
    pub(crate) fn sum_of<F: Fabric + ?Sized>(
        &self,
        core: Core<'_>,
        fabric: &F,
        epoch: u32,
        other: CoreId,
    ) -> Result<ShareSum> {
        // This core's word may not have landed yet.
        if other == core.id { Ok(self.sum) } else { barrier::sum_of(fabric, other, epoch) }
    }

    /// Advances the exchange by one step.
    ///
    /// # Errors
    /// A value read from the fabric contradicts the shape, or the fabric refuses.
    pub(crate) fn step(&mut self, round: &mut Round, cx: &mut Context<'_, impl Fabric + ?Sized>) -> Outcome {
        match self.phase {
            Phase::Await { slot } => self.await_count(round, cx, slot),
            Phase::ArriveWithSums => {
                barrier::arrive(cx.fabric, cx.core.rank, cx.core.id, &mut round.epoch, self.sum)?;
                self.go(Phase::Sums)
            }
            Phase::Sums => self.sums(round, cx),
            Phase::Counts(next) => self.counts(cx, next),
            Phase::TokenNums(next) => self.token_nums(cx, next),
        }
    }

    fn await_count(
        &mut self,
        round: &Round,
        cx: &mut Context<'_, impl Fabric + ?Sized>,
        slot: u32,
    ) -> Outcome {
        let (shape, end) = (cx.core.shape, cx.core.work.slots.end);
        if slot >= end {
            return self.go(if shape.aiv_num() == 1 { Phase::Sums } else { Phase::ArriveWithSums });
        }
        let reached = await_counts(cx, round.turn, &(slot..end), |slot, count| {
            self.sum = self.sum.with(shape, slot, end, count);
        })?;
        reached.then(|slot| self.go(Phase::Await { slot }))
    }

    fn sums(&mut self, round: &mut Round, cx: &mut Context<'_, impl Fabric + ?Sized>) -> Outcome {
        let (core, shape) = (cx.core, cx.core.shape);
        let cores = shape.aiv_num();
        if let Some(late) = barrier::missing(cx.fabric, cores, core.id, round.epoch)? {
            return Ok(Progress::Pending(Wait::barrier(late)));
        }
        let mut sums = [ShareSum::default(); CORES_MAX];
        for (sum, other) in sums.iter_mut().zip((0..cores).map(CoreId)) {
            *sum = self.sum_of(core, cx.fabric, round.epoch, other)?;
            let share = split::slots(shape, core.rank, other);
            rows_within(sum.rows.into(), u64::from(share.end - share.start) * u64::from(shape.bs_max()))?;
        }
        let sums = sums.iter().take(cores as usize).copied();
        rows_within(sums.clone().map(|sum| u64::from(sum.rows)).sum(), shape.rows_max(core.rank))?;
        round.total = sums.clone().map(|sum| sum.rows).sum();
        let prefix = counts::prefix(shape, core.rank, core.id, sums);
        round.first_row = prefix.rows_before;
        self.go(Phase::Counts(Entries {
            slot: core.work.slots.start,
            rows: prefix.rows_before,
            of_expert: prefix.expert_rows_before,
        }))
    }

    fn counts(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>, next: Entries) -> Outcome {
        let (core, shape) = (cx.core, cx.core.shape);
        let Entries { slot, rows, of_expert } = next;
        let now = chunk_of(&core.work.slots, slot);
        let end = now.end;
        if now.is_empty() {
            return Ok(Progress::Done);
        }
        let sum = write_sums(cx, now, outputs::element(Tensor::EpRecvCounts, slot), rows)?;
        // With a TP domain the entries count both peers' rows, so they are written once those are known.
        let an_expert_ends = expert_of_slot(shape, slot) < expert_of_slot(shape, end);
        self.go(if an_expert_ends && shape.tp_world_size() == 1 {
            Phase::TokenNums(next)
        } else {
            Phase::Counts(Entries { slot: end, rows: sum, of_expert: of_expert.saturating_add(sum - rows) })
        })
    }

    fn token_nums(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>, next: Entries) -> Outcome {
        let (core, shape) = (cx.core, cx.core.shape);
        let Entries { slot, mut rows, mut of_expert } = next;
        let counts = split_words(cx.scratch.words, &core.work.sends)?.table;
        let now = chunk_of(&core.work.slots, slot);
        let end = now.end;
        let mut nums = [[0; 8]; CHUNK as usize];
        let mut entries = nums.iter_mut();
        for slot in slots_of(shape, now) {
            let count = *count_of(core, counts, slot.number)?;
            (rows, of_expert) = (rows.saturating_add(count), of_expert.saturating_add(count));
            if slot.source.0 + 1 == shape.ep_world_size()
                && let Some(entry) = entries.next()
            {
                let num = match shape.token_nums() {
                    TokenNums::PrefixSums => rows,
                    TokenNums::Counts => of_expert,
                };
                *entry = i64::from(num).to_le_bytes();
                of_expert = 0;
            }
        }
        let ended = CHUNK as usize - entries.len();
        let at = outputs::element(Tensor::ExpertTokenNums, expert_of_slot(shape, slot));
        cx.fabric.write(at, nums.get(..ended).unwrap_or_default().as_flattened())?;
        self.go(Phase::Counts(Entries { slot: end, rows, of_expert }))
    }
}
