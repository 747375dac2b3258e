//! A3 dispatch of one core: send, quiet, core barrier, publish, await, clear, sums, copy out.
//!
//! ```text
//! joint flags     Select -> Send* -> Quiet -> Arrive -> Barrier -> Publish*
//!                        -> ExpandIdx* -> Exchange -> CopyOut* -> Done
//! separate flags  Select -> Publish* -> Send* -> ExpandIdx* -> Exchange
//!                        -> Quiet -> Arrive -> Barrier -> PublishTokens* -> (AwaitTokens -> CopyOut*)* -> Done
//! ```
//!
//! With separate flags (910C guide, section 2.4) counts leave at once: every core has counted all pairs of its rank. The
//! exchange of counts overlaps the landing of its own records and those of other ranks. A count does not cover records or
//! clears; `TokenFlag` does, published after quiet and the core barrier as joint flags are. So every slot has a
//! `TokenFlag`, even one with a count of 0: it makes dispatch wait for all ranks.

mod receive;
mod send;
mod tp;

use super::tp::{Gather, built};
use crate::fabric::{Fabric, Progress};
use crate::protocol::Flags;
use crate::protocol::kit::{Context, Core, Cursor, Exchange, Outcome, Part, Round};
use crate::shape::Shape;
use crate::sync::barrier::Meeting;
use crate::sync::selector::Turn;

/// The dispatch of one core.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dispatch {
    round: Round,
    /// The turn of the TP domain's areas.
    tp_turn: Turn,
    phase: Phase,
}

phases! {
    // The tag has its own byte: every step and every poll begins with reading it.
    #[repr(u8)]
    enum Phase {
        /// Take the partition and plan the sends.
        Select => Send | Part | SelectTp,
        /// Put the records of the next pairs of this core's share.
        Send { next: u32 } => Send | Part,
        /// A part that all layouts share.
        Part(Part) => Send | Part | AwaitTokens | CopyOut,
        /// Take the partition of the TP domain.
        SelectTp => Send | Part,
        /// Await and clear the `TokenFlag` of a slot whose records go to `row` and the rows after it.
        AwaitTokens { slot: u32, row: u32 } => CopyOut | Gather | Done,
        /// Copy a field of the record at the cursor, and of some after it.
        CopyOut { at: Cursor, field: Field } => AwaitTokens | CopyOut | Gather | Done,
        /// TP = 2: lend the peer its own rows, gather the peer's.
        Gather(Gather) => Done,
        /// The operator has ended.
        Done =>,
    }
}

/// The fields of a record, in the order in which they are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Field {
    Triple,
    Data,
    /// The data of the rows after the first `done` of a batch, for which the fabric had no room before.
    Rest {
        done: u8,
    },
    Scale,
    /// TP = 2: the whole record, to the same row of the peer's.
    Peer,
}

impl Field {
    /// Returns the field that follows; `None` after the last one of a record.
    const fn next(self, shape: &Shape) -> Option<Self> {
        match self {
            Self::Triple => Some(Self::Data),
            Self::Data | Self::Rest { .. } if shape.row_format().scale.is_some() => Some(Self::Scale),
            Self::Data | Self::Rest { .. } | Self::Scale if shape.tp_world_size() == 2 => Some(Self::Peer),
            Self::Data | Self::Rest { .. } | Self::Scale | Self::Peer => None,
        }
    }
}

impl Dispatch {
    /// Creates a core's dispatch in its first phase.
    #[must_use]
    pub const fn new() -> Self {
        Self { round: Round::new(), tp_turn: Turn::NONE, phase: Phase::Select }
    }

    /// Returns whether the core has published all its flags and counts.
    pub(crate) fn has_sent(&self, core: Core<'_>) -> bool {
        match self.phase {
            Phase::Part(Part::ExpandIdx { .. } | Part::Exchange(_)) => {
                matches!(core.choices.flags, Flags::Joint)
            }
            Phase::Select | Phase::Send { .. } | Phase::Part(_) | Phase::SelectTp => false,
            Phase::AwaitTokens { .. } | Phase::CopyOut { .. } | Phase::Gather(_) | Phase::Done => true,
        }
    }

    /// Returns the last barrier that the core has passed.
    pub(crate) const fn epoch_mut(&mut self) -> &mut u32 {
        &mut self.round.epoch
    }

    /// Advances the operator by one step.
    #[inline(always)]
    pub(crate) fn advance(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>) -> Outcome {
        match self.phase {
            Phase::Select => self.select(cx),
            Phase::Send { next } => self.send(cx, next),
            Phase::Part(ref mut part) => match part.step(&mut self.round, cx)? {
                Progress::Done => match *part {
                    Part::Exchange(exchange) if cx.core.choices.flags == Flags::Joint => {
                        let first = self.first_to_copy(cx, &exchange)?;
                        self.go(first)
                    }
                    ended => self.go(self.after(cx.core, ended)),
                },
                progress => Ok(progress),
            },
            Phase::SelectTp => self.select_tp(cx),
            Phase::AwaitTokens { slot, row } => self.await_tokens(cx, slot, row),
            Phase::CopyOut { at, field } => self.copy_out(cx, at, field),
            Phase::Gather(ref mut gather) => {
                built()?;
                gather.step(cx)?.then(|| self.go(Phase::Done))
            }
            Phase::Done => Ok(Progress::Done),
        }
    }

    /// Returns the phase that follows a part.
    fn after(&self, core: Core<'_>, part: Part) -> Phase {
        let separate = core.choices.flags == Flags::Separate;
        match part {
            Part::Publish { .. } if separate => Phase::Send { next: 0 },
            Part::Publish { .. } => Phase::Part(Part::expand_idx(core)),
            Part::ExpandIdx { .. } => Phase::Part(Part::Exchange(Exchange::new(core))),
            Part::Exchange(_) => Phase::Part(Part::Meet(Meeting::Quiet)),
            Part::Meet(_) if separate => {
                Phase::Part(Part::PublishTokens { destination: core.work.destinations.start })
            }
            Part::Meet(_) => Phase::Part(Part::publish(core)),
            Part::PublishTokens { .. } => {
                Phase::AwaitTokens { slot: core.work.slots.start, row: self.round.first_row }
            }
        }
    }
}

machine! { Dispatch of A3 (self): Phase::Part(part) => part.phase(), Phase::Gather(gather) => gather.phase() }

fn first_to_send(core: Core<'_>) -> Phase {
    match core.choices.flags {
        Flags::Joint => Phase::Send { next: 0 },
        Flags::Separate => Phase::Part(Part::publish(core)),
    }
}
