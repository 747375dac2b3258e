//! The receiving half: when rows have arrived, check their triples and write them.

use super::exchange::first_slots;
use super::{Dispatch, Phase};
use crate::fabric::{Progress, Result};
use crate::layout::direct;
use crate::layout::outputs;
use crate::layout::state::Direct;
use crate::place::Tensor;
use crate::protocol::kit::{
    self, Bound, Cx, Outcome, ROWS, Rows, Scratch, Stretch, Types, split_words, write_words,
};

/// `slot`, `index`, `row`, and the least `token`.
type At = (u32, u32, u32, u32);

impl Dispatch {
    pub(super) fn await_tokens(&mut self, cx: &mut Cx<'_, impl Types>, first: u32) -> Outcome {
        let now = cx.env.run_of(&first_slots(cx.env), first);
        if now.is_empty() {
            let (slot, row) = (cx.env.work.slots.start, self.round.first_row);
            return self.go(Phase::Triples { slot, index: 0, row, token: 0 });
        }
        let end = now.end;
        for (slot, _, source) in kit::sources_of(cx.env.shape, now) {
            match self.missing(cx.env, cx.fabric, Direct::TokenFlags, source)? {
                None => {}
                Some(_) if slot > first => return self.go(Phase::AwaitTokens { slot }),
                Some(wait) => return Ok(Progress::Pending(wait)),
            }
        }
        self.go(Phase::AwaitTokens { slot: end })
    }

    pub(super) fn triples(&mut self, cx: &mut Cx<'_, impl Types>, (slot, index, row, token): At) -> Outcome {
        let (rows, behind) = rows_from(cx.env, &mut cx.scratch, slot, index)?;
        if rows.len == 0 {
            return self.go(if cx.env.core.0 == 0 { Phase::Table } else { Phase::Done });
        }
        let first =
            direct::triple_of(direct::Parts::of(cx.env.shape, cx.env.rank, self.area(cx.env)).info(row));
        let at = |rows: &Stretch| direct::info_behind(first, rows.before);
        let token = kit::copy_triples(cx, &rows, (at, direct::INFO), (row, token))?;
        self.go(match cx.env.shape.row_format().scale {
            None => Phase::Triples { slot: behind.0, index: behind.1, row: row + rows.len, token },
            Some(_) => Phase::Scales { slot, index, row, token },
        })
    }

    pub(super) fn scales(&mut self, cx: &mut Cx<'_, impl Types>, (slot, index, row, token): At) -> Outcome {
        let (rows, behind) = rows_from(cx.env, &mut cx.scratch, slot, index)?;
        let first = direct::Parts::of(cx.env.shape, cx.env.rank, self.area(cx.env)).info(row);
        let at = |rows: &Stretch| direct::info_behind(first, rows.before);
        kit::copy_scales(cx.fabric, &rows, (at, direct::INFO), row)?;
        self.go(Phase::Triples { slot: behind.0, index: behind.1, row: row + rows.len, token })
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

/// Returns the rows of one write, from the `index`-th of `slot` on, and the slot and index after them.
fn rows_from<V>(
    env: Bound<'_, V>,
    scratch: &mut Scratch<'_>,
    slot: u32,
    index: u32,
) -> Result<(Rows, (u32, u32))> {
    let (_, counts) = split_words(scratch.words, &env.work.sends)?;
    kit::rows(env, (counts, env.work.slots.start), slot..env.work.slots.end, index, ROWS)
}
