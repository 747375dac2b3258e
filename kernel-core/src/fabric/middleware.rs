//! A fabric around another one: calls that a middleware does not override go through unchanged.

use super::{Capabilities, Fabric, Fault};
use crate::place::Place;
use crate::units::RankId;
use core::cell::Cell;

/// A fabric that wraps another one and changes some of its calls. Every implementor is a [`Fabric`]; by default each method
/// does what the inner fabric does.
pub trait Middleware {
    /// The inner fabric.
    type Inner: Fabric + ?Sized;

    /// Returns the inner fabric, to read.
    fn inner(&self) -> &Self::Inner;

    /// Returns the inner fabric, to act.
    fn inner_mut(&mut self) -> &mut Self::Inner;

    /// Returns the calls that both fabrics support: usually those of the inner fabric. There is no default, since an
    /// implementor must decide on calls that the inner fabric would carry out and this one must not.
    fn capabilities(&self) -> Capabilities;

    /// Returns the rank of the inner fabric that [`Fabric::peer_bytes`] reads for `rank`.
    ///
    /// # Errors
    /// There is no such rank. The default never fails.
    #[inline]
    fn reached(&self, rank: RankId, _at: Place, _len: u64) -> Result<RankId, Fault> {
        Ok(rank)
    }

    /// As [`Fabric::put`].
    ///
    /// # Errors
    /// As [`Fabric::put`].
    #[inline]
    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        self.inner_mut().put(to, at, row, tail)
    }

    /// As [`Fabric::publish`].
    ///
    /// # Errors
    /// As [`Fabric::publish`].
    #[inline]
    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        self.inner_mut().publish(to, at, word)
    }

    /// As [`Fabric::send`].
    ///
    /// # Errors
    /// As [`Fabric::send`].
    #[inline]
    fn send(&mut self, to: RankId, at: Place, message: &[u8]) -> Result<(), Fault> {
        self.inner_mut().send(to, at, message)
    }

    /// As [`Fabric::quiet`].
    ///
    /// # Errors
    /// As [`Fabric::quiet`].
    #[inline]
    fn quiet(&mut self) -> Result<bool, Fault> {
        self.inner_mut().quiet()
    }

    /// As [`Fabric::observe`].
    ///
    /// # Errors
    /// As [`Fabric::observe`].
    #[inline]
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        self.inner().observe(at)
    }

    /// As [`Fabric::store`].
    ///
    /// # Errors
    /// As [`Fabric::store`].
    #[inline]
    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        self.inner_mut().store(at, word)
    }

    /// As [`Fabric::bytes`].
    ///
    /// # Errors
    /// As [`Fabric::bytes`].
    #[inline]
    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.inner().bytes(at, len)
    }

    /// As [`Fabric::write`].
    ///
    /// # Errors
    /// As [`Fabric::write`].
    #[inline]
    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        self.inner_mut().write(at, bytes)
    }

    /// As [`Fabric::lend`].
    #[inline]
    fn lend(&self, output: Place, len: u64) -> Option<&[Cell<u8>]> {
        self.inner().lend(output, len)
    }

    /// As [`Fabric::deliver`].
    ///
    /// # Errors
    /// As [`Fabric::deliver`].
    #[inline(always)]
    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        self.inner_mut().deliver(output, from, len)
    }

    /// As [`Fabric::prefetch`].
    #[inline]
    fn prefetch(&self, bytes: &[u8]) {
        self.inner().prefetch(bytes);
    }
}

impl<M: Middleware> Fabric for M {
    #[inline]
    fn capabilities(&self) -> Capabilities {
        Middleware::capabilities(self)
    }

    #[inline]
    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        Middleware::put(self, to, at, row, tail)
    }

    #[inline]
    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        Middleware::publish(self, to, at, word)
    }

    #[inline]
    fn send(&mut self, to: RankId, at: Place, message: &[u8]) -> Result<(), Fault> {
        Middleware::send(self, to, at, message)
    }

    #[inline]
    fn quiet(&mut self) -> Result<bool, Fault> {
        Middleware::quiet(self)
    }

    #[inline]
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        Middleware::observe(self, at)
    }

    #[inline]
    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        Middleware::store(self, at, word)
    }

    #[inline]
    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        Middleware::bytes(self, at, len)
    }

    #[inline]
    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        Middleware::write(self, at, bytes)
    }

    #[inline]
    fn lend(&self, output: Place, len: u64) -> Option<&[Cell<u8>]> {
        Middleware::lend(self, output, len)
    }

    #[inline(always)]
    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        Middleware::deliver(self, output, from, len)
    }

    #[inline]
    fn peer_bytes(&self, rank: RankId, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.inner().peer_bytes(self.reached(rank, at, len)?, at, len)
    }

    #[inline]
    fn prefetch(&self, bytes: &[u8]) {
        Middleware::prefetch(self, bytes);
    }
}
