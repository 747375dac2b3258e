//! Awaiting several words in one step.

use super::Outcome;
use crate::fabric::{Progress, Result, Wait};

/// The progress of a step that awaits several words in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    /// All words before this number have arrived, at least one of them in this step.
    Next(u32),
    /// The first one has not.
    Missing(Wait),
}

impl Reached {
    /// Goes to the phase of the next word. A step that has reached none changes nothing.
    #[inline(always)]
    pub(crate) fn then(self, go: impl FnOnce(u32) -> Outcome) -> Outcome {
        match self {
            Self::Next(number) => go(number),
            Self::Missing(wait) => Ok(Progress::Pending(wait)),
        }
    }
}

/// Takes words in order until one is missing; the first has number `first`. `take` handles a word, or returns the wait for
/// it.
///
/// # Errors
/// The error of `take`.
#[inline(always)]
pub(crate) fn await_run<I>(
    first: u32,
    words: impl Iterator<Item = I>,
    mut take: impl FnMut(I) -> Result<Option<Wait>>,
) -> Result<Reached> {
    let mut number = first;
    for word in words {
        match take(word)? {
            None => number += 1,
            Some(wait) if number == first => return Ok(Reached::Missing(wait)),
            Some(_) => break,
        }
    }
    Ok(Reached::Next(number))
}
