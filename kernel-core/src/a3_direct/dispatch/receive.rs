//! The receiving half: learn where rows go and grant them; when they are there, check the triples and write them.

use super::{Dispatch, Phase};
use crate::a3::exchange::Exchange;
use crate::a3::steps::{self, ROWS, await_token_flag, count_of, split_words, write_words};
use crate::a3::{Env, Ub};
use crate::fabric::{Fabric, Progress, ProtocolError};
use crate::layout::landing;
use crate::layout::outputs;
use crate::layout::state::grant;
use crate::placement::Home;
use crate::plan::route;
use crate::shape::QuantMode;
use crate::sync::flag;
use crate::units::RankId;
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
        if slot >= env.work.slots.end {
            return self.go(Phase::Send { next: 0 });
        }
        let (_, counts) = split_words(ub.words, &env.work.sends)?;
        let count = *count_of(env, counts, slot)?;
        let (local_expert, source) = env.shape.by_ranks(slot);
        let destination = route::destination_of(env.shape, env.rank, local_expert);
        fabric.publish(RankId(source), grant(self.partition, destination), flag::status(row))?;
        // Cannot overflow: the sums of all cores are within the capacity.
        self.go(Phase::Grant { slot: slot + 1, row: row.saturating_add(count) })
    }

    pub(super) fn await_tokens<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        slot: u32,
        row: u32,
    ) -> Result<Progress, ProtocolError> {
        if slot >= env.work.slots.end {
            return self.go(if env.core.0 == 0 { Phase::Table } else { Phase::Done });
        }
        match await_token_flag(env.shape, fabric, self.partition, slot)? {
            Some(wait) => Ok(Progress::Pending(wait)),
            None => self.go(Phase::Triple { slot, index: 0, row, token: 0 }),
        }
    }

    pub(super) fn triple<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        ub: &mut Ub<'_>,
        (slot, index, row, token): At,
    ) -> Result<Progress, ProtocolError> {
        let (_, counts) = split_words(ub.words, &env.work.sends)?;
        let left = count_of(env, counts, slot)?.saturating_sub(index);
        if left == 0 {
            return self.go(Phase::AwaitTokens { slot: slot + 1, row });
        }
        let (local_expert, source) = env.shape.by_ranks(slot);
        let ends = (Home { rank: env.rank, local_expert }, RankId(source));
        let rows = left.min(ROWS);
        let at = |i| landing::triple_of(landing::info(env.shape, env.rank, self.area(env), row + i));
        let token = steps::copy_triples(env.shape, fabric, (rows, at), ends, (row, token))?;
        self.go(match env.shape.quant_mode() {
            QuantMode::None if rows == left => Phase::AwaitTokens { slot: slot + 1, row: row + rows },
            QuantMode::None => Phase::Triple { slot, index: index + rows, row: row + rows, token },
            QuantMode::Dynamic => Phase::Scale { slot, index, row, token },
        })
    }

    pub(super) fn scale<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        ub: &mut Ub<'_>,
        (slot, index, row, token): At,
    ) -> Result<Progress, ProtocolError> {
        let (_, counts) = split_words(ub.words, &env.work.sends)?;
        // Those whose triples were written last.
        let rows = count_of(env, counts, slot)?.saturating_sub(index).min(ROWS);
        let at = |i| landing::info(env.shape, env.rank, self.area(env), row + i);
        steps::copy_scales(fabric, (rows, at), row)?;
        self.go(Phase::Triple { slot, index: index + rows, row: row + rows, token })
    }

    pub(super) fn table<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
    ) -> Result<Progress, ProtocolError> {
        let area = self.area(env);
        let ends =
            [landing::row(env.shape, env.rank, area, 0), landing::result(env.shape, env.rank, area, 0)];
        let words = ends.iter().flat_map(|at| [at.offset as u32, (at.offset >> 32) as u32]);
        write_words(fabric, outputs::row_table(0), words)?;
        self.go(Phase::Done)
    }
}
