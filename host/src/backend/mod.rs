//! Memories that ranks share, each with its fabric.

pub mod inject;
pub mod lockstep;
pub mod shared;

use kernel_core::fabric::Fabric;
use kernel_core::place::Tensor;
use kernel_core::units::{CoreId, RankId};

/// The memory of a live group: state and data regions of all ranks, outputs of every batch in flight.
pub trait Backend: Sync {
    /// One core's view of it.
    type Fabric<'b>: Fabric
    where
        Self: 'b;

    /// The fabric of a core that works on batch number `batch`.
    fn fabric(&self, rank: RankId, core: CoreId, batch: usize) -> Self::Fabric<'_>;

    /// Reads the first `len` bytes of an output, between operators only.
    fn read_output(
        &self,
        rank: RankId,
        batch: usize,
        tensor: Tensor,
        len: usize,
        read: &mut dyn FnMut(&[u8]),
    );

    /// The next operators may write the outputs of all batches again.
    fn reuse_outputs(&self) {}
}
