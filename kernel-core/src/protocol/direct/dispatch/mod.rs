//! Dispatch with direct placement, of one core.
//!
//! ```text
//! Select -> Clear* -> PublishCounts* -> ExpandIdx* -> Await* -> (PutSums* -> ArriveWithSums)? -> Sums
//!        -> Grant* -> Exchange.Counts* -> (Send -> SendInfo)* -> SentRows* -> Quiet -> Arrive -> Barrier
//!        -> PublishTokens* -> AwaitTokens* -> (Triples -> Scales?)* -> Table? -> Done
//! ```
//!
//! For each rank of its share a core sends and awaits counts, and sends grants and `TokenFlag`s; all cores read the grants
//! and `TokenFlag`s that they need. So words are cleared at the start of the next dispatch, after the join, in the other
//! partition: before the quiet that precedes the `TokenFlag`s that let others use that partition again. By then all words
//! have arrived: a `TokenFlag` covers everything that its rank sent before, and some core awaits each.

mod exchange;
mod receive;
mod send;

use super::ranks;
use crate::fabric::{Fabric, Flag, Progress, Result, Wait};
use crate::layout::direct::{Area, INFO};
use crate::layout::state::Direct;
use crate::place::Place;
use crate::plan::counts::ShareSum;
use crate::protocol::kit::{self, Context, Core, Cursor, Outcome, Part, Round};
use crate::sync::{barrier, flag};
use crate::units::RankId;

/// The effects for each source when words are cleared.
const CLEARS: u32 = Direct::ALL.len() as u32;

/// The dispatch of one core.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dispatch {
    round: Round,
    phase: Phase,
}

phases! {
    // The tag has its own byte: every step and every poll begins with reading it.
    #[repr(u8)]
    enum Phase {
        /// Take the partition and plan the sends.
        Select => Clear,
        /// Clear the words of the previous dispatch, for the next sources of this core's share.
        Clear { next: u32 } => Clear | PublishCounts,
        /// Put the counts for the next ranks of this core's share, and publish their words.
        PublishCounts { next: u32 } => PublishCounts | Part,
        /// A part that all layouts share. After its barrier all rows of this rank have landed.
        Part(Part) => Await | Send | PublishTokens,
        /// Await the counts of the next sources of this core's share.
        Await { source: u32 } => Await | PutSums | ArriveWithSums | Sums,
        /// Put a piece of the sums of the share's counts where the other cores read them.
        PutSums { piece: u32 } => PutSums | ArriveWithSums,
        /// Announce the sums to the other cores.
        ArriveWithSums => Sums,
        /// Await the sums of all cores.
        Sums => Grant,
        /// Put grants for the next sources of this core's share, and publish their words; `of_expert` rows precede the first
        /// own slot of the local expert that it belongs to.
        Grant { next: u32, of_expert: u32 } => Part | Grant,
        /// Put the rows of the next pairs of this core's share where they were granted, each followed by its scale and triple.
        Send { next: u32 } => Send | SendInfo | SentRows,
        /// Put scale and triple of the row that was put last, for pair `item`.
        SendInfo { item: u32, info: Info } => Send | SendInfo | SentRows,
        /// Write this core's share of `sent_rows`.
        SentRows { index: u32 } => Part | SentRows,
        /// Publish the `TokenFlag`s for the next ranks of this core's share.
        PublishTokens { to: u32 } => PublishTokens | AwaitTokens,
        /// Await the `TokenFlag`s of the sources of this core's slots, from that of `slot` on.
        AwaitTokens { slot: u32 } => AwaitTokens | Triples,
        /// Write the triples of the rows from the cursor on, up to the limit of one write.
        Triples { at: Cursor } => Triples | Scales | Table | Done,
        /// Write the scales of those rows.
        Scales { at: Cursor } => Triples,
        /// Write the start of the rows and of the results (first core only).
        Table => Done,
        /// The operator has ended.
        Done =>,
    }
}

/// Scale and triple of a row that has been put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Info {
    to: RankId,
    at: Place,
    bytes: [u8; INFO as usize],
}

impl Dispatch {
    /// Creates a core's dispatch in its first phase.
    #[must_use]
    pub const fn new() -> Self {
        Self { round: Round::new(), phase: Phase::Select }
    }

    /// Returns whether the core has published all its token flags.
    pub(crate) const fn has_sent(&self) -> bool {
        matches!(
            self.phase,
            Phase::AwaitTokens { .. }
                | Phase::Triples { .. }
                | Phase::Scales { .. }
                | Phase::Table
                | Phase::Done
        )
    }

    /// Advances the operator by one step.
    #[inline(always)]
    pub(crate) fn advance(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>) -> Outcome {
        match self.phase {
            Phase::Select => {
                kit::begin(cx, &mut self.round)?;
                self.go(Phase::Clear { next: exchange::effects(cx.core, CLEARS).start })
            }
            Phase::Clear { next } => self.clear(cx, next),
            Phase::PublishCounts { next } => self.publish_counts(cx, next),
            Phase::Part(ref mut part) => match part.step(&mut self.round, cx)? {
                Progress::Done => {
                    let ended = *part;
                    self.go(self.after(cx.core, ended))
                }
                progress => Ok(progress),
            },
            Phase::Await { source } => self.await_counts(cx, source),
            Phase::PutSums { piece } => self.put_sums(cx, piece),
            Phase::ArriveWithSums => {
                let epoch = &mut self.round.epoch;
                barrier::arrive(cx.fabric, cx.core.rank, cx.core.id, epoch, ShareSum::default())?;
                self.go(Phase::Sums)
            }
            Phase::Sums => self.sums(cx),
            Phase::Grant { next, of_expert } => self.grant(cx, next, of_expert),
            Phase::Send { next } => self.send(cx, next, None),
            Phase::SendInfo { item, info } => self.send(cx, item, Some(info)),
            Phase::SentRows { index } => self.sent_rows(cx, index),
            Phase::PublishTokens { to } => self.publish_tokens(cx, to),
            Phase::AwaitTokens { slot } => self.await_tokens(cx, slot),
            Phase::Triples { at } => self.triples(cx, at),
            Phase::Scales { at } => self.scales(cx, at),
            Phase::Table => self.table(cx),
            Phase::Done => Ok(Progress::Done),
        }
    }

    /// Returns the phase that follows a part.
    fn after(&self, core: Core<'_>, part: Part) -> Phase {
        match part {
            Part::ExpandIdx { .. } => Phase::Await { source: ranks(core).start },
            Part::Exchange(_) => Phase::Send { next: 0 },
            // Other layouts use the two parts that publish.
            Part::Meet(_) | Part::Publish { .. } | Part::PublishTokens { .. } => {
                Phase::PublishTokens { to: ranks(core).start }
            }
        }
    }

    /// Returns the wait for this word of `source`, unless it has arrived.
    #[inline(always)]
    fn missing<F: Fabric + ?Sized>(
        &self,
        core: Core<'_>,
        fabric: &F,
        what: Direct,
        source: RankId,
    ) -> Result<Option<Wait>> {
        let flag = match what {
            Direct::Counts => Flag::Counts,
            Direct::Grants => Flag::Grant,
            Direct::TokenFlags => Flag::Tokens,
        };
        let at = what.word(core.shape, self.round.turn.partition, source);
        flag::missing(fabric, at, self.round.turn.tags, Wait::new(flag, source, &[]))
    }

    fn area(&self, core: Core<'_>) -> Area {
        core.choices.receive.area(self.round.turn.partition)
    }
}

machine! { Dispatch of Direct (self): Phase::Part(part) => part.phase() }
