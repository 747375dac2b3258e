//! The row table of in-place receive: for each received row the place of its record in the window, so that experts read the
//! row there and it need not be copied out.
//!
//! ```text
//! row_table   rows_max entries of 8 B, in the order of `expand_x`: little-endian offset of the record in the window
//!                  |
//!                  '--> data of H elements, as `expand_x` would have them
//! ```
//!
//! With [direct placement](super::direct) rows are consecutive, and there are two entries: the start of the rows, and the
//! start of the experts' results.
//!
//! Scales and triples are small and are written out: `dynamic_scales` and `assist_info_for_combine` are the same in every
//! mode. An entry is valid until the experts of its batch have ended.

use crate::place::Place;
use crate::shape::{Protocol, Shape};

/// The length of an entry in bytes.
pub const ENTRY: u64 = 8;

/// Returns whether the experts of a shape can read rows where they were put: a row must be contiguous, and with a TP domain
/// the peer needs a copy of it anyway.
#[must_use]
pub const fn is_possible(shape: &Shape) -> bool {
    matches!(shape.protocol(), Protocol::FullmeshV1) && shape.tp_world_size() == 1
}

/// Returns the entry for a record of the window.
pub(crate) const fn entry(record: Place) -> [u8; ENTRY as usize] {
    record.offset.to_le_bytes()
}

/// Returns the records of the first `rows` entries of a table.
pub fn records(table: &[u8], rows: usize) -> impl Iterator<Item = Place> + '_ {
    let entries = table.as_chunks().0.iter().take(rows);
    entries.map(|&entry| Place::window(u64::from_le_bytes(entry)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::domain::{PAIR, shape};
    use crate::testing::random;
    use alloc::vec::Vec;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(random::config(256))]

        #[test]
        fn entries_come_back_as_records_and_no_further_than_rows_were_received(
            offsets in vec(any::<u64>(), 0..40), rows in 0usize..50, torn in vec(any::<u8>(), 0..8),
        ) {
            let mut table: Vec<u8> = offsets.iter().flat_map(|&offset| entry(Place::window(offset))).collect();
            prop_assert_eq!(table.len(), 8 * offsets.len());
            table.extend(torn);
            let seen: Vec<_> = records(&table, rows).collect();
            let want: Vec<_> = offsets.into_iter().take(rows).map(Place::window).collect();
            prop_assert_eq!(seen, want);
        }
    }

    #[test]
    fn contiguous_rows_without_a_tp_peer_are_read_in_place() {
        let possible = |comm_alg, tp_world_size| {
            let config = crate::shape::Config { comm_alg, tp_world_size, h: 8, ..PAIR.config() };
            is_possible(&shape(&config))
        };
        assert!(possible(Protocol::FullmeshV1, 0) && possible(Protocol::FullmeshV1, 1));
        assert!(!possible(Protocol::FullmeshV1, 2) && !possible(Protocol::FullmeshV2, 0));
        assert!(!possible(Protocol::Fullmesh, 0));
    }
}
