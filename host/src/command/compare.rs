//! `veriep compare`: a result against the oracle, or against another result.

use crate::case;
use crate::cli::CompareArgs;
use crate::error::{Error, shown};
use crate::expected::Expected;
use crate::report::{Report, pairs};
use crate::store::{Tensor, TensorFile};
use safetensors::Dtype;
use serde::Serialize;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

/// Most differing tensors named.
const NAMED_MAX: usize = 20;
/// How far `rstd` may be off: its sum may be taken in any order.
const RSTD_TOLERANCE: f64 = 1e-4;
/// How many steps of dtype that moves `y`, which is rounded twice.
const Y_STEPS: u32 = 2;

#[derive(Serialize)]
struct Compared {
    ok: bool,
    expected: String,
    result: String,
    tensors: usize,
    /// What differs, one line per tensor.
    wrong: Vec<String>,
}

pub(super) fn run(args: &CompareArgs, report: &mut Report) -> Result<(), Error> {
    let mut result = TensorFile::open(&args.result)?;
    let wrong = if args.expected.is_dir() {
        let case = case::load(&args.expected)?;
        compare(&Expected::of(&case).tensors()?, &mut result)?
    } else {
        let expected = read(&args.expected)?;
        if expected.is_empty() {
            return Err(Error::file(&args.expected, "has no tensors: must have those to compare with"));
        }
        compare(&expected, &mut result)?
    };
    let compared = Compared {
        ok: wrong.is_empty(),
        expected: args.expected.display().to_string(),
        result: args.result.display().to_string(),
        tensors: result.names().len(),
        wrong,
    };
    report.judge(&compared, table, verdict(&compared))
}

/// What differs, as an error.
fn verdict(compared: &Compared) -> Result<(), Error> {
    if compared.ok {
        return Ok(());
    }
    let mut lines: Vec<_> = compared.wrong.iter().take(NAMED_MAX).cloned().collect();
    if compared.wrong.len() > NAMED_MAX {
        lines.push(format!(
            "{} more tensors differ; --format json has them all",
            compared.wrong.len() - NAMED_MAX
        ));
    }
    Err(Error::Many(
        lines.into_iter().map(|line| Error::Wrong(format!("{}: {line}", compared.result))).collect(),
    ))
}

fn table(compared: &Compared) -> String {
    pairs(&[
        ("expected", compared.expected.clone()),
        ("result", compared.result.clone()),
        ("tensors", compared.tensors.to_string()),
        ("wrong", compared.wrong.len().to_string()),
    ])
}

/// All tensors of a file.
fn read(path: &Path) -> Result<Vec<Tensor<'static>>, Error> {
    let mut file = TensorFile::open(path)?;
    let mut tensors = Vec::new();
    for name in file.names() {
        let data = Cow::Owned(file.read(&name)?);
        if let Some(info) = file.info(&name) {
            tensors.push(Tensor { dtype: info.dtype, shape: info.shape.clone(), name, data });
        }
    }
    Ok(tensors)
}

