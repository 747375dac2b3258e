//! A3 dispatch of one core: send, quiet, core barrier, publish, await, clear, sums, copy out.
//!
//! ```text
//! joint flags     Select -> Send* -> Quiet -> Arrive -> Barrier -> Publish*
//!                        -> ExpandIdx* -> Exchange -> CopyOut* -> Done
//! separate flags  Select -> Publish* -> Send* -> ExpandIdx* -> Exchange
//!                        -> Quiet -> Arrive -> Barrier -> PublishTokens* -> (AwaitTokens -> CopyOut*)* -> Done
//! ```
//!
//! With separate flags (seed 004 section 2.4) counts leave at once: every core has counted all pairs of its rank.
//! The exchange of counts fills the time until the own records have landed, and those of others. A count says
//! nothing about records, nor about clears; `TokenFlag` does, published behind quiet and the core barrier as
//! joint flags are. So every slot has a `TokenFlag`, also one with a count of 0: it makes dispatch wait for all.

mod receive;
mod send;
mod tp;

use super::exchange::Exchange;
use super::tp::Gather;
use super::{Bound, Env, steps};
use crate::fabric::{Fabric, Progress, ProtocolError, Wait};
use crate::layout::state::Partition;
use crate::plan::counts::ShareSum;
use crate::protocol::a3::Cx;
use crate::protocol::{Flags, Outcome, Types};
use crate::sync::barrier;

/// The dispatch of one core.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dispatch {
    partition: Partition,
    /// Barrier passed last.
    epoch: u32,
    /// The row of the outputs that the own share begins with, once counts are exchanged.
    first_row: u32,
    /// The rows of the whole rank, likewise.
    total: u32,
    /// Of the TP domain's areas.
    tp_partition: Partition,
    staged: Option<steps::Staged>,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Take the partition, plan the sends.
    Select,
    /// Put the records of the next pairs of this core's share.
    Send { next: u32 },
    /// Everything that this core sent has landed, clears of the operator before included.
    Quiet,
    /// Tell the other cores so.
    Arrive,
    /// All cores are quiet.
    Barrier,
    /// Publish flags and counts of the next destinations of this core's share.
    Publish { destination: u32 },
    /// Publish the `TokenFlag`s of the next destinations of this core's share.
    PublishTokens { destination: u32 },
    /// Write this core's share of `expand_idx`.
    ExpandIdx { pair: u32 },
    /// Await the counts, exchange their sums, write them.
    Exchange(Exchange),
    /// Take the partition of the TP domain.
    SelectTp,
    /// Await and clear the `TokenFlag` of a slot whose records go to `row` and behind it.
    AwaitTokens { slot: u32, row: u32 },
    /// Copy record `index` of `slot` to `row` of the outputs, and some behind it. Tokens rise within a
    /// slot: unless it is the first, the record's is at least `token`.
    CopyOut { slot: u32, index: u32, row: u32, token: u32, part: Part },
    /// TP = 2: lend the peer the own rows, gather the peer's.
    Gather(Gather),
    /// The operator has ended.
    Done,
}

phase_names! { Phase:
    Select Send Quiet Arrive Barrier Publish PublishTokens ExpandIdx Exchange SelectTp AwaitTokens
    CopyOut Gather Done
}

/// The parts of a record, in the order of copying out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Part {
    Triple,
    Data,
    Scale,
    /// TP = 2: the whole of it, to the same row of the peer's.
    Peer,
}

impl Dispatch {
    /// A core's next dispatch.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            partition: Partition::P0,
            epoch: 0,
            first_row: 0,
            total: 0,
            tp_partition: Partition::P0,
            staged: None,
            phase: Phase::Select,
        }
    }

    /// The name of the phase that the machine is in, for reports. A part's phase comes behind the name of the part.
    #[must_use]
    pub const fn phase(&self) -> &'static str {
        match &self.phase {
            Phase::Exchange(exchange) => exchange.phase(),
            Phase::Gather(gather) => gather.phase(),
            phase => phase.name(),
        }
    }

    /// Goes on with the operator by one step.
    #[inline(always)]
    pub(crate) fn advance(&mut self, cx: &mut Cx<'_, impl Types>) -> Outcome {
        match self.phase {
            Phase::Select => self.select(cx),
            Phase::Send { next } => self.send(cx, next),
            Phase::Quiet => self.quiet(cx),
            Phase::Arrive => self.arrive(cx),
            Phase::Barrier => self.barrier(cx),
            Phase::Publish { destination } => self.publish(cx, destination),
            Phase::PublishTokens { destination } => self.publish_tokens(cx, destination),
            Phase::ExpandIdx { pair } => self.expand_idx(cx, pair),
            Phase::SelectTp => self.select_tp(cx),
            Phase::Exchange(exchange) => self.exchange(cx, exchange),
            Phase::AwaitTokens { slot, row } => self.await_tokens(cx, slot, row),
            Phase::CopyOut { slot, index, row, token, part } => {
                self.copy_out(cx, (slot, index, row, token), part)
            }
            Phase::Gather(gather) => self.gather(cx, gather),
            Phase::Done => Ok(Progress::Done),
        }
    }

    #[inline(always)]
    fn go(&mut self, phase: Phase) -> Result<Progress, ProtocolError> {
        self.phase = phase;
        Ok(Progress::Stepped)
    }

    fn quiet(&mut self, cx: &mut Cx<'_, impl Types>) -> Outcome {
        if !cx.fabric.quiet()? {
            return Ok(Progress::Pending(Wait::QUIET));
        }
        self.go(if cx.env.shape.aiv_num() == 1 { first_flag_behind_records(cx.env) } else { Phase::Arrive })
    }

    fn arrive(&mut self, cx: &mut Cx<'_, impl Types>) -> Outcome {
        self.epoch = barrier::next_epoch(self.epoch);
        barrier::arrive(cx.fabric, cx.env.rank, cx.env.core, self.epoch, ShareSum::default())?;
        self.go(Phase::Barrier)
    }

    fn barrier(&mut self, cx: &mut Cx<'_, impl Types>) -> Outcome {
        match barrier::missing(cx.fabric, cx.env.shape.aiv_num(), cx.env.core, self.epoch)? {
            Some(core) => Ok(Progress::Pending(Wait::barrier(core))),
            None => self.go(first_flag_behind_records(cx.env)),
        }
    }
}

machine! { Dispatch }

fn first_to_send<V>(env: Bound<'_, V>) -> Phase {
    match env.choices.flags {
        Flags::Joint => Phase::Send { next: 0 },
        Flags::Separate => Phase::Publish { destination: env.work.destinations.start },
    }
}

fn first_flag_behind_records<V>(env: Bound<'_, V>) -> Phase {
    let destination = env.work.destinations.start;
    match env.choices.flags {
        Flags::Joint => Phase::Publish { destination },
        Flags::Separate => Phase::PublishTokens { destination },
    }
}
