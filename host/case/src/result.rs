//! The result of a run as one safetensors file.

use crate::case::Case;
use crate::error::Error;
use crate::global_rank;
use crate::store::{Tensor, type_named, write_tensors};
use safetensors::Dtype;
use std::borrow::Cow;
use std::path::Path;
use veriep_core::place::Tensor as Output;
use veriep_core::shape::{Op, Protocol, RowElement, Shape};
use veriep_core::units::RankId;

/// The outputs of a rank, by their numbers: little-endian bytes of what it really has, not of the capacity.
pub type Outputs = [Vec<u8>; Output::ALL.len()];

/// What one rank got, by reference.
#[derive(Clone, Copy, Debug)]
pub struct RankResult<'a> {
    /// Number in file names: `ep_rank * tp_world_size + tp_rank`.
    pub rank: u32,
    /// bs: tokens of the rank.
    pub tokens: usize,
    /// n: rows really received. With TP both peers' rows.
    pub rows: usize,
    /// The combine that it called.
    pub op: Op,
    /// Those that the file does not have are not looked at.
    pub outputs: &'a Outputs,
}

impl<'a> RankResult<'a> {
    /// The result that these outputs of `rank` are, of which `rows` rows were received.
    pub fn of(case: &Case, rank: RankId, rows: usize, outputs: &'a Outputs) -> Self {
        let tokens = case.shape.bs(global_rank::ep_rank(&case.shape, rank)) as usize;
        Self { rank: case.name(rank).0, tokens, rows, op: case.config.operator(), outputs }
    }
}

/// Whether so many words are `assist_info_for_combine` of `rows` rows in one dimension: triples one behind the other, at the
/// start of the operators' 128 words for each row of the capacity.
pub const fn is_flat_assist_info(words: usize, rows: usize) -> bool {
    words == 3 * rows || words.is_multiple_of(128) && words / 128 >= rows
}

/// The names of all tensors that a result may have of a rank.
pub fn names() -> impl Iterator<Item = &'static str> {
    let is_of_files = |output: &Output| !matches!(output, Output::RowTable | Output::SentRows);
    Output::ALL.into_iter().filter(is_of_files).map(Output::name)
}

/// Writes the results of all ranks to `path`, complete or not at all.
///
/// # Errors
/// A tensor is not as long as its shape says, or the file cannot be written; nothing is left behind.
pub fn write(path: &Path, shape: &Shape, ranks: &[RankResult<'_>]) -> Result<(), Error> {
    write_tensors(path, tensors(shape, ranks, &|_| true)?)
}

/// Those tensors of the file that are asked for.
///
/// # Errors
/// A tensor is not as long as its shape says.
pub fn tensors<'a>(
    shape: &Shape,
    ranks: &[RankResult<'a>],
    is_asked: &dyn Fn(Output) -> bool,
) -> Result<Vec<Tensor<'a>>, Error> {
    let mut tensors = Vec::with_capacity(8 * ranks.len());
    for result in ranks {
        push_rank(shape, result, is_asked, &mut tensors)?;
    }
    Ok(tensors)
}

/// The type of tokens and results in files.
pub fn element(shape: &Shape) -> Dtype {
    in_files(shape, RowElement::Dtype)
}

fn in_files(shape: &Shape, element: RowElement) -> Dtype {
    type_named(element.name(shape.dtype())).expect("files have all types of rows")
}

fn push_rank<'a>(
    shape: &Shape,
    result: &RankResult<'a>,
    is_asked: &dyn Fn(Output) -> bool,
    tensors: &mut Vec<Tensor<'a>>,
) -> Result<(), Error> {
    let RankResult { rank, tokens: bs, rows: n, op, outputs } = *result;
    let (k, h) = (shape.k() as usize, shape.h() as usize);
    let element = element(shape);
    let received = in_files(shape, shape.row_format().element);
    let list = |output: Output, size: usize| vec![outputs[output as usize].len() / size];
    let has_tp = shape.tp_world_size() == 2;
    let has_scales = shape.row_format().scale.is_some();
    let has_norm = op == Op::CombineAddRmsNorm;
    let has_triples = shape.protocol() != Protocol::Fullmesh;
    let has_weights = shape.protocol() == Protocol::Hierarchy;
    let all = [
        (true, Output::ExpandX, received, vec![n, h]),
        (true, Output::ExpandIdx, Dtype::I32, vec![bs, k]),
        (true, Output::ExpertTokenNums, Dtype::I64, list(Output::ExpertTokenNums, 8)),
        (true, Output::EpRecvCounts, Dtype::I32, list(Output::EpRecvCounts, 4)),
        (true, Output::XOut, element, vec![bs, h]),
        (has_scales, Output::DynamicScales, Dtype::F32, vec![n]),
        (has_triples, Output::AssistInfo, Dtype::I32, vec![n, 3]),
        (has_tp, Output::TpRecvCounts, Dtype::I32, vec![2]),
        (has_weights, Output::ExpandScales, Dtype::F32, vec![n]),
        (has_norm, Output::Y, element, vec![bs, h]),
        (has_norm, Output::Rstd, Dtype::F32, vec![bs]),
        (has_norm, Output::X, element, vec![bs, h]),
    ];
    for (is_there, output, dtype, dims) in all {
        if !is_there || !is_asked(output) {
            continue;
        }
        let (name, data) = (format!("rank{rank}.{}", output.name()), &outputs[output as usize]);
        let (seen, must) = (data.len(), dims.iter().product::<usize>() * dtype.bitsize() / 8);
        if seen != must {
            return Err(Error::Wrong(format!("{name}: {seen} bytes: {dtype} {dims:?} must have {must}")));
        }
        tensors.push(Tensor { name, dtype, shape: dims, data: Cow::Borrowed(data) });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presets::preset;
    use crate::store::TensorFile;
    use veriep_core::shape::{Given, Limits};

    fn tiny() -> Shape {
        let (config, _) = preset("tiny").unwrap();
        Shape::new(&config.as_core(Given::empty()), Limits::Product).unwrap()
    }

    #[test]
    fn zero_received_rows_are_written_as_a_tensor_of_zero_rows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("result.safetensors");
        let mut outputs = Outputs::default();
        for (output, bytes) in [
            (Output::XOut, vec![1; 4 * 2048]),
            (Output::ExpandIdx, vec![0; 4 * 2 * 4]),
            (Output::ExpertTokenNums, vec![0; 2 * 8]),
            (Output::EpRecvCounts, vec![0; 4 * 4]),
        ] {
            outputs[output as usize] = bytes;
        }
        let result = RankResult { rank: 1, tokens: 4, rows: 0, op: Op::Combine, outputs: &outputs };
        write(&path, &tiny(), &[result]).unwrap();
        let mut file = TensorFile::open(&path).unwrap();
        assert_eq!(file.info("rank1.expand_x").unwrap().shape, [0, 1024]);
        assert_eq!(file.info("rank1.expert_token_nums").unwrap().shape, [2]);
        assert!(file.info("rank1.dynamic_scales").is_none());
        assert_eq!(file.read("rank1.x_out").unwrap(), outputs[Output::XOut as usize]);
    }

    #[test]
    fn a_tensor_of_the_wrong_length_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("result.safetensors");
        let result =
            RankResult { rank: 0, tokens: 0, rows: 1, op: Op::Combine, outputs: &Outputs::default() };
        let error = write(&path, &tiny(), &[result]).unwrap_err();
        assert!(error.to_string().contains("rank0.expand_x: 0 bytes"), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
