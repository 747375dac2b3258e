//! The two-partition selector: one record per (core, operator kind), owned by that core alone.
//!
//! Invariant: every core of every rank has flipped the record of a kind once for each operator of that kind that it has
//! started, so all cores of all ranks agree on the partition of operator N. `docs/doubt/protocol.md` explains why reuse in
//! operator N + 2 is safe; this module does not ensure it.

use crate::fabric::{Fabric, ProtocolError, Result};
use crate::layout::state::Partition;
use crate::place::Place;

/// Reads the record at `at` and flips it for the next operator. It has one store.
///
/// # Errors
/// The record holds neither 0 nor 1, or the fabric refuses.
pub(crate) fn select<F: Fabric + ?Sized>(fabric: &mut F, at: Place) -> Result<Partition> {
    let partition = selected(fabric, at)?;
    fabric.store(at, u64::from(partition.flipped().index()))?;
    Ok(partition)
}

/// Reads the record at `at`.
///
/// # Errors
/// Fails like [`select`].
pub(crate) fn selected<F: Fabric + ?Sized>(fabric: &F, at: Place) -> Result<Partition> {
    match fabric.observe(at)? {
        0 => Ok(Partition::P0),
        1 => Ok(Partition::P1),
        seen => Err(ProtocolError::Selector { at, seen }),
    }
}
