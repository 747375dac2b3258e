//! Entries of output tables, written in pieces.

use super::internal;
use super::rows::ROWS;
use crate::fabric::{Fabric, Result};
use crate::layout::outputs;
use crate::place::{Place, Tensor};
use core::ops::Range;

/// The maximum number of a table's entries in one write.
pub(crate) const CHUNK: u32 = 64;

/// Returns the entries of a share, from `first` on, that go into one write.
pub(crate) fn chunk_of(share: &Range<u32>, first: u32) -> Range<u32> {
    first..share.end.min(first + CHUNK)
}

/// Writes `expand_idx` from `pair` of the `own` pairs on, up to the limit of one write; `slots` are the slots of all own
/// pairs. Returns the next pair; `None` when all are written.
pub(crate) fn expand_idx<F: Fabric + ?Sized>(
    fabric: &mut F,
    own: &Range<u32>,
    slots: &[u32],
    pair: u32,
) -> Result<Option<u32>> {
    if pair >= own.end {
        return Ok(None);
    }
    let Range { end, .. } = chunk_of(own, pair);
    let now = (pair - own.start) as usize..(end - own.start) as usize;
    let slots = slots.get(now).ok_or(internal("own pair outside the share"))?;
    // NO_SLOT is the bit pattern of -1.
    write_words(fabric, outputs::element(Tensor::ExpandIdx, pair), slots.iter().copied())?;
    Ok(Some(end))
}

/// Writes the first `count` entries into an output.
pub(crate) fn write_first<const N: usize, F: Fabric + ?Sized>(
    fabric: &mut F,
    at: Place,
    entries: &[[u8; N]; ROWS as usize],
    count: u32,
) -> Result<()> {
    let entries = entries.get(..count as usize).ok_or(internal("more rows than a write carries"))?;
    fabric.write(at, entries.as_flattened())?;
    Ok(())
}

/// Writes words, at most [`CHUNK`], into an output.
pub(crate) fn write_words<F: Fabric + ?Sized>(
    fabric: &mut F,
    at: Place,
    words: impl Iterator<Item = u32>,
) -> Result<()> {
    let (bytes, len) = bytes_of(words);
    fabric.write(at, bytes.get(..len).unwrap_or(&[]))?;
    Ok(())
}

/// Returns the bytes of some words, at most [`CHUNK`], and their number.
pub(crate) fn bytes_of(words: impl Iterator<Item = u32>) -> ([u8; CHUNK as usize * 4], usize) {
    let mut bytes = [0; CHUNK as usize * 4];
    let mut len = 0;
    for (out, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
        *out = word.to_le_bytes();
        len += 4;
    }
    (bytes, len)
}
