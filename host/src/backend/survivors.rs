//! A middleware around any backend of all physical ranks: who is left of an elastic domain, by new ids.

use super::Backend;
use crate::case::Case;
use kernel_core::fabric::survivors;
use kernel_core::place::Tensor;
use kernel_core::shape::Elastic;
use kernel_core::units::{CoreId, RankId};

/// A backend whose ranks are new ids.
#[derive(Debug)]
pub struct Survivors<B> {
    /// The memory of all physical ranks.
    pub inner: B,
    /// Who is left; without it ranks keep their names.
    pub left: Option<Elastic>,
}

impl<B> Survivors<B> {
    /// The memory of a case's group by the ranks of its shape.
    #[must_use]
    pub fn of(case: &Case, inner: B) -> Self {
        Self { inner, left: case.elastic.as_ref().map(|elastic| elastic.left.clone()) }
    }

    fn physical(&self, new: RankId) -> RankId {
        self.left.as_ref().map_or(new, |left| left.physical(new).expect("a new id below R'"))
    }
}

impl<B: Backend> Backend for Survivors<B> {
    const INLINED: bool = B::INLINED;

    type Fabric<'b>
        = survivors::Survivors<'b, B::Fabric<'b>>
    where
        Self: 'b;

    #[inline]
    fn fabric(&self, rank: RankId, core: CoreId, batch: usize) -> Self::Fabric<'_> {
        let inner = self.inner.fabric(self.physical(rank), core, batch);
        survivors::Survivors { inner, left: self.left.as_ref() }
    }

    type Nic<'b>
        = B::Nic<'b>
    where
        Self: 'b;

    fn nic(&self, rank: RankId) -> Self::Nic<'_> {
        self.inner.nic(self.physical(rank))
    }

    fn read_output(
        &self,
        rank: RankId,
        batch: usize,
        tensor: Tensor,
        len: usize,
        read: &mut dyn FnMut(&[u8]),
    ) {
        self.inner.read_output(self.physical(rank), batch, tensor, len, read);
    }

    fn begins(&self, rank: RankId, core: CoreId) {
        self.inner.begins(self.physical(rank), core);
    }

    fn reuse_outputs(&self) {
        self.inner.reuse_outputs();
    }
}
