//! The window of a rank in an A2 hierarchy: words, two relay areas, the near area (A2 stages article, stages 2 and 3).
//!
//! ```text
//! +0          words
//!   +0          epochs      one per core, 512 B apart: operators that it has begun
//!   +32 KiB     entered     one per near rank, 64 B apart: operators that it has begun
//!   +64 KiB     rows done   one per (near rank, core), 64 B apart: the combine whose rows it has returned
//!   +128 KiB    end flags   partition 0, one per server, 64 B apart: epoch and number of records
//!   +192 KiB                partition 1
//!   +512 KiB    counts      partition 0, one per (local expert, source), 8 B: epoch and rows
//!   +768 KiB                partition 1
//! +1 MiB      relay area    partition 0: bs_max records from each server
//! +52 MiB                   partition 1
//! +103 MiB    near area     E * bs_max slots; dispatch: (local expert * R + source) * bs_max + slot
//!                                             combine: (server * bs_max + token) * min(K, N L) + position
//!
//! relay record                                    near slot
//!   +0   epoch, u64: the front flag                 +0   epoch and pairs: the flag of a combine row
//!   +8   token, pairs (u32)                         +32  row
//!   +32  row, or in combine a partial sum           after it:
//!   dispatch, then at multiples of 32:                   scale (f32), source, token, pairs << 16 | position (i32),
//!        scale, 32 B; K ids (i32); K weights (f32)       weight (f32); of these combine has the weight alone
//! ```
//!
//! Where an agent sends (stage 2), relay areas have another division, and WindowsOut has the same. A stream that is shorter
//! than its space has no gap: records end where the end flag begins, the first one last.
//!
//! ```text
//! +1 MiB      from server 0   free | record n-1 | .. | record 1 | record 0 | end flag: epoch and n
//!             from server 1   the same, bs_max records + 64 B further
//! ```
//!
//! N is the number of ranks of a server. A word with a number beside its epoch holds it in its 16 low bits ([`mark`]).
//! Flags have the same places in every operator, and rows are never there: records and slots keep their pitch for any
//! content.

use super::affine::{Index, Mode, Named};
use super::field::offsets;
use super::fixed::Fixed;
use super::quantity::{Memory, number};
use super::record::Triple;
use super::state::{CORE_RECORD, Operator, Partition};
use super::table::places;
use crate::place::{Place, Region};
use crate::shape::sizes::{COUNT_WORDS, RELAY_AREA};
use crate::shape::{CORES_MAX, RANKS_MAX, Shape};
use crate::units::{CoreId, Offset, RankId, Token};
use static_assertions::const_assert;

const KIB: u64 = 1024;
/// The distance in bytes between words that different ranks write.
pub(super) const LINE: u64 = 64;
pub(super) const ENTERED: Offset = 32 * KIB;
pub(super) const ROWS_DONE: Offset = 64 * KIB;
pub(super) const END_FLAGS: Offset = 128 * KIB;
pub(super) const END_FLAGS_PARTITION: u64 = 64 * KIB;
pub(super) const COUNTS: Offset = 512 * KIB;
pub(super) const COUNTS_PARTITION: u64 = COUNT_WORDS * 8;
/// The length of the words area in bytes.
pub(super) const WORDS: u64 = 1024 * KIB;
/// The start of the near area.
pub(super) const NEAR_AREA: Offset = WORDS + 2 * RELAY_AREA;
/// The maximum number of ranks of a server.
const NEAR_MAX: u64 = crate::shape::sizes::SERVER_RANKS;
/// The length of an end flag in bytes.
const END_FLAG: u64 = 8;
/// The number of bytes before the row of a relay record and of a near slot.
pub(super) const FRONT: u64 = 32;
/// The number of bytes after a forwarded row: scale, triple, weight.
const TAIL: usize = 20;

const_assert!(CORES_MAX as u64 * CORE_RECORD <= ENTERED);
const_assert!(ENTERED + NEAR_MAX * LINE <= ROWS_DONE);
const_assert!(ROWS_DONE + NEAR_MAX * CORES_MAX as u64 * LINE <= END_FLAGS);
const_assert!(RANKS_MAX as u64 * LINE <= END_FLAGS_PARTITION);
const_assert!(END_FLAGS + 2 * END_FLAGS_PARTITION <= COUNTS);
const_assert!(COUNTS + 2 * COUNTS_PARTITION == WORDS);
// The V2 reference demands this much besides the rows.
const_assert!(NEAR_AREA <= 104 << 20);
// A slot has at least 128 bytes besides its row.
const_assert!(FRONT + TAIL as u64 <= 128);

