//! Elastic domains: machines speak of new ids, memory belongs to physical ranks. This is the only place where
//! one becomes the other.

use super::{Fabric, Fault};
use crate::place::Place;
use crate::shape::Elastic;
use crate::units::RankId;

/// A core's fabric over physical ranks, made one over the new ids of an elastic domain.
///
/// `inner` is the fabric of the core's physical rank. Machines that are given the shape of the
/// [survivors](crate::shape::Shape::survivors) and the core's new id reach through it exactly the memory of those
/// who are left. A [`Fault`] of the memory names the physical rank.
#[derive(Clone, Debug)]
pub struct Survivors<'a, F> {
    /// The fabric underneath.
    pub inner: F,
    /// Who is left; without it ranks keep their names.
    pub left: Option<&'a Elastic>,
}

impl<F> Survivors<'_, F> {
    #[inline]
    fn physical(&self, to: RankId, at: Place, len: u64) -> Result<RankId, Fault> {
        match self.left {
            None => Ok(to),
            Some(left) => left.physical(to).ok_or(Fault { rank: to, at, len }),
        }
    }
}

impl<F: Fabric> Fabric for Survivors<'_, F> {
    #[inline]
    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        let to = self.physical(to, at, row.len() as u64)?;
        self.inner.put(to, at, row, tail)
    }

    #[inline]
    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        let to = self.physical(to, at, 8)?;
        self.inner.publish(to, at, word)
    }

    #[inline]
    fn quiet(&mut self) -> Result<bool, Fault> {
        self.inner.quiet()
    }

    #[inline]
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        self.inner.observe(at)
    }

    #[inline]
    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        self.inner.store(at, word)
    }

    #[inline]
    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.inner.bytes(at, len)
    }

    #[inline]
    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        self.inner.write(at, bytes)
    }

    #[inline]
    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        self.inner.deliver(output, from, len)
    }
}
