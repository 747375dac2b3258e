//! The seam: everything a core touches that another core or rank can see goes through [`Fabric`].
//!
//! A **place** is a region and an offset; addresses never leave a backend. The trait is one core's view of
//! the memory of all ranks, in OpenSHMEM's sense of *put*, *quiet* and *signal*. Its methods take ids,
//! offsets and byte slices only, so that a C table of functions can carry it, and it is object safe.
//!
//! # The contract
//! What a backend promises and, more important, what it does not. `docs/FABRIC.md` tells it with pictures;
//! the host's litmus suite examines it.
//!
//! 1. A [`put`](Fabric::put) may arrive late, in pieces and in any order, among puts and with everything else
//!    but rules 2 and 3.
//! 2. **A publish does not overtake the same core's earlier puts to that rank.** Publishes are not ordered
//!    among each other, not even on one word. A word is never torn.
//! 3. After [`quiet`](Fabric::quiet) has answered ready, all that the core put, published, stored or wrote
//!    before has landed, and whoever is told afterwards sees it.
//! 4. Causality: what has landed stays landed. If a core observes a word, all that had landed when the word
//!    landed, and all that the publisher had itself observed, is before what the observer does next.
//! 5. [`store`](Fabric::store) is like a publish to the own rank that no put gates: it may land late, up to
//!    the next quiet. One core's stores to one word land in their order, and it observes them at once; its own
//!    publishes on its own rank it observes like any other, when they have landed (rule 2 holds for it too).
//! 6. [`bytes`](Fabric::bytes) is legal only for what an observed flag covers, or what this rank's cores wrote
//!    and were quiet about before a core barrier.
//!
//! On A2 batched writes carry rows from rank to rank; [`nic`] is the seam of the agent that issues them.
//!
//! 7. **Near and far.** On A2 ranks of one server are near: rules 1 to 6 are of them. To a rank of another server, a
//!    far one, a core [`send`](Fabric::send)s **messages**, and nothing else: a put or a publish there is an error,
//!    and so is a message to a near rank. Messages of one core to one rank become visible one after the other, each
//!    whole before anything of the next: who observes a word of one sees all of those before. Inside a message
//!    there is no order, but aligned words are never torn. Nothing is promised between cores or between
//!    ranks, nor between messages and other effects; quiet does not speak for messages. What the core had
//!    observed, or was quiet about, before it sent comes before what an observer of the message does next.
//!
//! Rules 2 and 5 stand in [`order`] as a relation for backends that delay effects.
//!
//! A value that comes back from the fabric is foreign: the machines check its range before they use it.

pub mod middleware;
pub mod nic;
pub mod order;
pub mod raw;
pub mod survivors;

use crate::place::Place;
use crate::units::{CoreId, RankId};
use core::fmt;

/// A fabric was asked for something that its memory does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fault {
    /// Whose memory.
    pub rank: RankId,
    /// Where.
    pub at: Place,
    /// How many bytes.
    pub len: u64,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no access to {} bytes at {} of rank {}", self.len, self.at, self.rank)
    }
}

/// One core's view of the memory of all ranks. **The region chooses the domain**: `to` is an EP rank for
/// [`State`](crate::place::Region::State) and [`Window`](crate::place::Region::Window), and the number of a rank in
/// the own TP domain for [`TpState`](crate::place::Region::TpState) and
/// [`TpWindow`](crate::place::Region::TpWindow). See the [module](self) for the contract.
pub trait Fabric {
    /// Writes `row` and then `tail`, as one effect, to rank `to`. Both are reusable on return.
    ///
    /// # Errors
    /// The place is outside the peer's region.
    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault>;

    /// Publishes an aligned word on any rank, the own one too: whoever observes it sees all earlier puts of
    /// this core to that rank.
    ///
    /// # Errors
    /// The place is outside the peer's region or not a multiple of 8.
    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault>;

    /// Sends a message to rank `to` of another server: whole aligned words, reusable on return (rule 7).
    ///
    /// # Errors
    /// The place is outside the peer's region, the rank is near, or a place or length is no multiple of 8. By
    /// default always: most memories have near ranks alone.
    fn send(&mut self, to: RankId, at: Place, message: &[u8]) -> Result<(), Fault> {
        Err(Fault { rank: to, at, len: message.len() as u64 })
    }

