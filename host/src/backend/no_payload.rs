//! A layer in front of any backend that drops row payloads, to measure the protocol's overhead alone. Outputs are invalid.

use super::{Backend, Reader};
use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};
use veriep_core::fabric::middleware::Middleware;
use veriep_core::fabric::nic::Nic;
use veriep_core::fabric::{Capabilities, Fabric, Fault};
use veriep_core::place::{Place, Tensor};
use veriep_core::units::{CoreId, RankId};

/// Bytes of the longest piece of a table, 64 entries of 8; flags and tails are shorter, and what is longer is a row.
const PIECE_MAX: usize = 512;

/// A backend whose rows weigh nothing.
#[derive(Debug)]
pub struct NoPayload<'m, B> {
    /// The memory underneath.
    pub inner: &'m B,
    /// Where flags are counted that a worker publishes to a rank of another one, of so many workers; if they are to be.
    pub crossing: Option<(&'m AtomicU64, u32)>,
}

/// The fabric of [`NoPayload`].
#[derive(Debug)]
pub struct WeightlessFabric<'m, F> {
    inner: F,
    rank: RankId,
    crossing: Option<(&'m AtomicU64, u32)>,
}

impl<'m, B: Backend> Backend for NoPayload<'m, B> {
    const INLINED: bool = B::INLINED;

    fn fabric(&self, rank: RankId, core: CoreId, batch: usize) -> impl Fabric {
        WeightlessFabric { inner: self.inner.fabric(rank, core, batch), rank, crossing: self.crossing }
    }

    fn nic(&self, rank: RankId) -> impl Nic {
        self.inner.nic(rank)
    }

    fn read_output(&self, rank: RankId, batch: usize, tensor: Tensor, len: usize, read: Reader<'_>) {
        self.inner.read_output(rank, batch, tensor, len, read);
    }
}

impl<F: Fabric> Middleware for WeightlessFabric<'_, F> {
    veriep_core::around! { inner: F }

    /// Nothing is lent: what is written there would have weight.
    #[inline]
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities().difference(Capabilities::LEND)
    }

    #[inline]
    fn lend(&self, _output: Place, _len: u64) -> Option<&[Cell<u8>]> {
        None
    }

    #[inline]
    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        if row.len() <= PIECE_MAX {
            return self.inner.put(to, at, row, tail);
        }
        let behind = Place { offset: at.offset.saturating_add(row.len() as u64), ..at };
        self.inner.put(to, behind, tail, &[])
    }

    #[inline]
    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        if let Some((count, workers)) = self.crossing
            && to.0 % workers != self.rank.0 % workers
        {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.inner.publish(to, at, word)
    }

    #[inline]
    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        if bytes.len() <= PIECE_MAX { self.inner.write(at, bytes) } else { Ok(()) }
    }

    #[inline]
    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        if len <= PIECE_MAX as u64 { self.inner.deliver(output, from, len) } else { Ok(()) }
    }
}
