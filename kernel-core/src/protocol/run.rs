//! The outcome of a run of steps.

use crate::fabric::{Progress, ProtocolError, Result, Wait};

/// The reason why a run of steps ended without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Run {
    /// The operator has ended.
    Done,
    /// The machine can take no further step: it lacks this.
    Waiting(Wait),
    /// The machine has taken as many steps as it may, and may be able to take more.
    Budget,
}

/// The outcome of a run of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct Ran {
    /// The number of steps that moved the machine. The step in which an operator ends is not counted, nor one that fails.
    pub steps: u32,
    /// The reason why the run ended.
    pub end: Result<Run, ProtocolError>,
}

impl Ran {
    /// Creates the outcome of a run that failed before its first step.
    pub const fn failed(error: ProtocolError) -> Self {
        Self { steps: 0, end: Err(error) }
    }

    /// Returns the outcome of a run of one step as a step's.
    ///
    /// # Errors
    /// The step failed.
    #[inline(always)]
    pub(crate) fn progress(self) -> Result<Progress> {
        self.end.map(|end| match end {
            Run::Done => Progress::Done,
            Run::Waiting(wait) => Progress::Pending(wait),
            Run::Budget => Progress::Stepped,
        })
    }
}

/// Makes of an effect for which the fabric had no room a wait.
pub(super) fn pending_if_busy(step: Result<Progress>) -> Result<Progress> {
    match step {
        Err(ProtocolError::Fault(fault)) if fault.is_busy() => Ok(Progress::Pending(Wait::ROOM)),
        other => other,
    }
}

/// A step's outcome as a run of one step.
impl From<Result<Progress>> for Ran {
    fn from(step: Result<Progress>) -> Self {
        let (steps, end) = match pending_if_busy(step) {
            Ok(Progress::Stepped) => (1, Ok(Run::Budget)),
            Ok(Progress::Pending(wait)) => (0, Ok(Run::Waiting(wait))),
            Ok(Progress::Done) => (0, Ok(Run::Done)),
            Err(error) => (0, Err(error)),
        };
        Self { steps, end }
    }
}

/// Takes at most `budget` steps, until the outcome is another than a step.
///
/// It is compiled once for each machine, so that none keeps room on the stack for what another one needs.
#[inline(never)]
pub(super) fn drive(budget: u32, mut step: impl FnMut() -> Result<Progress>) -> Ran {
    for steps in 0..budget {
        match step() {
            Ok(Progress::Stepped) => {}
            // Errors and waits are handled outside, so a step costs one comparison.
            other => return Ran { steps, ..other.into() },
        }
    }
    Ran { steps: budget, end: Ok(Run::Budget) }
}
