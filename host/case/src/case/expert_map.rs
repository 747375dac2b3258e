//! `expert_map` of a case: redundant experts.
//!
//! Files and the reference speak of logical experts, everything that runs of physical ones.

use super::RankTensors;
use crate::global_rank;
use veriep_core::inputs;
use veriep_core::shape::{Shape, Violation};
use veriep_core::units::RankId;

/// The words of a map and how many rows they make, one for each logical expert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertMap {
    /// `[rows, P]`.
    pub words: Vec<i32>,
    /// Logical experts.
    pub rows: usize,
}

impl ExpertMap {
    /// Checks the map.
    ///
    /// # Errors
    /// The rules that it breaks.
    pub fn check(&self, shape: &Shape) -> Result<inputs::ExpertMap<'_>, Vec<Violation>> {
        let mut found = Vec::new();
        inputs::ExpertMap::check(shape, &self.words, self.rows, &mut |violation| found.push(*violation))
            .ok_or(found)
    }

    /// Returns the replicas of a logical expert.
    pub fn replicas(&self, expert: usize) -> impl Iterator<Item = i32> {
        let width = self.words.len().checked_div(self.rows).unwrap_or_default();
        self.words.iter().skip(expert * width).take(width).copied().filter(|&physical| physical >= 0)
    }

    /// Gives the tensors of all ranks the physical ids that their logical ones mean.
    pub fn translate(&self, shape: &Shape, ranks: &mut [RankTensors]) {
        let Ok(map) = self.check(shape) else { return };
        for (rank, tensors) in (0..).map(RankId).zip(ranks) {
            tensors.translate(&map, shape, rank);
        }
    }
}

impl RankTensors {
    /// Fills `physical_ids` of the rank with that number.
    pub fn translate(&mut self, map: &inputs::ExpertMap<'_>, shape: &Shape, number: RankId) {
        self.translate_of(map, shape, global_rank::ep_rank(shape, number));
    }

    /// The same of an EP rank.
    pub fn translate_of(&mut self, map: &inputs::ExpertMap<'_>, shape: &Shape, rank: RankId) {
        self.physical_ids.resize(self.expert_ids.len(), 0);
        map.translate(shape, rank, &self.expert_ids, &mut self.physical_ids);
        if self.replicas.is_empty() {
            return;
        }
        for (physical, &logical) in self.physical_ids.iter_mut().zip(&self.expert_ids) {
            let chosen = usize::try_from(logical).ok().and_then(|expert| self.replicas.get(expert));
            *physical = chosen.copied().unwrap_or(*physical);
        }
    }
}
