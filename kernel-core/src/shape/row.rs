//! The formats of rows in transit: tokens to experts, and results back.

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
    /// [`Dtype`](super::Dtype): the row is sent as it is.
    Dtype,
    /// Signed bytes.
    Int8,
}

/// The scales of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scale {
    /// One f32 for the row.
    PerRow,
    /// One element of [`Dtype`](super::Dtype) for each block of 8 elements.
    PerBlock,
}

impl RowFormat {
    /// The format of a dispatched token of `h` elements (seed: `quantMode`).
    pub(super) const fn of_tokens(quant_mode: i64, h: u64) -> Self {
        match quant_mode {
            2 => Self::int8(h, Scale::PerRow),
            _ => Self::unchanged(h),
        }
    }

    /// The format of a returned result of `h` elements (seed: `commQuantMode`).
    pub(super) const fn of_results(comm_quant_mode: i64, h: u64) -> Self {
        match comm_quant_mode {
            2 => Self::int8(h, Scale::PerBlock),
            _ => Self::unchanged(h),
        }
    }

    /// Returns the bytes of the longest row of a hierarchy with this format of tokens and results of at most `row` bytes.
    pub(super) const fn relay_row(&self, row: u64) -> u64 {
        if self.payload_bytes > row { self.payload_bytes } else { row }
    }

    /// Returns a number for the element and the scale, 0 for rows that are sent unchanged.
    pub(super) fn kind(&self) -> u32 {
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
        let row = |format: RowFormat| format.relay_row(32);
        assert_eq!([RowFormat::of_tokens(0, 16), RowFormat::of_tokens(2, 16)].map(row), [32, 32]);
        let wider = RowFormat { payload_bytes: 64, ..RowFormat::of_tokens(0, 16) };
        assert_eq!(row(wider), 64);
    }
}
