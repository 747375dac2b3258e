//! The transport of a stream's records to another server.
//!
//! Stage 3: a core sends each record as a message, and then the end flag. Stage 2: a core gathers the records in WindowsOut
//! and writes one task for all of them; when all cores of the rank have done so, core 0 rings the agent, which posts the
//! tasks. Agent, doorbell and barrier are those of the full mesh ([`a2`](crate::protocol::a2)).

use super::{Bound, Now};
use crate::fabric::{Fabric, Result};
use crate::layout::a2_message::{Task, task_word};
use crate::layout::relay;
use crate::place::Place;
use crate::protocol::Stage;
use crate::protocol::kit::{DoorbellSequence, Outcome};
use crate::sync::barrier::{self, CoreRef};

/// Sends record number `record` of the stream to `server`, or gathers it for the agent.
pub(super) fn record<V, F: Fabric + ?Sized>(
    env: Now<'_, V>,
    fabric: &mut F,
    (server, record): (u32, u32),
    bytes: &[u8],
) -> Result<()> {
    let (shape, partition) = (env.shape, env.epoch.partition());
    match env.stage {
        Stage::Three => {
            let at = relay::record(shape, partition, env.work.server, record);
            fabric.send(shape.relay(env.rank, server), at, bytes)?;
        }
        Stage::Two => {
            let at = relay::gathered(shape, (partition, env.epoch.kind), server, record);
            fabric.write(Place::window_out(at), bytes)?;
        }
    }
    Ok(())
}

/// Takes step number `step` of ending the stream to `server` after `records` records. Returns the next; `None` when done.
pub(super) fn end<V, F: Fabric + ?Sized>(
    env: Now<'_, V>,
    fabric: &mut F,
    (server, records): (u32, u32),
    step: u32,
) -> Result<Option<u32>> {
    let (shape, partition) = (env.shape, env.epoch.partition());
    let flag = relay::mark(env.epoch.number, records);
    if env.stage == Stage::Three {
        let at = relay::end_flag(partition, env.work.server);
        fabric.send(shape.relay(env.rank, server), at, &flag.to_le_bytes())?;
        return Ok(None);
    }
    match step.checked_sub(1) {
        None => {
            let at = Place::window_out(relay::gathered_end(shape, partition, server));
            fabric.write(at, &flag.to_le_bytes())?;
        }
        Some(word) => {
            let task = Task::stream(shape, (partition, env.epoch.kind), env.rank, server, records);
            let value = task.to_words().get(word as usize).copied().unwrap_or_default();
            fabric.store(task_word(partition, shape.relay(env.rank, server), word), value)?;
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
    pub(super) fn begin<V, F: Fabric + ?Sized>(env: Bound<'_, V>, fabric: &F) -> Result<Self> {
        match env.stage {
            Stage::Two => {
                let epoch = barrier::current_epoch(fabric, env.core)?;
                Ok(Self { epoch, doorbell: DoorbellSequence::Quiet })
            }
            Stage::Three => Ok(Self::new()),
        }
    }

    /// Advances by one step; returns `Done` when nothing is left to do.
    pub(super) fn step<V, F: Fabric + ?Sized>(&mut self, env: Now<'_, V>, fabric: &mut F) -> Outcome {
        let core_ref = CoreRef { rank: env.rank, core: env.core, cores: env.shape.aiv_num() };
        self.doorbell.step(core_ref, fabric, &mut self.epoch, env.epoch.partition(), None)
    }
}
