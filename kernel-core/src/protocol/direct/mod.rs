//! Direct placement, beside the seeds' protocol, which copies a token twice: dispatch puts each row once, where its
//! expert takes it, and combine sums results where their experts left them.
//!
//! ```text
//! dispatch   counts ->   each rank learns where the rows of every (expert, source) begin
//!            <- grants   and tells each source: this is where yours go, and they may
//!            rows ->     data, once, to the final row; scale and triple beside
//!            flags ->    as with separate flags
//! combine    flags ->    my results lie ready
//!            <- rows     each token's owner reads them in place ([`Fabric::peer_bytes`](crate::fabric::Fabric::peer_bytes))
//! ```
//!
//! Counts and grants of an ordered pair of ranks are a table each, put at once, and a word that speaks for it: `L` entries
//! of each for each source of a rank. The other way to let senders know is to tell all counts to all ranks: `R * E` entries
//! in each rank's memory, which for the largest domain would be 3 MiB in a state region of 1 MiB. Grants take one hop
//! more, and are the owner's own word that it has ended the operators before, and that all ranks have whose counts it had.
//! What that means for the areas, and for experts that overwrite, stands in `docs/PROTOCOL.md`.

mod combine;
mod dispatch;

pub use combine::Combine;
pub use dispatch::Dispatch;

use crate::plan::split;
use crate::protocol::a3::Bound;
use core::ops::Range;

/// The ranks that this core tells, and whose words it clears.
fn ranks<V>(env: Bound<'_, V>) -> Range<u32> {
    split::ranks(env.shape, env.core)
}

#[cfg(test)]
mod tests;
