//! The layer in front of the memory of all physical ranks: who is left of an elastic domain, by new ids.

use super::Layer;
use veriep_case::case::Case;
use veriep_core::fabric::{Fabric, rank_remap};
use veriep_core::shape::Elastic;
use veriep_core::units::{CoreId, RankId};

/// The layer whose ranks are new ids.
#[derive(Debug)]
pub struct RankRemap {
    /// Who is left; without it ranks keep their names.
    pub left: Option<Elastic>,
}

impl RankRemap {
    /// The ranks of a case's shape in front of the memory of its group.
    #[must_use]
    pub fn of(case: &Case) -> Self {
        Self { left: case.elastic.as_ref().map(|elastic| elastic.left.clone()) }
    }
}

impl Layer for RankRemap {
    #[inline]
    fn fabric<'b, F: Fabric + 'b>(&'b self, _: RankId, _: CoreId, inner: F) -> impl Fabric {
        rank_remap::RankRemap { inner, left: self.left.as_ref() }
    }

    fn behind(&self, new: RankId) -> RankId {
        self.left.as_ref().map_or(new, |left| left.physical(new).expect("a new id below R'"))
    }
}