/// Returns a word with a number, below 2^16, beside the epoch.
#[must_use]
pub const fn mark(epoch: u64, number: u32) -> u64 {
    epoch << 16 | (number as u64 & 0xFFFF)
}

/// Returns epoch and number of such a word.
#[must_use]
pub const fn unmark(word: u64) -> (u64, u32) {
    (word >> 16, (word & 0xFFFF) as u32)
}

/// Returns the place of the number of operators that a core has begun. It is private to that core.
#[must_use]
pub const fn epoch(core: CoreId) -> Place {
    const WORDS: Fixed<1> = Named::Epochs.fixed([Index::Core]);
    WORDS.at(core.0)
}

/// Returns the place of the number of operators that near rank number `near` has begun.
#[must_use]
pub const fn entered(near: u32) -> Place {
    const WORDS: Fixed<1> = Named::Entered.fixed([Index::Near]);
    WORDS.at(near)
}

/// Returns the place of the last combine whose rows `core` of near rank number `near` has all returned to this rank.
#[must_use]
pub const fn rows_done(near: u32, core: CoreId) -> Place {
    const WORDS: Fixed<2> = Named::RowsDone.fixed([Index::Near, Index::Core]);
    WORDS.at(near, core.0)
}

/// Returns the place of the end flag of the records from `server`.
#[must_use]
pub const fn end_flag(partition: Partition, server: u32) -> Place {
    const FLAGS: Fixed<2> = Named::EndFlags.fixed([Index::Partition, Index::Server]);
    FLAGS.at(partition.index(), server)
}

/// Returns the place of the number of rows of `source` for a local expert.
#[must_use]
pub const fn count(shape: &Shape, partition: Partition, local_expert: u32, source: RankId) -> Place {
    places::Counts(&Memory::of_any(shape), [partition.index(), local_expert, source.0])
}

/// Returns the distance in bytes between two relay records.
#[must_use]
pub const fn record_pitch(shape: &Shape) -> u64 {
    number::RelayPitch(&Memory::of_any(shape))
}

/// Returns the place of the front flag of record number `record` from `server`.
#[must_use]
pub const fn record(shape: &Shape, partition: Partition, server: u32, record: u32) -> Place {
    places::RelayRecords(&Memory::of_any(shape), [partition.index(), server, record])
}

/// The offset of the row in a relay record or near slot.
pub const ROW: Offset = FRONT;
/// The length in bytes of the weight that directly follows a returned row.
pub const WEIGHT_BYTES: u64 = 4;
/// The offset of token and pairs in a relay record.
pub const TOKEN: Offset = 8;

/// Returns the place `bytes` after `at`.
#[must_use]
pub const fn behind(at: Place, bytes: u64) -> Place {
    Place { region: at.region, offset: at.offset + bytes }
}

/// Returns the offset of the scale in a dispatched record.
pub(crate) const fn record_scale(shape: &Shape) -> Offset {
    offsets::RelayRecords::Scale(&Memory::of_any(shape))
}

pub(crate) const fn record_ids(shape: &Shape) -> Offset {
    offsets::RelayRecords::Ids(&Memory::of_any(shape))
}

pub(crate) const fn record_weights(shape: &Shape) -> Offset {
    offsets::RelayRecords::Weights(&Memory::of_any(shape))
}

/// Returns the bytes of a record in dispatch.
#[must_use]
pub const fn token_bytes(shape: &Shape) -> u64 {
    number::TokenBytes(&Memory::of_any(shape))
}

/// Returns the bytes of a record in combine.
pub(crate) const fn partial_bytes(shape: &Shape) -> u64 {
    number::PartialBytes(&Memory::of_any(shape))
}

/// Returns the maximum number of pairs of a token on one server.
#[must_use]
pub const fn pairs_max(shape: &Shape) -> u32 {
    number::Pairs(&Memory::of_any(shape)) as u32
}

/// Returns the bytes of a record in that kind of operator.
#[must_use]
pub const fn record_bytes(shape: &Shape, kind: Operator) -> u64 {
    match kind {
        Operator::Dispatch => token_bytes(shape),
        Operator::Combine => partial_bytes(shape),
    }
}

/// Returns the offset of an end flag where an agent sends (stage 2): of the stream from `server` in the relay area, and of
/// the stream to `server` in WindowsOut. It is the last word of every task, so no row ever is there.
#[must_use]
pub const fn gathered_end(shape: &Shape, partition: Partition, server: u32) -> Offset {
    stream_start(shape, partition, server) + offsets::StreamsIn::EndFlag(&Memory::of_any(shape))
}

/// Returns the start of that stream's memory, in either region.
#[must_use]
pub const fn stream_start(shape: &Shape, partition: Partition, server: u32) -> Offset {
    places::StreamsIn(&Memory::of_any(shape), [partition.index(), server]).offset
}

