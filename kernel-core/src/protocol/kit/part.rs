//! Parts of dispatch that all layouts share. Each layout determines their order.

use super::exchange::Exchange;
use super::{Context, Core, Outcome, Staged, expand_idx, publish_counts, publish_token_flags, split_words};
use crate::fabric::{Fabric, Progress};
use crate::sync::barrier::Meeting;
use crate::sync::selector::Turn;

/// The state of a dispatch apart from its phase.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Round {
    pub(crate) turn: Turn,
    /// The last barrier that was passed or arrived at.
    pub(crate) epoch: u32,
    /// The row of the outputs at which the core's share begins, once counts are exchanged.
    pub(crate) first_row: u32,
    /// The number of rows of the whole rank, once counts are exchanged.
    pub(crate) total: u32,
    /// The end of the rows that this core copies, where cores split rows and not slots.
    pub(crate) end: Option<u32>,
    pub(crate) staged: Option<Staged>,
}

impl Round {
    /// Creates the state of a dispatch that has not begun.
    pub(crate) const fn new() -> Self {
        Self { turn: Turn::NONE, epoch: 0, first_row: 0, total: 0, end: None, staged: None }
    }
}

/// A part, in the phase of its next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Part {
    /// Publish flags and counts of the next destinations of this core's share.
    Publish { destination: u32 },
    /// Write this core's share of `expand_idx`.
    ExpandIdx { pair: u32 },
    /// Await the counts, exchange their sums, and write them.
    Exchange(Exchange),
    /// Meet the other cores.
    Meet(Meeting),
    /// Publish the `TokenFlag`s of the next destinations of this core's share.
    PublishTokens { destination: u32 },
}

phase_names! { Part: Publish ExpandIdx Exchange Meet PublishTokens }

impl Part {
    /// Creates the first phase of publishing counts.
    pub(crate) fn publish(core: Core<'_>) -> Self {
        Self::Publish { destination: core.work.destinations.start }
    }

    /// Creates the first phase of writing `expand_idx`.
    pub(crate) fn expand_idx(core: Core<'_>) -> Self {
        Self::ExpandIdx { pair: core.work.sends.moe.start }
    }

    pub(crate) const fn phase(&self) -> &'static str {
        match self {
            Self::Exchange(exchange) => exchange.phase(),
            Self::Meet(meeting) => meeting.name(),
            part => part.name(),
        }
    }

    /// Advances the part by one step.
    ///
    /// # Errors
    /// A value read from the fabric contradicts the shape, or the fabric refuses.
    #[inline(always)]
    pub(crate) fn step(&mut self, round: &mut Round, cx: &mut Context<'_, impl Fabric + ?Sized>) -> Outcome {
        let core = cx.core;
        match self {
            Self::Publish { destination } | Self::PublishTokens { destination }
                if *destination >= core.work.destinations.end =>
            {
                return Ok(Progress::Done);
            }
            Self::Publish { destination } => {
                *destination = publish_counts(cx, round.turn, *destination)?;
            }
            Self::PublishTokens { destination } => {
                *destination = publish_token_flags(cx, round.turn, *destination)?;
            }
            Self::ExpandIdx { pair } => {
                let slots = split_words(cx.scratch.words, &core.work.sends)?.slots;
                match expand_idx(cx.fabric, &core.work.sends.moe, slots, *pair)? {
                    Some(next) => *pair = next,
                    None => return Ok(Progress::Done),
                }
            }
            Self::Exchange(exchange) => return exchange.step(round, cx),
            Self::Meet(meeting) => return meeting.step(core.core_ref(), cx.fabric, &mut round.epoch),
        }
        Ok(Progress::Stepped)
    }
}
