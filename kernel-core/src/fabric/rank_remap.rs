//! Elastic domains: machines use new ids, memory belongs to physical ranks. This module alone converts between them.

use super::middleware::Middleware;
use super::{Capabilities, Fabric, Fault};
use crate::place::Place;
use crate::shape::Elastic;
use crate::units::RankId;

/// A fabric that maps the new ids of an elastic domain to physical ranks.
///
/// `inner` is the fabric of the core's physical rank. Machines with the shape of the
/// [survivors](crate::shape::Shape::survivors) and the core's new id access through this fabric exactly the memory of the
/// survivors. A [`Fault`] of the memory names the physical rank.
#[derive(Clone, Debug)]
pub struct RankRemap<'a, F> {
    /// The fabric of the physical rank.
    pub inner: F,
    /// The ranks left; without them ranks keep their names.
    pub left: Option<&'a Elastic>,
}

impl<F> RankRemap<'_, F> {
    #[inline]
    fn physical(&self, to: RankId, at: Place, len: u64) -> Result<RankId, Fault> {
        match self.left {
            None => Ok(to),
            Some(left) => left.physical(to).ok_or(Fault::new(to, at, len)),
        }
    }
}

impl<F: Fabric> Middleware for RankRemap<'_, F> {
    crate::around! { inner: F }

    /// An elastic domain has no messages, which would go to ranks by the wrong names.
    #[inline]
    fn capabilities(&self) -> Capabilities {
        let all = self.inner.capabilities();
        if self.left.is_some() { all.difference(Capabilities::SEND) } else { all }
    }

    #[inline]
    fn reached(&self, rank: RankId, at: Place, len: u64) -> Result<RankId, Fault> {
        self.physical(rank, at, len)
    }

    #[inline]
    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        let to = self.physical(to, at, row.len() as u64)?;
        self.inner.put(to, at, row, tail)
    }

    #[inline]
    fn send(&mut self, to: RankId, at: Place, message: &[u8]) -> Result<(), Fault> {
        match self.left {
            None => self.inner.send(to, at, message),
            Some(_) => Err(Fault::new(to, at, message.len() as u64)),
        }
    }

    #[inline]
    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        let to = self.physical(to, at, 8)?;
        self.inner.publish(to, at, word)
    }
}
