//! The ranges of which caches must be told.

use super::memory::Memory;
use core::cell::Cell;
use kernel_core::fabric::middleware::Middleware;
use kernel_core::fabric::nic::{Nic, Post, Transfer};
use kernel_core::fabric::raw::{RawFabric, RawNic};
use kernel_core::fabric::{Capabilities, Fabric, Fault};
use kernel_core::place::{Place, Region};
use kernel_core::units::RankId;
use std::vec::Vec;

/// What caches must be told of: whether they write or forget, from where, how many bytes.
pub(super) type Told = Vec<(bool, (usize, usize), usize)>;

/// The calls for caches that C gives.
#[derive(Clone, Copy)]
pub(super) struct Tells {
    /// `clean`.
    pub(super) writes: bool,
    /// `invalidate`.
    pub(super) reads: bool,
}

impl Tells {
    pub(super) const NEITHER: Self = Self { writes: false, reads: false };
    pub(super) const WRITES: Self = Self { writes: true, reads: false };
    pub(super) const READS: Self = Self { writes: false, reads: true };
    pub(super) const BOTH: Self = Self { writes: true, reads: true };
}

/// A fabric that notes each range that is written, after the write, and each that is read, ahead of it.
pub(super) struct Noted<'n, F> {
    pub(super) inner: F,
    pub(super) memory: &'n Memory,
    pub(super) own: (u32, u32),
    /// Whether writes and reads are told.
    pub(super) tells: Tells,
    pub(super) told: &'n Cell<Told>,
}

impl<F> Noted<'_, F> {
    fn tell(&self, is_write: bool, rank: RankId, at: Place, len: usize) {
        if !(if is_write { self.tells.writes } else { self.tells.reads }) {
            return;
        }
        let peers = if at.region.is_of_tp() { &self.memory.tp } else { &self.memory.peers };
        let peer = peers[rank.index()];
        let segment = match at.region {
            Region::State | Region::TpState => peer.state,
            Region::Window | Region::TpWindow => peer.window,
            Region::WindowOut => peer.window_out,
            Region::Output(tensor) => self.memory.outputs[rank.index()][tensor as usize],
        };
        let (region, start) = self.memory.place_of(segment.base().cast());
        let mut told = self.told.take();
        told.push((is_write, (region, start + at.offset as usize), len));
        self.told.set(told);
    }

    fn own(&self, at: Place) -> RankId {
        RankId(if at.region.is_of_tp() { self.own.1 } else { self.own.0 })
    }
}

impl<'a> Middleware for Noted<'_, RawFabric<'a>> {
    kernel_core::around! { inner: RawFabric<'a> }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities().difference(Capabilities::LEND.union(Capabilities::PREFETCH))
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        self.inner.put(to, at, row, tail)?;
        self.tell(true, to, at, row.len() + tail.len());
        Ok(())
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        self.inner.publish(to, at, word)?;
        self.tell(true, to, at, 8);
        Ok(())
    }

    fn send(&mut self, to: RankId, at: Place, message: &[u8]) -> Result<(), Fault> {
        self.inner.send(to, at, message)?;
        self.tell(true, to, at, message.len());
        Ok(())
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        let word = self.inner.observe(at)?;
        self.tell(false, self.own(at), at, 8);
        Ok(word)
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        self.inner.store(at, word)?;
        self.tell(true, self.own(at), at, 8);
        Ok(())
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        let bytes = self.inner.bytes(at, len)?;
        self.tell(false, self.own(at), at, len as usize);
        Ok(bytes)
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        self.inner.write(at, bytes)?;
        self.tell(true, self.own(at), at, bytes.len());
        Ok(())
    }

    fn lend(&self, _: Place, _: u64) -> Option<&[Cell<u8>]> {
        None
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        Middleware::bytes(self, from, len)?;
        self.inner.deliver(output, from, len)?;
        self.tell(true, self.own(output), output, len as usize);
        Ok(())
    }

    fn reached(&self, rank: RankId, at: Place, len: u64) -> Result<RankId, Fault> {
        self.inner.peer_bytes(rank, at, len)?;
        self.tell(false, rank, at, len as usize);
        Ok(rank)
    }
}

impl Nic for Noted<'_, RawNic<'_>> {
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        let word = self.inner.observe(at)?;
        self.tell(false, self.own(at), at, 8);
        Ok(word)
    }

    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault> {
        let Transfer { to, from, at, len } = *transfer;
        self.tell(false, self.own(from), from, len as usize);
        let posted = self.inner.post(transfer)?;
        self.tell(true, to, at, len as usize);
        Ok(posted)
    }
}
