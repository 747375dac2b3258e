//! A layer whose rank forwards rows to a rank that does not need them. Results stay correct.

use veriep_core::fabric::middleware::Middleware;
use veriep_core::fabric::{Fabric, Fault};
use veriep_core::layout::relay::Tail;
use veriep_core::place::Place;
use veriep_core::units::{CoreId, RankId};
use veriep_group::backend::Layer;

/// Each row that a relay forwards goes to another rank, too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Astray {
    /// The relay.
    pub(crate) rank: RankId,
    /// The other rank.
    pub(crate) to: RankId,
    /// A slot there that is not used.
    pub(crate) at: Place,
}

/// The layer.
#[derive(Debug)]
pub(super) struct Redirect(pub(super) Option<Astray>);

impl Layer for Redirect {
    fn fabric<'b, F: Fabric + 'b>(&'b self, rank: RankId, _: CoreId, inner: F) -> impl Fabric {
        Redirected { inner, astray: self.0.filter(|astray| astray.rank == rank) }
    }
}

#[derive(Debug)]
struct Redirected<F> {
    inner: F,
    astray: Option<Astray>,
}

impl<F: Fabric> Middleware for Redirected<F> {
    veriep_core::around! { inner: F, its capabilities }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        if let Some(astray) = self.astray.filter(|astray| tail.len() as u64 == Tail::BYTES && to != astray.to)
        {
            self.inner.put(astray.to, astray.at, row, tail)?;
        }
        self.inner.put(to, at, row, tail)
    }
}
