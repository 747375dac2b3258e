//! A core's scratch.

use super::given;
use crate::fabric::{ProtocolError, Result};

/// A core's scratch for one operator (CANN: the unified buffer). Its content need not be kept between operators.
#[derive(Debug)]
pub struct Scratch<'a> {
    /// At least [`scratch_words`](crate::protocol::scratch_words) words.
    pub words: &'a mut [u32],
    /// At least [`scratch_bytes`](crate::protocol::scratch_bytes) bytes.
    pub row: &'a mut [u8],
}

pub(crate) const SHORT_WORDS: ProtocolError = given("scratch is shorter than scratch_words");
pub(crate) const SHORT_BYTES: ProtocolError = given("scratch is shorter than scratch_bytes");

/// Takes the next `len` words of the scratch.
#[inline(always)]
pub(crate) fn take<'u>(words: &mut &'u mut [u32], len: usize) -> Result<&'u mut [u32]> {
    words.split_off_mut(..len).ok_or(SHORT_WORDS)
}

/// Returns the first `len` bytes of the scratch.
#[inline(always)]
pub(crate) fn room(row: &mut [u8], len: u64) -> Result<&mut [u8]> {
    row.get_mut(..len as usize).ok_or(SHORT_BYTES)
}
