//! The receiving half: learn where rows go and grant them; when they are there, check the triples and write them.

use super::{Dispatch, Phase};
use crate::fabric::{Fabric, Progress, ProtocolError};
use crate::layout::landing;
use crate::layout::outputs;
use crate::layout::state::Direct;
use crate::plan::route;
use crate::protocol::Ub;
use crate::protocol::a3::Env;
use crate::protocol::a3::exchange::Exchange;
use crate::protocol::a3::steps::{self, ROWS, Rows, Stretch, count_of, split_words, write_words};
use crate::sync::flag;
use crate::vector::Vector;

/// `slot`, `index`, `row`, least `token`.
type At = (u32, u32, u32, u32);

impl Dispatch {
    pub(super) fn exchange<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        ub: &mut Ub<'_>,
        mut exchange: Exchange,
    ) -> Result<Progress, ProtocolError> {
        let (_, counts) = split_words(ub.words, &env.work.sends)?;
        let progress = exchange.step(env, fabric, counts)?;
        match progress {
            Progress::Stepped => self.go(Phase::Exchange(exchange)),
            Progress::Pending(_) => Ok(progress),
            Progress::Done => {
                (self.epoch, self.first_row) = (exchange.epoch(), exchange.first_row());
                self.go(Phase::Grant { slot: env.work.slots.start, row: self.first_row })
            }
        }
    }

    /// Rows of this operator may come now: what was in their places has been read, or this rank would not be here.
    pub(super) fn grant<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        ub: &mut Ub<'_>,
        slot: u32,
        row: u32,
    ) -> Result<Progress, ProtocolError> {
        let own = &env.work.slots;
        if slot >= own.end {
            return self.go(Phase::Send { next: 0 });
        }
        let (_, counts) = split_words(ub.words, &env.work.sends)?;
        let now = env.run_of(own, slot);
        let end = now.end;
        let mut row = row;
        for (slot, local_expert, source) in steps::sources_of(env.shape, now) {
            let destination = route::destination_of(env.shape, env.rank, local_expert);
            fabric.publish(source, Direct::Grants.word(self.partition, destination), flag::status(row))?;
            // Cannot overflow: the sums of all cores are within the capacity.
            row = row.saturating_add(*count_of(env, counts, slot)?);
        }
        self.go(Phase::Grant { slot: end, row })
    }

    pub(super) fn await_tokens<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        slot: u32,
    ) -> Result<Progress, ProtocolError> {
        let own = &env.work.slots;
        if slot >= own.end {
            return self.go(Phase::Triples { slot: own.start, index: 0, row: self.first_row, token: 0 });
        }
        match steps::await_token_flags(env, fabric, self.partition, &(slot..own.end))? {
            Err(wait) => Ok(Progress::Pending(wait)),
            Ok(slot) => self.go(Phase::AwaitTokens { slot }),
        }
    }

    pub(super) fn triples<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        ub: &mut Ub<'_>,
        (slot, index, row, token): At,
    ) -> Result<Progress, ProtocolError> {
        let (rows, behind) = rows_from(env, ub, slot, index)?;
        if rows.len == 0 {
            return self.go(if env.core.0 == 0 { Phase::Table } else { Phase::Done });
        }
        let first = landing::triple_of(landing::Parts::of(env.shape, env.rank, self.area(env)).info(row));
        let at = |rows: &Stretch| landing::info_behind(first, rows.before);
        let token = steps::copy_triples(env, fabric, &rows, (at, landing::INFO), (row, token))?;
        self.go(match env.shape.row_format().scale {
            None => Phase::Triples { slot: behind.0, index: behind.1, row: row + rows.len, token },
            Some(_) => Phase::Scales { slot, index, row, token },
        })
    }

    pub(super) fn scales<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        ub: &mut Ub<'_>,
        (slot, index, row, token): At,
    ) -> Result<Progress, ProtocolError> {
        let (rows, behind) = rows_from(env, ub, slot, index)?;
        let first = landing::Parts::of(env.shape, env.rank, self.area(env)).info(row);
        let at = |rows: &Stretch| landing::info_behind(first, rows.before);
        steps::copy_scales(fabric, &rows, (at, landing::INFO), row)?;
        self.go(Phase::Triples { slot: behind.0, index: behind.1, row: row + rows.len, token })
    }

    pub(super) fn table<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
    ) -> Result<Progress, ProtocolError> {
        let parts = landing::Parts::of(env.shape, env.rank, self.area(env));
        let words = [parts.row(0), parts.result(0)]
            .into_iter()
            .flat_map(|at| [at.offset as u32, (at.offset >> 32) as u32]);
        write_words(fabric, outputs::row_table(0), words)?;
        self.go(Phase::Done)
    }
}

/// The rows from the `index`-th of `slot` on, as many as one write carries, and the slot and index behind them.
fn rows_from<V>(
    env: &Env<'_, V>,
    ub: &mut Ub<'_>,
    slot: u32,
    index: u32,
) -> Result<(Rows, (u32, u32)), ProtocolError> {
    let (_, counts) = split_words(ub.words, &env.work.sends)?;
    steps::rows(env, counts, slot..env.work.slots.end, index, ROWS)
}
