//! WindowsIn and WindowsOut of an A2 rank, `hccl_buffsize_mb` each (A2 design, sections 2.3.2, 2.4.3, 3.3.2).
//!
//! ```text
//! half h at h * size / 2, in both regions:
//!   +0                 window of peer 0      In: what peer 0 sent; Out: what goes to it
//!   +rank_win          window of peer 1      rank_win = (half - 1 MiB) / R, rounded down to 512 B
//!   ...
//!   +half - 1 MiB      bufferChosen, u32     only in the first half of In
//!
//! dispatch window of n rows                  combine window of n rows
//!   +0                 24 counts, u32          +0           n rows, 2H apart
//!   +96                FLAG1                   +n * 2H + 32 FLAG
//!   +512               n records
//!   +512 + n * record + 512   FLAG2
//! record: the row as it travels and, where rows have scales, a field of 32 B with the f32 scale in its first four
//! ```
//!
//! Flags are 32-bit words in the low half of an aligned word of eight bytes, which is read as a whole. The sent bytes end
//! with the word of the last flag. Bytes between the named parts are sent along and have no meaning.
//!
//! The last flag moves with the number of rows, and both operators use the same windows: payload may be where a flag is
//! read later. [`next_flag_place`] enumerates every word that either of them can ever read as a flag.

use super::field::offsets;
use super::quantity::{Memory, number};
use super::state::{Operator, Partition};
use super::table::places;
use crate::place::Place;
use crate::shape::Shape;
use crate::units::{Offset, RankId, div_ceil};

/// The flag: every bit of a 32-bit word, the low half of the aligned word of eight bytes at its place.
pub const FLAG: u32 = 0xFFFF_FFFF;
/// The length in bytes of the word that holds a flag.
pub const FLAG_WORD: u64 = 8;
/// The offset of FLAG1 in a dispatch window.
pub const FLAG1: Offset = 4 * STATUS_FLAG as Offset;
/// The number of used words of the head of a dispatch window (CANN: `STATUS_ENTRY_COUNT`).
pub const STATUS_WORDS: usize = 32;
/// The index of FLAG1 among them (CANN: `FLAG_OFFSET`); the counts of the local experts precede it.
pub const STATUS_FLAG: usize = 24;

/// Returns the start of a half, in either region.
#[must_use]
pub const fn half_start(shape: &Shape, half: Partition) -> Offset {
    half.index() as u64 * number::HalfWindow(&Memory::of_any(shape))
}

/// Returns the start of the window of a peer, in either region.
#[must_use]
pub const fn window(shape: &Shape, half: Partition, peer: RankId) -> Offset {
    places::WindowsIn(&Memory::of_any(shape), [half.index(), peer.0]).offset
}

/// Returns the place of byte `at` of the data that `peer` sent here.
#[must_use]
pub const fn window_in(shape: &Shape, half: Partition, peer: RankId, at: Offset) -> Place {
    Place::window(window(shape, half, peer) + at)
}

/// Returns the place of byte `at` of the data that goes to `peer`.
#[must_use]
pub const fn window_out(shape: &Shape, half: Partition, peer: RankId, at: Offset) -> Place {
    let window = places::WindowsOut(&Memory::of_any(shape), [half.index(), peer.0]);
    Place { offset: window.offset + at, ..window }
}

/// Returns the place of the number of the next operator's half, 0 or 1 (CANN: `bufferChosen`); both operators share it.
#[must_use]
pub const fn buffer_chosen(shape: &Shape) -> Place {
    places::BufferChosen(&Memory::of_any(shape), [])
}

/// Returns the offset of record number `position` in a dispatch window.
#[must_use]
pub const fn record(shape: &Shape, position: u32) -> Offset {
    places::WindowRecords(&Memory::of_any(shape), [position]).offset
}

/// Returns the offset of the scale of record number `position`.
pub(crate) const fn record_scale(shape: &Shape, position: u32) -> Offset {
    record(shape, position) + offsets::WindowRecords::Scale(&Memory::of_any(shape))
}

/// Returns the offset of row number `position` in a combine window.
#[must_use]
pub const fn row(shape: &Shape, position: u32) -> Offset {
    places::WindowRows(&Memory::of_any(shape), [position]).offset
}

/// Returns the offset of the last flag of a window of `rows` rows: FLAG2 of dispatch, FLAG of combine.
#[must_use]
pub const fn tail_flag(shape: &Shape, kind: Operator, rows: u32) -> Offset {
    let memory = &Memory::of_any(shape);
    match kind {
        Operator::Dispatch => places::DispatchFlags(memory, [rows]).offset,
        Operator::Combine => places::CombineFlags(memory, [rows]).offset,
    }
}

/// Returns the bytes that are sent to a peer that gets `rows` rows: up to the word of the last flag.
#[must_use]
pub const fn sent_bytes(shape: &Shape, kind: Operator, rows: u32) -> u64 {
    tail_flag(shape, kind, rows) + FLAG_WORD
}

/// Returns the first place in a window, from `from` on, at which dispatch or combine could read a flag for any counts:
/// FLAG1, FLAG2 after any number of rows, FLAG after any number of rows.
#[must_use]
pub const fn next_flag_place(shape: &Shape, from: Offset) -> Offset {
    let dispatch = next_of(tail_flag(shape, Operator::Dispatch, 0), shape.window_record(), from);
    let combine = next_of(tail_flag(shape, Operator::Combine, 0), shape.row_bytes(), from);
    let next = if dispatch < combine { dispatch } else { combine };
    if from <= FLAG1 && FLAG1 < next { FLAG1 } else { next }
}

/// Returns the first of `first`, `first + step`, ... that is not before `from`.
const fn next_of(first: Offset, step: u64, from: Offset) -> Offset {
    first + div_ceil(from.saturating_sub(first), step) * step
}

#[cfg(test)]
mod tests;