fn compare(expected: &[Tensor<'_>], result: &mut TensorFile) -> Result<Vec<String>, Error> {
    let expected: BTreeMap<_, _> = expected.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
    let mut wrong = Vec::new();
    for (name, must) in &expected {
        let Some(info) = result.info(name).cloned() else {
            wrong.push(format!("{}: missing", shown(name)));
            continue;
        };
        if (info.dtype, &info.shape) != (must.dtype, &must.shape) {
            let (dtype, shape) = (info.dtype, info.shape);
            let name = shown(name);
            wrong.push(format!("{name}: {dtype} {shape:?}: must be {} {:?}", must.dtype, must.shape));
            continue;
        }
        wrong.extend(difference(must, &result.read(name)?));
    }
    let stray = result.names().into_iter().filter(|name| !expected.contains_key(name.as_str()));
    wrong.extend(stray.map(|name| format!("{}: must be absent", shown(&name))));
    Ok(wrong)
}

/// The first value that differs, and how many do.
fn difference(must: &Tensor<'_>, seen: &[u8]) -> Option<String> {
    if must.data == seen {
        return None;
    }
    let size = (must.dtype.bitsize() / 8).max(1);
    let close: fn(Dtype, &[u8], &[u8]) -> bool = match (must.name.split_once('.'), must.dtype) {
        (Some((_, "rstd")), Dtype::F32) => rstd_is_close,
        (Some((_, "y")), Dtype::BF16 | Dtype::F16) => y_is_close,
        _ => |_, a, b| a == b,
    };
    let pairs = || must.data.chunks(size).zip(seen.chunks(size)).enumerate();
    let (at, (expected, found)) =
        pairs().find(|(_, (expected, found))| !close(must.dtype, expected, found))?;
    let count = pairs().filter(|(_, (expected, found))| !close(must.dtype, expected, found)).count();
    let index = match must.shape.last().filter(|_| must.shape.len() == 2) {
        Some(&columns) => format!("{}, {}", at / columns, at % columns),
        None => at.to_string(),
    };
    let (found, expected) = (value(must.dtype, found), value(must.dtype, expected));
    let all = must.data.len() / size;
    Some(format!("{}[{index}] = {found}: must be {expected} ({count} of {all} values differ)", must.name))
}

fn rstd_is_close(_: Dtype, expected: &[u8], seen: &[u8]) -> bool {
    let number =
        |bytes: &[u8]| bytes.try_into().map_or(f64::NAN, |bytes| f64::from(f32::from_le_bytes(bytes)));
    let (expected, seen) = (number(expected), number(seen));
    if expected.is_finite() {
        (expected - seen).abs() <= RSTD_TOLERANCE * expected.abs()
    } else {
        // Which NaN comes out depends on the order of the sum.
        expected == seen || expected.is_nan() && seen.is_nan()
    }
}

/// Numbers one step apart have magnitudes whose bits are one apart; infinity is a step beyond the largest.
fn y_is_close(dtype: Dtype, expected: &[u8], seen: &[u8]) -> bool {
    let infinity = if dtype == Dtype::F16 { 0x7C00 } else { 0x7F80 };
    let steps = |bytes: &[u8]| {
        let bits = bytes.try_into().map_or(0, u16::from_le_bytes);
        let magnitude = i32::from(bits & 0x7FFF);
        (magnitude <= infinity).then_some(if bits >> 15 == 1 { -magnitude } else { magnitude })
    };
    match (steps(expected), steps(seen)) {
        (Some(expected), Some(seen)) => expected.abs_diff(seen) <= Y_STEPS,
        (expected, seen) => expected == seen,
    }
}

/// A value in words: 16-bit floats as bits, since that is what must be equal.
fn value(dtype: Dtype, bytes: &[u8]) -> String {
    let hex = || bytes.iter().rev().fold("0x".to_owned(), |text, byte| text + &format!("{byte:02x}"));
    match (dtype, bytes) {
        (Dtype::I8, &[byte]) => byte.cast_signed().to_string(),
        (Dtype::I32, &[a, b, c, d]) => i32::from_le_bytes([a, b, c, d]).to_string(),
        (Dtype::F32, &[a, b, c, d]) => format!("{} ({})", f32::from_le_bytes([a, b, c, d]), hex()),
        (Dtype::I64, _) => {
            bytes.try_into().map_or_else(|_| hex(), |bytes| i64::from_le_bytes(bytes).to_string())
        }
        _ => hex(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, dtype: Dtype, shape: Vec<usize>, data: Vec<u8>) -> Tensor<'static> {
        Tensor { name: name.to_owned(), dtype, shape, data: data.into() }
    }

    #[test]
    fn a_difference_names_the_place_both_values_and_how_many_differ() {
        let must = tensor("rank0.x_out", Dtype::BF16, vec![2, 2], vec![0x80, 0x3F, 0, 0, 1, 2, 3, 4]);
        assert_eq!(difference(&must, &[0x80, 0x3F, 0, 0, 1, 2, 3, 4]), None);
        let line = difference(&must, &[0x80, 0x3F, 0, 0, 9, 2, 9, 4]).unwrap();
        assert_eq!(line, "rank0.x_out[1, 0] = 0x0209: must be 0x0201 (2 of 4 values differ)");
        let must = tensor("rank0.ep_recv_counts", Dtype::I32, vec![2], vec![0, 0, 0, 0, 5, 0, 0, 0]);
        let line = difference(&must, &[0, 0, 0, 0, 255, 255, 255, 255]).unwrap();
        assert_eq!(line, "rank0.ep_recv_counts[1] = -1: must be 5 (1 of 2 values differ)");
    }

    #[test]
    fn rstd_and_y_alone_may_be_a_little_off() {
        let f32s = |value: f32| value.to_le_bytes().to_vec();
        let must = |name| tensor(name, Dtype::F32, vec![1], f32s(1.0));
        assert_eq!(difference(&must("rank0.rstd"), &f32s(1.00005)), None);
        assert!(difference(&must("rank0.rstd"), &f32s(1.0005)).is_some());
        assert!(difference(&must("rank0.rstd"), &f32s(f32::NAN)).is_some());
        let not_finite = |value| tensor("rank0.rstd", Dtype::F32, vec![1], f32s(value));
        assert!(difference(&not_finite(f32::INFINITY), &f32s(5.0)).is_some());
        assert!(difference(&not_finite(f32::INFINITY), &f32s(f32::NEG_INFINITY)).is_some());
        assert_eq!(difference(&not_finite(f32::NAN), &f32s(-f32::NAN)), None);
        assert!(difference(&must("rank0.dynamic_scales"), &f32s(1.000_000_1)).is_some());
        let must = |name| tensor(name, Dtype::BF16, vec![1, 1], vec![0x80, 0x3F]);
        assert_eq!(difference(&must("rank0.y"), &[0x82, 0x3F]), None);
        assert!(difference(&must("rank0.y"), &[0x83, 0x3F]).is_some());
        assert!(difference(&must("rank0.x"), &[0x81, 0x3F]).is_some());
        // -0 and the smallest numbers are neighbours, the largest and infinity are, a NaN is nobody's.
        let must = |bits: u16| tensor("rank0.y", Dtype::BF16, vec![1, 1], bits.to_le_bytes().to_vec());
        for (a, b, close) in [
            (0x8000u16, 1u16, true),
            (0x8000, 0x7FFF, false),
            (0x7F80, 0x7F7F, true),
            (0x7F80, 0x7F81, false),
        ] {
            assert_eq!(difference(&must(a), &b.to_le_bytes()).is_none(), close, "{a:#x} {b:#x}");
        }
    }
}
