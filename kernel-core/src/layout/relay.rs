//! The window of a rank in an A2 hierarchy: words, two relay areas, the near area (seed 001, stages 2 and 3).
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
//!   +32  row, or in combine a partial sum           behind it:
//!   dispatch, then at multiples of 32:                   scale (f32), source, token, pairs << 16 | position (i32),
//!        scale, 32 B; K ids (i32); K weights (f32)       weight (f32); of these combine has the weight alone
//! ```
//!
//! Where an agent sends (stage 2), relay areas are divided otherwise, and WindowsOut like them. Nothing lies in the
//! middle of a stream that is shorter: records end where the end flag begins, the first one last.
//!
//! ```text
//! +1 MiB      from server 0   free | record n-1 | .. | record 1 | record 0 | end flag: epoch and n
//!             from server 1   the same, bs_max records + 64 B further
//! ```
//!
//! N is the number of ranks of a server. A word that tells a number beside its epoch holds it in its 16 low bits
//! ([`mark`]). Flags stand at the same places in every operator, and rows never lie there: records and slots keep
//! their pitch, whatever they hold.

use super::map::Field;
use super::record::Triple;
use super::state::{CORE_RECORD, Operator, Partition};
use crate::place::{Place, Region};
use crate::shape::sizes::{COUNT_WORDS, RELAY_AREA, SCALE_FIELD, near_slot, relay_record, relay_stream};
use crate::shape::{CORES_MAX, RANKS_MAX, Shape};
use crate::units::{CoreId, Offset, RankId, Token, align_up, div_floor};
use static_assertions::const_assert;

const KIB: u64 = 1024;
/// Bytes between words that different ranks write.
const LINE: u64 = 64;
const ENTERED: Offset = 32 * KIB;
const ROWS_DONE: Offset = 64 * KIB;
const END_FLAGS: Offset = 128 * KIB;
const END_FLAGS_PARTITION: u64 = 64 * KIB;
const COUNTS: Offset = 512 * KIB;
const COUNTS_PARTITION: u64 = COUNT_WORDS * 8;
/// Bytes of the words area.
const WORDS: u64 = 1024 * KIB;
/// Start of the near area.
const NEAR_AREA: Offset = WORDS + 2 * RELAY_AREA;
/// Most ranks of a server.
const NEAR_MAX: u64 = crate::shape::sizes::SERVER_RANKS;
/// Bytes of an end flag.
const END_FLAG: u64 = 8;
/// Bytes before the row of a relay record and of a near slot.
const FRONT: u64 = 32;
/// Bytes of what stands behind a row that was forwarded: scale, triple, weight.
const TAIL: usize = 20;

const_assert!(CORES_MAX as u64 * CORE_RECORD <= ENTERED);
const_assert!(ENTERED + NEAR_MAX * LINE <= ROWS_DONE);
const_assert!(ROWS_DONE + NEAR_MAX * CORES_MAX as u64 * LINE <= END_FLAGS);
const_assert!(RANKS_MAX as u64 * LINE <= END_FLAGS_PARTITION);
const_assert!(END_FLAGS + 2 * END_FLAGS_PARTITION <= COUNTS);
const_assert!(COUNTS + 2 * COUNTS_PARTITION == WORDS);
// What seed 003 asks for beside the rows.
const_assert!(NEAR_AREA <= 104 << 20);
// A slot has at least 128 bytes beside its row.
const_assert!(FRONT + TAIL as u64 <= 128);

/// A word that tells a number, below 2^16, beside the epoch.
#[must_use]
pub const fn mark(epoch: u64, number: u32) -> u64 {
    epoch << 16 | (number as u64 & 0xFFFF)
}

/// Epoch and number of such a word.
#[must_use]
pub const fn unmark(word: u64) -> (u64, u32) {
    (word >> 16, (word & 0xFFFF) as u32)
}

/// Operators that a core has begun. Private to that core.
#[must_use]
pub const fn epoch(core: CoreId) -> Place {
    Place::window(core.0 as u64 * CORE_RECORD)
}

/// Operators that near rank number `near` has begun.
#[must_use]
pub const fn entered(near: u32) -> Place {
    Place::window(ENTERED + near as u64 * LINE)
}

/// The combine whose rows `core` of near rank number `near` has all returned to this rank.
#[must_use]
pub const fn rows_done(near: u32, core: CoreId) -> Place {
    Place::window(ROWS_DONE + (near as u64 * CORES_MAX as u64 + core.0 as u64) * LINE)
}

/// The word behind the records from `server`.
#[must_use]
pub const fn end_flag(partition: Partition, server: u32) -> Place {
    Place::window(END_FLAGS + partition.index() as u64 * END_FLAGS_PARTITION + server as u64 * LINE)
}

