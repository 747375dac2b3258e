//! Memories that ranks share, each with its fabric.

pub mod inject;
pub mod lockstep;
pub mod shared;

use kernel_core::fabric::Fabric;
use kernel_core::place::Tensor;
use kernel_core::units::{CoreId, RankId};
use memmap2::{MmapMut, MmapOptions};
use std::io;

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

/// Zeroed memory that is committed as it is touched: most of a window never is.
fn anonymous(bytes: u64) -> io::Result<MmapMut> {
    let map = MmapOptions::new().len(bytes as usize).no_reserve_swap().map_anon()?;
    // A huge page would commit hundreds of untouched slots at once. Advice only: its refusal changes nothing.
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::NoHugePage);
    Ok(map)
}
