//! The regions of a TP domain of two ranks (V2 reference: `groupTp`), for data that the peer lends a rank. They are not part of
//! `hccl_buffsize_mb`.
//!
//! ```text
//! TP state, 1 MiB, zeroed; divided like the state region, with one slot of 32 B per core of the peer:
//!   partition p at p * 384 KiB: dispatch slots at +0, combine slots at +64 KiB
//!       +0  flag 1.0f and rows, one word      +8  first row, written before the flag
//!   768 KiB  selector records, dispatch      818 KiB  selector records, combine
//!
//! TP window, A = most rows that the rank can receive, without its peer's:
//!   partition p at p * (A * pitch + A * align(2H, 512)):
//!     +0          records   A, pitch apart, as in the window: the peer's received rows, by its row numbers
//!     +A * pitch  results   A, align(2H, 512) apart: results of the peer's experts for this rank's rows
//! ```

use super::affine::{Index, Named};
use super::field::FieldName;
use super::fixed::Fixed;
use super::quantity::{Memory, number};
use super::state::{self, Operator, Partition};
use super::table::places;
use crate::place::Place;
use crate::shape::Shape;
use crate::units::{CoreId, Offset, RankId};

/// The length of the TP state region in bytes.
pub const TP_STATE_BYTES: u64 = state::STATE_BYTES;

/// Returns the place of the slot of a core of the peer, for an operator kind.
#[must_use]
pub const fn slot(kind: Operator, partition: Partition, core: CoreId) -> Place {
    const OF_DISPATCH: Fixed<2> = Named::TpDispatchSlots.fixed([Index::Partition, Index::Core]);
    const OF_COMBINE: Fixed<2> = Named::TpCombineSlots.fixed([Index::Partition, Index::Core]);
    match kind {
        Operator::Dispatch => OF_DISPATCH.at(partition.index(), core.0),
        Operator::Combine => OF_COMBINE.at(partition.index(), core.0),
    }
}

/// Returns the place of the number of the first row that a slot announces.
#[must_use]
pub const fn first_row(slot: Place) -> Place {
    const FIRST_ROW: u64 = Named::TpDispatchSlots.field(FieldName::FirstRow);
    Place { offset: slot.offset + FIRST_ROW, ..slot }
}

/// Returns the place of a core's selector record for an operator kind. It is private to that core.
pub(crate) const fn selector(kind: Operator, core: CoreId) -> Place {
    const OF_DISPATCH: Fixed<1> = Named::TpDispatchSelectors.fixed([Index::Core]);
    const OF_COMBINE: Fixed<1> = Named::TpCombineSelectors.fixed([Index::Core]);
    match kind {
        Operator::Dispatch => OF_DISPATCH.at(core.0),
        Operator::Combine => OF_COMBINE.at(core.0),
    }
}

/// Returns the bytes of the TP window of EP rank `rank`.
#[must_use]
pub fn window_bytes(shape: &Shape, rank: RankId) -> u64 {
    partition_start(shape, rank, Partition::P1) * 2
}

/// Returns the start of a partition of the TP window on EP rank `rank`.
#[must_use]
pub fn partition_start(shape: &Shape, rank: RankId, partition: Partition) -> Offset {
    u64::from(partition.index()) * number::TpPartition(&Memory::of(shape, rank))
}

/// Returns the place of the record that the peer received as its row `row`, on EP rank `rank`.
#[must_use]
pub fn record(shape: &Shape, rank: RankId, partition: Partition, row: u32) -> Place {
    places::TpRecords(&Memory::of(shape, rank), [partition.index(), row])
}

/// Returns the place of the peer's result for this rank's row `row`, on EP rank `rank`.
#[must_use]
pub fn result(shape: &Shape, rank: RankId, partition: Partition, row: u32) -> Place {
    places::TpResults(&Memory::of(shape, rank), [partition.index(), row])
}
