//! The value that all elements after the received rows must have.

use core::fmt;
use core::str::FromStr;
use half::{bf16, f16};
use safetensors::Dtype;

/// A number as it was asked for, `nan` and `inf` among them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Padding {
    /// Exact where `number` is not.
    integer: Option<i64>,
    number: f64,
}

impl FromStr for Padding {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number: f64 = text.parse().map_err(|_| "must be a number or nan".to_owned())?;
        let integer = text.parse().ok().or_else(|| {
            let integer = number as i64;
            (number.abs() < 2.0f64.powi(63) && integer as f64 == number).then_some(integer)
        });
        Ok(Self { integer, number })
    }
}

impl fmt::Display for Padding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { integer, number } = self;
        match integer {
            Some(integer) if *integer != 0 => integer.fmt(f),
            _ => number.fmt(f),
        }
    }
}

impl Padding {
    /// The bytes of an element of that type: of a float the nearest one. None if the type has no such value.
    pub fn element(self, dtype: Dtype) -> Option<Vec<u8>> {
        let Self { integer, number } = self;
        let is_kept = |element: f64| element.is_finite() == number.is_finite();
        match dtype {
            Dtype::BF16 => Some(bf16::from_f64(number))
                .filter(|element| is_kept(element.to_f64()))
                .map(|element| element.to_le_bytes().to_vec()),
            Dtype::F16 => Some(f16::from_f64(number))
                .filter(|element| is_kept(element.to_f64()))
                .map(|element| element.to_le_bytes().to_vec()),
            Dtype::F32 => Some(number as f32)
                .filter(|element| is_kept((*element).into()))
                .map(|element| element.to_le_bytes().to_vec()),
            Dtype::I8 => Some(i8::try_from(integer?).ok()?.to_le_bytes().to_vec()),
            Dtype::I32 => Some(i32::try_from(integer?).ok()?.to_le_bytes().to_vec()),
            Dtype::I64 => Some(integer?.to_le_bytes().to_vec()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_becomes_the_element_of_each_type_that_has_it() {
        let element = |text: &str, dtype| text.parse::<Padding>().unwrap().element(dtype);
        for (text, dtype, bytes) in [
            ("-1", Dtype::I32, Some(vec![255; 4])),
            ("-1", Dtype::BF16, Some(vec![0x80, 0xBF])),
            ("-1", Dtype::F16, Some(vec![0x00, 0xBC])),
            ("-1.0", Dtype::I8, Some(vec![255])),
            ("1.004", Dtype::BF16, Some(vec![0x81, 0x3F])),
            ("-0.0", Dtype::F32, Some(vec![0, 0, 0, 0x80])),
            ("9007199254740993", Dtype::I64, Some(9_007_199_254_740_993i64.to_le_bytes().to_vec())),
            ("inf", Dtype::F32, Some(vec![0, 0, 0x80, 0x7F])),
            ("1e9", Dtype::F16, None),
            ("0.5", Dtype::I32, None),
            ("128", Dtype::I8, None),
            ("nan", Dtype::I32, None),
            ("inf", Dtype::I64, None),
        ] {
            assert_eq!(element(text, dtype), bytes, "{text} {dtype}");
        }
        assert!(bf16::from_le_bytes(element("nan", Dtype::BF16).unwrap().try_into().unwrap()).is_nan());
        assert!("minus one".parse::<Padding>().is_err());
    }
}
