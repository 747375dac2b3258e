//! Pull combine of one core: announce its own results to all ranks; for each own token await the words of its experts'
//! ranks and sum the rows in place.
//!
//! ```text
//! Select -> Ready* -> (Await -> Sum -> (Add -> Rstd -> Norm)?)* -> Arrive -> Barrier -> Clear* -> Done
//! ```
//!
//! All cores of the owner read a word, so it is cleared after all of them have summed, even if its rank holds none of their
//! experts. This requires the barrier, and makes pull combine wait for all ranks, though no token does.

use super::ranks;
use crate::fabric::{Fabric, Flag, Progress, ProtocolError, Result, Wait};
use crate::layout::direct::{self, Area};
use crate::layout::outputs;
use crate::layout::row_table;
use crate::layout::state::{Operator, Partition, results_ready, selector};
use crate::place::Place;
use crate::placement::Home;
use crate::protocol::CombineInputs;
use crate::protocol::kit::sum::Output;
use crate::protocol::kit::{Context, Outcome, await_pairs, await_run, entry, given, sum, was_taken};
use crate::shape::Shape;
use crate::sync::barrier::{self, Meeting};
use crate::sync::flag;
use crate::sync::selector::{Turn, select};
use crate::units::{Pair, RankId, Token};
use crate::vector::Value;

/// The combine of one core.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Combine {
    turn: Turn,
    /// The last barrier that was passed.
    epoch: u32,
    /// The area of the results, on every rank.
    area: Area,
    phase: Phase,
}

phases! {
    enum Phase {
        /// Take the partition and the area of the results.
        Select => Ready,
        /// Announce its own results to the next ranks of this core's share.
        Ready { to: u32 } => Ready | Await,
        /// Await the words of the ranks of a token's experts, from column `k` on.
        Await { token: Token, k: u32 } => Await | Write | Meet | Clear,
        /// Write the outputs of a token, its sum first.
        Write { token: Token, output: Output } => Await | Write,
        /// Await all cores: then all own tokens are summed.
        Meet(Meeting) => Clear,
        /// Await and clear the words of the next ranks of this core's share.
        Clear { source: u32 } => Clear | Done,
        /// The operator has ended.
        Done =>,
    }
}