/// The rows of `source` for a local expert.
#[must_use]
pub const fn count(shape: &Shape, partition: Partition, local_expert: u32, source: RankId) -> Place {
    let number = local_expert as u64 * shape.ep_world_size() as u64 + source.0 as u64;
    Place::window(COUNTS + partition.index() as u64 * COUNTS_PARTITION + number * 8)
}

/// Bytes between two relay records.
#[must_use]
pub const fn record_pitch(shape: &Shape) -> u64 {
    relay_record(shape.relay_row_bytes(), shape.k() as u64)
}

/// The front flag of record number `record` from `server`.
#[must_use]
pub const fn record(shape: &Shape, partition: Partition, server: u32, record: u32) -> Place {
    let number = server as u64 * shape.bs_max() as u64 + record as u64;
    Place::window(WORDS + partition.index() as u64 * RELAY_AREA + number * record_pitch(shape))
}

/// Where the row of a relay record or of a near slot begins.
pub const ROW: Offset = FRONT;
/// Bytes of the weight, which stands right behind a row that is returned.
pub const WEIGHT_BYTES: u64 = 4;
/// Where token and pairs of a relay record stand.
pub const TOKEN: Offset = 8;

/// The place `bytes` behind `at`.
#[must_use]
pub const fn behind(at: Place, bytes: u64) -> Place {
    Place { region: at.region, offset: at.offset + bytes }
}

/// Where the scale of a dispatched record stands.
#[must_use]
pub(crate) const fn record_scale(shape: &Shape) -> Offset {
    ROW + align_up(shape.payload_bytes(), 32)
}

/// Where its ids stand.
#[must_use]
pub(crate) const fn record_ids(shape: &Shape) -> Offset {
    record_scale(shape) + SCALE_FIELD
}

/// Where its weights stand.
#[must_use]
pub(crate) const fn record_weights(shape: &Shape) -> Offset {
    record_ids(shape) + 4 * align_up(shape.k() as u64, 8)
}

/// Bytes of a record in dispatch.
#[must_use]
pub const fn token_bytes(shape: &Shape) -> u64 {
    record_weights(shape) + 4 * align_up(shape.k() as u64, 8)
}

/// Bytes of a record in combine.
#[must_use]
pub(crate) const fn partial_bytes(shape: &Shape) -> u64 {
    ROW + align_up(shape.result_bytes(), 8)
}

/// Most pairs of a token on one server.
#[must_use]
pub const fn pairs_max(shape: &Shape) -> u32 {
    let experts = shape.server_ranks() * shape.local_expert_num();
    if experts < shape.k() { experts } else { shape.k() }
}

/// Bytes of a record in that kind of operator.
#[must_use]
pub const fn record_bytes(shape: &Shape, kind: Operator) -> u64 {
    match kind {
        Operator::Dispatch => token_bytes(shape),
        Operator::Combine => partial_bytes(shape),
    }
}

/// Where an agent sends (stage 2): the end flag of the stream from `server` in the relay area, and in WindowsOut of
/// that to `server`. It is the last word of what one task carries, whatever that is, so no row ever lies there.
#[must_use]
pub const fn gathered_end(shape: &Shape, partition: Partition, server: u32) -> Offset {
    stream_start(shape, partition, server) + stream_bytes(shape) - END_FLAG
}

/// Where the memory of that stream begins, in either region.
#[must_use]
pub const fn stream_start(shape: &Shape, partition: Partition, server: u32) -> Offset {
    WORDS + partition.index() as u64 * RELAY_AREA + server as u64 * stream_bytes(shape)
}

/// Bytes of it, with the end flag.
#[must_use]
pub(crate) const fn stream_bytes(shape: &Shape) -> u64 {
    relay_stream(shape.bs_max() as u64, shape.relay_row_bytes(), shape.k() as u64)
}

/// Record number `record` there: records lie side by side before the end flag, the first one next to it.
#[must_use]
pub const fn gathered(
    shape: &Shape,
    (partition, kind): (Partition, Operator),
    server: u32,
    record: u32,
) -> Offset {
    let before = (record as u64 + 1) * record_bytes(shape, kind);
    gathered_end(shape, partition, server) - before
}

/// Bytes of the task that carries `records` records and their end flag.
#[must_use]
pub const fn gathered_bytes(shape: &Shape, kind: Operator, records: u32) -> u64 {
    records as u64 * record_bytes(shape, kind) + END_FLAG
}

/// The server to which an agent sends what lies there in WindowsOut.
#[must_use]
pub fn gathered_for(shape: &Shape, at: Place) -> Option<u32> {
    let inside = at.offset.checked_sub(WORDS)?;
    let inside = if inside < RELAY_AREA { inside } else { inside - RELAY_AREA };
    let server = div_floor(inside, stream_bytes(shape));
    (at.region == Region::WindowOut && server < shape.servers().into()).then_some(server as u32)
}

