//! What the oracle says of a case, in the form of a result: golden vectors that no machine has touched.

use crate::batch::Batch;
use crate::case::Case;
use crate::compare;
use crate::error::{Error, Problem};
use crate::parallel;
use crate::result::{self, Outputs, RankResult};
use crate::store::{Tensor, TensorFile};
use std::collections::HashMap;
use veriep_core::place::Tensor as Output;
use veriep_core::protocol::Operator;
use veriep_core::reference::{Cluster, numerics};
use veriep_core::units::{RankId, Token};

/// The outputs of all ranks, owned.
#[derive(Debug)]
pub struct Expected<'c> {
    case: &'c Case,
    /// The operator that was asked about, or `None` if both were.
    asked: Option<Operator>,
    ranks: Vec<Outputs>,
}

impl<'c> Expected<'c> {
    /// Asks the oracle for every rank.
    pub fn of(case: &'c Case) -> Self {
        let batch = Batch::new(case);
        Self::each(case, None, |cluster, rank| compare::expected(cluster, &batch, rank))
    }

    /// Asks for dispatch alone.
    pub fn dispatched(case: &'c Case) -> Self {
        Self::each(case, Some(Operator::Dispatch), |cluster, rank| {
            let dispatched = cluster.dispatch(case.name(rank));
            Output::ALL.map(|tensor| dispatched.bytes(tensor))
        })
    }

    /// Asks for combine of what experts return: `rank{r}.expand_x`, `[n, h]` dtype, one row for each that dispatch handed them
    /// under that name, in the same order.
    ///
    /// # Errors
    /// A tensor is missing, or its type or shape is another.
    pub fn combined(case: &'c Case, returned: &mut TensorFile) -> Result<Self, Error> {
        let rows = Returned::read(case, returned)?;
        Ok(Self::each(case, Some(Operator::Combine), |cluster, rank| {
            let name = case.name(rank);
            let take = |token, k, row: &mut Vec<u8>| rows.take(name, token, k, row);
            compare::combined(cluster, name, &mut { take }).0
        }))
    }

    fn each(
        case: &'c Case,
        asked: Option<Operator>,
        of: impl Fn(&Cluster<'_>, RankId) -> Outputs + Sync,
    ) -> Self {
        let mut ranks = vec![Default::default(); case.ranks.len()];
        Batch::new(case).with_cluster(|cluster| {
            parallel::each(&mut ranks, |rank, outputs| *outputs = of(cluster, RankId(rank as u32)));
        });
        Self { case, asked, ranks }
    }

    /// One output of a rank, without spare capacity.
    pub fn output(&self, rank: RankId, tensor: Output) -> &[u8] {
        self.ranks.get(rank.index()).map_or(&[], |outputs| &outputs[tensor as usize])
    }

    /// The tensors of the result file.
    pub fn tensors(&self) -> Result<Vec<Tensor<'_>>, Error> {
        let shape = &self.case.shape;
        let row_bytes = shape.payload_bytes() as usize;
        let result = |(rank, outputs)| {
            let outputs: &Outputs = outputs;
            RankResult::of(self.case, rank, outputs[Output::ExpandX as usize].len() / row_bytes, outputs)
        };
        let is_asked = |output: Output| {
            self.asked.is_none_or(|asked| output.is_of_combine() == (asked == Operator::Combine))
        };
        let results: Vec<_> = (0..).map(RankId).zip(&self.ranks).map(result).collect();
        result::tensors(shape, &results, &is_asked)
    }
}

/// The rows that experts return.
struct Returned<'c> {
    case: &'c Case,
    /// By rank, one behind the other.
    rows: Vec<Vec<u8>>,
    /// Where the row of each pair is: its source, token and k; with a TP domain at either peer.
    places: HashMap<(RankId, Token, u32), Vec<(usize, usize)>>,
}

impl<'c> Returned<'c> {
    fn read(case: &'c Case, file: &mut TensorFile) -> Result<Self, Error> {
        let (shape, tp) = (&case.shape, case.shape.tp_world_size().max(1) as usize);
        let received: Vec<_> = Batch::new(case).with_cluster(|cluster| {
            (0..case.ranks.len()).map(|rank| cluster.received(case.name(RankId(rank as u32)))).collect()
        });
        let mut places: HashMap<_, Vec<_>> = HashMap::new();
        let (mut rows, mut problems) = (Vec::new(), Vec::new());
        for rank in 0..received.len() {
            // The own rows come first, then the peer's.
            let of_domain = (0..tp).map(|n| if n == 0 { rank } else { rank ^ 1 });
            let pairs: Vec<_> = of_domain.flat_map(|rank| received[rank].iter().copied()).collect();
            let name = format!("rank{}.expand_x", case.name(RankId(rank as u32)));
            let (dtype, dims) = (result::element(shape), [pairs.len(), shape.h() as usize]);
            match file.info(&name) {
                Some(info) if info.dtype == dtype && info.shape == dims => rows.push(file.read(&name)?),
                seen => {
                    let seen = seen.map_or_else(
                        || ": missing".to_owned(),
                        |info| format!(": {} {:?}", info.dtype, info.shape),
                    );
                    problems.push(Problem::new(name, &seen, format!("must be {dtype} {dims:?}")));
                }
            }
            for (row, pair) in pairs.into_iter().enumerate() {
                places.entry(pair).or_default().push((rank, row));
            }
        }
        let place = file.path().display().to_string();
        if problems.is_empty() {
            Ok(Self { case, rows, places })
        } else {
            Err(Error::Invalid { place, problems })
        }
    }

    /// What came back of a pair, into `row`: of TP peers the sum.
    fn take(&self, source: RankId, token: Token, k: u32, row: &mut Vec<u8>) {
        let shape = &self.case.shape;
        let bytes = shape.row_bytes() as usize;
        let at = |&(rank, n): &(usize, usize)| &self.rows[rank][n * bytes..][..bytes];
        row.clear();
        match self.places.get(&(source, token, k)).map_or(&[] as &[_], Vec::as_slice) {
            [one] => row.extend_from_slice(at(one)),
            [one, peer] => *row = numerics::add_rows(shape.dtype(), at(one), at(peer)),
            _ => {}
        }
    }
}
