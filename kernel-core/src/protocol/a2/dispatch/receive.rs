//! The receiving half: await windows, sum their counts, copy their rows out, clear their flags.

use super::{Dispatch, Field, Phase, Row};
use crate::fabric::{Fabric, Flag, Progress, ProtocolError, Result, Wait};
use crate::layout::a2_window::{FLAG1, record, record_scale, window_in};
use crate::layout::outputs;
use crate::place::Tensor;
use crate::plan::permute::{RecvCounts, add_gather_adds};
use crate::protocol::a2::part::Clear;
use crate::protocol::a2::split_words;
use crate::protocol::kit::{
    Context, Core, Outcome, chunk_of, copy_data, copy_scale, internal, rows_within, write_words,
};
use crate::shape::TokenNums;
use crate::sync::barrier::Meeting;
use crate::units::RankId;
use core::ops::Range;

impl Dispatch {
    pub(super) fn await_counts(
        &mut self,
        cx: &mut Context<'_, impl Fabric + ?Sized>,
        source: u32,
    ) -> Outcome {
        if source >= cx.core.work.ranks.end {
            return self.go(Phase::Barrier(Meeting::Arrive));
        }
        let awaited = || Wait::new(Flag::WindowCounts, RankId(source), &[]);
        if !self.round.has_arrived(cx, RankId(source), FLAG1, awaited)? {
            return Ok(Progress::Pending(awaited()));
        }
        let rows = self.counts_of(cx.core, cx.fabric, RankId(source), |_, _| ())?;
        self.go(Phase::Rows { source, rows })
    }

    /// Reads and checks the counts of a window that has arrived; returns their sum.
    fn counts_of<F: Fabric + ?Sized>(
        &self,
        core: Core<'_>,
        fabric: &F,
        source: RankId,
        mut each: impl FnMut(u32, u32),
    ) -> Result<u32> {
        let shape = core.shape;
        let mut rows = 0u32;
        for local_expert in (0..shape.local_expert_num()).step_by(2) {
            let at = window_in(shape, self.round.half, source, u64::from(local_expert) * 4);
            let word = fabric.observe(at)?;
            let pair = [word as u32, (word >> 32) as u32];
            for (local_expert, seen) in (local_expert..shape.local_expert_num()).zip(pair) {
                let max = shape.bs(source);
                if seen > max {
                    return Err(ProtocolError::Count { source, local_expert, seen, max });
                }
                rows += seen;
                each(local_expert, seen);
            }
        }
        rows_within(rows.into(), shape.rows_to_peer_max(source).into())?;
        Ok(rows)
    }

    pub(super) fn matrix(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>, source: u32) -> Outcome {
        let words = split_words(cx.core, cx.scratch.words)?;
        let experts = cx.core.shape.local_expert_num() as usize;
        if source >= cx.core.shape.ep_world_size() {
            add_gather_adds(words.matrix, experts, words.sums);
            return self.go(Phase::RecvCounts { slot: cx.core.work.slots.start });
        }
        let row = words.matrix.get_mut(source as usize * experts..).unwrap_or_default();
        self.counts_of(cx.core, cx.fabric, RankId(source), |local_expert, count| {
            if let Some(entry) = row.get_mut(local_expert as usize) {
                *entry = count;
            }
        })?;
        self.go(Phase::Matrix { source: source + 1 })
    }

    pub(super) fn recv_counts(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>, slot: u32) -> Outcome {
        if slot >= cx.core.work.slots.end {
            return self.go(Phase::TokenNums { local_expert: cx.core.work.token_nums.start });
        }
        let end = chunk_of(&cx.core.work.slots, slot).end;
        let words = split_words(cx.core, cx.scratch.words)?;
        let sums = words.sums.get(slot as usize..end as usize).ok_or(internal("no such slot"))?;
        write_words(cx.fabric, outputs::element(Tensor::EpRecvCounts, slot), sums.iter().copied())?;
        self.go(Phase::RecvCounts { slot: end })
    }

    pub(super) fn token_nums(
        &mut self,
        cx: &mut Context<'_, impl Fabric + ?Sized>,
        local_expert: u32,
    ) -> Outcome {
        if local_expert >= cx.core.work.token_nums.end {
            let at = Row::first(cx.core.work.ranks.start);
            return self.go(Phase::CopyOut { at, field: Field::Data });
        }
        let words = split_words(cx.core, cx.scratch.words)?;
        let counts = words.recv_counts();
        // The rows of an expert end where the rows of the next one begin.
        let end = counts.first_row(local_expert + 1, RankId(0));
        let num = match cx.core.shape.token_nums() {
            TokenNums::PrefixSums => end,
            TokenNums::Counts => end.saturating_sub(counts.first_row(local_expert, RankId(0))),
        };
        let at = outputs::element(Tensor::ExpertTokenNums, local_expert);
        cx.fabric.write(at, &i64::from(num).to_le_bytes())?;
        self.go(Phase::TokenNums { local_expert: local_expert + 1 })
    }

    pub(super) fn copy_out(
        &mut self,
        cx: &mut Context<'_, impl Fabric + ?Sized>,
        at: Row,
        field: Field,
    ) -> Outcome {
        let shape = cx.core.shape;
        let words = split_words(cx.core, cx.scratch.words)?;
        let counts = words.recv_counts();
        let Some(at) = next_row(&counts, &cx.core.work.ranks, at) else {
            return self.go(Phase::Clear(Clear::new(cx.core)));
        };
        let source = RankId(at.source);
        let position = counts.position(at.local_expert, source).saturating_add(at.index);
        let row = counts.first_row(at.local_expert, source).saturating_add(at.index);
        let window = |offset| window_in(shape, self.round.half, source, offset);
        match field {
            Field::Data => copy_data(shape, cx.fabric, window(record(shape, position)), row)?,
            Field::Scale => copy_scale(cx.fabric, window(record_scale(shape, position)), row)?,
        }
        self.go(match (field, shape.row_format().scale) {
            (Field::Data, Some(_)) => Phase::CopyOut { at, field: Field::Scale },
            _ => Phase::CopyOut { at: Row { index: at.index + 1, ..at }, field: Field::Data },
        })
    }
}

/// Returns the next row to copy out: `at`, or the first one of a later expert or source.
#[inline]
fn next_row(counts: &RecvCounts<'_>, sources: &Range<u32>, mut at: Row) -> Option<Row> {
    while at.source < sources.end {
        if at.local_expert >= counts.shape.local_expert_num() {
            at = Row::first(at.source + 1);
        } else if at.index >= counts.rows(at.local_expert, RankId(at.source)) {
            at = Row { local_expert: at.local_expert + 1, index: 0, ..at };
        } else {
            return Some(at);
        }
    }
    None
}
