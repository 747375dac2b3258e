//! Publishes after completions, for networks that keep no order.

use super::middleware::Middleware;
use super::{Capabilities, Fabric, Fault};
use crate::place::Place;
use crate::units::RankId;

/// A fabric over a memory that keeps every rule but the second: there a flag may overtake the rows before it. After this layer it
/// keeps that one, too.
///
/// A publish finds no room ([`Fault::busy`]) until `inner` says of all puts before it, by [`quiet`](Fabric::quiet), that they have
/// completed where they are read. So no publish is held back here for which the core would have to come again: what is
/// accepted is under way. The price is the way there and back for each flag behind a row.
///
/// Messages (rule 7) are refused: quiet does not speak for them.
#[derive(Clone, Debug)]
pub struct BehindCompletions<F> {
    inner: F,
    /// Whether puts may be under way.
    has_put: bool,
}

impl<F: Fabric> BehindCompletions<F> {
    /// Creates the layer over one core's view. It may be made anew at any time.
    #[must_use]
    pub const fn new(inner: F) -> Self {
        // What was put before is not known.
        Self { inner, has_put: true }
    }
}

impl<F: Fabric> Middleware for BehindCompletions<F> {
    crate::around! { inner: F }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities().difference(Capabilities::SEND)
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        self.has_put = true;
        self.inner.put(to, at, row, tail)
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        if self.has_put && !Middleware::quiet(self)? {
            return Err(Fault::busy(to, at, 8));
        }
        self.inner.publish(to, at, word)
    }

    fn send(&mut self, to: RankId, at: Place, message: &[u8]) -> Result<(), Fault> {
        Err(Fault::new(to, at, message.len() as u64))
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        let is_quiet = self.inner.quiet()?;
        self.has_put &= !is_quiet;
        Ok(is_quiet)
    }
}
