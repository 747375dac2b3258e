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

use crate::fabric::Progress;
use crate::plan::experts::Cursor;
use crate::plan::route::Send;
use crate::protocol::a3::exchange::Exchange;
use crate::protocol::a3::part::{Part, Round};
use crate::protocol::a3::{Bound, Cx, Env, steps};
use crate::protocol::{Outcome, Types};

/// The dispatch of one core.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dispatch {
    round: Round,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
// The tag has its own byte: every step and every poll begins with reading it.
#[repr(u8)]
enum Phase {
    /// Take the partition and plan the sends.
    Select,
    /// A part that all layouts share.
    Part(Part),
    /// Find the next record.
    Send { at: Cursor },
    /// Put a block of it.
    Put { send: Send, block: u32, next: Cursor },
    /// Publish that block's flag.
    PublishBlock { send: Send, block: u32, next: Cursor },
    /// Find a record of which all blocks have arrived, from `slot` on, cyclically.
    Look { slot: u32 },
    /// Copy the next record of `slot` to `row` of the outputs.
    Triple { slot: u32, row: u32 },
    /// Copy the data in its block `block`.
    Data { slot: u32, row: u32, block: u32 },
    /// Copy its scale.
    Scale { slot: u32, row: u32 },
    /// Clear the flag of block `block`.
    Clear { slot: u32, block: u32 },
    /// The operator has ended.
    Done,
}

phase_names! { Phase:
    Select Part Send Put PublishBlock Look Triple Data Scale Clear Done
}

impl Dispatch {
    /// Creates a core's dispatch in its first phase.
    #[must_use]
    pub const fn new() -> Self {
        Self { round: Round::new(), phase: Phase::Select }
    }

    /// Advances the operator by one step.
    #[inline(always)]
    pub(crate) fn advance(&mut self, cx: &mut Cx<'_, impl Types>) -> Outcome {
        match &mut self.phase {
            &mut Phase::Select => {
                steps::select(cx, &mut self.round)?;
                self.go(Phase::Part(Part::Quiet))
            }
            Phase::Part(part) => match part.step(&mut self.round, cx)? {
                Some(progress) => Ok(progress),
                None => {
                    let ended = *part;
                    if let Part::Exchange(_) = ended {
                        receive::forget(cx)?;
                    }
                    self.go(self.after(cx.env, ended))
                }
            },
            &mut Phase::Send { at } => self.send(cx, at),
            &mut Phase::Put { send, block, next } => self.put(cx, (send, block, next)),
            &mut Phase::PublishBlock { send, block, next } => self.publish_block(cx, (send, block, next)),
            &mut Phase::Look { slot } => self.look(cx, slot),
            &mut Phase::Triple { slot, row } => self.triple(cx, slot, row),
            &mut Phase::Data { slot, row, block } => self.data(cx, (slot, row, block)),
            &mut Phase::Scale { slot, row } => self.scale(cx, slot, row),
            &mut Phase::Clear { slot, block } => self.clear(cx, slot, block),
            &mut Phase::Done => Ok(Progress::Done),
        }
    }

    /// Returns the phase that follows a part.
    fn after<V>(&self, env: Bound<'_, V>, part: Part) -> Phase {
        let records = Phase::Send { at: Cursor::default() };
        match part {
            Part::Quiet if env.shape.aiv_num() > 1 => Phase::Part(Part::Arrive),
            Part::Arrive if !counts_first(env) => records,
            Part::Arrive => Phase::Part(Part::Barrier),
            Part::Barrier if !counts_first(env) => Phase::Part(Part::expand_idx(env)),
            Part::Quiet | Part::Barrier => Phase::Part(Part::publish(env)),
            Part::ExpandIdx { .. } => Phase::Part(Part::Exchange(Exchange::new(env))),
            Part::Exchange(_) => Phase::Look { slot: env.work.slots.start },
            // `TokenFlag`s are not used here.
            Part::Publish { .. } | Part::PublishTokens { .. } => records,
        }
    }
}

machine! { Dispatch(self): Phase::Part(part) => part.phase() }

/// Returns whether the core publishes counts, and so waits at the barrier first.
fn counts_first<V>(env: Bound<'_, V>) -> bool {
    !env.work.destinations.is_empty()
}
