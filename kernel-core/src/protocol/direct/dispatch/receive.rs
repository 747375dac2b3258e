//! The receiving half: when rows have arrived, check their triples and write them.

use super::exchange::first_slots;
use super::{Dispatch, Phase};
use crate::fabric::Result;
use crate::layout::direct;
use crate::layout::outputs;
use crate::layout::state::Direct;
use crate::place::{Place, Tensor};
use crate::protocol::kit::{
    Batch, Bound, Column, Cursor, Cx, Outcome, ROWS, Slots, Stretch, Types, await_run, copy_scales,
    copy_triples, slots_of, split_words, write_words,
};

impl Dispatch {
    pub(super) fn await_tokens(&mut self, cx: &mut Cx<'_, impl Types>, first: u32) -> Outcome {
        let run = cx.env.run_of(&first_slots(cx.env), first);
        if run.is_empty() {
            let at = Cursor::first(cx.env.work.slots.start, self.round.first_row);
            return self.go(Phase::Triples { at });
        }
        let reached = await_run(run.start, slots_of(cx.env.shape, run), |slot| {
            self.missing(cx.env, cx.fabric, Direct::TokenFlags, slot.source)
        })?;
        reached.then(|slot| self.go(Phase::AwaitTokens { slot }))
    }

    pub(super) fn triples(&mut self, cx: &mut Cx<'_, impl Types>, mut at: Cursor) -> Outcome {
        let env = cx.env;
        let batch = batch(cx, at)?;
        if batch.len == 0 {
            return self.go(if env.core.0 == 0 { Phase::Table } else { Phase::Done });
        }
        let triple = direct::triple_of(self.info(env, at.row));
        let first = |rows: &Stretch| direct::info_behind(triple, rows.before);
        at.token = copy_triples(cx, &batch, &Column { first, pitch: direct::INFO }, at)?;
        self.go(match env.shape.row_format().scale {
            Some(_) => Phase::Scales { at },
            None => Phase::Triples { at: Cursor { token: at.token, ..batch.next } },
        })
    }

    pub(super) fn scales(&mut self, cx: &mut Cx<'_, impl Types>, at: Cursor) -> Outcome {
        let batch = batch(cx, at)?;
        let scale = self.info(cx.env, at.row);
        let first = |rows: &Stretch| direct::info_behind(scale, rows.before);
        copy_scales(cx.fabric, &batch, &Column { first, pitch: direct::INFO }, at.row)?;
        self.go(Phase::Triples { at: batch.next })
    }

    /// Returns the place of scale and triple of a received row.
    #[inline(always)]
    fn info<V>(&self, env: Bound<'_, V>, row: u32) -> Place {
        direct::Parts::of(env.shape, env.rank, self.area(env)).info(row)
    }

    pub(super) fn table(&mut self, cx: &mut Cx<'_, impl Types>) -> Outcome {
        let parts = direct::Parts::of(cx.env.shape, cx.env.rank, self.area(cx.env));
        let words = [parts.row(0), parts.result(0)]
            .into_iter()
            .flat_map(|at| [at.offset as u32, (at.offset >> 32) as u32]);
        write_words(cx.fabric, outputs::element(Tensor::RowTable, 0), words)?;
        self.go(Phase::Done)
    }
}

/// Returns the rows of one write, from `at` on.
#[inline(always)]
fn batch(cx: &mut Cx<'_, impl Types>, at: Cursor) -> Result<Batch> {
    let env = cx.env;
    let (_, counts) = split_words(cx.scratch.words, &env.work.sends)?;
    Slots { counts, first: env.work.slots.start, end: env.work.slots.end }.batch(env, at, ROWS)
}
