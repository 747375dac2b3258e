//! The formats of rows in transit: tokens to experts, and results back.

use super::Dtype;

/// The format of a row in transit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowFormat {
    /// The type of the elements.
    pub element: RowElement,
    /// Bytes of all elements.
    pub payload_bytes: u64,
    /// The factors that turn elements into values; `None` if the elements are the values.
    pub scale: Option<Scale>,
}

/// The element type of a row that travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowElement {
    /// [`Dtype`]: the row is sent as it is; mode 0.
    Dtype,
    /// Signed bytes, quantised dynamically; mode 2.
    Int8,
}

/// The scales of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scale {
    /// One f32 for the row.
    PerRow,
    /// One element of [`Dtype`] for each block of 8 elements.
    PerBlock,
}

impl RowElement {
    /// Returns the number of such rows in a configuration, as `quant_mode` or `comm_quant_mode`.
    #[must_use]
    pub const fn mode(self) -> i64 {
        match self {
            Self::Dtype => 0,
            Self::Int8 => 2,
        }
    }

    /// Returns the name that NumPy and PyTorch give the type.
    #[must_use]
    pub const fn name(self, dtype: Dtype) -> &'static str {
        match (self, dtype) {
            (Self::Dtype, Dtype::Bf16) => "bfloat16",
            (Self::Dtype, Dtype::F16) => "float16",
            (Self::Int8, _) => "int8",
        }
    }
}

impl RowFormat {
    /// The legal values of `quant_mode`.
    pub(super) const QUANT_MODES: &[i64] = &[0, 2];

    /// The format of a dispatched token of `h` elements (CANN: `quantMode`).
    pub(super) const fn of_tokens(quant_mode: i64, h: u64) -> Self {
        match quant_mode {
            2 => Self::int8(h, Scale::PerRow),
            _ => Self::unchanged(h),
        }
    }

    /// The format of a returned result of `h` elements (CANN: `commQuantMode`).
    pub(super) const fn of_results(comm_quant_mode: i64, h: u64) -> Self {
        match comm_quant_mode {
            2 => Self::int8(h, Scale::PerBlock),
            _ => Self::unchanged(h),
        }
    }

    /// Returns the bytes of the longer row: in this format, or of `row` bytes.
    pub(super) const fn or_longer(&self, row: u64) -> u64 {
        if self.payload_bytes > row { self.payload_bytes } else { row }
    }

    /// Returns a number for the element and the scale, 0 for rows that are sent unchanged.
    pub(crate) fn kind(&self) -> u32 {
        self.element as u32 + 256 * self.scale.map_or(0, |scale| scale as u32 + 1)
    }

    const fn unchanged(h: u64) -> Self {
        Self { element: RowElement::Dtype, payload_bytes: h.saturating_mul(2), scale: None }
    }

    const fn int8(h: u64, scale: Scale) -> Self {
        Self { element: RowElement::Int8, payload_bytes: h, scale: Some(scale) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_a_hierarchy_have_room_for_the_longest_row_that_travels() {
        let row = |format: RowFormat| format.or_longer(32);
        assert_eq!([RowFormat::of_tokens(0, 16), RowFormat::of_tokens(2, 16)].map(row), [32, 32]);
        let wider = RowFormat { payload_bytes: 64, ..RowFormat::of_tokens(0, 16) };
        assert_eq!(row(wider), 64);
    }
}
