//! The A3 data region of a rank, `hccl_buffsize_mb` (A3 slides, key designs 1 and 3).
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
//!                                  (910C guide, section 2.3)
//! ```
//!
//! On a shared-expert rank L is 1 and `slot` counts the source's active tokens, so the receiver needs no mask to find them.

use super::quantity::{Memory, number};
use super::state::Partition;
use super::table::places;
use crate::place::Place;
use crate::placement::Home;
use crate::shape::Shape;
use crate::units::{Offset, RankId, Token};

/// Returns the start of a partition.
#[inline]
#[must_use]
pub const fn partition_start(shape: &Shape, partition: Partition) -> Offset {
    partition.index() as u64 * number::HalfWindow(&Memory::of_any(shape))
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
    let indices = [partition.index(), home.rank.0, source.0, home.local_expert, slot];
    places::DispatchRecords(&Memory::of(shape, home.rank), indices)
}

/// Returns the place of the row that comes back for `(token, k)`, on the token's owner.
#[inline]
#[must_use]
pub const fn combine_row(shape: &Shape, partition: Partition, token: Token, k: u32) -> Place {
    places::CombineRows(&Memory::of_any(shape), [partition.index(), token.0, k])
}