/// Where the near area begins.
#[must_use]
pub const fn near_area() -> Offset {
    NEAR_AREA
}

/// The near slot of a forwarded row.
#[must_use]
pub const fn dispatch_slot(shape: &Shape, local_expert: u32, source: RankId, slot: u32) -> Place {
    let block = local_expert as u64 * shape.ep_world_size() as u64 + source.0 as u64;
    near(shape, block * shape.bs_max() as u64 + slot as u64)
}

/// The near slot of a returned row: of the token of this rank's namesake in `server`.
#[must_use]
pub const fn combine_slot(shape: &Shape, server: u32, token: Token, position: u32) -> Place {
    let token = server as u64 * shape.bs_max() as u64 + token.0 as u64;
    near(shape, token * pairs_max(shape) as u64 + position as u64)
}

/// Whose row a near slot holds in combine: server and token of this rank's namesake, position. `None` where none lies.
#[must_use]
pub fn returned_at(shape: &Shape, row: Place) -> Option<(u32, Token, u32)> {
    let inside = row.offset.checked_sub(near(shape, 0).offset + ROW)?;
    let split = |n, by| (div_floor(n, by), n - div_floor(n, by) * by);
    let (number, rest) = split(inside, near_slot(shape.relay_row_bytes(), shape.k().into()));
    let (token, position) = split(number, pairs_max(shape).into());
    let (server, token) = split(token, shape.bs_max().into());
    let is_slot = rest == 0 && server < shape.servers().into() && row.region == Region::Window;
    is_slot.then_some((server as u32, Token(token as u32), position as u32))
}

const fn near(shape: &Shape, number: u64) -> Place {
    Place::window(NEAR_AREA + number * near_slot(shape.relay_row_bytes(), shape.k() as u64))
}

/// What stands behind a forwarded row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tail {
    /// Its dynamic scale.
    pub scale: f32,
    /// Source rank, token there.
    pub source: RankId,
    /// The token there.
    pub token: Token,
    /// The place of the row in the token's sum on this server.
    pub part: Part,
    /// The weight of the pair.
    pub weight: f32,
}

/// The place of a row in the sum of its token on one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// Rows of that sum.
    pub pairs: u32,
    /// How many of them have smaller k.
    pub position: u32,
}

impl Part {
    const SHIFT: u32 = 16;
}

impl Tail {
    /// Bytes of a tail.
    pub const BYTES: u64 = TAIL as u64;
    /// Where in it the triple begins, which is also an entry of `assist_info_for_combine`.
    pub const TRIPLE: Offset = 4;
    /// Where the weight stands.
    pub const WEIGHT: Offset = Self::TRIPLE + Triple::BYTES;

    /// As it lies in memory.
    #[must_use]
    pub(crate) fn to_bytes(self) -> [u8; TAIL] {
        let part = self.part.pairs << Part::SHIFT | self.part.position;
        let words = [self.scale.to_bits(), self.source.0, self.token.0, part, self.weight.to_bits()];
        let mut bytes = [0; TAIL];
        for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        bytes
    }
}

/// Reads an entry of `assist_info_for_combine` that others wrote: source, token, part.
///
/// # Errors
/// The words, when no such row can exist in the shape.
pub fn read_triple(shape: &Shape, bytes: &[u8]) -> Result<(RankId, Token, Part), [i32; 3]> {
    let mut words = [-1i32; 3];
    for (word, &raw) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = i32::from_le_bytes(raw);
    }
    let [Ok(source), Ok(token), Ok(part)] = words.map(u32::try_from) else { return Err(words) };
    let part = Part { pairs: part >> Part::SHIFT, position: part & ((1 << Part::SHIFT) - 1) };
    let legal = source < shape.ep_world_size()
        && token < shape.bs(RankId(source))
        && part.pairs <= pairs_max(shape)
        && part.position < part.pairs;
    if legal { Ok((RankId(source), Token(token), part)) } else { Err(words) }
}

/// The fields of a relay record in dispatch.
#[must_use]
pub(super) fn record_fields(shape: &Shape) -> [Field; 5] {
    let of = |name, offset, size| Field { name, offset, size };
    let list = record_weights(shape) - record_ids(shape);
    [
        of("front flag", 0, FRONT),
        of("data", ROW, shape.payload_bytes()),
        of("scale", record_scale(shape), SCALE_FIELD),
        of("ids", record_ids(shape), list),
        of("weights", record_weights(shape), list),
    ]
}

#[cfg(test)]
mod tests;