impl Combine {
    /// Creates a core's combine in its first phase.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            turn: Turn::NONE,
            epoch: 0,
            area: Area { number: 0, overwritten: false },
            phase: Phase::Select,
        }
    }

    /// Returns whether the core has published all its ready words.
    pub(crate) const fn has_sent(&self) -> bool {
        !matches!(self.phase, Phase::Select | Phase::Ready { .. })
    }

    /// Returns the last barrier that the core has passed.
    pub(crate) const fn epoch_mut(&mut self) -> &mut u32 {
        &mut self.epoch
    }

    /// Advances the operator by one step.
    #[inline(always)]
    pub(crate) fn advance(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>) -> Outcome {
        match self.phase {
            Phase::Select => self.select(cx),
            Phase::Ready { to } => self.ready(cx, to),
            Phase::Await { token, k } => self.await_token(cx, token, k),
            Phase::Write { token, output } => {
                let (core, combine_inputs, area) = (cx.core, cx.combine_inputs, self.area);
                let next = sum::write(cx, token, output, |fabric, pair, home| {
                    let at = combine_inputs.result_at(core.shape, core.rank, area, pair, home)?;
                    Ok(Value::Row(fabric.peer_bytes(home.rank, at, core.shape.row_bytes())?))
                })?;
                self.go(match next {
                    Some(output) => Phase::Write { token, output },
                    None => Phase::Await { token: Token(token.0 + 1), k: 0 },
                })
            }
            Phase::Meet(ref mut meeting) => meeting
                .step(cx.core.core_ref(), cx.fabric, &mut self.epoch)?
                .then(|| self.go(Phase::Clear { source: ranks(cx.core).start })),
            Phase::Clear { source } => self.clear(cx, source),
            Phase::Done => Ok(Progress::Done),
        }
    }

    fn select(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>) -> Outcome {
        let told = row_table::records(cx.combine_inputs.row_table, 2)
            .nth(1)
            .ok_or(given("row_table is too short"))?;
        let mut areas = [Partition::P0, Partition::P1].map(|p| cx.core.choices.receive.area(p)).into_iter();
        self.area = areas
            .find(|&area| direct::Parts::of(cx.core.shape, cx.core.rank, area).result(0) == told)
            .ok_or(ProtocolError::ResultsAt { seen: told.offset })?;
        self.epoch = barrier::current_epoch(cx.fabric, cx.core.id)?;
        let numbering = cx.core.numbering(Operator::Combine, cx.inputs);
        self.turn = select(cx.fabric, selector(Operator::Combine, cx.core.id), numbering)?;
        self.go(Phase::Ready { to: ranks(cx.core).start })
    }

    fn ready(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>, to: u32) -> Outcome {
        let now = cx.core.run_of(&ranks(cx.core), to);
        if now.is_empty() {
            return self.go(Phase::Await { token: Token(cx.core.work.tokens.start), k: 0 });
        }
        let end = now.end;
        for rank in now {
            let at = results_ready(self.turn.partition, cx.core.rank);
            let effect = cx.fabric.publish(RankId(rank), at, self.turn.tags.with(flag::ARRIVED));
            if !was_taken(rank > to, effect)? {
                return self.go(Phase::Ready { to: rank });
            }
        }
        self.go(Phase::Ready { to: end })
    }

    /// Returns the wait for the results of `source`, unless they are ready.
    fn missing<F: Fabric + ?Sized>(&self, fabric: &F, source: RankId) -> Result<Option<Wait>> {
        let at = results_ready(self.turn.partition, source);
        flag::missing(fabric, at, self.turn.tags, Wait::new(Flag::Results, source, &[]))
    }

    fn await_token(
        &mut self,
        cx: &mut Context<'_, impl Fabric + ?Sized>,
        token: Token,
        first: u32,
    ) -> Outcome {
        if cx.core.is_past_tokens(token.0, cx.inputs) {
            let alone = cx.core.shape.aiv_num() == 1;
            let source = ranks(cx.core).start;
            return self.go(if alone { Phase::Clear { source } } else { Phase::Meet(Meeting::Arrive) });
        }
        let missing = |_, home: Home| self.missing(cx.fabric, home.rank);
        match await_pairs(cx.core, cx.inputs, token, first, missing)? {
            Some(reached) => reached.then(|k| self.go(Phase::Await { token, k })),
            None => self.go(Phase::Write { token, output: Output::Sum }),
        }
    }

    fn clear(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>, first: u32) -> Outcome {
        let run = cx.core.run_of(&ranks(cx.core), first);
        if run.is_empty() {
            return self.go(Phase::Done);
        }
        let reached = await_run(run.start, run.map(RankId), |source| {
            if let Some(wait) = self.missing(cx.fabric, source)? {
                return Ok(Some(wait));
            }
            let effect = cx.fabric.store(results_ready(self.turn.partition, source), 0);
            Ok(if was_taken(source.0 > first, effect)? { None } else { Some(Wait::ROOM) })
        })?;
        reached.then(|source| self.go(Phase::Clear { source }))
    }
}

machine! { Combine of Direct (self): Phase::Write { output, .. } => output.name(), Phase::Meet(meeting) => meeting.name() }

impl CombineInputs<'_> {
    /// Returns the place where the expert at `home` wrote its result for a pair of `rank`'s.
    #[inline]
    fn result_at(&self, shape: &Shape, rank: RankId, area: Area, pair: Pair, home: Home) -> Result<Place> {
        let number = outputs::sent_row_number(shape, rank, pair);
        let seen = entry(self.sent_rows, number as usize);
        let parts = direct::Parts::of(shape, home.rank, area);
        match u32::try_from(seen) {
            Ok(row) if parts.has(row) => Ok(parts.result(row)),
            _ => {
                let max = shape.rows_max(home.rank);
                Err(ProtocolError::SentRow { token: pair.token.0, k: pair.k, seen: seen.into(), max })
            }
        }
    }
}
