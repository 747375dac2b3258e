//! The value that all elements after the received rows must have.

use core::fmt;
use core::str::FromStr;
use half::{bf16, f16};
use safetensors::Dtype;

/// A number as it was asked for, `nan` and `inf` among them.
#[derive(Clone, Debug, PartialEq)]
pub struct Padding {
    text: String,
    /// Exact where `number` is not.
    integer: Option<i64>,
    number: f64,
    /// Whether `number` is the very value of the text.
    is_exact: bool,
}

impl FromStr for Padding {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number: f64 = text.parse().map_err(|_| "must be a number or nan".to_owned())?;
        let is_exact = Decimal::of(text).is_none_or(|asked| {
            // No number of this type has more digits.
            number.is_finite() && Some(asked) == Decimal::of(&format!("{number:.1100e}"))
        });
        let integer = text.parse().ok().or_else(|| {
            let integer = number as i64;
            (is_exact && number.abs() < 2.0f64.powi(63) && integer as f64 == number).then_some(integer)
        });
        Ok(Self { text: text.to_owned(), integer, number, is_exact })
    }
}

impl fmt::Display for Padding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A finite number in decimal digits: they begin and end with another digit than 0, and none are left of zero.
#[derive(PartialEq)]
struct Decimal {
    digits: String,
    /// Of the last digit.
    exponent: i64,
    is_negative: bool,
}

impl Decimal {
    /// Returns `None` for what is no finite number.
    fn of(text: &str) -> Option<Self> {
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            // An exponent beyond any type's moves the number out of its range all the same.
            Some((mantissa, exponent)) => (mantissa, exponent.parse().unwrap_or(i64::MAX / 2)),
            None => (text, 0i64),
        };
        let unsigned = mantissa.trim_start_matches(['+', '-']);
        let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
        let all = format!("{whole}{fraction}");
        if all.is_empty() || !all.bytes().all(|digit| digit.is_ascii_digit()) {
            return None;
        }
        let digits = all.trim_end_matches('0');
        let dropped = (all.len() - digits.len()) as i64 - fraction.len() as i64;
        let digits = digits.trim_start_matches('0').to_owned();
        let exponent = if digits.is_empty() { 0 } else { exponent.saturating_add(dropped) };
        Some(Self { digits, exponent, is_negative: mantissa.starts_with('-') })
    }
}

/// The value of an element, if its type has that very value, else the nearest that it has, if it has any near.
type Element = Result<Vec<u8>, Option<f64>>;

impl Padding {
    /// The bytes of an element of that type.
    ///
    /// # Errors
    /// The type cannot hold the value exactly; the nearest that it can, if it has numbers at all.
    pub fn element(&self, dtype: Dtype) -> Element {
        match dtype {
            Dtype::BF16 => self.float(bf16::from_f64(self.number), bf16::to_f64, bf16::to_le_bytes),
            Dtype::F16 => self.float(f16::from_f64(self.number), f16::to_f64, f16::to_le_bytes),
            Dtype::F32 => self.float(self.number as f32, f64::from, f32::to_le_bytes),
            Dtype::I8 => self.of_integer(i8::to_le_bytes),
            Dtype::I32 => self.of_integer(i32::to_le_bytes),
            Dtype::I64 => self.of_integer(i64::to_le_bytes),
            _ => Err(None),
        }
    }

    fn float<T: Copy, const N: usize>(
        &self,
        nearest: T,
        number: impl Fn(T) -> f64,
        bytes: impl Fn(T) -> [u8; N],
    ) -> Element {
        let held = number(nearest);
        // A decimal that no binary number is has been rounded already.
        let is_held = self.is_exact && held == self.number || held.is_nan() && self.number.is_nan();
        if is_held { Ok(bytes(nearest).to_vec()) } else { Err(Some(held).filter(|held| held.is_finite())) }
    }

    fn of_integer<T: TryFrom<i64>, const N: usize>(&self, bytes: impl Fn(T) -> [u8; N]) -> Element {
        let element = self.integer.and_then(|integer| T::try_from(integer).ok());
        element.map(|element| bytes(element).to_vec()).ok_or(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(text: &str, dtype: Dtype) -> Element {
        text.parse::<Padding>().unwrap().element(dtype)
    }

    #[test]
    fn a_value_becomes_the_element_of_each_type_that_has_it() {
        for (text, dtype, bytes) in [
            ("-1", Dtype::I32, vec![255; 4]),
            ("-1", Dtype::BF16, vec![0x80, 0xBF]),
            ("-1", Dtype::F16, vec![0x00, 0xBC]),
            ("-1.0", Dtype::I8, vec![255]),
            ("1.0078125", Dtype::BF16, vec![0x81, 0x3F]),
            ("-0.0", Dtype::F32, vec![0, 0, 0, 0x80]),
            ("0e-999999999999999999999", Dtype::BF16, vec![0, 0]),
            ("5e-1", Dtype::F16, vec![0x00, 0x38]),
            ("9007199254740993", Dtype::I64, 9_007_199_254_740_993i64.to_le_bytes().to_vec()),
            ("1e3", Dtype::I32, vec![0xE8, 3, 0, 0]),
            ("inf", Dtype::F32, vec![0, 0, 0x80, 0x7F]),
        ] {
            assert_eq!(element(text, dtype), Ok(bytes), "{text} {dtype}");
        }
        let nan = element("nan", Dtype::BF16).unwrap();
        assert!(bf16::from_le_bytes(nan.try_into().unwrap()).is_nan());
        assert!("minus one".parse::<Padding>().is_err());
    }

    #[test]
    fn a_value_that_the_type_does_not_have_is_refused_with_the_nearest_one() {
        for (text, dtype, nearest) in [
            ("1.004", Dtype::BF16, Some(1.0078125)),
            ("1e-300", Dtype::BF16, Some(0.0)),
            ("1e-300", Dtype::F32, Some(0.0)),
            ("1e-400", Dtype::F32, Some(0.0)),
            ("-1e-99999999999999999999", Dtype::F32, Some(-0.0)),
            ("0.1", Dtype::F32, Some(f64::from(0.1f32))),
            ("1.000000000000000000000000000001", Dtype::F32, Some(1.0)),
            ("1.000000000000000000000000000001", Dtype::I32, None),
            ("16777217", Dtype::F32, Some(16_777_216.0)),
            ("1e400", Dtype::F32, None),
            ("1e9", Dtype::F16, None),
            ("0.5", Dtype::I32, None),
            ("128", Dtype::I8, None),
            ("nan", Dtype::I32, None),
            ("inf", Dtype::I64, None),
            ("1", Dtype::BOOL, None),
        ] {
            assert_eq!(element(text, dtype), Err(nearest), "{text} {dtype}");
        }
    }
}
