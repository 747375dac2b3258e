//! A layer in front of any backend that drops row payloads, to measure the protocol's overhead alone. Outputs are invalid.

use super::Layer;
use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};
use veriep_core::fabric::middleware::Middleware;
use veriep_core::fabric::{Capabilities, Fabric, Fault};
use veriep_core::place::Place;
use veriep_core::units::{CoreId, RankId};

/// Bytes of the longest piece of a table, 64 entries of 8; flags and tails are shorter, and what is longer is a row.
pub const PIECE_MAX: usize = 512;

/// The layer in which rows weigh nothing.
#[derive(Debug)]
pub struct NoPayload<'m> {
    /// Bytes of the longest piece that has weight: [`PIECE_MAX`], or more where nothing is to be dropped.
    pub piece_max: usize,
    /// Where flags are counted that a worker publishes to a rank of another one, of so many workers; if they are to be.
    pub crossing: Option<(&'m AtomicU64, u32)>,
}

/// The fabric of [`NoPayload`].
#[derive(Debug)]
pub struct NoPayloadFabric<'m, F> {
    inner: F,
    piece_max: usize,
    rank: RankId,
    crossing: Option<(&'m AtomicU64, u32)>,
}

impl Layer for NoPayload<'_> {
    #[inline]
    fn fabric<'b, F: Fabric + 'b>(&'b self, rank: RankId, _: CoreId, inner: F) -> impl Fabric {
        NoPayloadFabric { inner, piece_max: self.piece_max, rank, crossing: self.crossing }
    }
}

impl<F: Fabric> Middleware for NoPayloadFabric<'_, F> {
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
        if row.len() <= self.piece_max {
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
        if bytes.len() <= self.piece_max { self.inner.write(at, bytes) } else { Ok(()) }
    }

    #[inline]
    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        if len <= self.piece_max as u64 { self.inner.deliver(output, from, len) } else { Ok(()) }
    }
}
