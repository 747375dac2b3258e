//! When a value of a foreign result is right: the same bits, or as near as was asked for.

use crate::store::Tensor;
use half::{bf16, f16};
use safetensors::Dtype;
use serde::{Serialize, Serializer};
use serde_json::Value;

/// Most differences of a tensor that are listed.
pub const LISTED_MAX: usize = 5;
/// How far `rstd` may be off: its sum may be taken in any order.
const RSTD_RTOL: f64 = 1e-4;
/// How many steps of dtype that moves `y`, which is rounded twice.
const Y_STEPS: u64 = 2;

/// How near a value must be to the one expected. Whichever of the two holds is enough; with all of them 0 only the same
/// bits are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tolerance {
    /// Steps of the value's type.
    pub ulp: u64,
    /// Part of the expected magnitude.
    pub rtol: f64,
    pub atol: f64,
}

/// What became of the values of a tensor.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct Judged {
    /// Values looked at.
    pub compared: usize,
    /// Those that are too far off.
    pub wrong: usize,
    /// NaN where another NaN is expected, which is right: their bits differ.
    #[serde(skip_serializing_if = "is_zero")]
    pub other_nan: usize,
    /// The largest difference of finite values; absent of ids and counts, which are exact.
    pub max_abs: Option<f64>,
    /// The largest difference by the magnitude expected, where that is not 0.
    pub max_rel: Option<f64>,
    /// The most steps of the type.
    pub max_ulp: Option<u64>,
    /// The rows of a matrix that have wrong values. A report lists the first of them.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "first_rows")]
    pub wrong_rows: Vec<usize>,
    /// The row that is expected elsewhere and is in the place of the first wrong one.
    pub stray_row: Option<usize>,
    pub first: Vec<Difference>,
}

fn first_rows<S: Serializer>(rows: &[usize], to: S) -> Result<S::Ok, S::Error> {
    rows[..rows.len().min(LISTED_MAX)].serialize(to)
}

/// Returns true for a count that `serde` leaves out.
pub const fn is_zero(count: &usize) -> bool {
    *count == 0
}

#[derive(Debug, PartialEq, Serialize)]
pub struct Difference {
    /// Its place in the tensor.
    pub index: Vec<usize>,
    /// What is there. What JSON has no number for is a word.
    pub seen: Value,
    pub expected: Value,
    /// Both in words, the bits of a float beside it.
    #[serde(skip)]
    pub words: String,
}

/// A number, and its place among those of its type: neighbours are one apart.
#[derive(Clone, Copy)]
struct Number {
    value: f64,
    place: i64,
}

impl Tolerance {
    /// What the tensor of that name leaves open in any case.
    fn of(self, name: &str) -> Self {
        match name.split_once('.').map_or(name, |(_, tensor)| tensor) {
            "rstd" => Self { rtol: self.rtol.max(RSTD_RTOL), ..self },
            "y" => Self { ulp: self.ulp.max(Y_STEPS), ..self },
            _ => self,
        }
    }

    fn holds(self, expected: Number, seen: Number) -> bool {
        let (a, b) = (expected.value, seen.value);
        if a.is_nan() || b.is_nan() {
            return a.is_nan() && b.is_nan();
        }
        if !a.is_finite() || !b.is_finite() {
            return a == b;
        }
        let is_near = self.ulp > 0 && steps(expected, seen) <= self.ulp;
        let room = self.atol + self.rtol * a.abs();
        is_near || room > 0.0 && (a - b).abs() <= room
    }

