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

use crate::fabric::{Fabric, Progress, ProtocolError, Wait};
use crate::layout::state::Partition;
use crate::plan::counts::ShareSum;
use crate::plan::experts::Cursor;
use crate::plan::route::Send;
use crate::protocol::a3::exchange::Exchange;
use crate::protocol::a3::{Bound, Cx, Env, steps};
use crate::protocol::{Outcome, Types};
use crate::sync::barrier;

/// The dispatch of one core.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dispatch {
    partition: Partition,
    /// Barrier at which this core arrived last.
    epoch: u32,
    /// The row of the outputs that the own share begins with, once counts are exchanged.
    first_row: u32,
    staged: Option<steps::Staged>,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Take the partition, plan the sends.
    Select,
    /// Everything that this core did before has landed: clears.
    Quiet,
    /// Tell the other cores so.
    Arrive,
    /// All cores are quiet.
    Barrier,
    /// Publish flags and counts of the next destinations of this core's share.
    Publish { destination: u32 },
    /// Find the next record.
    Send { at: Cursor },
    /// Put a block of it.
    Put { send: Send, block: u32, next: Cursor },
    /// Publish that block's flag.
    PublishBlock { send: Send, block: u32, next: Cursor },
    /// Write this core's share of `expand_idx`.
    ExpandIdx { pair: u32 },
    /// Await the counts, exchange their sums, write them.
    Exchange(Exchange),
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
    Select Quiet Arrive Barrier Publish Send Put PublishBlock ExpandIdx Exchange Look Triple Data Scale
    Clear Done
}

impl Dispatch {
    /// A core's next dispatch.
    #[must_use]
    pub const fn new() -> Self {
        Self { partition: Partition::P0, epoch: 0, first_row: 0, staged: None, phase: Phase::Select }
    }

    /// The name of the phase that the machine is in, for reports. A part's phase comes behind the name of the part.
    #[must_use]
    pub const fn phase(&self) -> &'static str {
        match &self.phase {
            Phase::Exchange(exchange) => exchange.phase(),
            phase => phase.name(),
        }
    }

    /// Goes on with the operator by one step.
    #[inline(always)]
    pub(crate) fn advance(&mut self, cx: &mut Cx<'_, impl Types>) -> Outcome {
        match self.phase {
            Phase::Select => {
                (self.partition, self.epoch) = steps::select(cx)?;
                self.go(Phase::Quiet)
            }
            Phase::Quiet => self.quiet(cx),
            Phase::Arrive => self.arrive(cx),
            Phase::Barrier => self.barrier(cx),
            Phase::Publish { destination } => self.publish(cx, destination),
            Phase::Send { at } => self.send(cx, at),
            Phase::Put { send, block, next } => self.put(cx, (send, block, next)),
            Phase::PublishBlock { send, block, next } => self.publish_block(cx, (send, block, next)),
            Phase::ExpandIdx { pair } => self.expand_idx(cx, pair),
            Phase::Exchange(exchange) => self.exchange(cx, exchange),
            Phase::Look { slot } => self.look(cx, slot),
            Phase::Triple { slot, row } => self.triple(cx, slot, row),
            Phase::Data { slot, row, block } => self.data(cx, (slot, row, block)),
            Phase::Scale { slot, row } => self.scale(cx, slot, row),
            Phase::Clear { slot, block } => self.clear(cx, slot, block),
            Phase::Done => Ok(Progress::Done),
        }
    }

    fn go(&mut self, phase: Phase) -> Result<Progress, ProtocolError> {
        self.phase = phase;
        Ok(Progress::Stepped)
    }

    fn quiet(&mut self, cx: &mut Cx<'_, impl Types>) -> Outcome {
        if !cx.fabric.quiet()? {
            return Ok(Progress::Pending(Wait::QUIET));
        }
        self.go(if cx.env.shape.aiv_num() == 1 { first_count(cx.env) } else { Phase::Arrive })
    }

    fn arrive(&mut self, cx: &mut Cx<'_, impl Types>) -> Outcome {
        self.epoch = barrier::next_epoch(self.epoch);
        barrier::arrive(cx.fabric, cx.env.rank, cx.env.core, self.epoch, ShareSum::default())?;
        self.go(if counts_first(cx.env) { Phase::Barrier } else { Phase::Send { at: Cursor::default() } })
    }

    fn barrier(&mut self, cx: &mut Cx<'_, impl Types>) -> Outcome {
        match barrier::missing(cx.fabric, cx.env.shape.aiv_num(), cx.env.core, self.epoch)? {
            Some(core) => Ok(Progress::Pending(Wait::barrier(core))),
            None if counts_first(cx.env) => self.go(first_count(cx.env)),
            None => self.go(first_index(cx.env)),
        }
    }
}

machine! { Dispatch }

/// Whether the core publishes counts: it waits at the barrier before it speaks for its rank.
fn counts_first<V>(env: Bound<'_, V>) -> bool {
    !env.work.destinations.is_empty()
}

fn first_index<V>(env: Bound<'_, V>) -> Phase {
    Phase::ExpandIdx { pair: env.work.sends.moe.start }
}

fn first_count<V>(env: Bound<'_, V>) -> Phase {
    Phase::Publish { destination: env.work.destinations.start }
}
