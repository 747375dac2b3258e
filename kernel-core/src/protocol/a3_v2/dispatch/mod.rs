//! fullmesh_v2 dispatch of one core: the counts go first, and the records follow block by block.
//!
//! ```text
//! publishing counts       Select -> Quiet -> Arrive -> Barrier -> Publish* -> Records
//! publishing none         Select -> Quiet -> Arrive -> Records -> Barrier
//! Records                 (Send -> (Put -> PublishBlock)+)*
//! then both               ExpandIdx* -> Exchange -> (Look -> Triple -> Data* -> Scale? -> Clear+)* -> Done
//! ```
//!
//! The core that puts a block publishes its flag, so records need no quiet. Quiet and the core barrier at the start serve
//! the clears of the previous operators: a count states that its rank has finished all its reads and that all its clears
//! have landed. So this dispatch waits for a count from every rank, even a count of 0.
//!
//! A core that publishes no counts need not wait at that barrier before it sends, but must before the next one: no other
//! core would have seen that the words of the publishing cores have landed, and they are read at the next start.

mod receive;
mod send;

use crate::fabric::{Fabric, Progress};
use crate::plan::experts::Cursor;
use crate::plan::route::Send;
use crate::protocol::kit::{self, Context, Core, Exchange, Outcome, Part, Round};
use crate::sync::barrier::Meeting;

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
        Select => Part,
        /// A part that all layouts share.
        Part(Part) => Part | Send | Look,
        /// Find the next record.
        Send { at: Cursor } => Part | Put,
        /// Put a block of it.
        Put { send: Send, block: u32, next: Cursor } => PublishBlock,
        /// Publish that block's flag.
        PublishBlock { send: Send, block: u32, next: Cursor } => Send | Put,
        /// Find a record of which all blocks have arrived, from `slot` on, cyclically.
        Look { slot: u32 } => CopyOut | Done,
        /// Copy record number `record` of `slot` to `row` of the outputs.
        CopyOut { slot: u32, record: u32, row: u32, field: Field } => Look | CopyOut,
        /// The operator has ended.
        Done =>,
    }
}

/// What is done with a record that has arrived, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Field {
    /// Copy the triple.
    Triple,
    /// Copy the data in block `block`.
    Data { block: u32 },
    /// Copy the scale.
    Scale,
    /// Clear the flag of block `block`.
    Clear { block: u32 },
}

phase_names! { Field: Triple Data Scale Clear }

impl Dispatch {
    /// Creates a core's dispatch in its first phase.
    #[must_use]
    pub const fn new() -> Self {
        Self { round: Round::new(), phase: Phase::Select }
    }

    /// Returns whether the core has published all its counts and blocks.
    pub(crate) const fn has_sent(&self) -> bool {
        match self.phase {
            Phase::Part(Part::ExpandIdx { .. } | Part::Exchange(_)) => true,
            Phase::Select
            | Phase::Part(_)
            | Phase::Send { .. }
            | Phase::Put { .. }
            | Phase::PublishBlock { .. } => false,
            Phase::Look { .. } | Phase::CopyOut { .. } | Phase::Done => true,
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
            Phase::Select => {
                kit::begin(cx, &mut self.round)?;
                self.go(Phase::Part(Part::Meet(Meeting::Quiet)))
            }
            Phase::Part(ref mut part) => match part.step(&mut self.round, cx)? {
                Progress::Done => {
                    let ended = *part;
                    if let Part::Exchange(_) = ended {
                        receive::forget(cx)?;
                    }
                    self.go(self.after(cx.core, ended))
                }
                // It has just arrived, and sends its records before it awaits the others.
                Progress::Stepped if *part == Part::Meet(Meeting::Barrier) && !counts_first(cx.core) => {
                    self.go(first_record())
                }
                progress => Ok(progress),
            },
            Phase::Send { at } => self.send(cx, at),
            Phase::Put { send, block, next } => self.put(cx, (send, block, next)),
            Phase::PublishBlock { send, block, next } => self.publish_block(cx, (send, block, next)),
            Phase::Look { slot } => self.look(cx, slot),
            Phase::CopyOut { slot, record, row, field } => self.copy_out(cx, (slot, record, row), field),
            Phase::Done => Ok(Progress::Done),
        }
    }

    /// Returns the phase that follows a part.
    fn after(&self, core: Core<'_>, part: Part) -> Phase {
        match part {
            Part::Meet(_) if counts_first(core) => Phase::Part(Part::publish(core)),
            Part::Meet(_) => Phase::Part(Part::expand_idx(core)),
            Part::ExpandIdx { .. } => Phase::Part(Part::Exchange(Exchange::new(core))),
            Part::Exchange(_) => Phase::Look { slot: core.work.slots.start },
            // `TokenFlag`s are not used here.
            Part::Publish { .. } | Part::PublishTokens { .. } => first_record(),
        }
    }
}

machine! { Dispatch of V2 (self): Phase::Part(part) => part.phase(), Phase::CopyOut { field, .. } => field.name() }

fn first_record() -> Phase {
    Phase::Send { at: Cursor::default() }
}

/// Returns whether the core publishes counts, and so waits at the barrier first.
fn counts_first(core: Core<'_>) -> bool {
    !core.work.destinations.is_empty()
}
