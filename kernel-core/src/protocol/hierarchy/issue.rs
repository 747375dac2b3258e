//! The transport of a stream's records to another server.
//!
//! Stage 3: a core sends each record as a message, and then the end flag. Stage 2: a core gathers the records in WindowsOut
//! and writes one task for all of them; when all cores of the rank have done so, core 0 rings the agent, which posts the
//! tasks. Agent, doorbell and barrier are those of the full mesh ([`a2`](crate::protocol::a2)).

use super::Now;
use crate::fabric::{Fabric, Result};
use crate::layout::a2_message::{Task, task_word};
use crate::layout::relay;
use crate::place::Place;
use crate::protocol::Stage;
use crate::protocol::kit::{Core, DoorbellSequence, Outcome};
use crate::sync::barrier::{self};

/// Sends record number `record` of the stream to `server`, or gathers it for the agent.
pub(super) fn record<F: Fabric + ?Sized>(
    core: Now<'_>,
    fabric: &mut F,
    (server, record): (u32, u32),
    bytes: &[u8],
) -> Result<()> {
    let (shape, partition) = (core.shape, core.epoch.partition());
    match core.choices.stage {
        Stage::Three => {
            let at = relay::record(shape, partition, core.work.server, record);
            fabric.send(shape.relay(core.rank, server), at, bytes)?;
        }
        Stage::Two => {
            let at = relay::gathered(shape, (partition, core.epoch.kind), server, record);
            fabric.write(Place::window_out(at), bytes)?;
        }
    }
    Ok(())
}

/// Takes step number `step` of ending the stream to `server` after `records` records. Returns the next; `None` when done.
pub(super) fn end<F: Fabric + ?Sized>(
    core: Now<'_>,
    fabric: &mut F,
    (server, records): (u32, u32),
    step: u32,
) -> Result<Option<u32>> {
    let (shape, partition) = (core.shape, core.epoch.partition());
    let flag = relay::mark(core.epoch.word, records);
    if core.choices.stage == Stage::Three {
        let at = relay::end_flag(partition, core.work.server);
        fabric.send(shape.relay(core.rank, server), at, &flag.to_le_bytes())?;
        return Ok(None);
    }
    match step.checked_sub(1) {
        None => {
            let at = Place::window_out(relay::gathered_end(shape, partition, server));
            fabric.write(at, &flag.to_le_bytes())?;
        }
        Some(word) => {
            let task = Task::stream(shape, (partition, core.epoch.kind), core.rank, server, records);
            let value = task.to_words().get(word as usize).copied().unwrap_or_default();
            fabric.store(task_word(partition, shape.relay(core.rank, server), word), value)?;
        }
    }
    Ok((step < Task::WORDS).then_some(step + 1))
}

/// The steps of a core after it has ended its streams: in stage 2 the agent's doorbell is rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Issued {
    /// The last barrier that was passed or arrived at.
    epoch: u32,
    doorbell: DoorbellSequence,
}

impl Issued {
    pub(super) const fn new() -> Self {
        Self { epoch: 0, doorbell: DoorbellSequence::Rung }
    }

    /// Creates the state before the first stream.
    pub(super) fn begin<F: Fabric + ?Sized>(core: Core<'_>, fabric: &F) -> Result<Self> {
        match core.choices.stage {
            Stage::Two => {
                let epoch = barrier::current_epoch(fabric, core.id)?;
                Ok(Self { epoch, doorbell: DoorbellSequence::Quiet })
            }
            Stage::Three => Ok(Self::new()),
        }
    }

    /// Advances by one step; returns `Done` when nothing is left to do.
    pub(super) fn step<F: Fabric + ?Sized>(&mut self, core: Now<'_>, fabric: &mut F) -> Outcome {
        self.doorbell.step(core.core_ref(), fabric, &mut self.epoch, core.epoch.partition(), None)
    }
}
