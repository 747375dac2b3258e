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
//! A grant is a word for each (source, local expert), `L * R` for a rank, as many as there are counts. The other way to
//! let senders know is to publish all counts to all ranks: `R * E` words into each rank's memory, which for the
//! largest domain would be 6 MiB of flags in a state region of 1 MiB. A grant takes one hop more, and is the owner's own
//! word that it has ended the operators before. What that means for the areas stands in `docs/PROTOCOL.md`.

mod combine;
mod dispatch;

pub use combine::Combine;
pub use dispatch::Dispatch;

#[cfg(test)]
mod tests;
