//! The outcome of a step, and the wait of a machine that did not move.

use super::{ProtocolError, Result};
use crate::units::{CoreId, RankId};
use core::fmt;

/// The outcome of a step of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Progress {
    /// The machine moved.
    Stepped,
    /// The machine did not move: it waits for this. It did not change, either, unless it waits for [room](Flag::Room): then it may
    /// have prepared a row or its plan.
    Pending(Wait),
    /// The operator has ended.
    Done,
}

impl Progress {
    /// Returns what `next` returns if a part has ended, and otherwise the part's progress.
    #[inline(always)]
    pub(crate) fn then(self, next: impl FnOnce() -> Result<Self>) -> Result<Self> {
        if let Self::Done = self { next() } else { Ok(self) }
    }
}

/// The word or event that a pending machine waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Wait {
    /// The kind of word.
    pub flag: Flag,
    /// The EP rank that owes it, or its number in the TP domain. It has no meaning where [`Flag::details`] lists no rank.
    pub rank: RankId,
    /// The other details, in their order.
    pub index: [u32; 3],
}

named! {
    /// The kinds of words and other events that a machine waits for.
    // As wide as the other words of a wait: with gaps a copy took one more instruction for each of its parts.
    #[non_exhaustive]
    #[repr(u32)]
    Flag {
        /// The effects of this core have not all landed.
        Quiet = "own_writes",
        /// The fabric has no room for the next effect of this core.
        Room = "room",
        /// Another core of this rank has not arrived at the core barrier.
        Core = "core_barrier",
        /// The dispatch flag of a source rank for a local expert of this rank.
        Dispatch = "dispatch_flag",
        /// The count of a source rank for a local expert of this rank, where counts precede records.
        Count = "count_flag",
        /// The flag that a source rank's records for a local expert of this rank have landed.
        Token = "token_flag",
        /// With direct placement the counts of a source rank for all local experts of this rank.
        Counts = "counts",
        /// With direct placement, the start of the rows for each expert of a rank, and the permission to put them there.
        Grant = "grant",
        /// With direct placement the flag that all rows of a source rank have landed.
        Tokens = "token_flags",
        /// The word of a rank that the results of its experts are ready.
        Results = "results",
        /// The announcement of rows by a core of the TP peer.
        Tp = "tp_flag",
        /// The flag of one block of a record that a source rank sends to a local expert of this rank.
        Block = "block_flag",
        /// FLAG1 of the window that a rank sends in A2's dispatch, after its counts.
        WindowCounts = "window_counts",
        /// The last flag of the window that a rank sends on A2, after its rows.
        WindowRows = "window_rows",
        /// A near rank has not begun this operator, so its near area is still in use (A2 hierarchy).
        Entered = "entered",
        /// A core of a near rank has not returned all its rows (A2 hierarchy).
        RowsDone = "rows_done",
        /// The count of a source rank for a local expert of this rank, sent by its relay (A2 hierarchy).
        RelayedCount = "relayed_count",
        /// The end of a record from another server: the next record, or the end flag (A2 hierarchy).
        Record = "record",
        /// The agent has served every doorbell and is idle.
        Idle = "agent_idle",
        /// The agent's network interface takes no further task for a peer now.
        Nic = "agent_nic",
        /// The combine flag of one row of one token of this rank.
        Combine = "combine_flag",
    }
}

/// A detail that distinguishes a word from others of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Detail {
    /// [`Wait::rank`].
    Rank,
    /// A core of that rank, or of this one.
    Core,
    /// The source rank of rows that another rank announces.
    RowsOf,
    /// The local expert of the rows.
    LocalExpert,
    /// The number of a record.
    Record,
    /// The block of a record.
    Block,
    /// The number of rows that precede the word.
    Rows,
    /// The token.
    Token,
    /// The k index, or `K + j` for shared expert `j`.
    K,
}

impl Flag {
    /// Returns the details that distinguish words of this kind.
    #[must_use]
    pub const fn details(self) -> &'static [Detail] {
        use Detail::{Block, Core, K, LocalExpert, Rank, Record, Rows, RowsOf, Token};
        match self {
            Self::Quiet | Self::Room | Self::Idle => &[],
            Self::Core => &[Core],
            Self::Dispatch | Self::Count | Self::Token => &[Rank, LocalExpert],
            Self::Counts | Self::Grant | Self::Tokens | Self::Results => &[Rank],
            Self::WindowCounts | Self::Entered | Self::Nic => &[Rank],
            Self::Tp | Self::RowsDone => &[Rank, Core],
            Self::Block => &[Rank, LocalExpert, Record, Block],
            Self::WindowRows => &[Rank, Rows],
            Self::RelayedCount => &[Rank, RowsOf, LocalExpert],
            Self::Record => &[Rank, Record],
            Self::Combine => &[Rank, Token, K],
        }
    }
}

