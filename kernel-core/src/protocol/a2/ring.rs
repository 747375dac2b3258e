//! The steps between the cores' writes and the agent: quiet, core barrier, doorbell.
//!
//! ```text
//! Quiet -> Barrier -> [core 0: (Flip -> Settle)? -> Ring] -> Rung
//! ```

use crate::fabric::{Fabric, Progress, ProtocolError, Wait};
use crate::layout::a2_message::doorbell;
use crate::layout::state::Partition;
use crate::place::Place;
use crate::plan::counts::ShareSum;
use crate::sync::barrier;
use crate::units::{CoreId, RankId};

/// A core that takes part in a barrier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CoreRef {
    pub(crate) rank: RankId,
    pub(crate) core: CoreId,
    /// The number of cores of the rank.
    pub(crate) cores: u32,
}

/// The state of a core at its rank's barriers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CoreBarrier {
    /// The last barrier that was passed or arrived at.
    epoch: u32,
    /// Whether this core waits for others at that barrier.
    arrived: bool,
}

impl CoreBarrier {
    /// Creates the state before the first operator.
    pub(crate) const fn new() -> Self {
        Self { epoch: 0, arrived: false }
    }

    /// Reads the last barrier.
    pub(crate) fn begin<F: Fabric + ?Sized>(fabric: &F, core: CoreId) -> Result<Self, ProtocolError> {
        Ok(Self { epoch: barrier::current_epoch(fabric, core)?, arrived: false })
    }

    /// Arrives at the next core barrier and waits there; returns `None` once all cores have arrived.
    pub(crate) fn cross<F: Fabric + ?Sized>(
        &mut self,
        core_ref: CoreRef,
        fabric: &mut F,
    ) -> Result<Option<Progress>, ProtocolError> {
        let CoreRef { rank, core, cores } = core_ref;
        if cores == 1 {
            return Ok(None);
        }
        if !self.arrived {
            barrier::arrive(fabric, rank, core, &mut self.epoch, ShareSum::default())?;
            self.arrived = true;
            return Ok(Some(Progress::Stepped));
        }
        if let Some(core) = barrier::missing(fabric, cores, core, self.epoch)? {
            return Ok(Some(Progress::Pending(Wait::barrier(core))));
        }
        self.arrived = false;
        Ok(None)
    }
}

/// The steps to the doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum DoorbellSequence {
    /// Wait until everything that this core wrote has landed, including clears of the previous operator.
    Quiet,
    /// Await all cores.
    Barrier,
    /// Choose the other half for the next operator (core 0 only).
    Flip,
    /// Wait until that has landed (core 0 only).
    Settle,
    /// Ring the agent's doorbell (core 0 only).
    Ring,
    /// The sequence has ended.
    Rung,
}

phase_names! { DoorbellSequence of "Send.": Quiet Barrier Flip Settle Ring Rung }

impl DoorbellSequence {
    /// Advances the sequence; returns `None` when the doorbell has been rung, or core 0 will ring it. `chosen` is the word
    /// that names the half, if the cores keep one.
    pub(crate) fn step<F: Fabric + ?Sized>(
        &mut self,
        core_ref: CoreRef,
        fabric: &mut F,
        barrier: &mut CoreBarrier,
        half: Partition,
        chosen: Option<Place>,
    ) -> Result<Option<Progress>, ProtocolError> {
        *self = match *self {
            Self::Quiet | Self::Settle if !fabric.quiet()? => {
                return Ok(Some(Progress::Pending(Wait::QUIET)));
            }
            Self::Quiet => Self::Barrier,
            Self::Barrier => match barrier.cross(core_ref, fabric)? {
                Some(progress) => return Ok(Some(progress)),
                None if core_ref.core.0 > 0 => Self::Rung,
                None if chosen.is_some() => Self::Flip,
                None => Self::Ring,
            },
            Self::Flip => {
                if let Some(at) = chosen {
                    fabric.store(at, half.flipped().index().into())?;
                }
                Self::Settle
            }
            Self::Settle => Self::Ring,
            Self::Ring => {
                ring(core_ref.rank, fabric, half)?;
                Self::Rung
            }
            Self::Rung => return Ok(None),
        };
        Ok(Some(Progress::Stepped))
    }
}

/// Core 0 alone publishes to the doorbell, and has been quiet since the last time, so it reads its own value.
fn ring<F: Fabric + ?Sized>(rank: RankId, fabric: &mut F, half: Partition) -> Result<(), ProtocolError> {
    let rung = fabric.observe(doorbell())?;
    if rung % 2 != half.index().into() {
        let next = rung.saturating_add(1);
        return Err(ProtocolError::Doorbell { seen: rung, min: next, max: next });
    }
    fabric.publish(rank, doorbell(), rung.wrapping_add(1))?;
    Ok(())
}
