//! The A3 data region of a rank, `hccl_buffsize_mb` (seed 002, key designs 1 and 3).
//!
//! ```text
//! partition p at p * size / 2:
//!   +0             combine area    max_bs * (K + S) rows, align(2H, 512) apart, with a port offset
//!                                  512 more if that is a multiple of 7 * 512,
//!                                  row = token * (K + S) + k; int8: result.rs
//!   +combine area  dispatch area   R * L * max_bs records, pitch apart,
//!                                  record = (source_rank * L + local_expert) * max_bs + slot
//!                                  (rank-major: not the order of the status slots),
//!                                  and (source_rank + owner_rank) * port_offset bytes more
//!                                  (seed 004 section 2.3)
//! ```
//!
//! On a shared-expert rank L is 1 and `slot` counts the source's active tokens, so the receiver needs no mask to find them.

use super::state::{Partition, combine_slot};
use crate::place::Place;
use crate::placement::Home;
use crate::shape::Shape;
use crate::units::{Offset, RankId, Token, div_floor};

/// Returns the start of a partition.
#[inline]
#[must_use]
pub const fn partition_start(shape: &Shape, partition: Partition) -> Offset {
    partition.index() as u64 * div_floor(shape.window_bytes(), 2)
}

/// Returns the bytes from the first record of one source rank to the first of the next, on `receiver`.
#[inline]
pub(crate) const fn source_stride(shape: &Shape, receiver: RankId) -> u64 {
    let records = shape.local_experts(receiver) as u64 * shape.bs_max() as u64;
    records * shape.record_pitch() + shape.port_offset()
}

/// Returns the place of the record of `source`'s row number `slot` for the expert at `home`, on `home.rank`.
#[inline]
#[must_use]
pub const fn dispatch_record(
    shape: &Shape,
    partition: Partition,
    home: Home,
    source: RankId,
    slot: u32,
) -> Place {
    let moved = home.rank.0 as u64 * shape.port_offset();
    let block = source.0 as u64 * source_stride(shape, home.rank) + moved;
    let record = home.local_expert as u64 * shape.bs_max() as u64 + slot as u64;
    let area = partition_start(shape, partition) + shape.combine_area();
    Place::window(area + block + record * shape.record_pitch())
}

/// Returns the place of the row that comes back for `(token, k)`, on the token's owner.
#[inline]
#[must_use]
pub const fn combine_row(shape: &Shape, partition: Partition, token: Token, k: u32) -> Place {
    let row = combine_slot(shape, token, k) as u64 * shape.combine_pitch();
    Place::window(partition_start(shape, partition) + row)
}
