//! What comes of a step, and what a machine that did not move waits for.

use crate::units::{CoreId, RankId};
use core::fmt;

/// What a machine did with a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Progress {
    /// It moved on.
    Stepped,
    /// It did not change: this is missing.
    Pending(Wait),
    /// The operator has ended.
    Done,
}

/// What a pending machine waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wait {
    /// The fabric has not landed what this core sent.
    Quiet,
    /// Another core of this rank has not come to the core barrier.
    Core(CoreId),
    /// The dispatch flag of a source rank for a local expert of this rank.
    DispatchFlag {
        /// Whose flag.
        source: RankId,
        /// Which local expert.
        local_expert: u32,
    },
    /// The count of a source rank for a local expert of this rank, where counts go ahead of records.
    CountFlag {
        /// Whose count.
        source: RankId,
        /// Which local expert.
        local_expert: u32,
    },
    /// The flag that a source rank's records for a local expert of this rank have landed.
    TokenFlag {
        /// Whose records.
        source: RankId,
        /// Which local expert.
        local_expert: u32,
    },
    /// Where the rows for an expert begin: that rank's leave to put them there.
    Grant {
        /// Whose leave.
        source: RankId,
        /// Which expert there.
        local_expert: u32,
    },
    /// The word of a rank that the results of its experts lie ready.
    Results {
        /// Whose.
        source: RankId,
    },
    /// What a core of the TP peer tells of its rows.
    TpFlag {
        /// The peer, by its number in the TP domain.
        peer: RankId,
        /// The core, here and there.
        core: CoreId,
    },
    /// The flag of one block of a record that a source rank sends to a local expert of this rank.
    BlockFlag {
        /// Whose record.
        source: RankId,
        /// Which local expert.
        local_expert: u32,
        /// The record's slot.
        record: u32,
        /// The block.
        block: u32,
    },
    /// FLAG1 of the window that a rank sends in A2's dispatch, behind its counts.
    WindowCounts {
        /// Whose.
        source: RankId,
    },
    /// The last flag of the window that a rank sends on A2, behind its rows.
    WindowRows {
        /// Whose.
        source: RankId,
        /// How many rows come before it.
        rows: u32,
    },
    /// A near rank has not begun this operator, so its near area is still in use (A2 hierarchy).
    Entered {
        /// Which.
        source: RankId,
    },
    /// A core of a near rank has not returned all its rows (A2 hierarchy).
    RowsDone {
        /// Which.
        source: RankId,
        /// Its core.
        core: CoreId,
    },
    /// The count of a source rank for a local expert of this rank, which its relay tells (A2 hierarchy).
    RelayedCount {
        /// Who tells it.
        relay: RankId,
        /// Whose rows they are.
        source: RankId,
        /// Which local expert.
        local_expert: u32,
    },
    /// The rest of a record, that is the one behind it or the end flag, from another server (A2 hierarchy).
    Record {
        /// Who sends it.
        source: RankId,
        /// Its number.
        record: u32,
    },
    /// Nothing: the agent has served every doorbell.
    Idle,
    /// The agent's network interface takes no further task now.
    Nic {
        /// The peer that the task is for.
        to: RankId,
    },
    /// The combine flag of one row of one token of this rank.
    CombineFlag {
        /// The rank that owes the row.
        source: RankId,
        /// The token.
        token: u32,
        /// k index, or `K + j` for shared expert `j`.
        k: u32,
    },
}

impl Wait {
    /// The other rank that is waited for, if it is another rank.
    #[must_use]
    pub const fn source(&self) -> Option<RankId> {
        match *self {
            Self::DispatchFlag { source, .. }
            | Self::CountFlag { source, .. }
            | Self::TokenFlag { source, .. }
            | Self::Grant { source, .. }
            | Self::Results { source }
            | Self::TpFlag { peer: source, .. }
            | Self::BlockFlag { source, .. }
            | Self::CombineFlag { source, .. }
            | Self::WindowCounts { source }
            | Self::WindowRows { source, .. }
            | Self::Entered { source }
            | Self::RowsDone { source, .. }
            | Self::Record { source, .. }
            | Self::RelayedCount { relay: source, .. } => Some(source),
            Self::Quiet | Self::Core(_) | Self::Idle | Self::Nic { .. } => None,
        }
    }

    /// The same with the other rank under the name that `name` has for it: physical, in an elastic domain.
    #[must_use]
    pub fn renamed(mut self, name: impl Fn(RankId) -> RankId) -> Self {
        match &mut self {
            Self::DispatchFlag { source, .. }
            | Self::CountFlag { source, .. }
            | Self::TokenFlag { source, .. }
            | Self::Grant { source, .. }
            | Self::Results { source }
            | Self::BlockFlag { source, .. }
            | Self::CombineFlag { source, .. }
            | Self::WindowCounts { source }
            | Self::WindowRows { source, .. }
            | Self::Entered { source }
            | Self::RowsDone { source, .. }
            | Self::Record { source, .. }
            | Self::Nic { to: source } => *source = name(*source),
            Self::RelayedCount { relay, source, .. } => (*relay, *source) = (name(*relay), name(*source)),
            Self::TpFlag { .. } | Self::Quiet | Self::Core(_) | Self::Idle => {}
        }
        self
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Quiet => f.write_str("own writes have not landed"),
            Self::Core(core) => write!(f, "core {core} has not come to the core barrier"),
            Self::DispatchFlag { source, local_expert } => {
                write!(f, "missing: dispatch flag of rank {source} for local expert {local_expert}")
            }
            Self::CountFlag { source, local_expert } => {
                write!(f, "missing: count of rank {source} for local expert {local_expert}")
            }
            Self::TokenFlag { source, local_expert } => {
                write!(f, "missing: token flag of rank {source} for local expert {local_expert}")
            }
            Self::Grant { source, local_expert } => {
                write!(f, "missing: grant of rank {source} for its local expert {local_expert}")
            }
            Self::Results { source } => write!(f, "missing: results of rank {source}"),
            Self::WindowCounts { source } => write!(f, "missing: counts of rank {source}"),
            Self::WindowRows { source, rows } => {
                write!(f, "missing: end flag of rank {source} behind {rows} rows")
            }
            Self::Entered { source } => write!(f, "rank {source} has not begun this operator"),
            Self::RowsDone { source, core } => {
                write!(f, "missing: word of core {core} of rank {source} that its rows are returned")
            }
            Self::RelayedCount { relay, source, local_expert } => write!(
                f,
                "missing: word of rank {relay} how many rows rank {source} has for local expert {local_expert}"
            ),
            Self::Record { source, record } => {
                write!(f, "missing: end of record {record} of rank {source}")
            }
            Self::Idle => f.write_str("the agent has served every doorbell"),
            Self::Nic { to } => write!(f, "the network interface takes no task for rank {to}"),
            Self::TpFlag { peer, core } => write!(f, "missing: TP flag of rank {peer}, core {core}"),
            Self::BlockFlag { source, local_expert, record, block } => write!(
                f,
                "missing: block {block} of record {record} of rank {source} for local expert {local_expert}"
            ),
            Self::CombineFlag { source, token, k } => {
                write!(f, "missing: combine flag of rank {source} for token {token}, k {k}")
            }
        }
    }
}
