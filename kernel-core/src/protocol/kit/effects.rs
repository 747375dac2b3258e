//! Several effects in one step, of which the fabric may have room for some.

use crate::fabric::{Fault, Result};

/// Returns whether the fabric has taken an effect. If it has no room for it, a step that has `begun`, by an effect before, ends
/// there and keeps what it has done; a step that has not changes nothing.
///
/// # Errors
/// The fabric refuses, or has no room for the step's first effect.
#[inline(always)]
pub(crate) fn was_taken(begun: bool, effect: Result<(), Fault>) -> Result<bool> {
    match effect {
        Ok(()) => Ok(true),
        Err(fault) if begun && fault.is_busy() => Ok(false),
        Err(fault) => Err(fault.into()),
    }
}
