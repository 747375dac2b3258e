//! Defects of a model itself: of its driver, its agents, its memory's fairness, what its ranks choose, and what the theorem's model
//! is told. Those of a memory or a fabric are beside each view, in `bent.rs`.

use super::liveness::Mover;
use crate::defects::Defect;
use veriep_core::fabric::order::{Issued, Kind};

impl Defect {
    /// Whether a core waits until the others of its rank have ended the operator before.
    pub(super) fn joins(self) -> bool {
        self != Self::NoJoin
    }

    /// Whether a core reads its barrier word again when it goes on with an operator.
    pub(super) fn resumes(self) -> bool {
        self != Self::StaleEpoch
    }

    /// Whether a core that waits makes a step of it.
    pub(super) fn polls(self) -> bool {
        matches!(self, Self::PollsByStepping | Self::TakesBack)
    }

    /// Whether a core is at its second poll in a row, by whether it was before its step, and whether it `moved` in that.
    pub(super) fn is_polled(self, before: bool, moved: bool) -> bool {
        match self {
            Self::TakesBack if moved => false,
            _ => before ^ (!moved && self.polls()),
        }
    }

    /// Whether a rank that begins a round behind an earlier one must be idle in it.
    pub(super) fn idles_late_ranks(self) -> bool {
        self == Self::EarlyGrants
    }

    /// Whether survivors of an elastic domain reach each other by the ids of its memory.
    pub(super) fn maps_ids(self) -> bool {
        self != Self::NewIds
    }

    /// Whether one who can move for good does so some time.
    pub(super) fn is_fair(self, mover: Mover) -> bool {
        self != match mover {
            Mover::Driver => Self::UnfairDriver,
            Mover::Agent => Self::UnfairAgent,
            Mover::Memory => Self::UnfairMemory,
        }
    }

    /// Whether the theorem's model is told that an effect has landed; `is_ahead` of an earlier one of its core.
    pub(super) fn tells(self, effect: &Issued, is_ahead: bool) -> bool {
        !(self == Self::UntoldClear && is_ahead && effect.kind == Kind::Store)
    }
}
