//! The receiving half: when rows have arrived, check their triples and write them.

use super::exchange::first_slots;
use super::{Dispatch, Phase};
use crate::fabric::{Fabric, Result};
use crate::layout::direct;
use crate::layout::outputs;
use crate::layout::state::Direct;
use crate::place::{Place, Tensor};
use crate::protocol::kit::{
    Batch, Column, Context, Core, Cursor, Outcome, ROWS, Slots, Stretch, await_run, copy_scales,
    copy_triples, slots_of, split_words, write_words,
};

impl Dispatch {
    pub(super) fn await_tokens(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>, first: u32) -> Outcome {
        let run = cx.core.run_of(&first_slots(cx.core), first);
        if run.is_empty() {
            let at = Cursor::first(cx.core.work.slots.start, self.round.first_row);
            return self.go(Phase::Triples { at });
        }
        let reached = await_run(run.start, slots_of(cx.core.shape, run), |slot| {
            self.missing(cx.core, cx.fabric, Direct::TokenFlags, slot.source)
        })?;
        reached.then(|slot| self.go(Phase::AwaitTokens { slot }))
    }

    pub(super) fn triples(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>, mut at: Cursor) -> Outcome {
        let core = cx.core;
        let batch = batch(cx, at)?;
        if batch.len == 0 {
            return self.go(if core.id.0 == 0 { Phase::Table } else { Phase::Done });
        }
        let triple = direct::triple_of(self.info(core, at.row));
        let first = |rows: &Stretch| direct::info_behind(triple, rows.before);
        at.token = copy_triples(cx, &batch, &Column { first, pitch: direct::INFO }, at)?;
        self.go(match core.shape.row_format().scale {
            Some(_) => Phase::Scales { at },
            None => Phase::Triples { at: Cursor { token: at.token, ..batch.next } },
        })
    }

    pub(super) fn scales(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>, at: Cursor) -> Outcome {
        let batch = batch(cx, at)?;
        let scale = self.info(cx.core, at.row);
        let first = |rows: &Stretch| direct::info_behind(scale, rows.before);
        copy_scales(cx.fabric, &batch, &Column { first, pitch: direct::INFO }, at.row)?;
        self.go(Phase::Triples { at: batch.next })
    }

    /// Returns the place of scale and triple of a received row.
    #[inline(always)]
    fn info(&self, core: Core<'_>, row: u32) -> Place {
        direct::Parts::of(core.shape, core.rank, self.area(core)).info(row)
    }

    pub(super) fn table(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>) -> Outcome {
        let parts = direct::Parts::of(cx.core.shape, cx.core.rank, self.area(cx.core));
        let words = [parts.row(0), parts.result(0)]
            .into_iter()
            .flat_map(|at| [at.offset as u32, (at.offset >> 32) as u32]);
        write_words(cx.fabric, outputs::element(Tensor::RowTable, 0), words)?;
        self.go(Phase::Done)
    }
}

/// Returns the rows of one write, from `at` on.
#[inline(always)]
fn batch(cx: &mut Context<'_, impl Fabric + ?Sized>, at: Cursor) -> Result<Batch> {
    let core = cx.core;
    let counts = split_words(cx.scratch.words, &core.work.sends)?.table;
    Slots { counts, first: core.work.slots.start, end: core.work.slots.end }.batch(core, at, ROWS)
}
