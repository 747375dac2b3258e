//! The course that both machines take: begin the operator, announce it to near ranks, then let the roles move alternately.

use super::{Epoch, Now, Turn, split_bytes};
use crate::fabric::{Fabric, Progress, Result, Wait};
use crate::layout::state::Operator;
use crate::protocol::kit::{Context, Core, Outcome};
use crate::units::RankId;

/// The progress of a core through an operator, whose work is split into three roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Course {
    epoch: Epoch,
    phase: Phase,
    turn: u8,
}

phases! {
    enum Phase {
        /// Take the epoch.
        Select => Enter | Work,
        /// Announce this operator to near ranks (core 0 only).
        Enter { near: u32 } => Enter | Work,
        /// The roles move.
        Work => Done,
        /// The operator has ended.
        Done =>,
    }
}

go! { Course }

impl Course {
    pub(super) const fn new(kind: Operator) -> Self {
        Self { epoch: Epoch::none(kind), phase: Phase::Select, turn: 0 }
    }

    /// Returns whether the next step is the first.
    pub(super) const fn begins(&self) -> bool {
        matches!(self.phase, Phase::Select)
    }

    /// Returns whether the operator has ended.
    pub(super) const fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Done)
    }

    /// Returns the name of the phase, or of the phase of the role whose turn it is.
    pub(super) const fn phase(&self, roles: [&'static str; 3]) -> &'static str {
        match &self.phase {
            Phase::Work => match self.turn {
                0 => roles[0],
                1 => roles[1],
                _ => roles[2],
            },
            phase => phase.name(),
        }
    }

    /// Advances the operator by one step. `split` gives the roles their words of scratch, and `role` lets one of them move.
    #[inline(always)]
    pub(super) fn advance<'c, F: Fabric + ?Sized, W>(
        &mut self,
        cx: &'c mut Context<'_, F>,
        split: impl FnOnce(Core<'c>, &'c mut [u32]) -> Result<W>,
        mut role: impl FnMut(usize, &mut Turn<'c, F, W>) -> Outcome,
    ) -> Outcome {
        let Context { core, fabric, inputs, combine_inputs, scratch } = cx;
        let (core, fabric) = (*core, &mut **fabric);
        match self.phase {
            Phase::Select => {
                self.epoch = Epoch::begin(core.numbering(self.epoch.kind, inputs), fabric, core.id)?;
                self.go(if core.id.0 == 0 { Phase::Enter { near: 0 } } else { Phase::Work })
            }
            Phase::Enter { near } if near < core.shape.server_ranks() => {
                Now { core, epoch: self.epoch }.enter(fabric, near)?;
                self.go(Phase::Enter { near: near + 1 })
            }
            Phase::Enter { .. } => self.go(Phase::Work),
            Phase::Work => {
                let (words, buffers) = (split(core, scratch.words)?, split_bytes(core.shape, scratch.row)?);
                let now = Now { core, epoch: self.epoch };
                let cx = &mut Turn::<F, W> { core: now, fabric, inputs, combine_inputs, words, buffers };
                let progress = by_turns::<3>(core.rank, &mut self.turn, |number| role(number, cx))?;
                if progress != Progress::Done {
                    return Ok(progress);
                }
                self.go(Phase::Done)
            }
            Phase::Done => Ok(Progress::Done),
        }
    }
}

/// Lets a role move, number `turn` if it can, else the next one that can, whose turn it is from then on: looking at what the
/// others wait for costs more than most steps. Returns [`Progress::Done`] once all have ended. If all wait, it reports a wait
/// for another rank than `own` rather than one for `own` itself.
// Inlined into each machine's step, where the compiler sees the few roles.
#[inline(always)]
fn by_turns<const N: usize>(own: RankId, turn: &mut u8, mut role: impl FnMut(usize) -> Outcome) -> Outcome {
    let mut pending = None;
    let mut next = usize::from(*turn);
    for _ in 0..N {
        let i = next;
        next = if i + 1 >= N { 0 } else { i + 1 };
        match role(i)? {
            Progress::Stepped => {
                *turn = i as u8;
                return Ok(Progress::Stepped);
            }
            Progress::Pending(wait) => {
                let foreign = |wait: &Wait| wait.source().is_some_and(|source| source != own);
                if pending.as_ref().is_none_or(|told| !foreign(told) && foreign(&wait)) {
                    pending = Some(wait);
                }
            }
            Progress::Done => {}
        }
    }
    Ok(pending.map_or(Progress::Done, Progress::Pending))
}
