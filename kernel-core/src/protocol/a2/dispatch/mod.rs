//! A2 dispatch of one core: reorder own tokens, send, await, sum the counts, copy out, clear all flags.
//!
//! ```text
//! Select -> Reorder* -> Head* -> Send* -> ExpandIdx* -> (Counts -> Rows)*
//!        -> Barrier -> Matrix* -> RecvCounts* -> TokenNums* -> CopyOut* -> Clear* -> Done
//! ```
//!
//! Windows are awaited by rank, but rows are written by expert: after the barrier all windows have arrived, and every core
//! reads all their counts, so that cores need not exchange any.

mod receive;

use super::part::{Clear, Round, Send};
use super::split_words;
use crate::fabric::{Fabric, Progress};
use crate::layout::a2_window::{self, STATUS_FLAG};
use crate::layout::state::Operator;
use crate::plan::order::SendOrder;
use crate::plan::permute::cumulate;
use crate::plan::route::{self, Sends};
use crate::protocol::kit::{self, Context, Outcome, internal, room};
use crate::sync::barrier::Meeting;
use crate::units::RankId;

/// The A2 dispatch of one core.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dispatch {
    round: Round,
    staged: Option<kit::Staged>,
    phase: Phase,
}

phases! {
    enum Phase {
        /// Take the half and count the rows for each expert.
        Select => Reorder,
        /// Write the next pair of this core's tokens into the window to its rank.
        Reorder { next: u32 } => Reorder | Head,
        /// Write counts and FLAG1 of the window to a rank of this core's share.
        Head { to: u32 } => Head | Send,
        /// Write the last flags of these windows and have them sent.
        Send(Send) => ExpandIdx,
        /// Write this core's share of `expand_idx`.
        ExpandIdx { pair: u32 } => ExpandIdx | Counts,
        /// Await FLAG1 of the next rank of this core's share.
        Counts { source: u32 } => Rows | Barrier,
        /// Await its FLAG2, after `rows` rows.
        Rows { source: u32, rows: u32 } => Counts,
        /// Await all cores: then the windows of all ranks have arrived.
        Barrier(Meeting) => Matrix,
        /// Read the counts of the next one of all ranks.
        Matrix { source: u32 } => Matrix | RecvCounts,
        /// Write this core's share of `ep_recv_counts`.
        RecvCounts { slot: u32 } => RecvCounts | TokenNums,
        /// Write this core's share of `expert_token_nums`.
        TokenNums { local_expert: u32 } => TokenNums | CopyOut,
        /// Copy out a field of a row.
        CopyOut { at: Row, field: Field } => CopyOut | Clear,
        /// Clear the flags in the windows of this core's share.
        Clear(Clear) => Done,
        /// The operator has ended.
        Done =>,
    }
}

/// A received row: the `index`-th from `source` for an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Row {
    source: u32,
    local_expert: u32,
    index: u32,
}

impl Row {
    /// Creates the first row from `source`.
    const fn first(source: u32) -> Self {
        Self { source, local_expert: 0, index: 0 }
    }
}

/// The fields of a row, in the order in which they are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Field {
    Data,
    Scale,
}

impl Dispatch {
    /// Creates a core's dispatch in its first phase.
    #[must_use]
    pub const fn new() -> Self {
        Self { round: Round::new(Operator::Dispatch), staged: None, phase: Phase::Select }
    }

    /// Returns whether the rank's doorbell has been rung.
    pub(crate) const fn has_sent(&self) -> bool {
        !matches!(self.phase, Phase::Select | Phase::Reorder { .. } | Phase::Head { .. } | Phase::Send(_))
    }

    /// Returns the last barrier that the core has passed.
    pub(crate) const fn epoch_mut(&mut self) -> &mut u32 {
        &mut self.round.epoch
    }