    /// Compares the values of a tensor with its bytes in another file, as long.
    pub fn judge(self, must: &Tensor<'_>, seen: &[u8]) -> Judged {
        let size = (must.dtype.bitsize() / 8).max(1);
        let tolerance = self.of(&must.name);
        let has_numbers = number(must.dtype, must.data.get(..size).unwrap_or_default()).is_some();
        let zero = |is: bool| is.then_some(0.0);
        let mut judged = Judged {
            compared: seen.len() / size,
            max_abs: zero(has_numbers),
            max_rel: zero(has_numbers),
            max_ulp: has_numbers.then_some(0),
            ..Judged::default()
        };
        for (at, (expected, found)) in must.data.chunks(size).zip(seen.chunks(size)).enumerate() {
            if expected == found {
                continue;
            }
            let numbers = number(must.dtype, expected).zip(number(must.dtype, found));
            if let Some((a, b)) = numbers.filter(|(a, b)| a.value.is_finite() && b.value.is_finite()) {
                let off = (a.value - b.value).abs();
                judged.max_abs = judged.max_abs.map(|max| max.max(off));
                judged.max_rel =
                    judged.max_rel.map(|max| if a.value == 0.0 { max } else { max.max(off / a.value.abs()) });
                judged.max_ulp = judged.max_ulp.map(|max| max.max(steps(a, b)));
            }
            if let Some((a, b)) = numbers
                && tolerance.holds(a, b)
            {
                judged.other_nan += usize::from(a.value.is_nan() && b.value.is_nan());
                continue;
            }
            judged.wrong += 1;
            if judged.first.len() < LISTED_MAX {
                judged.first.push(difference((must.dtype, &must.shape), at, expected, found));
            }
            if let Some(row) = row_of(&must.shape, at)
                && judged.wrong_rows.last() != Some(&row)
            {
                judged.wrong_rows.push(row);
            }
        }
        if has_numbers && let Some(first) = judged.first.first() {
            judged.stray_row = stray_row(must, seen, &first.index, &judged.wrong_rows);
        }
        judged
    }
}

/// The row of a matrix of that shape in which its element number `at` is.
fn row_of(shape: &[usize], at: usize) -> Option<usize> {
    let &[_, columns] = shape else { return None };
    at.checked_div(columns)
}

/// The row that a matrix should have elsewhere and has in the place of its element `index`. A token that goes to two experts of a
/// rank has two such rows: the one whose place is wrong, too, is meant.
fn stray_row(must: &Tensor<'_>, seen: &[u8], index: &[usize], wrong_rows: &[usize]) -> Option<usize> {
    let &[row, _] = index else { return None };
    let len = must.data.len().checked_div(*must.shape.first()?).filter(|&len| len > 0)?;
    // Rows of zeros are all alike.
    let stray = seen.chunks(len).nth(row).filter(|stray| stray.iter().any(|&byte| byte != 0))?;
    let alike: Vec<_> = (0..).zip(must.data.chunks(len)).filter(|(_, row)| *row == stray).collect();
    let wrong = alike.iter().find(|(row, _)| wrong_rows.contains(row));
    wrong.or_else(|| alike.first()).map(|(row, _)| *row)
}

/// Compares the values after the received rows of a tensor of that type and shape, from its value `from` on, with the one
/// that all of them must be.
pub fn judge_padding(of: (Dtype, &[usize]), from: usize, tail: &[u8], element: &[u8]) -> Judged {
    let mut judged = Judged { compared: tail.len() / element.len().max(1), ..Judged::default() };
    let is_nan = |bytes: &[u8]| number(of.0, bytes).is_some_and(|number| number.value.is_nan());
    for (at, found) in (from..).zip(tail.chunks(element.len().max(1))) {
        if found == element || is_nan(found) && is_nan(element) {
            continue;
        }
        judged.wrong += 1;
        if judged.first.len() < LISTED_MAX {
            judged.first.push(difference(of, at, element, found));
        }
    }
    judged
}

fn difference((dtype, shape): (Dtype, &[usize]), mut at: usize, expected: &[u8], found: &[u8]) -> Difference {
    let mut index = Vec::new();
    for &extent in shape.iter().rev() {
        index.push(at % extent.max(1));
        at /= extent.max(1);
    }
    index.reverse();
    let (found, expected) = (told(dtype, found), told(dtype, expected));
    let words = format!("{index:?} = {}: must be {}", found.1, expected.1);
    Difference { index, seen: found.0, expected: expected.0, words }
}

fn steps(a: Number, b: Number) -> u64 {
    a.place.abs_diff(b.place)
}

/// The number that an element is; none of a type whose values are exact.
fn number(dtype: Dtype, bytes: &[u8]) -> Option<Number> {
    // Floats of one sign have bits in the order of their values; -0 is beside the smallest numbers as 0 is.
    let place = |bits: u32, sign: u32| {
        let magnitude = i64::from(bits & (sign - 1));
        if bits & sign == 0 { magnitude } else { -magnitude }
    };
    Some(match (dtype, bytes) {
        (Dtype::BF16, &[a, b]) => {
            let bits = u16::from_le_bytes([a, b]);
            Number { value: bf16::from_bits(bits).to_f64(), place: place(bits.into(), 1 << 15) }
        }
        (Dtype::F16, &[a, b]) => {
            let bits = u16::from_le_bytes([a, b]);
            Number { value: f16::from_bits(bits).to_f64(), place: place(bits.into(), 1 << 15) }
        }
        (Dtype::F32, &[a, b, c, d]) => {
            let value = f32::from_le_bytes([a, b, c, d]);
            Number { value: value.into(), place: place(value.to_bits(), 1 << 31) }
        }
        (Dtype::I8, &[byte]) => {
            let value = byte.cast_signed();
            Number { value: value.into(), place: value.into() }
        }
        _ => return None,
    })
}

