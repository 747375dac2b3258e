//! The layer in front of the memory of all physical ranks: who is left of an elastic domain, by new ids.

use super::Layer;
use crate::case::Case;
use veriep_core::fabric::nic::Nic;
use veriep_core::fabric::{Fabric, survivors};
use veriep_core::shape::Elastic;
use veriep_core::units::{CoreId, RankId};

/// The layer whose ranks are new ids.
#[derive(Debug)]
pub struct Survivors {
    /// Who is left; without it ranks keep their names.
    pub left: Option<Elastic>,
}

impl Survivors {
    /// The ranks of a case's shape in front of the memory of its group.
    #[must_use]
    pub fn of(case: &Case) -> Self {
        Self { left: case.elastic.as_ref().map(|elastic| elastic.left.clone()) }
    }
}

impl Layer for Survivors {
    type Fabric<'b, F: Fabric + 'b> = survivors::Survivors<'b, F>;

    #[inline]
    fn fabric<'b, F: Fabric + 'b>(&'b self, _: RankId, _: CoreId, inner: F) -> Self::Fabric<'b, F> {
        survivors::Survivors { inner, left: self.left.as_ref() }
    }

    type Nic<'b, N: Nic + 'b> = N;

    fn nic<'b, N: Nic + 'b>(&'b self, _: RankId, inner: N) -> N {
        inner
    }

    fn behind(&self, new: RankId) -> RankId {
        self.left.as_ref().map_or(new, |left| left.physical(new).expect("a new id below R'"))
    }
}
