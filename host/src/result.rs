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

/// What one rank got, by reference: little-endian bytes, `rows` rows of what dispatch received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankResult<'a> {
    /// Number in file names: `ep_rank * tp_world_size + tp_rank`.
    pub rank: u32,
    /// bs: tokens of the rank.
    pub tokens: usize,
    /// n: rows really received, not the capacity. With TP both peers' rows.
    pub rows: usize,
    /// `[n, h]`, as rows travel.
    pub expand_x: &'a [u8],
    /// `[n]` f32, `quant_mode = 2`.
    pub dynamic_scales: Option<&'a [u8]>,
    /// `[n, 3]` i32, A3 and hierarchy.
    pub assist_info_for_combine: Option<&'a [u8]>,
    /// `[bs, k]` i32.
    pub expand_idx: &'a [u8],
    /// `[L]` i64; its length says how many local experts the rank has.
    pub expert_token_nums: &'a [u8],
    /// `[L * R]` i32, with TP twice that.
    pub ep_recv_counts: &'a [u8],
    /// `[2]` i32, TP = 2.
    pub tp_recv_counts: Option<&'a [u8]>,
    /// `[n]` f32, hierarchy.
    pub expand_scales: Option<&'a [u8]>,
    /// `[bs, h]` dtype.
    pub x_out: &'a [u8],
    /// `[bs, h]` dtype, AddRmsNorm.
    pub y: Option<&'a [u8]>,
    /// `[bs]` f32, AddRmsNorm.
    pub rstd: Option<&'a [u8]>,
    /// `[bs, h]` dtype, AddRmsNorm.
    pub x: Option<&'a [u8]>,
}

impl<'a> RankResult<'a> {
    /// The result that these outputs of `rank` are, by their numbers; of which `rows` rows were received.
    pub fn of(case: &Case, rank: RankId, rows: usize, outputs: &'a [Vec<u8>; Output::ALL.len()]) -> Self {
        let shape = &case.shape;
        let output = |output: Output| outputs[output as usize].as_slice();
        let quantised = shape.row_format().scale.is_some();
        let (by_counts, hierarchy) =
            (shape.protocol() == Protocol::Fullmesh, shape.protocol() == Protocol::Hierarchy);
        let norm = shape.op() == Op::CombineAddRmsNorm;
        Self {
            rank: case.name(rank).0,
            tokens: shape.bs(global_rank::ep_rank(shape, rank)) as usize,
            rows,
            expand_x: output(Output::ExpandX),
            dynamic_scales: quantised.then(|| output(Output::DynamicScales)),
            assist_info_for_combine: (!by_counts).then(|| output(Output::AssistInfo)),
            expand_idx: output(Output::ExpandIdx),
            expert_token_nums: output(Output::ExpertTokenNums),
            ep_recv_counts: output(Output::EpRecvCounts),
            expand_scales: hierarchy.then(|| output(Output::ExpandScales)),
            tp_recv_counts: (shape.tp_world_size() == 2).then(|| output(Output::TpRecvCounts)),
            x_out: output(Output::XOut),
            y: norm.then(|| output(Output::Y)),
            rstd: norm.then(|| output(Output::Rstd)),
            x: norm.then(|| output(Output::X)),
        }
    }
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
    write_tensors(path, tensors(shape, ranks)?)
}

/// The tensors of the file.
///
/// # Errors
/// A tensor is not as long as its shape says.
pub fn tensors<'a>(shape: &Shape, ranks: &[RankResult<'a>]) -> Result<Vec<Tensor<'a>>, Error> {
    tensors_of(shape, ranks, &|_| true)
}

/// Those of them whose names, without the rank, are asked for.
pub(crate) fn tensors_of<'a>(
    shape: &Shape,
    ranks: &[RankResult<'a>],
    is_asked: &dyn Fn(&str) -> bool,
) -> Result<Vec<Tensor<'a>>, Error> {
    let mut tensors = Vec::with_capacity(8 * ranks.len());
    for result in ranks {
        push_rank(shape, result, is_asked, &mut tensors)?;
    }
    Ok(tensors)
}

