//! What the oracle says of a case, in the form of a result: golden vectors that no machine has touched.

use crate::batch::Batch;
use crate::case::Case;
use crate::compare;
use crate::error::Error;
use crate::parallel;
use crate::result::{self, RankResult};
use crate::store::Tensor;
use veriep_core::place::Tensor as Output;
use veriep_core::units::RankId;

/// The outputs of all ranks, owned.
#[derive(Debug)]
pub struct Expected<'c> {
    case: &'c Case,
    ranks: Vec<[Vec<u8>; Output::ALL.len()]>,
}

impl<'c> Expected<'c> {
    /// Asks the oracle for every rank.
    #[must_use]
    pub fn of(case: &'c Case) -> Self {
        let mut ranks = vec![Default::default(); case.ranks.len()];
        let batch = Batch::new(case);
        batch.with_cluster(|cluster| {
            parallel::each(&mut ranks, |rank, outputs| {
                *outputs = compare::expected(cluster, &batch, RankId(rank as u32));
            });
        });
        Self { case, ranks }
    }

    /// One output of a rank, without spare capacity.
    #[must_use]
    pub fn output(&self, rank: RankId, tensor: Output) -> &[u8] {
        self.ranks.get(rank.index()).map_or(&[], |outputs| &outputs[tensor as usize])
    }

    /// The tensors of the result file.
    ///
    /// # Errors
    /// None: the oracle's tensors are as long as their shapes say.
    pub fn tensors(&self) -> Result<Vec<Tensor<'_>>, Error> {
        let shape = &self.case.shape;
        let row_bytes = shape.payload_bytes() as usize;
        let result = |(rank, outputs)| {
            let outputs: &[Vec<u8>; Output::ALL.len()] = outputs;
            RankResult::of(self.case, rank, outputs[Output::ExpandX as usize].len() / row_bytes, outputs)
        };
        result::tensors(shape, &(0..).map(RankId).zip(&self.ranks).map(result).collect::<Vec<_>>())
    }
}
