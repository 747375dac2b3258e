//! fullmesh_v2 dispatch of one core: counts go first, block by block the records follow.
//!
//! ```text
//! who publishes counts    Select -> Quiet -> Arrive -> Barrier -> Publish* -> Records
//! who does not            Select -> Quiet -> Arrive -> Records -> Barrier
//! Records                 (Send -> (Put -> PublishBlock)+)*
//! then both               ExpandIdx* -> Exchange -> (Look -> Triple -> Data* -> Scale? -> Clear+)* -> Done
//! ```
//!
//! The core that puts a block publishes its flag, so nothing has to be quiet about records. What quiet and the
//! core barrier at the start are for are the clears of the operators before: a count says that all that its rank
//! read has been read, and all that it cleared is clear. So it is what makes this dispatch wait for all, also a
//! count of 0.
//!
//! Who publishes no counts need not wait at that barrier before it sends, but it must before the next one: nobody
//! else would have seen that the counting cores' words have landed, and they read them at the next start.

mod receive;
mod send;

use crate::fabric::{Progress, ProtocolError};
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
// A tag of its own: a step, and every poll, begins with reading it.
#[repr(u8)]
enum Phase {
    /// Take the partition, plan the sends.
    Select,
    /// A part that every layout has.
    Part(Part),
    /// Find the next record.
    Send { at: Cursor },
    /// Put a block of it.
    Put { send: Send, block: u32, next: Cursor },
    /// Publish that block's flag.
    PublishBlock { send: Send, block: u32, next: Cursor },
    /// Look for a record of which all blocks have arrived, from `slot` on and round.
    Look { slot: u32 },
    /// Copy the next record of `slot` to `row` of the outputs.
    Triple { slot: u32, row: u32 },
    /// The data in its block `block`.
    Data { slot: u32, row: u32, block: u32 },
    /// Its scale.
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
    /// A core's next dispatch.
    #[must_use]
    pub const fn new() -> Self {
        Self { round: Round::new(), phase: Phase::Select }
    }

    /// The name of the phase that the machine is in, for reports. A part's phase comes behind the name of the part.
    #[must_use]
    pub const fn phase(&self) -> &'static str {
        match &self.phase {
            Phase::Part(part) => part.phase(),
            phase => phase.name(),
        }
    }

    /// Goes on with the operator by one step.
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

    fn go(&mut self, phase: Phase) -> Result<Progress, ProtocolError> {
        self.phase = phase;
        Ok(Progress::Stepped)
    }

    /// What follows a part.
    fn after<V>(&self, env: Bound<'_, V>, part: Part) -> Phase {
        let records = Phase::Send { at: Cursor::default() };
        match part {
            Part::Quiet if env.shape.aiv_num() > 1 => Phase::Part(Part::Arrive),
            Part::Arrive if !counts_first(env) => records,
            Part::Arrive => Phase::Part(Part::Barrier),
            Part::Barrier if !counts_first(env) => Phase::Part(Part::expand_idx(env)),
            Part::Quiet | Part::Barrier => Phase::Part(Part::publish(env)),
            Part::ExpandIdx { .. } => Phase::Part(Part::Exchange(Exchange::new(env, &self.round))),
            Part::Exchange(_) => Phase::Look { slot: env.work.slots.start },
            // Nobody publishes `TokenFlag`s here.
            Part::Publish { .. } | Part::PublishTokens { .. } => records,
        }
    }
}

machine! { Dispatch }

/// Whether the core publishes counts: it waits at the barrier before it speaks for its rank.
fn counts_first<V>(env: Bound<'_, V>) -> bool {
    !env.work.destinations.is_empty()
}