    /// Advances the operator by one step.
    pub(crate) fn advance(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>) -> Outcome {
        match self.phase {
            Phase::Select => self.select(cx),
            Phase::Reorder { next } => self.reorder(cx, next),
            Phase::Head { to } => self.head(cx, to),
            Phase::Send(ref mut send) => send
                .step(&mut self.round, cx)?
                .then(|| self.go(Phase::ExpandIdx { pair: cx.core.work.sends.moe.start })),
            Phase::ExpandIdx { pair } => self.expand_idx(cx, pair),
            Phase::Counts { source } => self.await_counts(cx, source),
            Phase::Rows { source, rows } => self
                .round
                .await_rows(cx, RankId(source), rows)?
                .then(|| self.go(Phase::Counts { source: source + 1 })),
            Phase::Barrier(ref mut meeting) => meeting
                .step(cx.core.core_ref(), cx.fabric, &mut self.round.epoch)?
                .then(|| self.go(Phase::Matrix { source: 0 })),
            Phase::Matrix { source } => self.matrix(cx, source),
            Phase::RecvCounts { slot } => self.recv_counts(cx, slot),
            Phase::TokenNums { local_expert } => self.token_nums(cx, local_expert),
            Phase::CopyOut { at, field } => self.copy_out(cx, at, field),
            Phase::Clear(ref mut clear) => clear.step(&self.round, cx)?.then(|| self.go(Phase::Done)),
            Phase::Done => Ok(Progress::Done),
        }
    }

    fn select(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>) -> Outcome {
        self.round.begin(cx)?;
        let words = split_words(cx.core, cx.scratch.words)?;
        route::walk(cx.core.shape, cx.core.rank, cx.inputs, &cx.core.work.sends, words.sent, words.slots);
        cumulate(words.sent);
        self.go(Phase::Reorder { next: 0 })
    }

    fn reorder(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>, next: u32) -> Outcome {
        let words = split_words(cx.core, cx.scratch.words)?;
        // Rows go into own memory, so no other order would spare a peer.
        let (shape, order) = (cx.core.shape, SendOrder::Plain);
        let sends = Sends::new(shape, cx.core.rank, order, &cx.core.work.sends);
        let Some((item, send)) = sends.next(cx.inputs, words.slots, next) else {
            return self.go(Phase::Head { to: cx.core.work.ranks.start });
        };
        let at = a2_window::record(shape, words.cumsum().position(send.home, send.slot));
        let record = room(cx.scratch.row, shape.window_record())?;
        let (row, field) = record
            .split_at_mut_checked(shape.payload_bytes() as usize)
            .ok_or(internal("a record is shorter than its row"))?;
        let (payload, scale) = kit::payload(cx.core, cx.inputs, row, &mut self.staged, send)?;
        let record = match field.split_first_chunk_mut() {
            None => payload,
            Some((to, rest)) => {
                *to = scale.to_le_bytes();
                rest.fill(0);
                record
            }
        };
        self.round.write_out(cx.core, cx.fabric, send.home.rank, at, record)?;
        self.go(Phase::Reorder { next: item + 1 })
    }

    fn head(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>, to: u32) -> Outcome {
        if to >= cx.core.work.ranks.end {
            return self.go(Phase::Send(Send::new(cx.core)));
        }
        let mut status = split_words(cx.core, cx.scratch.words)?.cumsum().status(RankId(to));
        let [_, tag] = self.round.flag_words();
        if let Some(word) = status.get_mut(STATUS_FLAG + 1) {
            *word = tag;
        }
        let bytes = status.map(u32::to_le_bytes);
        self.round.write_out(cx.core, cx.fabric, RankId(to), 0, bytes.as_flattened())?;
        self.go(Phase::Head { to: to + 1 })
    }

    fn expand_idx(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>, pair: u32) -> Outcome {
        let words = split_words(cx.core, cx.scratch.words)?;
        self.go(match kit::expand_idx(cx.fabric, &cx.core.work.sends.moe, words.slots, pair)? {
            Some(pair) => Phase::ExpandIdx { pair },
            None => Phase::Counts { source: cx.core.work.ranks.start },
        })
    }
}

machine! { Dispatch of A2 (self): Phase::Send(send) => send.phase() }
