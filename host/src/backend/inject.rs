//! A middleware around any backend that makes one rank misbehave, to see that the others say so.

use super::Backend;
use crate::member;
use kernel_core::fabric::nic::{Nic, Post, Transfer};
use kernel_core::fabric::{Fabric, Fault};
use kernel_core::place::{Place, Tensor};
use kernel_core::units::{CoreId, RankId};

/// A backend whose rank `silent` never publishes to another rank, and whose agent's writes are lost.
#[derive(Debug)]
pub struct Inject<B> {
    /// The memory underneath.
    pub inner: B,
    /// The rank that is silent, if any.
    pub silent: Option<RankId>,
    /// Ranks of a TP domain.
    pub tp_world_size: u32,
}

/// The fabric of [`Inject`].
#[derive(Debug)]
pub struct InjectFabric<F> {
    inner: F,
    /// The rank itself, when it is the silent one.
    silent: Option<RankId>,
    tp_world_size: u32,
}

impl<B: Backend> Backend for Inject<B> {
    type Fabric<'b>
        = InjectFabric<B::Fabric<'b>>
    where
        Self: 'b;

    fn fabric(&self, rank: RankId, core: CoreId, batch: usize) -> Self::Fabric<'_> {
        let silent = self.silent.filter(|&silent| silent == rank);
        let tp_world_size = self.tp_world_size;
        InjectFabric { inner: self.inner.fabric(rank, core, batch), silent, tp_world_size }
    }

    type Nic<'b>
        = InjectNic<B::Nic<'b>>
    where
        Self: 'b;

    fn nic(&self, rank: RankId) -> Self::Nic<'_> {
        InjectNic { inner: self.inner.nic(rank), silent: self.silent == Some(rank) }
    }

    fn read_output(
        &self,
        rank: RankId,
        batch: usize,
        tensor: Tensor,
        len: usize,
        read: &mut dyn FnMut(&[u8]),
    ) {
        self.inner.read_output(rank, batch, tensor, len, read);
    }

    fn reuse_outputs(&self) {
        self.inner.reuse_outputs();
    }
}

/// The agent's interface of [`Inject`].
#[derive(Debug)]
pub struct InjectNic<N> {
    inner: N,
    /// Whether all that is posted is lost.
    silent: bool,
}

impl<N: Nic> Nic for InjectNic<N> {
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        self.inner.observe(at)
    }

    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault> {
        if self.silent { Ok(Post::Posted) } else { self.inner.post(transfer) }
    }
}

impl<F: Fabric> Fabric for InjectFabric<F> {
    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        self.inner.put(to, at, row, tail)
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        match self.silent {
            Some(own) if own != member::reached(self.tp_world_size, own, to, at) => Ok(()),
            _ => self.inner.publish(to, at, word),
        }
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        self.inner.quiet()
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        self.inner.observe(at)
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        self.inner.store(at, word)
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.inner.bytes(at, len)
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        self.inner.write(at, bytes)
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        self.inner.deliver(output, from, len)
    }
}
