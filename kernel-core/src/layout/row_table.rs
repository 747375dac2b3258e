//! The row table of in-place receive: for each received row where its record lies in the window, so that experts
//! read it there and nobody copies it out.
//!
//! ```text
//! row_table   rows_max entries of 8 B, in the order of `expand_x`: little-endian offset of the record in the window
//!                  |
//!                  '--> data of H elements, as `expand_x` would have them
//! ```
//!
//! With [direct placement](super::landing) rows lie one behind the other, and there are two entries: where they begin, and
//! where the experts' results go.
//!
//! Scales and triples are small and are written out: `dynamic_scales` and `assist_info_for_combine` are the same in
//! every mode. An entry is good until the experts of its batch have ended.

use crate::place::Place;
use crate::shape::{CommAlg, Shape};

/// Bytes of an entry.
pub const ENTRY: u64 = 8;

/// Whether the experts of a shape can read rows where they were put: a row must lie in one piece, and with a TP domain
/// the peer needs a copy of it anyway.
#[must_use]
pub const fn is_possible(shape: &Shape) -> bool {
    matches!(shape.comm_alg(), CommAlg::FullmeshV1) && shape.tp_world_size() == 1
}

/// The entry for a record of the window.
#[must_use]
pub const fn entry(record: Place) -> [u8; ENTRY as usize] {
    record.offset.to_le_bytes()
}

/// The records that the first `rows` entries of a table point at.
pub fn records(table: &[u8], rows: usize) -> impl Iterator<Item = Place> + '_ {
    let entries = table.as_chunks().0.iter().take(rows);
    entries.map(|&entry| Place::window(u64::from_le_bytes(entry)))
}
