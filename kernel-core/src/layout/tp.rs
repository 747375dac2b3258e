//! The regions of a TP domain of two ranks (seed 003: `groupTp`), for data that the peer lends a rank. They are not part of
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

use super::state::{self, Operator, Partition};
use crate::place::{Place, Region};
use crate::shape::Shape;
use crate::units::{CoreId, Offset, RankId};

/// The length of the TP state region in bytes.
pub const TP_STATE_BYTES: u64 = state::STATE_BYTES;

/// Returns the place of the slot of a core of the peer, for an operator kind.
#[must_use]
pub const fn slot(kind: Operator, partition: Partition, core: CoreId) -> Place {
    in_tp_state(match kind {
        Operator::Dispatch => state::dispatch_status(partition, core.0),
        Operator::Combine => state::combine_status(partition, core.0),
    })
}

/// Returns the place of the number of the first row that a slot announces.
#[must_use]
pub const fn first_row(slot: Place) -> Place {
    Place { offset: slot.offset + 8, ..slot }
}

/// Returns the place of a core's selector record for an operator kind. It is private to that core.
pub(crate) const fn selector(kind: Operator, core: CoreId) -> Place {
    in_tp_state(state::selector(kind, core))
}

const fn in_tp_state(at: Place) -> Place {
    Place { region: Region::TpState, ..at }
}

/// Returns the bytes of the TP window of EP rank `rank`.
#[must_use]
pub fn window_bytes(shape: &Shape, rank: RankId) -> u64 {
    partition_start(shape, rank, Partition::P1) * 2
}

/// Returns the start of a partition of the TP window on EP rank `rank`.
#[must_use]
pub fn partition_start(shape: &Shape, rank: RankId, partition: Partition) -> Offset {
    let of_a_row = shape.record_pitch() + shape.combine_pitch();
    u64::from(partition.index()) * shape.rows_max(rank) * of_a_row
}

/// Returns the place of the record that the peer received as its row `row`, on EP rank `rank`.
#[must_use]
pub fn record(shape: &Shape, rank: RankId, partition: Partition, row: u32) -> Place {
    let offset = partition_start(shape, rank, partition) + u64::from(row) * shape.record_pitch();
    Place { region: Region::TpWindow, offset }
}

/// Returns the place of the peer's result for this rank's row `row`, on EP rank `rank`.
#[must_use]
pub fn result(shape: &Shape, rank: RankId, partition: Partition, row: u32) -> Place {
    let records = shape.rows_max(rank) * shape.record_pitch();
    let offset = partition_start(shape, rank, partition) + records + u64::from(row) * shape.combine_pitch();
    Place { region: Region::TpWindow, offset }
}
