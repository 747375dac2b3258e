//! The steps between the cores' writes and the agent: quiet, core barrier, doorbell.
//!
//! ```text
//! Quiet -> Barrier -> [core 0: (Flip -> Settle)? -> Ring] -> Rung
//! ```

use super::Outcome;
use crate::fabric::{Fabric, Progress, ProtocolError, Result, Wait};
use crate::layout::a2_message::doorbell;
use crate::layout::state::Partition;
use crate::place::Place;
use crate::sync::barrier::{CoreRef, Meeting};
use crate::units::RankId;

/// The steps to the doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum DoorbellSequence {
    /// Wait until everything that this core wrote has landed, including clears of the previous operator.
    Quiet,
    /// Await all cores.
    Barrier(Meeting),
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
    /// Advances by one step; returns `Done` when the doorbell has been rung, or core 0 will ring it. `epoch` is the last
    /// barrier that was passed or arrived at; `chosen` is the place of the word that names the half, if the cores keep one, and
    /// its value for the next operator.
    pub(crate) fn step<F: Fabric + ?Sized>(
        &mut self,
        core_ref: CoreRef,
        fabric: &mut F,
        epoch: &mut u32,
        half: Partition,
        chosen: Option<(Place, u64)>,
    ) -> Outcome {
        *self = match self {
            Self::Quiet | Self::Settle if !fabric.quiet()? => return Ok(Progress::Pending(Wait::QUIET)),
            Self::Quiet => Self::Barrier(Meeting::Arrive),
            Self::Barrier(meeting) => match meeting.step(core_ref, fabric, epoch)? {
                Progress::Done if core_ref.core.0 > 0 => Self::Rung,
                Progress::Done if chosen.is_some() => Self::Flip,
                Progress::Done => Self::Ring,
                progress => return Ok(progress),
            },
            Self::Flip => {
                if let Some((at, next)) = chosen {
                    fabric.store(at, next)?;
                }
                Self::Settle
            }
            Self::Settle => Self::Ring,
            Self::Ring => {
                ring(core_ref.rank, fabric, half)?;
                Self::Rung
            }
            Self::Rung => return Ok(Progress::Done),
        };
        Ok(Progress::Stepped)
    }
}

/// Core 0 alone publishes to the doorbell, and has been quiet since the last time, so it reads its own value.
fn ring<F: Fabric + ?Sized>(rank: RankId, fabric: &mut F, half: Partition) -> Result<()> {
    let rung = fabric.observe(doorbell())?;
    if rung % 2 != half.index().into() {
        let next = rung.saturating_add(1);
        return Err(ProtocolError::Doorbell { seen: rung, min: next, max: next });
    }
    fabric.publish(rank, doorbell(), rung.wrapping_add(1))?;
    Ok(())
}
