//! The context of a step.

use super::{Core, Scratch};
use crate::fabric::{Progress, Result};
use crate::inputs::Inputs;
use crate::protocol::CombineInputs;

/// Everything that a step works with. It stays the same from the first step of an operator to its last, except for the
/// fabric, which may be another view of the same memory.
#[derive(Debug)]
pub struct Context<'c, F: ?Sized> {
    /// The core.
    pub core: Core<'c>,
    /// The core's view of the memory of all ranks.
    pub fabric: &'c mut F,
    /// The rank's inputs of the round.
    pub inputs: &'c Inputs<'c>,
    /// The further inputs of combine. Dispatch reads none of them: [`CombineInputs::NONE`] will do.
    pub combine_inputs: &'c CombineInputs<'c>,
    /// The core's scratch.
    pub scratch: Scratch<'c>,
}

/// The outcome of a step.
pub(crate) type Outcome = Result<Progress>;