/// The type of tokens and results in files.
pub(crate) fn element(shape: &Shape) -> Dtype {
    in_files(shape, RowElement::Dtype)
}

fn in_files(shape: &Shape, element: RowElement) -> Dtype {
    type_named(element.name(shape.dtype())).expect("files have all types of rows")
}

fn push_rank<'a>(
    shape: &Shape,
    result: &RankResult<'a>,
    is_asked: &dyn Fn(&str) -> bool,
    tensors: &mut Vec<Tensor<'a>>,
) -> Result<(), Error> {
    let (rank, n) = (result.rank, result.rows);
    let (k, h) = (shape.k() as usize, shape.h() as usize);
    let bs = result.tokens;
    let element = element(shape);
    let received = in_files(shape, shape.row_format().element);
    let list = |bytes: &[u8], size: usize| vec![bytes.len() / size];
    let mut push = |name: &str, dtype: Dtype, dims: Vec<usize>, data: &'a [u8]| {
        if !is_asked(name) {
            return Ok(());
        }
        let must = dims.iter().product::<usize>() * dtype.bitsize() / 8;
        if data.len() != must {
            let seen = data.len();
            return Err(Error::Wrong(format!(
                "rank{rank}.{name}: {seen} bytes: {dtype} {dims:?} must have {must}"
            )));
        }
        let name = format!("rank{rank}.{name}");
        tensors.push(Tensor { name, dtype, shape: dims, data: Cow::Borrowed(data) });
        Ok(())
    };
    push("expand_x", received, vec![n, h], result.expand_x)?;
    push("expand_idx", Dtype::I32, vec![bs, k], result.expand_idx)?;
    push("expert_token_nums", Dtype::I64, list(result.expert_token_nums, 8), result.expert_token_nums)?;
    push("ep_recv_counts", Dtype::I32, list(result.ep_recv_counts, 4), result.ep_recv_counts)?;
    push("x_out", element, vec![bs, h], result.x_out)?;
    let optional = [
        ("dynamic_scales", Dtype::F32, vec![n], result.dynamic_scales),
        ("assist_info_for_combine", Dtype::I32, vec![n, 3], result.assist_info_for_combine),
        ("tp_recv_counts", Dtype::I32, vec![2], result.tp_recv_counts),
        ("expand_scales", Dtype::F32, vec![n], result.expand_scales),
        ("y", element, vec![bs, h], result.y),
        ("rstd", Dtype::F32, vec![bs], result.rstd),
        ("x", element, vec![bs, h], result.x),
    ];
    for (name, dtype, dims, data) in optional {
        if let Some(data) = data {
            push(name, dtype, dims, data)?;
        }
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
        let (bs_h, bs_k, l, l_r) = (vec![1; 4 * 2048], vec![0; 4 * 2 * 4], vec![0; 2 * 8], vec![0; 4 * 4]);
        let result = RankResult {
            rank: 1,
            tokens: 4,
            assist_info_for_combine: Some(&[]),
            expand_idx: &bs_k,
            expert_token_nums: &l,
            ep_recv_counts: &l_r,
            x_out: &bs_h,
            ..RankResult::default()
        };
        write(&path, &tiny(), &[result]).unwrap();
        let mut file = TensorFile::open(&path).unwrap();
        assert_eq!(file.info("rank1.expand_x").unwrap().shape, [0, 1024]);
        assert_eq!(file.info("rank1.expert_token_nums").unwrap().shape, [2]);
        assert!(file.info("rank1.dynamic_scales").is_none());
        assert_eq!(file.read("rank1.x_out").unwrap(), bs_h);
    }

    #[test]
    fn a_tensor_of_the_wrong_length_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("result.safetensors");
        let error = write(&path, &tiny(), &[RankResult { rows: 1, ..RankResult::default() }]).unwrap_err();
        assert!(error.to_string().contains("rank0.expand_x: 0 bytes"), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