    /// Whether everything this core did before, but for messages, has landed. Ask again until it has.
    ///
    /// # Errors
    /// The backend lost something it had accepted.
    fn quiet(&mut self) -> Result<bool, Fault>;

    /// Reads an aligned word of the own rank with acquire semantics.
    ///
    /// # Errors
    /// The place is outside the region or not a multiple of 8.
    fn observe(&self, at: Place) -> Result<u64, Fault>;

    /// Writes an aligned word of the own rank: clears a flag, flips a selector.
    ///
    /// # Errors
    /// The place is outside the region or not a multiple of 8.
    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault>;

    /// Bytes of the own rank's window.
    ///
    /// # Errors
    /// The range is outside the region.
    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault>;

    /// Writes bytes into an output or into WindowsOut of the own rank. May land late, up to the next quiet. (With direct
    /// placement experts, which are no machines, write their results into the own window so.)
    ///
    /// # Errors
    /// The range is outside the region.
    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault>;

    /// Copies `len` bytes of the own rank's window straight into an output.
    ///
    /// # Errors
    /// One of the ranges is outside its region.
    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault>;
}

/// A fabric whose cores can also read what lies with their peers, as processors do whose memory is mapped by each
/// other. Pull combine needs it; a memory that can only be written from afar has none.
///
/// Rule 6 holds for it as for [`bytes`](Fabric::bytes): legal only for what a flag of that rank covers, which this
/// core has observed, or another core of its rank before a core barrier. And like them they stay as they are for as long
/// as the reader has not told that rank, by a flag of its own, that it is done.
pub trait Near: Fabric {
    /// Bytes of the window of rank `rank`, the own one too; of several ranks at once, so that a sum of rows stays in
    /// registers.
    ///
    /// # Errors
    /// The range is outside the region.
    fn peer_bytes(&self, rank: RankId, at: Place, len: u64) -> Result<&[u8], Fault>;
}

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

