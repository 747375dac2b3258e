//! Results that the reference computes for a case: expected outputs that no state machine has produced.

use crate::compare;
use safetensors::tensor::TensorInfo;
use std::collections::{HashMap, HashSet, VecDeque};
use std::path::Path;
use veriep_case::batch::Batch;
use veriep_case::case::{Case, returned_file};
use veriep_case::error::{Error, Problem};
use veriep_case::parallel;
use veriep_case::result::{self, Outputs, RankResult, is_flat_assist_info};
use veriep_case::store::{Tensor, TensorFile, numbers_of};
use veriep_case::tolerance::{Difference, Tolerance};
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
    /// Asks the reference for every rank.
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

    /// Asks for what a case folder asks about: both operators, or combine alone if the folder holds what experts returned.
    ///
    /// # Errors
    /// As [`Self::combined`].
    pub fn of_folder(case: &'c Case, folder: &Path) -> Result<Self, Error> {
        let Some(returned) = returned_file(folder)? else { return Ok(Self::of(case)) };
        Self::combined(case, &mut TensorFile::open(&returned)?)
    }

    /// Checks what experts returned, if the folder of a case has it; returns whether it has.
    ///
    /// # Errors
    /// As [`Self::combined`].
    pub fn check_returned(case: &Case, folder: &Path) -> Result<bool, Error> {
        let Some(returned) = returned_file(folder)? else { return Ok(false) };
        Returned::read(case, &mut TensorFile::open(&returned)?).map(|_| true)
    }

    /// Asks for combine of what experts return: `rank{r}.y`, or by the operators' name `rank{r}.expand_x`, `[n, h]` dtype, one
    /// row for each that dispatch handed them, or more, of which the first n are read. Their order is that of dispatch, or of
    /// the triples of `rank{r}.assist_info_for_combine` if the file has it; further tensors that combine takes from dispatch
    /// must be right.
    ///
    /// # Errors
    /// A tensor is missing, its type or shape is another, or it is not what dispatch returns.
    pub fn combined(case: &'c Case, returned: &mut TensorFile) -> Result<Self, Error> {
        let rows = Returned::read(case, returned)?;
        Ok(Self::each(case, Some(Operator::Combine), |cluster, rank| {
            let name = case.name(rank);
            let take = |token, k, row: &mut Vec<u8>| rows.take(name, token, k, row);
            compare::combined(cluster, name, &mut { take }).0
        }))
    }

    /// The same if `file` has more of dispatch than rows.
    fn dispatched_if_given(case: &'c Case, file: &TensorFile) -> Option<Self> {
        let is_given =
            |name: &String| OF_DISPATCH.iter().any(|output| name.ends_with(&format!(".{}", output.name())));
        file.names().iter().any(is_given).then(|| Self::dispatched(case))
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

/// What combine takes from dispatch besides the rows; a file may have it.
const OF_DISPATCH: [Output; 5] =
    [Output::AssistInfo, Output::EpRecvCounts, Output::TpRecvCounts, Output::ExpandIdx, Output::ExpandScales];
/// The rows under the name that the operators' documents give to what experts return.
const Y: &str = "y";

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
        let (mut rows, mut problems) = (Vec::new(), unknown(case, file));
        let dispatched = Expected::dispatched_if_given(case, file);
        let dispatched = dispatched.as_ref().map_or_else(|| Ok(Vec::new()), Expected::tensors)?;
        let dispatched: HashMap<_, _> =
            dispatched.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
        let uses_y = file.names().iter().any(|name| name.ends_with(".y"));
        for rank in 0..received.len() {
            // Its own rows come first, then the peer's.
            let of_domain = (0..tp).map(|n| if n == 0 { rank } else { rank ^ 1 });
            let pairs: Vec<_> = of_domain.flat_map(|rank| received[rank].iter().copied()).collect();
            let of_rank = |tensor: &str| format!("rank{}.{tensor}", case.name(RankId(rank as u32)));
            let by_operators = of_rank(Output::ExpandX.name());
            // What is missing has the name that other ranks use.
            let by_y = file.info(&of_rank(Y)).is_some() || file.info(&by_operators).is_none() && uses_y;
            if by_y && file.info(&by_operators).is_some() {
                let rule = format!("must be absent beside {}", of_rank(Y));
                problems.push(Problem::new(by_operators.clone(), " is given", rule));
            }
            let name = if by_y { of_rank(Y) } else { by_operators };
            let (dtype, dims) = (result::element(shape), [pairs.len(), shape.h() as usize]);
            match file.info(&name) {
                Some(info) if info.dtype == dtype && has_rows(&info.shape, dims) => {
                    rows.push(file.read(&name)?);
                }
                seen => {
                    let seen = seen.map_or_else(|| ": missing".to_owned(), kind);
                    problems.push(Problem::new(name, &seen, format!("must be {dtype} {dims:?}")));
                }
            }
            let mut order: Vec<_> = (0..pairs.len()).collect();
            for output in OF_DISPATCH {
                let name = of_rank(output.name());
                let Some(info) = file.info(&name).cloned() else { continue };
                let wrong = match dispatched.get(&name) {
                    None => Some((kind(&info), "must be absent".to_owned())),
                    Some(must) if info.dtype != must.dtype || !is_given(output, &info.shape, must) => {
                        Some((kind(&info), format!("must be {} {:?}", must.dtype, must.shape)))
                    }
                    Some(must) if output == Output::AssistInfo => {
                        order_of(must, &file.read(&name)?).map(|given| order = given).err()
                    }
                    Some(must) => difference(must, &file.read(&name)?),
                };
                problems.extend(wrong.map(|(seen, rule)| Problem::new(name, &seen, rule)));
            }
            for (row, pair) in order.into_iter().zip(pairs) {
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

/// What is wrong with a tensor: what is there, and the rule.
type Wrong = (String, String);

/// Whether rows of that shape are enough.
fn has_rows(shape: &[usize], must: [usize; 2]) -> bool {
    matches!(shape, &[rows, h] if rows >= must[0] && h == must[1])
}

/// Type and shape in words.
fn kind(info: &TensorInfo) -> String {
    format!(": {} {:?}", info.dtype, info.shape)
}

/// The tensors of a file that neither experts nor dispatch return.
fn unknown(case: &Case, file: &TensorFile) -> Vec<Problem> {
    let outputs = Output::ALL.into_iter().filter(|output| !output.is_of_combine()).map(Output::name);
    let names: Vec<_> = outputs.chain([Y]).collect();
    let ranks = (0..case.ranks.len()).map(|rank| case.name(RankId(rank as u32)));
    let known: HashSet<_> =
        ranks.flat_map(|rank| names.iter().map(move |name| format!("rank{rank}.{name}"))).collect();
    let unknown = file.names().into_iter().filter(|name| !known.contains(name));
    unknown.map(|name| Problem::new(name, ": unknown tensor", "must be absent")).collect()
}

/// Whether a tensor that combine takes from dispatch has the shape that dispatch returns, or the operators' own.
fn is_given(output: Output, shape: &[usize], must: &Tensor<'_>) -> bool {
    shape == must.shape
        || output == Output::AssistInfo
            && matches!((shape, &*must.shape), (&[words], &[rows, _]) if is_flat_assist_info(words, rows))
}

/// The first difference from what dispatch returns.
fn difference(must: &Tensor<'_>, seen: &[u8]) -> Option<Wrong> {
    let Difference { index, seen, expected, .. } =
        Tolerance::default().judge(must, seen).first.into_iter().next()?;
    Some((format!("{index:?} = {seen}"), format!("must be {expected}, which dispatch returns")))
}

/// Where the row of each of the triples `must` is, by those given. Equal ones, of TP peers, keep their order.
fn order_of(must: &Tensor<'_>, seen: &[u8]) -> Result<Vec<usize>, Wrong> {
    let triples = |bytes: &[u8]| bytes.as_chunks::<12>().0.to_vec();
    let must = triples(&must.data);
    let mut given: HashMap<[u8; 12], VecDeque<usize>> = HashMap::new();
    let mut unsent: HashMap<[u8; 12], usize> = HashMap::new();
    must.iter().for_each(|triple| *unsent.entry(*triple).or_default() += 1);
    for (row, triple) in triples(seen).into_iter().take(must.len()).enumerate() {
        match unsent.get_mut(&triple) {
            Some(left) if *left > 0 => *left -= 1,
            _ => {
                let triple = numbers_of(&triple, i32::from_le_bytes);
                return Err((
                    format!("[{row}] = {triple:?}"),
                    "must be a row that dispatch sends here, once".to_owned(),
                ));
            }
        }
        given.entry(triple).or_default().push_back(row);
    }
    Ok(must.iter().filter_map(|triple| given.get_mut(triple)?.pop_front()).collect())
}
