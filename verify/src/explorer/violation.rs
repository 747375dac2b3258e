//! What no state may lead to.

use super::protocol::spot;
use core::fmt;
use veriep_core::place::Place;
use veriep_core::sim::cluster::Planned;
use veriep_core::units::RankId;

/// Something that must never happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A row landed on one that its reader has not read.
    Overwritten {
        /// Whose memory.
        rank: RankId,
        at: Place,
    },
    /// A flag landed on one that its reader has not cleared.
    LostFlag {
        /// Whose memory.
        rank: RankId,
        at: Place,
    },
    /// A row is read that has perhaps not landed.
    NotLanded { rank: RankId, at: Place },
    /// A core reads a word of its own that it published and that has perhaps not landed.
    OwnNotLanded { rank: RankId, at: Place },
    /// A core uses another partition than the number of its operator says.
    WrongPartition {
        /// Whose core.
        rank: RankId,
        /// The place as the machine gave it.
        at: Place,
    },
    /// An output differs from the oracle's.
    Diverged {
        /// Whose output.
        rank: RankId,
        at: Place,
    },
    /// A rank ended an operator without writing all of its outputs.
    Incomplete {
        /// Whose outputs.
        rank: RankId,
        /// Bytes written.
        seen: u32,
        /// Bytes expected.
        expected: u32,
    },
    /// A machine says that it moved and has not changed, or says that it waits and has.
    Misreported { rank: RankId },
    /// A machine refused what it saw.
    Refused { rank: RankId, error: String },
    /// A window arrived in a half in which its reader has not ended an earlier operator (A2).
    HalfInUse {
        rank: RankId,
        /// Whose window.
        from: RankId,
        operator: Planned,
        /// What the reader has not ended.
        unended: Planned,
    },
    /// A core wrote what a transfer has still to read (A2).
    SourceInUse {
        /// Whose core.
        rank: RankId,
        /// To whom the transfer goes.
        to: RankId,
        /// What the core runs.
        operator: Planned,
        /// The operator of the transfer.
        unread: Planned,
    },
    /// A core wrote a task where its agent has perhaps not read the one before (A2).
    TaskInUse {
        /// Whose core.
        rank: RankId,
        /// What the core runs.
        operator: Planned,
        /// The operator of the task before.
        unread: Planned,
    },
    /// A core wrote where nothing that it had heard says that the owner has ended what lay there (hierarchy).
    Unheard {
        /// Whose core.
        rank: RankId,
        /// Whose memory.
        owner: RankId,
        at: Place,
        /// What the core runs.
        operator: Planned,
        /// What the owner has perhaps not ended.
        unended: Planned,
    },
    /// A rank ended an operator ahead of something that it is sent there (hierarchy).
    Unawaited { rank: RankId, operator: Planned },
    /// A move is no step of the model for any number of ranks.
    Unrefined { why: String },
    /// Two ways lead to this state, and leave that model in different ones.
    TwoAbstractions,
    /// Nobody can move and not everybody is done.
    Deadlock,
    /// There are moves for ever, and none of them leads to the end of an operator.
    Livelock,
    /// There are moves for ever, none of them ends an operator, and nobody who is fair and can move for good is left out.
    Circles,
}

impl Violation {
    /// Whether it is that somebody waits in vain.
    pub(super) const fn is_wait(&self) -> bool {
        matches!(self, Self::Deadlock | Self::Livelock | Self::Circles)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overwritten { rank, at } => {
                write!(
                    f,
                    "a row lands at {} of rank {rank} on a row that rank {rank} has not read",
                    spot(*at)
                )
            }
            Self::LostFlag { rank, at } => {
                write!(f, "flag and clear, or two flags, meet at {} of rank {rank}: one is lost", spot(*at))
            }
            Self::NotLanded { rank, at } => {
                write!(f, "rank {rank} reads a row at {} that has perhaps not landed", spot(*at))
            }
            Self::OwnNotLanded { rank, at } => {
                write!(f, "a core of rank {rank} reads its own word at {at}, which has perhaps not landed")
            }
            Self::WrongPartition { rank, at } => {
                write!(f, "a core of rank {rank} uses {at}, which is not in its operator's partition")
            }
            Self::Diverged { rank, at } => {
                write!(f, "rank {rank} writes to {at} what the oracle does not expect")
            }
            Self::Incomplete { rank, seen, expected } => {
                write!(f, "rank {rank} ends an operator with {seen} of {expected} output bytes written")
            }
            Self::Misreported { rank } => {
                write!(f, "a core of rank {rank} moves without a change, or changes while it waits")
            }
            Self::Refused { rank, error } => write!(f, "rank {rank} refuses: {error}"),
            Self::HalfInUse { rank, from, operator, unended } => {
                write!(
                    f,
                    "the window of rank {from} for {operator} arrives at rank {rank}, which has not ended {unended} in \
                     the same half"
                )
            }
            Self::SourceInUse { rank, to, operator, unread } => {
                write!(
                    f,
                    "rank {rank} writes for {operator} where the transfer of {unread} to rank {to} has still to read"
                )
            }
            Self::TaskInUse { rank, operator, unread } => {
                write!(
                    f,
                    "rank {rank} writes a task of {operator} where its agent has perhaps not read that of {unread}"
                )
            }
            Self::Unheard { rank, owner, at, operator, unended } => {
                write!(
                    f,
                    "rank {rank} writes to {at} of rank {owner} for {operator}, and has not heard that rank {owner} has \
                     ended {unended}, which uses the same place"
                )
            }
            Self::Unawaited { rank, operator } => {
                write!(
                    f,
                    "rank {rank} has ended {operator}, and something that it is sent there has perhaps not landed"
                )
            }
            Self::Unrefined { why } => f.write_str(why),
            Self::TwoAbstractions => f.write_str(
                "another way leads to the same state, and the model of the theorem is elsewhere after it",
            ),
            Self::Deadlock => f.write_str("nobody can move, and not everybody is done"),
            Self::Circles => f.write_str(
                "from here on no operator need ever end, though nobody who is fair stops for good",
            ),
            Self::Livelock => f.write_str("from here no core ever ends an operator, whatever moves"),
        }
    }
}
