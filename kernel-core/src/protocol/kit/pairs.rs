//! The pairs of a token that return a row.

use super::Core;
use super::Reached;
use crate::fabric::{Result, Wait};
use crate::inputs::Inputs;
use crate::placement::Home;
use crate::plan::route;
use crate::units::{Pair, Token};

/// Returns the first column of `token` from `k` on that is sent to an expert, and that expert's location.
#[inline(always)]
pub(crate) fn next_pair(core: Core<'_>, inputs: &Inputs<'_>, token: Token, k: u32) -> Option<(u32, Home)> {
    let home = |k| route::home(core.shape, core.rank, inputs, Pair { token, k });
    (k..core.shape.combine_columns()).find_map(|k| Some((k, home(k)?)))
}

/// Awaits the rows of `token` from column `first` on; `missing` returns the wait for the row of a column from an expert.
/// Returns `None` when all have arrived, else the column to continue with.
#[inline(always)]
pub(crate) fn await_pairs(
    core: Core<'_>,
    inputs: &Inputs<'_>,
    token: Token,
    first: u32,
    missing: impl Fn(u32, Home) -> Result<Option<Wait>>,
) -> Result<Option<Reached>> {
    let mut next = first;
    while let Some((k, home)) = next_pair(core, inputs, token, next) {
        match missing(k, home)? {
            None => next = k + 1,
            Some(wait) if next == first => return Ok(Some(Reached::Missing(wait))),
            Some(_) => return Ok(Some(Reached::Next(next))),
        }
    }
    Ok(None)
}
