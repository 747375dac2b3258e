//! The A2 state region, 1 MiB per rank, zeroed when the group is created: the messages of a rank's cores to its agent (A2
//! design, section 1.3.2: the message area) and to each other.
//!
//! ```text
//!   0 KiB  message slot 0   one task record per peer, 32 B, by the peer's number; its own stays empty
//!  32 KiB  message slot 1   of the other half
//!  64 KiB  doorbell         u64: operators that have been rung so far; operator N (from 0) rings N + 1
//! 848 KiB  core words       as on A3
//!
//! task record (A2 design, section 3.3.1)
//!   +0   local_buf u64       where it is read, in WindowsOut
//!   +8   remote_buf u64      where it is written, in the peer's WindowsIn
//!   +16  count u64           elements
//!   +24  data_type u32       of this type
//!   +28  remote_rank_id u32  the peer
//! ```
//!
//! Buffers are offsets, since addresses never leave a backend. All of it is words, accessed by store, publish and observe
//! alone. The number of tasks is deliberately absent: there is one for each peer, even if it gets no row; in a hierarchy
//! peers are the namesakes on other servers.

use super::a2_window::{sent_bytes, window};
use super::affine::{Index, Named};
use super::fixed::Fixed;
use super::relay;
use super::state::{CORE_WORDS, Operator, Partition};
use crate::place::Place;
use crate::shape::{Protocol, RANKS_MAX, Shape};
use crate::units::{Offset, RankId, div_floor};
use static_assertions::const_assert;

const KIB: u64 = 1024;
/// The length of a task record in bytes.
pub const TASK: u64 = 32;
/// The distance in bytes between the message slots.
pub const MESSAGE_SLOT: u64 = 32 * KIB;
/// The offset of the doorbell.
pub const DOORBELL: Offset = 2 * MESSAGE_SLOT;
/// `data_type` of all tasks: unsigned words of eight bytes, as HCCL numbers its types.
pub const WORDS_OF_8: u32 = 6;
/// The length in bytes of an element of that type.
pub const ELEMENT: u64 = 8;

const_assert!(RANKS_MAX as u64 * TASK <= MESSAGE_SLOT);
const_assert!(DOORBELL + 8 <= CORE_WORDS);

/// A task record: one batched write to one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Task {
    /// The source: an offset in its own WindowsOut (CANN: `localBuf`).
    pub local_buf: u64,
    /// The destination: an offset in the peer's WindowsIn (CANN: `remoteBuf`).
    pub remote_buf: u64,
    /// The number of elements (CANN: `count`).
    pub count: u64,
    /// The type of the elements (CANN: `dataType`).
    pub data_type: u32,
    /// The peer (CANN: `remoteRankId`).
    pub remote_rank_id: u32,
}

impl Task {
    /// The number of words of a record.
    pub const WORDS: u32 = 4;

    /// Creates the task that carries the whole window of `rows` rows from `rank` to `peer`.
    #[must_use]
    pub const fn new(
        shape: &Shape,
        half: Partition,
        kind: Operator,
        rank: RankId,
        peer: RankId,
        rows: u32,
    ) -> Self {
        Self::of(shape, half, rank, peer, sent_bytes(shape, kind, rows))
    }

    /// Creates the task that carries `records` records of a hierarchy from `rank` to its namesake in `server`.
    #[must_use]
    pub const fn stream(
        shape: &Shape,
        (half, kind): (Partition, Operator),
        rank: RankId,
        server: u32,
        records: u32,
    ) -> Self {
        let bytes = relay::gathered_bytes(shape, kind, records);
        Self::of(shape, half, rank, shape.relay(rank, server), bytes)
    }

    /// Creates the task that carries `bytes` bytes from `rank` to `peer`.
    pub(crate) const fn of(shape: &Shape, half: Partition, rank: RankId, peer: RankId, bytes: u64) -> Self {
        let (local_buf, remote_buf) = match shape.protocol() {
            Protocol::Hierarchy => {
                let ((own, _), (server, _)) = (shape.server_of(rank), shape.server_of(peer));
                (stream_end(shape, half, server) - bytes, stream_end(shape, half, own) - bytes)
            }
            _ => (window(shape, half, peer), window(shape, half, rank)),
        };
        let count = div_floor(bytes, ELEMENT);
        Self { local_buf, remote_buf, count, data_type: WORDS_OF_8, remote_rank_id: peer.0 }
    }

    /// Returns the task as the words of a record.
    pub(crate) const fn to_words(self) -> [u64; Self::WORDS as usize] {
        let last = (self.remote_rank_id as u64) << 32 | self.data_type as u64;
        [self.local_buf, self.remote_buf, self.count, last]
    }

    /// Returns the task of a record, without any check.
    pub(crate) const fn from_words(
        [local_buf, remote_buf, count, last]: [u64; Self::WORDS as usize],
    ) -> Self {
        Self { local_buf, remote_buf, count, data_type: last as u32, remote_rank_id: (last >> 32) as u32 }
    }
}

/// Returns the end of the task of a hierarchy's stream to or from `server`.
const fn stream_end(shape: &Shape, half: Partition, server: u32) -> Offset {
    relay::gathered_end(shape, half, server) + ELEMENT
}

/// Returns the place of word `word` of the task for `peer`.
#[must_use]
pub const fn task_word(half: Partition, peer: RankId, word: u32) -> Place {
    const TASKS: Fixed<2> = Named::Tasks.fixed([Index::Partition, Index::Peer]);
    let task = TASKS.at(half.index(), peer.0);
    Place { offset: task.offset + word as u64 * 8, ..task }
}

/// Returns the place of the word by which a rank's cores announce tasks to its agent.
#[must_use]
pub const fn doorbell() -> Place {
    const WORD: Fixed<0> = Named::Doorbell.fixed([]);
    WORD.at()
}