/// An element as JSON and in words; a float with its bits, since those are what must be equal.
fn told(dtype: Dtype, bytes: &[u8]) -> (Value, String) {
    let hex = || bytes.iter().rev().fold("0x".to_owned(), |text, byte| text + &format!("{byte:02x}"));
    match (dtype, bytes, number(dtype, bytes)) {
        (Dtype::I8, _, Some(Number { value, .. })) => ((value as i8).into(), value.to_string()),
        (_, _, Some(Number { value, .. })) => {
            let word = value.to_string();
            let json = if value.is_finite() { value.into() } else { word.clone().into() };
            (json, format!("{word} ({})", hex()))
        }
        (Dtype::I32, &[a, b, c, d], _) => {
            let value = i32::from_le_bytes([a, b, c, d]);
            (value.into(), value.to_string())
        }
        (Dtype::I64, _, _) if bytes.len() == 8 => {
            let value = bytes.try_into().map_or(0, i64::from_le_bytes);
            (value.into(), value.to_string())
        }
        _ => (hex().into(), hex()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXACT: Tolerance = Tolerance { ulp: 0, rtol: 0.0, atol: 0.0 };

    fn tensor(name: &str, dtype: Dtype, shape: Vec<usize>, data: Vec<u8>) -> Tensor<'static> {
        Tensor { name: name.to_owned(), dtype, shape, data: data.into() }
    }

    fn is_right(tolerance: Tolerance, name: &str, dtype: Dtype, expected: &[u8], seen: &[u8]) -> bool {
        tolerance.judge(&tensor(name, dtype, vec![1], expected.to_vec()), seen).wrong == 0
    }

    #[test]
    fn a_difference_names_the_place_and_both_values() {
        let must = tensor("rank0.x_out", Dtype::BF16, vec![2, 2], vec![0x80, 0x3F, 0, 0, 0x80, 0x3F, 3, 4]);
        assert_eq!(
            EXACT.judge(&must, &must.data),
            Judged {
                compared: 4,
                max_abs: Some(0.0),
                max_rel: Some(0.0),
                max_ulp: Some(0),
                ..Judged::default()
            }
        );
        let judged = EXACT.judge(&must, &[0x80, 0x3F, 0, 0, 0x00, 0x3F, 3, 0x84]);
        assert_eq!((judged.compared, judged.wrong), (4, 2));
        assert_eq!((judged.max_abs, judged.max_rel, judged.max_ulp), (Some(0.5), Some(2.0), Some(0x806)));
        assert_eq!(judged.first[0].words, "[1, 0] = 0.5 (0x3f00): must be 1 (0x3f80)");
        assert_eq!((&judged.first[0].index, &judged.first[0].seen), (&vec![1, 0], &0.5.into()));
        assert_eq!((judged.stray_row, judged.other_nan), (None, 0));
        let nan = tensor("rank0.x_out", Dtype::BF16, vec![3], vec![0xC0, 0x7F, 0xC1, 0x7F, 0x80, 0x3F]);
        let judged = EXACT.judge(&nan, &[0xC0, 0x7F, 0xC0, 0xFF, 0x80, 0x3F]);
        assert_eq!((judged.wrong, judged.other_nan), (0, 1));
        let judged = EXACT.judge(&must, &[0x80, 0x3F, 3, 4, 0x80, 0x3F, 0, 0]);
        assert_eq!((judged.wrong, judged.stray_row), (2, Some(1)));
        assert_eq!(judged.wrong_rows, [0, 1]);
        // Rows 0 and 2 are alike, and rows 1 and 2 are in each other's place.
        let must = tensor("rank0.expand_x", Dtype::BF16, vec![3, 1], vec![1, 2, 3, 4, 1, 2]);
        let judged = EXACT.judge(&must, &[1, 2, 1, 2, 3, 4]);
        assert_eq!((judged.wrong_rows, judged.stray_row), (vec![1, 2], Some(2)));
        let judged = EXACT.judge(&tensor("rank0.x_out", Dtype::BF16, vec![2, 1], vec![0, 0, 3, 4]), &[0; 4]);
        assert_eq!((judged.wrong, judged.stray_row), (1, None));
        let must = tensor("rank0.ep_recv_counts", Dtype::I32, vec![2], vec![0, 0, 0, 0, 5, 0, 0, 0]);
        let judged = EXACT.judge(&must, &[0, 0, 0, 0, 255, 255, 255, 255]);
        assert_eq!(judged.first[0].words, "[1] = -1: must be 5");
        assert_eq!((judged.wrong, judged.max_abs, judged.max_ulp), (1, None, None));
        let many = tensor("rank0.expand_x", Dtype::I8, vec![10], vec![7; 10]);
        assert_eq!(EXACT.judge(&many, &[9; 10]).first.len(), LISTED_MAX);
    }

    #[test]
    fn a_step_is_one_of_the_type_and_infinity_is_no_neighbour() {
        let one = Tolerance { ulp: 1, ..EXACT };
        let bf16 =
            |a: u16, b: u16| is_right(one, "rank0.x_out", Dtype::BF16, &a.to_le_bytes(), &b.to_le_bytes());
        for (a, b, right) in [
            (0x3F80, 0x3F81, true),
            (0x3F80, 0x3F7F, true),
            (0x3F80, 0x3F82, false),
            (0x8000, 0x0001, true),
            (0x8001, 0x0001, false),
            (0x7F7F, 0x7F80, false),
            (0x7F80, 0x7F7F, false),
            (0x7F80, 0xFF80, false),
            (0x7FC0, 0x7F81, true),
            (0x7FC0, 0x7F80, false),
        ] {
            assert_eq!(bf16(a, b), right, "{a:#x} {b:#x}");
        }
        for (a, b, right) in [(5i8, 6i8, true), (-128, 127, false), (0, -1, true), (5, 7, false)] {
            assert_eq!(is_right(one, "rank0.expand_x", Dtype::I8, &a.to_le_bytes(), &b.to_le_bytes()), right);
        }
        // Ids and counts are exact, whatever room there is.
        let all = Tolerance { ulp: 9, rtol: 9.0, atol: 9.0 };
        assert!(!is_right(all, "rank0.expand_idx", Dtype::I32, &[1, 0, 0, 0], &[2, 0, 0, 0]));
        assert!(!is_right(EXACT, "rank0.x_out", Dtype::BF16, &[0, 0], &[0, 0x80]), "-0 has other bits");
    }

    #[test]
    fn room_is_absolute_and_relative_together() {
        let right = |rtol, atol, expected: f32, seen: f32| {
            let tolerance = Tolerance { rtol, atol, ulp: 0 };
            is_right(tolerance, "rank0.x_out", Dtype::F32, &expected.to_le_bytes(), &seen.to_le_bytes())
        };
        assert!(right(0.25, 0.0, 4.0, 5.0) && !right(0.25, 0.0, 4.0, 5.5) && !right(0.25, 0.0, 0.0, 1e-9));
        assert!(right(0.0, 0.5, 4.0, 4.5) && !right(0.0, 0.5, 4.0, 4.75) && right(0.25, 0.5, 4.0, 5.5));
        assert!(right(0.0, 0.5, f32::INFINITY, f32::INFINITY) && !right(9.0, 9.0, f32::INFINITY, 5.0));
    }

    #[test]
    fn rstd_and_y_alone_may_be_a_little_off() {
        let f32s = |name, expected: f32, seen: f32| {
            is_right(EXACT, name, Dtype::F32, &expected.to_le_bytes(), &seen.to_le_bytes())
        };
        assert!(f32s("rank0.rstd", 1.0, 1.00005) && !f32s("rank0.rstd", 1.0, 1.0005));
        assert!(!f32s("rank0.rstd", 1.0, f32::NAN) && f32s("rank0.rstd", f32::NAN, -f32::NAN));
        assert!(!f32s("rank0.rstd", f32::INFINITY, 5.0) && !f32s("rank0.dynamic_scales", 1.0, 1.000_000_1));
        let y = |name, seen: u16| is_right(EXACT, name, Dtype::BF16, &[0x80, 0x3F], &seen.to_le_bytes());
        assert!(y("y", 0x3F82) && !y("rank0.yy", 0x3F82));
        assert!(y("rank0.y", 0x3F82) && !y("rank0.y", 0x3F83) && !y("rank0.x", 0x3F81));
    }
}
