//! A token record of the dispatch area.
//!
//! ```text
//! +0                     data      the row as it travels
//! +align(data, 32)       scale     32 B, f32 in the first four; present even when unquantised
//! +align(data, 32) + 32  triple    12 B: source rank, token, k index (i32)
//! ```
//!
//! With fullmesh_v2 these are offsets in a stream that is cut into [blocks](super::block).

use super::field::offsets;
use super::quantity::{Memory, number};
use crate::place::Place;
use crate::shape::Shape;
use crate::shape::element::bits;
use crate::shape::sizes::{SCALE_FIELD, TRIPLE};
use crate::units::{RankId, Token};
use core::ops::Range;

/// The maximum number of bytes between the data of a record and its scale field.
const PADDING_MAX: usize = 31;
/// The maximum number of bytes after the data of a record: padding, scale field, triple.
const TAIL_MAX: usize = PADDING_MAX + SCALE_FIELD as usize + TRIPLE as usize;

/// The source of a row, which combine needs to send the result back (A3 slides: the triple).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Triple {
    /// The rank that owns the token.
    pub source: RankId,
    /// The token on that rank.
    pub token: Token,
    /// k index, or `K + j` for shared expert `j`.
    pub k: u32,
}

impl Triple {
    /// The bytes of a triple in memory and in `assist_info_for_combine`.
    pub const BYTES: u64 = TRIPLE;

    /// Returns the triple as three little-endian i32.
    pub(crate) fn to_bytes(self) -> [u8; TRIPLE as usize] {
        let mut bytes = [0; TRIPLE as usize];
        let words = [self.source.0, self.token.0, self.k];
        for (out, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *out = word.to_le_bytes();
        }
        bytes
    }

    /// Returns the triple as signed words, for messages.
    pub(crate) const fn words(self) -> [i32; 3] {
        [self.source.0.cast_signed(), self.token.0.cast_signed(), self.k.cast_signed()]
    }

    /// Returns the k indices of rows from `source` on `rank`: on a shared-expert rank the index of its own shared expert if
    /// the source sends to it, on any other rank all K.
    #[inline]
    pub(crate) const fn columns_on(shape: &Shape, rank: RankId, source: RankId) -> Range<u32> {
        let k = shape.k();
        match shape.shared_expert_of(rank) {
            Some(j) if shape.sends_to_shared(source, rank) => k + j..k + j + 1,
            Some(_) => 0..0,
            None => 0..k,
        }
    }

    /// Returns whether a row with this triple can be on `rank`.
    #[inline]
    #[must_use]
    pub fn may_be_on(self, shape: &Shape, rank: RankId) -> bool {
        Self::columns_on(shape, rank, self.source).contains(&self.k)
    }

    /// Reads a triple that another rank wrote, with any content.
    #[inline]
    pub(crate) fn from_any(bytes: &[u8]) -> Self {
        // A negative word becomes one above all bounds.
        let mut words = [u32::MAX; 3];
        for (word, &raw) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u32::from_le_bytes(raw);
        }
        let [source, token, k] = words;
        Self { source: RankId(source), token: Token(token), k }
    }

    /// Reads a triple that another rank wrote.
    ///
    /// # Errors
    /// Returns the words as read if no row with this triple can exist in the shape.
    #[inline]
    pub fn from_bytes(shape: &Shape, bytes: &[u8]) -> Result<Self, [i32; 3]> {
        let triple = Self::from_any(bytes);
        let Self { source, token, k } = triple;
        let legal =
            source.0 < shape.ep_world_size() && token.0 < shape.bs(source) && k < shape.combine_columns();
        if legal { Ok(triple) } else { Err(triple.words()) }
    }
}

/// The bytes after the data of a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tail {
    /// They assume maximum padding, so that the rest has the same place in every shape.
    bytes: [u8; TAIL_MAX],
    padding: usize,
}

impl Tail {
    /// Creates the tail of a row with its dynamic scale and its triple.
    #[inline]
    pub(crate) fn new(shape: &Shape, scale: f32, triple: Triple) -> Self {
        let mut bytes = [0; TAIL_MAX];
        if let Some((_, fields)) = bytes.split_first_chunk_mut::<PADDING_MAX>()
            && let Some((scale_field, triple_field)) =
                fields.split_first_chunk_mut::<{ SCALE_FIELD as usize }>()
            && let Some((first, _)) = scale_field.split_first_chunk_mut()
            && let Some((whole, _)) = triple_field.split_first_chunk_mut()
        {
            *first = bits(scale).to_le_bytes();
            *whole = triple.to_bytes();
        }
        Self { bytes, padding: (shape.record_scale_at() - shape.payload_bytes()) as usize }
    }

    /// Returns the bytes to put right after the data.
    #[inline]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(PADDING_MAX - self.padding..).unwrap_or(&[])
    }
}

/// Returns the sent bytes of a record: data, scale field, triple.
#[must_use]
pub const fn sent_bytes(shape: &Shape) -> u64 {
    number::SentBytes(&Memory::of_any(shape))
}

pub(crate) const fn scale_of(shape: &Shape, record: Place) -> Place {
    let scale = offsets::DispatchRecords::Scale(&Memory::of_any(shape));
    Place { offset: record.offset + scale, ..record }
}

/// Returns the place of the triple of the record at `record`.
#[must_use]
pub const fn triple_of(shape: &Shape, record: Place) -> Place {
    let triple = offsets::DispatchRecords::Triple(&Memory::of_any(shape));
    Place { offset: record.offset + triple, ..record }
}