/// Why an operator cannot go on. The group is dead afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProtocolError {
    /// A selector record holds neither 0 nor 1.
    Selector {
        /// Where.
        at: Place,
        /// What it holds.
        seen: u64,
    },
    /// A core word holds an epoch that its core cannot be in, or sums that contradict each other.
    CoreWord {
        /// Whose word.
        core: CoreId,
        /// What it holds.
        seen: u64,
        /// The epoch of this core's barrier; 0 or 1, the word's parity, when it reads its own at the start.
        epoch: u32,
    },
    /// A dispatch status word is neither empty nor flag and count.
    Status {
        /// Who writes it.
        source: RankId,
        /// For which local expert.
        local_expert: u32,
        /// What it holds.
        seen: u64,
    },
    /// The word that says that a slot's records have landed is neither empty nor the flag.
    TokenFlag {
        /// Who writes it.
        source: RankId,
        /// For which local expert.
        local_expert: u32,
        /// What it holds.
        seen: u64,
    },
    /// A grant is neither empty nor a row from which on the records for that expert fit.
    Grant {
        /// Who writes it.
        source: RankId,
        /// For which expert there.
        local_expert: u32,
        /// What it holds.
        seen: u64,
        /// The most rows that the rank can receive.
        max: u64,
    },
    /// The word that says that results lie ready is neither empty nor the flag.
    Results {
        /// Who writes it.
        source: RankId,
        /// What it holds.
        seen: u64,
    },
    /// An entry of `sent_rows` given to combine is not a row of that rank.
    SentRow {
        /// The token.
        token: u32,
        /// k index, or `K + j`.
        k: u32,
        /// What it holds.
        seen: i64,
        /// The most rows that the rank can receive.
        max: u64,
    },
    /// The entry of `row_table` given to combine is not where results may lie.
    ResultsAt {
        /// What it holds.
        seen: u64,
    },
    /// The flag of a block is neither empty nor the flag.
    BlockFlag {
        /// Who writes it.
        source: RankId,
        /// For which local expert.
        local_expert: u32,
        /// The record's slot.
        record: u32,
        /// The block.
        block: u32,
        /// What it holds.
        seen: u64,
    },
    /// A count is larger than the source can send.
    Count {
        /// Who sent it.
        source: RankId,
        /// For which local expert.
        local_expert: u32,
        /// The count.
        seen: u32,
        /// The most it can be.
        max: u32,
    },
    /// The sum of a core exceeds what its share can receive, or all sums what the rank can.
    Rows {
        /// The sum.
        seen: u64,
        /// The most it can be.
        max: u64,
    },
    /// The triple of a received row contradicts its slot or the shape.
    Triple {
        /// Row of `expand_x`.
        row: u32,
        /// Source rank, token, k index as read.
        seen: [i32; 3],
    },
    /// A combine status word is neither empty nor the flag.
    CombineFlag {
        /// The rank that writes it.
        source: RankId,
        /// The token.
        token: u32,
        /// k index, or `K + j`.
        k: u32,
        /// What it holds.
        seen: u64,
    },
    /// A slot of the TP domain is neither empty nor flag and rows.
    TpSlot {
        /// The peer's core.
        core: CoreId,
        /// What it holds.
        seen: u64,
    },
    /// A core of the TP peer tells of rows that it cannot have, or not this one's share.
    TpRows {
        /// The peer's core.
        core: CoreId,
        /// First row.
        first: u32,
        /// How many.
        rows: u32,
        /// One past the largest row that there can be.
        max: u64,
    },
    /// A value of an active token is not finite; dynamic quantisation needs finite values.
    NotFinite {
        /// The token.
        token: u32,
    },
    /// `ep_recv_counts` given to combine ends with a number of rows that `y` does not have.
    RecvCounts {
        /// The rows it claims.
        seen: i64,
        /// The rows of `y`, or the capacity if that is less.
        max: u64,
    },
    /// An entry of `ep_recv_counts` given to combine falls, or rises by more rows than its source can send.
    RecvCount {
        /// The entry.
        slot: u32,
        /// What it holds.
        seen: i64,
        /// The least it can be.
        min: u32,
        /// The most it can be.
        max: u32,
    },
    /// An entry of `expand_idx` given to combine is not a slot of its expert.
    ExpandIdx {
        /// The token.
        token: u32,
        /// k index.
        k: u32,
        /// What it holds.
        seen: i64,
        /// Slots of that expert.
        slots: u32,
    },
    /// A doorbell that contradicts the operators before it.
    Doorbell {
        /// What it holds.
        seen: u64,
        /// The least it can be.
        min: u64,
        /// The most it can be.
        max: u64,
    },
    /// A task record in the message area holds what no core writes.
    Task {
        /// Whose entry.
        peer: RankId,
        /// The field, by the seed's name in snake case.
        field: &'static str,
        /// What it holds.
        seen: u64,
        /// The least it can be.
        min: u64,
        /// The most it can be.
        max: u64,
    },
    /// A word tells of an operator that nobody can have begun (A2 hierarchy).
    Epoch {
        /// Where.
        at: Place,
        /// The operator, counted from 1.
        seen: u64,
        /// The last it can be.
        max: u64,
    },
    /// The flag of a row that is to be summed inside a server contradicts others of that token, or is missing though
    /// all rows are returned (A2 hierarchy).
    Part {
        /// Whose token.
        source: RankId,
        /// The token.
        token: u32,
        /// Which of its rows there.
        position: u32,
        /// How many rows it tells of; 0 without a flag.
        seen: u32,
        /// The least that it can be.
        min: u32,
        /// The most.
        max: u32,
    },
    /// A record from another server, or the word behind the last, contradicts the shape (A2 hierarchy).
    Record {
        /// Who sent it.
        source: RankId,
        /// Its number.
        record: u32,
        /// What is wrong.
        field: &'static str,
        /// What it holds.
        seen: u64,
    },
    /// The fabric refused an access.
    Fault(Fault),
    /// A slice that the door had sized was too short: a defect of this crate or a scratch of the wrong size.
    Internal(&'static str),
}

