//! Violations: the faults that no reachable state may have.

use super::protocol::spot;
use veriep_core::place::Place;
use veriep_core::sim::cluster::Planned;
use veriep_core::units::RankId;

/// Something that must never happen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A row landed on one that its reader has not read.
    #[error("a row lands at {} of rank {rank} on a row that rank {rank} has not read", spot(*.at))]
    Overwritten {
        /// Whose memory.
        rank: RankId,
        at: Place,
    },
    /// A flag landed on one that its reader has not cleared.
    #[error("flag and clear, or two flags, meet at {} of rank {rank}: one is lost", spot(*.at))]
    LostFlag {
        /// Whose memory.
        rank: RankId,
        at: Place,
    },
    /// A row is read that has perhaps not landed.
    #[error("rank {rank} reads a row at {} that has perhaps not landed", spot(*.at))]
    NotLanded { rank: RankId, at: Place },
    /// A core reads a word of its own that it published and that has perhaps not landed.
    #[error("a core of rank {rank} reads its own word at {at}, which has perhaps not landed")]
    OwnNotLanded { rank: RankId, at: Place },
    /// A core uses another partition than the number of its operator says.
    #[error("a core of rank {rank} uses {at}, which is not in its operator's partition")]
    WrongPartition {
        /// Whose core.
        rank: RankId,
        /// The place as the machine gave it.
        at: Place,
    },
    /// An output differs from the reference's.
    #[error("rank {rank} writes to {at} what the reference does not expect")]
    Diverged {
        /// Whose output.
        rank: RankId,
        at: Place,
    },
    /// A rank ended an operator without writing all of its outputs.
    #[error("rank {rank} ends an operator with {seen} of {expected} output bytes written")]
    Incomplete {
        /// Whose outputs.
        rank: RankId,
        /// Bytes written.
        seen: u32,
        /// Bytes expected.
        expected: u32,
    },
    /// A machine says that it moved and has not changed, or says that it waits and has.
    #[error("a core of rank {rank} moves without a change, or changes while it waits")]
    Misreported { rank: RankId },
    /// A machine refused what it saw.
    #[error("rank {rank} refuses: {error}")]
    Refused { rank: RankId, error: String },
    /// A window arrived in a half in which its reader has not ended an earlier operator (A2).
    #[error(
        "the window of rank {from} for {operator} arrives at rank {rank}, which has not ended {unended} in the same \
         half"
    )]
    HalfInUse {
        rank: RankId,
        /// Whose window.
        from: RankId,
        operator: Planned,
        /// What the reader has not ended.
        unended: Planned,
    },
    /// A core wrote what a transfer has still to read (A2).
    #[error(
        "rank {rank} writes for {operator} where the transfer of {unread} to rank {to} has still to read"
    )]
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
    #[error("rank {rank} writes a task of {operator} where its agent has perhaps not read that of {unread}")]
    TaskInUse {
        /// Whose core.
        rank: RankId,
        /// What the core runs.
        operator: Planned,
        /// The operator of the task before.
        unread: Planned,
    },
    /// A core wrote where nothing that it had heard says that the owner has ended what lay there (hierarchy).
    #[error(
        "rank {rank} writes to {at} of rank {owner} for {operator}, and has not heard that rank {owner} has ended \
         {unended}, which uses the same place"
    )]
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
    #[error("rank {rank} has ended {operator}, and something that it is sent there has perhaps not landed")]
    Unawaited { rank: RankId, operator: Planned },
    /// A move is no step of the model for any number of ranks.
    #[error("{why}")]
    Unrefined { why: String },
    /// Two ways lead to this state, and leave that model in different ones.
    #[error("another way leads to the same state, and the model of the theorem is elsewhere after it")]
    TwoAbstractions,
    /// No core can move, and not all are done.
    #[error("no core can move, and not all are done")]
    Deadlock,
    /// There are moves without end, and none of them leads to the end of an operator.
    #[error("from here no core ever ends an operator, whatever moves")]
    Livelock,
    /// There are moves without end, none of them ends an operator, and no actor that is fair and can move for good is left out.
    #[error("from here on no operator need ever end, though no fair actor stops for good")]
    Circles,
}

impl Violation {
    /// Whether it is a wait without progress.
    pub(crate) const fn is_wait(&self) -> bool {
        matches!(self, Self::Deadlock | Self::Livelock | Self::Circles)
    }
}
