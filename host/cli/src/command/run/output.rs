//! `--out`: the last round's result, read back from the group's memory.

use crate::report::note;
use std::path::Path;
use veriep_case::case::Case;
use veriep_case::error::Error;
use veriep_case::global_rank;
use veriep_case::result::{self, Outputs, RankResult};
use veriep_core::layout::outputs::{capacity, ep_recv_counts_bytes};
use veriep_core::place::Tensor;
use veriep_core::shape::Op;
use veriep_core::units::RankId;
use veriep_group::backend::Backend;

/// Bytes of an output of a rank that received so many `rows`; 0 for one that the case's combine does not write.
fn len(case: &Case, rank: RankId, rows: usize, tensor: Tensor) -> u64 {
    if tensor.is_of_norm() && case.config.operator() == Op::Combine {
        return 0;
    }
    let shape = &case.shape;
    let ep_rank = global_rank::ep_rank(shape, rank);
    let all = capacity(shape, ep_rank, tensor);
    if tensor.is_of_received_rows() {
        // With a TP domain also the peer's.
        let rows_max = shape.rows_max(ep_rank) * u64::from(shape.tp_world_size());
        all.checked_div(rows_max).unwrap_or(0) * rows as u64
    } else if tensor == Tensor::EpRecvCounts {
        ep_recv_counts_bytes(shape, ep_rank)
    } else {
        all
    }
}

/// Reads the outputs of a rank that received so many `rows` in batch number `batch` of the last unit.
pub(super) fn read<B: Backend>(
    case: &Case,
    backend: &B,
    (rank, rows): (RankId, usize),
    batch: usize,
) -> Outputs {
    Tensor::ALL.map(|tensor| {
        let mut bytes = Vec::new();
        let read = &mut |seen: &[u8]| bytes.extend_from_slice(seen);
        backend.read_output(rank, batch, tensor, len(case, rank, rows, tensor) as usize, read);
        bytes
    })
}

/// Writes what batch number `batch` of the last unit has left; each rank received so many `rows` in it.
pub(super) fn write<B: Backend>(
    path: &Path,
    case: &Case,
    backend: &B,
    rows: &[usize],
    batch: usize,
) -> Result<(), Error> {
    write_read(path, case, rows, |rank, rows| read(case, backend, (rank, rows), batch))
}

/// The same with outputs that `read` reads, of a rank with so many rows.
pub(super) fn write_read(
    path: &Path,
    case: &Case,
    rows: &[usize],
    mut read: impl FnMut(RankId, usize) -> Outputs,
) -> Result<(), Error> {
    let ranks = || (0..).map(RankId).zip(rows.iter().copied());
    let outputs: Vec<_> = ranks().map(|(rank, rows)| read(rank, rows)).collect();
    let result = |((rank, rows), outputs)| RankResult::of(case, rank, rows, outputs);
    let results: Vec<_> = ranks().zip(&outputs).map(result).collect();
    result::write(path, &case.shape, &results)?;
    note(&format!("wrote {}", path.display()));
    Ok(())
}
