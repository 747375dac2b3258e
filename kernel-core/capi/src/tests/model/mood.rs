//! Memory that refuses a call now and then, or has not landed what was written.

use core::cell::{Cell, RefCell};
use kernel_core::fabric::middleware::Middleware;
use kernel_core::fabric::nic::{Nic, Post, Transfer};
use kernel_core::fabric::raw::{RawFabric, RawNic};
use kernel_core::fabric::{Capabilities, Fabric, Fault};
use kernel_core::place::Place;
use kernel_core::units::RankId;
use std::vec::Vec;

/// The mood of a memory during one call: the same for the C functions and for what is held against them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mood {
    /// After that many calls it refuses one, by code 78.
    pub(super) refuses_after: u32,
    /// Nothing has landed, and no transfer has room.
    pub(super) is_slow: bool,
    /// It tells of bytes by null.
    pub(super) is_mute: bool,
    /// What it offers of the calls that are optional.
    pub(super) can: Capabilities,
}

/// A fabric or a network interface of some mood.
pub(crate) struct Moody<F> {
    inner: F,
    mood: Mood,
    /// The calls so far: of which rank, where, how many bytes.
    calls: RefCell<Vec<Fault>>,
    /// How often it was told of bytes that are read soon, and of how many.
    prefetched: Cell<(u64, usize)>,
    own: RankId,
}

/// A code for what the memory does not hold, as C functions have one.
const NOT_HELD: i32 = 5;
const REFUSED: i32 = 78;

impl<F> Moody<F> {
    pub(super) fn new(inner: F, mood: Mood, own: u32) -> Self {
        Self { inner, mood, calls: RefCell::default(), prefetched: Cell::default(), own: RankId(own) }
    }

    pub(super) fn calls(&self) -> Vec<Fault> {
        self.calls.take()
    }

    pub(super) fn prefetched(&self) -> (u64, usize) {
        self.prefetched.get()
    }

    /// Refuses bytes, or tells of none.
    fn told(&self, rank: RankId, at: Place, len: u64) -> Result<Fault, Fault> {
        let fault = self.call(Fault::new(rank, at, len))?;
        if self.mood.is_mute && len > 0 { Err(Fault::new(rank, at, len)) } else { Ok(fault) }
    }

    /// The fault that this call is, if it is one.
    fn call(&self, fault: Fault) -> Result<Fault, Fault> {
        let nth = self.calls.borrow().len();
        self.calls.borrow_mut().push(fault);
        if nth == self.mood.refuses_after as usize {
            Err(fault.with_code(REFUSED))
        } else {
            Ok(fault.with_code(NOT_HELD))
        }
    }
}

impl<'a> Middleware for Moody<RawFabric<'a>> {
    kernel_core::around! { inner: RawFabric<'a> }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities().intersection(self.mood.can)
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        let fault = self.call(Fault::new(to, at, (row.len() + tail.len()) as u64))?;
        self.inner.put(to, at, row, tail).map_err(|_| fault)
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        let fault = self.call(Fault::new(to, at, 8))?;
        self.inner.publish(to, at, word).map_err(|_| fault)
    }

    fn send(&mut self, to: RankId, at: Place, message: &[u8]) -> Result<(), Fault> {
        let fault = self.call(Fault::new(to, at, message.len() as u64))?;
        self.inner.send(to, at, message).map_err(|_| fault)
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        self.call(Fault::new(self.own, Place::state(0), 0))?;
        self.inner.quiet().map(|landed| landed && !self.mood.is_slow)
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        let fault = self.call(Fault::new(self.own, at, 8))?;
        self.inner.observe(at).map_err(|_| fault)
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        let fault = self.call(Fault::new(self.own, at, 8))?;
        self.inner.store(at, word).map_err(|_| fault)
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        let fault = self.told(self.own, at, len)?;
        self.inner.bytes(at, len).map_err(|_| fault)
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        let fault = self.call(Fault::new(self.own, at, bytes.len() as u64))?;
        self.inner.write(at, bytes).map_err(|_| fault)
    }

    fn lend(&self, output: Place, len: u64) -> Option<&[Cell<u8>]> {
        self.mood.can.contains(Capabilities::LEND).then(|| self.inner.lend(output, len)).flatten()
    }

    fn prefetch(&self, bytes: &[u8]) {
        if self.mood.can.contains(Capabilities::PREFETCH) {
            let (calls, len) = self.prefetched.get();
            self.prefetched.set((calls + 1, len + bytes.len()));
            self.inner.prefetch(bytes);
        }
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        let fault = self.call(Fault::new(self.own, output, len))?;
        self.inner.deliver(output, from, len).map_err(|_| fault)
    }

    fn reached(&self, rank: RankId, at: Place, len: u64) -> Result<RankId, Fault> {
        let fault = self.told(rank, at, len)?;
        if self.mood.can.contains(Capabilities::PEER_BYTES) && self.inner.peer_bytes(rank, at, len).is_ok() {
            Ok(rank)
        } else {
            Err(fault)
        }
    }
}

impl<'a> Nic for Moody<RawNic<'a>> {
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        let fault = self.call(Fault::new(self.own, at, 8))?;
        self.inner.observe(at).map_err(|_| fault)
    }

    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault> {
        let fault = self.call(Fault::new(transfer.to, transfer.at, transfer.len))?;
        if self.mood.is_slow { Ok(Post::Busy) } else { self.inner.post(transfer).map_err(|_| fault) }
    }
}
