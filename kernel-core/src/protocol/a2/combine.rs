//! A2 combine of one core: reorder the experts' results by rank, send, await, sum own tokens, clear all flags.
//!
//! ```text
//! Select -> Reorder* -> Send* -> Rows* -> Barrier -> Sum* -> Summed -> Clear* -> Done
//! ```
//!
//! A core awaits windows by rank and sums tokens whose rows are in all of them. Hence a barrier before the sums, and one
//! after them: a word that is cleared may be another core's payload.

use super::part::{Clear, Round, Send};
use super::split_words;
use crate::fabric::{Fabric, Progress, ProtocolError, Result};
use crate::layout::a2_window::{row, window_in};
use crate::layout::state::{Operator, Partition};
use crate::place::Place;
use crate::placement::Home;
use crate::plan::permute::{Cumsum, RecvCounts, cumulate};
use crate::plan::route;
use crate::plan::split::{self, DispatchShare};
use crate::protocol::CombineInputs;
use crate::protocol::kit::sum::write_x_out;
use crate::protocol::kit::{Context, Outcome, entry, room, rows_within};
use crate::shape::Shape;
use crate::sync::barrier::Meeting;
use crate::units::{ExpertId, Pair, RankId, Token, div_floor, div_rem};
use crate::vector::Value;

/// The A2 combine of one core.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Combine {
    round: Round,
    phase: Phase,
}

phases! {
    enum Phase {
        /// Take the half and count the rows.
        Select => Reorder,
        /// Write the next result of this core's share into the window to its owner.
        Reorder { row: u32, end: u32 } => Reorder | Send,
        /// Write the last flags of the windows to the ranks of this core's share and have them sent.
        Send(Send) => Rows,
        /// Await the window of the next rank of this core's share.
        Rows { source: u32 } => Rows | Barrier,
        /// Await all cores: then the windows of all ranks have arrived.
        Barrier(Meeting) => Sum,
        /// Sum the rows of a token into `x_out`.
        Sum { token: Token } => Sum | Summed,
        /// Await all cores: then all have summed.
        Summed(Meeting) => Clear,
        /// Clear the flags in the windows of this core's share.
        Clear(Clear) => Done,
        /// The operator has ended.
        Done =>,
    }
}

impl Combine {
    /// Creates a core's combine in its first phase.
    #[must_use]
    pub const fn new() -> Self {
        Self { round: Round::new(Operator::Combine), phase: Phase::Select }
    }

    /// Returns whether the rank's doorbell has been rung.
    pub(crate) const fn has_sent(&self) -> bool {
        !matches!(self.phase, Phase::Select | Phase::Reorder { .. } | Phase::Send(_))
    }

    /// Returns the last barrier that the core has passed.
    pub(crate) const fn epoch_mut(&mut self) -> &mut u32 {
        &mut self.round.epoch
    }

    /// Advances the operator by one step.
    pub(crate) fn advance(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>) -> Outcome {
        match self.phase {
            Phase::Select => self.select(cx),
            Phase::Reorder { row, end } => self.reorder(cx, row, end),
            Phase::Send(ref mut send) => send
                .step(&mut self.round, cx)?
                .then(|| self.go(Phase::Rows { source: cx.core.work.ranks.start })),
            Phase::Rows { source } => self.await_rows(cx, source),
            Phase::Barrier(ref mut meeting) => meeting
                .step(cx.core.core_ref(), cx.fabric, &mut self.round.epoch)?
                .then(|| self.go(Phase::Sum { token: Token(cx.core.work.tokens.start) })),
            Phase::Sum { token } => self.sum(cx, token),
            Phase::Summed(ref mut meeting) => meeting
                .step(cx.core.core_ref(), cx.fabric, &mut self.round.epoch)?
                .then(|| self.go(Phase::Clear(Clear::new(cx.core)))),
            Phase::Clear(ref mut clear) => clear.step(&self.round, cx)?.then(|| self.go(Phase::Done)),
            Phase::Done => Ok(Progress::Done),
        }
    }

