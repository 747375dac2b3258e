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

use crate::fabric::{Progress, ProtocolError};
use crate::layout::direct::{Area, INFO};
use crate::place::Place;
use crate::protocol::a3::exchange::Exchange;
use crate::protocol::a3::part::{Part, Round};
use crate::protocol::a3::{Bound, Cx, Env, steps};
use crate::protocol::{Outcome, Types};
use crate::units::RankId;

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
    /// A part that every layout has. Behind its barrier all cores have read all grants that they need.
    Part(Part),
    /// Tell the sources of the next slots of this core's share that their rows go to `row` and behind it.
    Grant { slot: u32, row: u32 },
    /// Put the rows of the next pairs of this core's share where they were granted, and behind each its scale and triple.
    Send { next: u32 },
    /// Those of the row that was put last, for pair `item`.
    SendInfo { item: u32, info: Info },
    /// Write this core's share of `sent_rows`.
    SentRows { index: u32 },
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
    Select Part Grant Send SendInfo SentRows Clear AwaitTokens Triples Scales Table Done
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
                self.go(Phase::Part(Part::publish(cx.env)))
            }
            Phase::Part(part) => match part.step(&mut self.round, cx)? {
                Some(progress) => Ok(progress),
                None => {
                    let ended = *part;
                    self.go(self.after(cx.env, ended))
                }
            },
            &mut Phase::Grant { slot, row } => self.grant(cx, slot, row),
            &mut Phase::Send { next } => self.send(cx, next, None),
            &mut Phase::SendInfo { item, info } => self.send(cx, item, Some(info)),
            &mut Phase::SentRows { index } => self.sent_rows(cx, index),
            &mut Phase::Clear { destination } => self.clear(cx, destination),
            &mut Phase::AwaitTokens { slot } => self.await_tokens(cx, slot),
            &mut Phase::Triples { slot, index, row, token } => self.triples(cx, (slot, index, row, token)),
            &mut Phase::Scales { slot, index, row, token } => self.scales(cx, (slot, index, row, token)),
            &mut Phase::Table => self.table(cx),
            &mut Phase::Done => Ok(Progress::Done),
        }
    }

    #[inline(always)]
    fn go(&mut self, phase: Phase) -> Result<Progress, ProtocolError> {
        self.phase = phase;
        Ok(Progress::Stepped)
    }

    /// What follows a part.
    fn after<V>(&self, env: Bound<'_, V>, part: Part) -> Phase {
        match part {
            Part::Publish { .. } => Phase::Part(Part::expand_idx(env)),
            Part::ExpandIdx { .. } => Phase::Part(Part::Exchange(Exchange::new(env, &self.round))),
            Part::Exchange(_) => Phase::Grant { slot: env.work.slots.start, row: self.round.first_row },
            Part::Quiet if env.shape.aiv_num() > 1 => Phase::Part(Part::Arrive),
            Part::Arrive => Phase::Part(Part::Barrier),
            Part::Quiet | Part::Barrier => Phase::Part(Part::publish_tokens(env)),
            Part::PublishTokens { .. } => Phase::Clear { destination: env.work.destinations.start },
        }
    }

    fn area<V>(&self, env: Bound<'_, V>) -> Area {
        env.choices.receive.area(self.round.partition)
    }
}

machine! { Dispatch }
