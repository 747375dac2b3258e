//! The pairs of a token that return a row.

use super::Bound;
use crate::inputs::Inputs;
use crate::placement::Home;
use crate::plan::route;
use crate::units::{Pair, Token};

/// Returns the first column of `token` from `k` on that is sent to an expert, and that expert's location.
#[inline(always)]
pub(crate) fn next_pair<V>(
    env: Bound<'_, V>,
    inputs: &Inputs<'_>,
    token: Token,
    k: u32,
) -> Option<(u32, Home)> {
    let home = |k| route::home(env.shape, env.rank, inputs, Pair { token, k });
    (k..env.shape.combine_columns()).find_map(|k| Some((k, home(k)?)))
}