impl From<Fault> for ProtocolError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl ProtocolError {
    /// The same with the other rank under the name that `name` has for it: physical, in an elastic domain. Triples
    /// are told as they were read, and faults name memory as it is.
    #[must_use]
    pub fn renamed(mut self, name: impl Fn(RankId) -> RankId) -> Self {
        match &mut self {
            Self::Status { source, .. }
            | Self::Count { source, .. }
            | Self::TokenFlag { source, .. }
            | Self::Grant { source, .. }
            | Self::Results { source, .. }
            | Self::BlockFlag { source, .. }
            | Self::CombineFlag { source, .. }
            | Self::Record { source, .. }
            | Self::Part { source, .. } => *source = name(*source),
            _ => {}
        }
        self
    }
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Selector { at, seen } => write!(f, "selector at {at} = {seen:#x}: must be 0 or 1"),
            Self::CoreWord { core, seen, epoch } => {
                write!(
                    f,
                    "barrier word of core {core} = {seen:#x}: impossible while this core is at barrier {epoch} (modulo 4)"
                )
            }
            Self::Status { source, local_expert, seen } => write!(
                f,
                "dispatch status of rank {source} for local expert {local_expert} = {seen:#x}: neither empty nor a flag"
            ),
            Self::TokenFlag { source, local_expert, seen } => write!(
                f,
                "token flag of rank {source} for local expert {local_expert} = {seen:#x}: neither empty nor the flag"
            ),
            Self::Grant { source, local_expert, seen, max } => write!(
                f,
                "grant of rank {source} for its local expert {local_expert} = {seen:#x}: neither empty nor a row of its {max}"
            ),
            Self::Results { source, seen } => {
                write!(f, "flag of rank {source} for its results = {seen:#x}: neither empty nor the flag")
            }
            Self::SentRow { token, k, seen, max } => {
                write!(f, "sent_rows of token {token}, k {k} = {seen}: must be in [0, {max})")
            }
            Self::ResultsAt { seen } => write!(f, "row_table: results at {seen:#x}: no such area"),
            Self::BlockFlag { source, local_expert, record, block, seen } => write!(
                f,
                "flag of block {block} of record {record} of rank {source} for local expert {local_expert} = {seen:#x}: neither empty nor the flag"
            ),
            Self::Count { source, local_expert, seen, max } => write!(
                f,
                "count of rank {source} for local expert {local_expert} = {seen}: must be in [0, {max}]"
            ),
            Self::Rows { seen, max } => write!(f, "received rows = {seen}: must be in [0, {max}]"),
            Self::Triple { row, seen: [rank, token, k] } => {
                write!(f, "triple of row {row} = ({rank}, {token}, {k}): no such source")
            }
            Self::CombineFlag { source, token, k, seen } => write!(
                f,
                "combine status of rank {source} for token {token}, k {k} = {seen:#x}: neither empty nor the flag"
            ),
            Self::TpSlot { core, seen } => {
                write!(f, "slot of core {core} of the TP peer = {seen:#x}: neither empty nor a flag")
            }
            Self::TpRows { core, first, rows, max } => {
                write!(
                    f,
                    "core {core} of the TP peer tells of {rows} rows from {first} on: must be its share of [0, {max})"
                )
            }
            Self::NotFinite { token } => {
                write!(
                    f,
                    "token {token} is not finite before or after smoothing: quant_mode = 2 needs finite values"
                )
            }
            Self::RecvCounts { seen, max } => {
                write!(f, "ep_recv_counts claims {seen} rows: must be in [0, {max}]")
            }
            Self::RecvCount { slot, seen, min, max } => {
                write!(f, "ep_recv_counts[{slot}] = {seen}: must be in [{min}, {max}]")
            }
            Self::ExpandIdx { token, k, seen, slots } => {
                write!(f, "expand_idx[{token}, {k}] = {seen}: must be in [0, {slots})")
            }
            Self::Doorbell { seen, min, max } => write!(f, "doorbell = {seen}: must be in [{min}, {max}]"),
            Self::Task { peer, field, seen, min, max } => {
                write!(f, "task for rank {peer}: {field} = {seen}: must be in [{min}, {max}]")
            }
            Self::Epoch { at, seen, max } => {
                write!(f, "word at {at} tells of operator {seen}: must be at most {max}")
            }
            Self::Record { source, record, field, seen } => {
                write!(f, "record {record} of rank {source}: {field} = {seen}: no such record")
            }
            Self::Part { source, token, position, seen, min, max } => write!(
                f,
                "flag of row {position} of token {token} of rank {source} tells of {seen} rows: must be in [{min}, {max}]"
            ),
            Self::Fault(fault) => fault.fmt(f),
            Self::Internal(what) => write!(f, "internal: {what}"),
        }
    }
}
