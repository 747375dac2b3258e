//! Dispatch with direct placement, of one core.
//!
//! ```text
//! Select -> Publish* -> ExpandIdx* -> Exchange -> Grant* -> (Send -> SendInfo)* -> SentRows*
//!        -> Quiet -> Arrive -> Barrier -> PublishTokens* -> Clear*
//!        -> AwaitTokens* -> (Triples -> Scales?)* -> Table? -> Done
//! ```
//!
//! Behind the barrier all cores of the rank have read the grants that they need, so each core clears those of its
//! destinations; also the grant of an expert that gets nothing is awaited first, or it would come when the operator is
//! over.

mod receive;
mod send;

use crate::fabric::{Fabric, Progress, ProtocolError, Wait};
use crate::layout::landing::{Area, INFO};
use crate::layout::state::Partition;
use crate::place::Place;
use crate::plan::counts::ShareSum;
use crate::protocol::a3::exchange::Exchange;
use crate::protocol::a3::{Bound, Cx, Env, steps};
use crate::protocol::{Outcome, Types};
use crate::sync::barrier;
use crate::units::RankId;

/// The dispatch of one core.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dispatch {
    partition: Partition,
    /// Barrier passed last.
    epoch: u32,
    /// The row that the own share begins with, once counts are exchanged.
    first_row: u32,
    staged: Option<steps::Staged>,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Take the partition, plan the sends.
    Select,
    /// Publish the counts of the next destinations of this core's share.
    Publish { destination: u32 },
    /// Write this core's share of `expand_idx`.
    ExpandIdx { pair: u32 },
    /// Await the counts, exchange their sums, write them.
    Exchange(Exchange),
    /// Tell the sources of the next slots of this core's share that their rows go to `row` and behind it.
    Grant { slot: u32, row: u32 },
    /// Put the rows of the next pairs of this core's share where they were granted, and behind each its scale and triple.
    Send { next: u32 },
    /// Those of the row that was put last, for pair `item`.
    SendInfo { item: u32, info: Info },
    /// Write this core's share of `sent_rows`.
    SentRows { index: u32 },
    /// Everything that this core sent has landed, clears of the operator before included.
    Quiet,
    /// Tell the other cores so.
    Arrive,
    /// All cores are quiet, and have read all grants that they need.
    Barrier,
    /// Publish the `TokenFlag`s of the next destinations of this core's share.
    PublishTokens { destination: u32 },
    /// Await and clear the grants of the next destinations of this core's share.
    Clear { destination: u32 },
    /// Await and clear the `TokenFlag`s of the next slots of this core's share.
    AwaitTokens { slot: u32 },
    /// Write the triples from the `index`-th row of `slot` on, which is `row`, as many as one write carries. Tokens rise
    /// within a slot: unless it is the first, that row's is at least `token`.
    Triples { slot: u32, index: u32, row: u32, token: u32 },
    /// Write their scales.
    Scales { slot: u32, index: u32, row: u32, token: u32 },
    /// The first core: write where the rows begin and where results go.
    Table,
    /// The operator has ended.
    Done,
}

phase_names! { Phase:
    Select Publish ExpandIdx Exchange Grant Send SendInfo SentRows Quiet Arrive Barrier PublishTokens
    Clear AwaitTokens Triples Scales Table Done
}

/// Scale and triple of a row that has been put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Info {
    to: RankId,
    at: Place,
    bytes: [u8; INFO as usize],
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
                self.go(Phase::Publish { destination: cx.env.work.destinations.start })
            }
            Phase::Publish { destination } => self.publish(cx, destination),
            Phase::ExpandIdx { pair } => self.expand_idx(cx, pair),
            Phase::Exchange(exchange) => self.exchange(cx, exchange),
            Phase::Grant { slot, row } => self.grant(cx, slot, row),
            Phase::Send { next } => self.send(cx, next, None),
            Phase::SendInfo { item, info } => self.send(cx, item, Some(info)),
            Phase::SentRows { index } => self.sent_rows(cx, index),
            Phase::Quiet if !cx.fabric.quiet()? => Ok(Progress::Pending(Wait::QUIET)),
            Phase::Quiet if cx.env.shape.aiv_num() == 1 => self.go(first_to_tell(cx.env)),
            Phase::Quiet => self.go(Phase::Arrive),
            Phase::Arrive => {
                self.epoch = barrier::next_epoch(self.epoch);
                barrier::arrive(cx.fabric, cx.env.rank, cx.env.core, self.epoch, ShareSum::default())?;
                self.go(Phase::Barrier)
            }
            Phase::Barrier => {
                match barrier::missing(cx.fabric, cx.env.shape.aiv_num(), cx.env.core, self.epoch)? {
                    Some(core) => Ok(Progress::Pending(Wait::barrier(core))),
                    None => self.go(first_to_tell(cx.env)),
                }
            }
            Phase::Clear { destination } => self.clear(cx, destination),
            Phase::PublishTokens { destination } => self.publish_tokens(cx, destination),
            Phase::AwaitTokens { slot } => self.await_tokens(cx, slot),
            Phase::Triples { slot, index, row, token } => self.triples(cx, (slot, index, row, token)),
            Phase::Scales { slot, index, row, token } => self.scales(cx, (slot, index, row, token)),
            Phase::Table => self.table(cx),
            Phase::Done => Ok(Progress::Done),
        }
    }

    #[inline(always)]
    fn go(&mut self, phase: Phase) -> Result<Progress, ProtocolError> {
        self.phase = phase;
        Ok(Progress::Stepped)
    }

    fn area<V>(&self, env: Bound<'_, V>) -> Area {
        env.choices.receive.area(self.partition)
    }
}

fn first_to_tell<V>(env: Bound<'_, V>) -> Phase {
    Phase::PublishTokens { destination: env.work.destinations.start }
}

machine! { Dispatch }