/// Returns the offset of record number `record` there. Records are contiguous and end with the first, at the end flag.
#[must_use]
pub const fn gathered(
    shape: &Shape,
    (partition, kind): (Partition, Operator),
    server: u32,
    record: u32,
) -> Offset {
    let memory = &Memory::of_any(shape);
    let record = match kind {
        Operator::Dispatch => places::TokenRecords(memory, [record]),
        Operator::Combine => places::SumRecords(memory, [record]),
    };
    stream_start(shape, partition, server).wrapping_add(record.offset)
}

/// Returns the bytes of the task that carries `records` records and their end flag.
#[must_use]
pub const fn gathered_bytes(shape: &Shape, kind: Operator, records: u32) -> u64 {
    records as u64 * record_bytes(shape, kind) + END_FLAG
}

/// Returns the server to which an agent sends the bytes at `at` in WindowsOut.
#[must_use]
pub fn gathered_for(shape: &Shape, at: Place) -> Option<u32> {
    let mode = Mode { streams: true, ..Mode::default() };
    let stream = Named::StreamsOut.find(&Memory { shape, mode, rank: RankId(0) }, at.offset)?;
    stream.index(Index::Server).filter(|_| at.region == Region::WindowOut)
}

/// Returns the start of the near area.
#[must_use]
pub const fn near_area() -> Offset {
    NEAR_AREA
}

/// Returns the near slot of a forwarded row.
#[must_use]
pub const fn dispatch_slot(shape: &Shape, local_expert: u32, source: RankId, slot: u32) -> Place {
    places::NearSlots(&Memory::of_any(shape), [local_expert, source.0, slot])
}

/// Returns the near slot of a returned row, for a token of this rank's namesake in `server`.
#[must_use]
pub const fn combine_slot(shape: &Shape, server: u32, token: Token, position: u32) -> Place {
    places::ReturnedSlots(&Memory::of_any(shape), [server, token.0, position])
}

/// Returns the source of the row at `row` in combine: server and token of this rank's namesake, and position. `None` if
/// `row` is not in a slot.
#[must_use]
pub fn returned_at(shape: &Shape, row: Place) -> Option<(u32, Token, u32)> {
    let memory = Memory { shape, mode: Mode::default(), rank: RankId(0) };
    let slot = Named::ReturnedSlots.find(&memory, row.offset)?;
    let [server, token, position, ..] = slot.indices;
    let is_row = slot.inside == ROW && row.region == Region::Window;
    is_row.then_some((server, Token(token), position))
}

/// The bytes after a forwarded row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tail {
    /// The dynamic scale of the row.
    pub scale: f32,
    /// The source rank.
    pub source: RankId,
    /// The token on the source rank.
    pub token: Token,
    /// The part of the row in the token's sum on this server.
    pub part: Part,
    /// The weight of the pair.
    pub weight: f32,
}

/// The part of a row in the sum of its token on one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// The number of rows of that sum.
    pub pairs: u32,
    /// The number of its rows with smaller k.
    pub position: u32,
}

impl Part {
    const SHIFT: u32 = 16;
}

impl Tail {
    /// The length of a tail in bytes.
    pub const BYTES: u64 = TAIL as u64;
    /// The offset of the triple, which is also an entry of `assist_info_for_combine`.
    pub const TRIPLE: Offset = 4;
    /// The offset of the weight.
    pub const WEIGHT: Offset = Self::TRIPLE + Triple::BYTES;

    /// Returns the words of the tail in memory.
    pub(crate) fn to_bytes(self) -> [[u8; 4]; TAIL / 4] {
        let part = self.part.pairs << Part::SHIFT | self.part.position;
        let words = [self.scale.to_bits(), self.source.0, self.token.0, part, self.weight.to_bits()];
        words.map(u32::to_le_bytes)
    }
}

/// Reads an entry of `assist_info_for_combine` that another rank wrote: source, token, part.
///
/// # Errors
/// Returns the words as read if no such row can exist in the shape.
pub fn read_triple(shape: &Shape, bytes: &[u8]) -> Result<(RankId, Token, Part), [i32; 3]> {
    let triple = Triple::from_any(bytes);
    let Triple { source, token, k: part } = triple;
    let part = Part { pairs: part >> Part::SHIFT, position: part & ((1 << Part::SHIFT) - 1) };
    let legal = source.0 < shape.ep_world_size()
        && token.0 < shape.bs(source)
        && part.pairs <= pairs_max(shape)
        && part.position < part.pairs;
    if legal { Ok((source, token, part)) } else { Err(triple.words()) }
}

#[cfg(test)]
mod tests;
