//! Records the reads of a step: everything that could let a pending machine move.

use super::middleware::Middleware;
use super::nic::{Nic, Post, Transfer};
use super::{Fabric, Fault};
use crate::place::Place;
use core::cell::Cell;
use core::fmt;

/// A condition that a pending machine or agent awaits. There may be several: machines that poll their roles in turn wait
/// for several words at once. [`Wait`](super::Wait) names one cause, for people; these are for drivers that sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Awaited {
    /// A change of this word, in any region of this rank's memory.
    Word(Place),
    /// A change in this number of bytes of the own rank.
    Bytes(Place, u64),
    /// [`quiet`](Fabric::quiet) returns true.
    Quiet,
    /// The interface has [room](Post::Busy) for another transfer.
    Room,
}

/// A fabric or a network interface that reports all reads.
pub(crate) struct Watch<'w, F: ?Sized> {
    inner: &'w mut F,
    tell: Cell<Option<&'w mut dyn FnMut(Awaited)>>,
}

impl<'w, F: ?Sized> Watch<'w, F> {
    pub(crate) fn new(inner: &'w mut F, tell: &'w mut dyn FnMut(Awaited)) -> Self {
        Self { inner, tell: Cell::new(Some(tell)) }
    }

    fn tell(&self, what: Awaited) {
        if let Some(tell) = self.tell.take() {
            tell(what);
            self.tell.set(Some(tell));
        }
    }
}

impl<F: ?Sized> fmt::Debug for Watch<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

impl<F: Fabric + ?Sized> Middleware for Watch<'_, F> {
    crate::around! { inner: F, its capabilities }

    fn quiet(&mut self) -> Result<bool, Fault> {
        self.tell(Awaited::Quiet);
        self.inner.quiet()
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        self.tell(Awaited::Word(at));
        self.inner.observe(at)
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.tell(Awaited::Bytes(at, len));
        self.inner.bytes(at, len)
    }
}

impl<N: Nic + ?Sized> Nic for Watch<'_, N> {
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        self.tell(Awaited::Word(at));
        self.inner.observe(at)
    }

    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault> {
        self.tell(Awaited::Room);
        self.inner.post(transfer)
    }
}
