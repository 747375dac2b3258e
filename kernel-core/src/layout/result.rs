//! A row of the combine area with `comm_quant_mode = 2`: int8 in blocks of 8 elements, with a scale for each block.
//!
//! ```text
//! +0             data     H elements of int8
//! +align(H, 32)  scales   ceil(H / 8) elements of dtype; the last block may be shorter than 8
//! ```
//!
//! It is put as one effect and fits the pitch of unquantised rows for every H.

use crate::shape::Shape;

/// Returns data and scales of a row; both are empty where `row` is too short.
pub(crate) fn split<'a>(shape: &Shape, row: &'a [u8]) -> (&'a [u8], &'a [u8]) {
    let (data, scales) = row.split_at_checked(shape.comm_scales_at() as usize).unwrap_or_default();
    (data.get(..shape.h() as usize).unwrap_or_default(), scales)
}

/// Returns data and scales of a row to fill. The bytes between them belong to neither.
pub(crate) fn split_mut<'a>(shape: &Shape, row: &'a mut [u8]) -> (&'a mut [u8], &'a mut [u8]) {
    let (data, scales) = row.split_at_mut_checked(shape.comm_scales_at() as usize).unwrap_or_default();
    (data.get_mut(..shape.h() as usize).unwrap_or_default(), scales)
}