    fn select(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>) -> Outcome {
        let words = split_words(cx.core, cx.scratch.words)?;
        let rows = cx.combine_inputs.read_counts(cx.core.shape, words.sums)?;
        // Dispatch has already determined the slots.
        let none = DispatchShare { moe: 0..0, shared: 0..0 };
        route::walk(cx.core.shape, cx.core.rank, cx.inputs, &none, words.sent, &mut []);
        cumulate(words.sent);
        self.round.begin(cx)?;
        let share = split::rows(cx.core.shape, rows, cx.core.id);
        self.go(Phase::Reorder { row: share.start, end: share.end })
    }

    fn reorder(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>, next: u32, end: u32) -> Outcome {
        if next >= end {
            return self.go(Phase::Send(Send::new(cx.core)));
        }
        let (owner, position) = split_words(cx.core, cx.scratch.words)?.recv_counts().source_of(next);
        let y = cx.combine_inputs.result(cx.core.shape, next)?;
        self.round.write_out(cx.core, cx.fabric, owner, row(cx.core.shape, position), y)?;
        self.go(Phase::Reorder { row: next + 1, end })
    }

    fn await_rows(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>, source: u32) -> Outcome {
        if source >= cx.core.work.ranks.end {
            return self.go(Phase::Barrier(Meeting::Arrive));
        }
        let rows = split_words(cx.core, cx.scratch.words)?.rows_from(Operator::Combine, RankId(source));
        self.round.await_rows(cx, RankId(source), rows)?.then(|| self.go(Phase::Rows { source: source + 1 }))
    }

    /// Computes the weighted sum of a token's rows straight from the windows.
    fn sum(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>, token: Token) -> Outcome {
        if cx.core.is_past_tokens(token.0, cx.inputs) {
            return self.go(Phase::Summed(Meeting::Arrive));
        }
        let core = cx.core;
        let words = split_words(core, cx.scratch.words)?;
        let (combine_inputs, half, sent) = (cx.combine_inputs, self.round.half, words.cumsum());
        let len = core.shape.row_bytes();
        let row = room(cx.scratch.row, len)?;
        write_x_out(core, cx.fabric, cx.inputs, token, row, |fabric, pair, home| {
            Ok(Value::Row(fabric.bytes(combine_inputs.returned_at(half, sent, pair, home)?, len)?))
        })?;
        self.go(Phase::Sum { token: Token(token.0 + 1) })
    }
}

machine! { Combine of A2 (self): Phase::Send(send) => send.phase() }

impl CombineInputs<'_> {
    /// Returns the place of the row of a pair in the windows of all ranks (A2 design, section 3.4.2: `TokenAddr`).
    fn returned_at(
        &self,
        half: Partition,
        sent: Cumsum<'_>,
        Pair { token, k }: Pair,
        home: Home,
    ) -> Result<Place> {
        let shape = sent.shape;
        let slots = sent.rows(ExpertId(home.rank.0 * shape.local_expert_num() + home.local_expert));
        let seen = entry(self.expand_idx, (token.0 * shape.k() + k) as usize);
        let Some(slot) = u32::try_from(seen).ok().filter(|&slot| slot < slots) else {
            return Err(ProtocolError::ExpandIdx { token: token.0, k, seen: seen.into(), slots });
        };
        Ok(window_in(shape, half, home.rank, row(shape, sent.position(home, slot))))
    }

    /// Reads `ep_recv_counts` into `sums` and checks every entry. Returns the number of rows.
    fn read_counts(&self, shape: &Shape, sums: &mut [u32]) -> Result<u32> {
        let mut min = 0;
        for (slot, to) in (0..).zip(sums.iter_mut()) {
            let seen = entry(self.ep_recv_counts, slot as usize);
            let source = RankId(div_rem(slot, shape.ep_world_size()).1);
            let max = min + shape.bs(source);
            match u32::try_from(seen) {
                Ok(sum) if min <= sum && sum <= max => *to = sum,
                _ => return Err(ProtocolError::RecvCount { slot, seen: seen.into(), min, max }),
            }
            min = *to;
        }
        let counts = RecvCounts { shape, sums };
        for source in (0..shape.ep_world_size()).map(RankId) {
            rows_within(counts.rows_from(source).into(), shape.rows_to_peer_max(source).into())?;
        }
        let max = div_floor(self.y.len() as u64, shape.row_bytes());
        if u64::from(min) > max {
            return Err(ProtocolError::RecvCounts { seen: min.into(), max });
        }
        Ok(min)
    }
}
