//! The twin: a fabric that leaves out one duty. Rows land behind the flag that speaks for them.

use harness::scene::ROW;
use veriep_core::fabric::middleware::Middleware;
use veriep_core::fabric::{Fabric, Fault};
use veriep_core::place::Place;
use veriep_core::units::RankId;

/// The last row is kept until the core puts another one or is quiet, whatever it publishes meanwhile; at the end of combine until
/// the next round, so that a core reads what is not there in every run, however processors take turns. What lies behind the row
/// in memory, which tells whose row it is, comes in time: so values are wrong, not the protocol's own words.
pub(crate) struct Late<F> {
    pub(crate) inner: F,
    pub(crate) kept: Option<(RankId, Place, [u8; ROW])>,
}

impl<F: Fabric> Late<F> {
    fn land(&mut self) -> Result<(), Fault> {
        self.kept.take().map_or(Ok(()), |(to, at, row)| self.inner.put(to, at, &row, &[]))
    }
}

impl<F: Fabric> Middleware for Late<F> {
    veriep_core::around! { inner: F, its capabilities }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        self.land()?;
        let Ok(kept) = row.try_into() else { return self.inner.put(to, at, row, tail) };
        self.kept = Some((to, at, kept));
        let behind = Place { offset: at.offset + ROW as u64, ..at };
        self.inner.put(to, behind, tail, &[])
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        self.land()?;
        self.inner.quiet()
    }
}