impl Wait {
    /// The wait for a core's own writes to land.
    pub const QUIET: Self = Self::new(Flag::Quiet, RankId(0), &[]);
    /// The wait for room for an effect.
    pub const ROOM: Self = Self::new(Flag::Room, RankId(0), &[]);
    /// The wait of an agent for its doorbell.
    pub const IDLE: Self = Self::new(Flag::Idle, RankId(0), &[]);

    /// Creates the wait for a word of `rank`; `index` as in [`Wait::index`].
    #[inline]
    #[must_use]
    pub const fn new(flag: Flag, rank: RankId, index: &[u32]) -> Self {
        let index = match *index {
            [] => [0; 3],
            [a] => [a, 0, 0],
            [a, b] => [a, b, 0],
            [a, b, c, ..] => [a, b, c],
        };
        Self { flag, rank, index }
    }

    /// Creates the wait for another core of this rank to arrive at the core barrier.
    #[inline]
    #[must_use]
    pub const fn barrier(core: CoreId) -> Self {
        Self::new(Flag::Core, RankId(0), &[core.0])
    }

    /// Returns the error that the flag holds `seen`, which is neither empty nor the value that it must have.
    #[inline]
    pub(crate) const fn refused(self, seen: u64) -> ProtocolError {
        ProtocolError::Flag { awaited: self, seen }
    }

    /// Returns the details that distinguish the word from others of its kind, with their values.
    pub fn details(self) -> impl Iterator<Item = (Detail, u32)> {
        let mut index = self.index.into_iter();
        self.flag.details().iter().filter_map(move |&detail| {
            Some((detail, if detail == Detail::Rank { self.rank.0 } else { index.next()? }))
        })
    }

    /// Returns the rank that is waited for, if it is another rank.
    #[inline]
    #[must_use]
    pub const fn source(&self) -> Option<RankId> {
        match self.flag {
            // The peer of an agent's task owes nothing.
            Flag::Quiet | Flag::Room | Flag::Core | Flag::Idle | Flag::Nic => None,
            _ => Some(self.rank),
        }
    }

    /// Replaces the other rank by the name that `name` returns for it: physical, in an elastic domain. A number in a TP
    /// domain stays.
    #[must_use]
    pub fn renamed(mut self, name: impl Fn(RankId) -> RankId) -> Self {
        if self.flag != Flag::Tp && matches!(self.flag.details(), [Detail::Rank, ..]) {
            self.rank = name(self.rank);
        }
        if let (Flag::RelayedCount, [rows_of, ..]) = (self.flag, &mut self.index) {
            *rows_of = name(RankId(*rows_of)).0;
        }
        self
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { flag, rank, index: [a, b, c] } = *self;
        match flag {
            Flag::Quiet => f.write_str("own writes have not landed"),
            Flag::Room => f.write_str("the memory has no room for the next effect"),
            Flag::Core => write!(f, "core {a} has not come to the core barrier"),
            Flag::Dispatch => write!(f, "missing: dispatch flag of rank {rank} for local expert {a}"),
            Flag::Count => write!(f, "missing: count of rank {rank} for local expert {a}"),
            Flag::Token => write!(f, "missing: token flag of rank {rank} for local expert {a}"),
            Flag::Grant => write!(f, "missing: grant of rank {rank}"),
            Flag::Tokens => write!(f, "missing: token flag of rank {rank}"),
            Flag::Results => write!(f, "missing: results of rank {rank}"),
            Flag::Tp => write!(f, "missing: TP flag of rank {rank}, core {a}"),
            Flag::Block => {
                write!(f, "missing: block {c} of record {b} of rank {rank} for local expert {a}")
            }
            Flag::Counts => write!(f, "missing: table of counts of rank {rank}"),
            Flag::WindowCounts => write!(f, "missing: counts of rank {rank}"),
            Flag::WindowRows => write!(f, "missing: end flag of rank {rank} after {a} rows"),
            Flag::Entered => write!(f, "rank {rank} has not begun this operator"),
            Flag::RowsDone => {
                write!(f, "missing: word of core {a} of rank {rank} that its rows are returned")
            }
            Flag::RelayedCount => {
                write!(f, "missing: word of rank {rank} how many rows rank {a} has for local expert {b}")
            }
            Flag::Record => write!(f, "missing: end of record {a} of rank {rank}"),
            Flag::Idle => f.write_str("the agent has served every doorbell"),
            Flag::Nic => write!(f, "the network interface takes no task for rank {rank}"),
            Flag::Combine => write!(f, "missing: combine flag of rank {rank} for token {a}, k {b}"),
        }
    }
}

static_assertions::const_assert!(size_of::<Wait>() == 20);
