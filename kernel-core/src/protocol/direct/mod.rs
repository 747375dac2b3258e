//! Direct placement, an alternative to the shipped protocol, which copies a token twice: dispatch puts each row once, where
//! its expert reads it, and combine sums results where their experts wrote them.
//!
//! ```text
//! dispatch   counts ->   each rank learns where the rows of every (expert, source) begin
//!            <- grants   and grants each source the rows where its own go
//!            rows ->     data, once, to the final row; scale and triple beside
//!            flags ->    as with separate flags
//! combine    flags ->    the sender's results are ready
//!            <- rows     each token's owner reads them in place ([`Fabric::peer_bytes`](crate::fabric::Fabric::peer_bytes))
//! ```
//!
//! Counts and grants of an ordered pair of ranks are each a table, put at once, and a word that covers it: `L` entries of
//! each for each source of a rank. The alternative is to send all counts to all ranks: `R * E` entries in each rank's
//! memory, which for the largest domain would be 3 MiB in a state region of 1 MiB. Grants take one hop more. A grant also
//! states that its rank has ended the previous operators, and so have all ranks whose counts it had received.
//! `docs/spec/a3.md` explains what follows for the areas, and for experts that overwrite.

mod combine;
mod dispatch;

pub use combine::Combine;
pub use dispatch::Dispatch;

use crate::plan::split;
use crate::protocol::kit::Core;
use core::ops::Range;

/// Returns the ranks to which this core sends, and whose words it clears.
fn ranks(core: Core<'_>) -> Range<u32> {
    split::ranks(core.shape, core.id)
}

#[cfg(test)]
mod tests;
