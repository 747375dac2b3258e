//! The regions of a TP domain of two ranks (seed 003: `groupTp`), for what the peer lends a rank. They are no part
//! of `hccl_buffsize_mb`.
//!
//! ```text
//! TP state, 1 MiB, zeroed; divided as the state region is, with one slot of 32 B per core of the peer:
//!   partition p at p * 384 KiB: dispatch slots at +0, combine slots at +64 KiB
//!       +0  flag 1.0f and rows, one word      +8  first row, in front of the flag
//!   768 KiB  selector records, dispatch      818 KiB  selector records, combine
//!
//! TP window, A = most rows that the rank can receive, without its peer's:
//!   partition p at p * (A * pitch + A * align(2H, 512)):
//!     +0          records   A, pitch apart, as in the window: what the peer has received, at its own rows
//!     +A * pitch  results   A, align(2H, 512) apart: what the peer's experts return for this rank's rows
//! ```

use super::state::{self, Operator, Partition};
use crate::place::{Place, Region};
use crate::shape::Shape;
use crate::units::{CoreId, Offset, RankId};

/// Bytes of the TP state region.
pub const TP_STATE_BYTES: u64 = state::STATE_BYTES;

/// Slot of a core of the peer, for an operator kind.
#[must_use]
pub const fn slot(kind: Operator, partition: Partition, core: CoreId) -> Place {
    in_tp_state(match kind {
        Operator::Dispatch => state::dispatch_status(partition, core.0),
        Operator::Combine => state::combine_status(partition, core.0),
    })
}

/// The first row that a slot speaks of.
#[must_use]
pub const fn first_row(slot: Place) -> Place {
    Place { offset: slot.offset + 8, ..slot }
}

/// Selector record of a core for an operator kind. Private to that core.
#[must_use]
pub(crate) const fn selector(kind: Operator, core: CoreId) -> Place {
    in_tp_state(state::selector(kind, core))
}

const fn in_tp_state(at: Place) -> Place {
    Place { region: Region::TpState, ..at }
}

/// Bytes of the TP window of EP rank `rank`.
#[must_use]
pub fn window_bytes(shape: &Shape, rank: RankId) -> u64 {
    partition_start(shape, rank, Partition::P1) * 2
}

/// Start of a partition of the TP window on EP rank `rank`.
#[must_use]
pub fn partition_start(shape: &Shape, rank: RankId, partition: Partition) -> Offset {
    let of_a_row = shape.record_pitch() + shape.combine_pitch();
    u64::from(partition.index()) * shape.rows_max(rank) * of_a_row
}

/// The record that the peer received as its row `row`, on EP rank `rank`.
#[must_use]
pub fn record(shape: &Shape, rank: RankId, partition: Partition, row: u32) -> Place {
    let offset = partition_start(shape, rank, partition) + u64::from(row) * shape.record_pitch();
    Place { region: Region::TpWindow, offset }
}

/// The peer's result for this rank's row `row`, on EP rank `rank`.
#[must_use]
pub fn result(shape: &Shape, rank: RankId, partition: Partition, row: u32) -> Place {
    let records = shape.rows_max(rank) * shape.record_pitch();
    let offset = partition_start(shape, rank, partition) + records + u64::from(row) * shape.combine_pitch();
    Place { region: Region::TpWindow, offset }
}
