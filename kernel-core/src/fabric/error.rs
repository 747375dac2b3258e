//! The errors that end an operator: impossible values from others, and accesses outside of memory.

use super::{Fault, Flag, Wait};
use crate::place::Place;
use crate::sync::call::{CALLS, Tag};
use crate::units::{CoreId, RankId};
use core::fmt;

/// The reason why an operator cannot continue. The group cannot be used afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The constants of a core or agent were made for another shape than that of the step.
    OtherShape {
        /// The fingerprint of the shape that they were made for.
        made_for: u64,
        /// The fingerprint of the shape given.
        given: u64,
    },
    /// The constants belong to another protocol than the machine.
    OtherMachine,
    /// A selector record holds neither 0 nor 1.
    Selector {
        /// The place of the record.
        at: Place,
        /// The value seen.
        seen: u64,
    },
    /// A core word holds an epoch that its core cannot be in, or sums that contradict each other.
    CoreWord {
        /// The core of the word.
        core: CoreId,
        /// The value seen.
        seen: u64,
        /// The epoch of this core's barrier. When a core reads its own two words before its first barrier: the wrong word,
        /// 0 or 1.
        epoch: u32,
    },
    /// A flag is neither empty nor the value that it must have.
    Flag {
        /// The wait for this flag, which identifies it.
        awaited: Wait,
        /// The value seen.
        seen: u64,
    },
    /// A flag has the number of another call: its writer has left out a call, or given another number than this rank.
    OtherCall {
        /// The wait for this flag, which identifies it.
        awaited: Wait,
        /// The call of the flag.
        seen: Tag,
        /// This rank's call.
        expected: Tag,
    },
    /// A grant is not a row from which on the rows for that expert fit.
    Grant {
        /// The rank that wrote it.
        source: RankId,
        /// The local expert on that rank.
        local_expert: u32,
        /// The value seen.
        seen: u64,
        /// The maximum number of rows that the rank can receive.
        max: u64,
    },
    /// An entry of `sent_rows` given to combine is not a row of that rank.
    SentRow {
        /// The token.
        token: u32,
        /// k index, or `K + j`.
        k: u32,
        /// The value seen.
        seen: i64,
        /// The maximum number of rows that the rank can receive.
        max: u64,
    },
    /// The entry of `row_table` given to combine is not a legal start of results.
    ResultsAt {
        /// The value seen.
        seen: u64,
    },
    /// A count is larger than the source can send.
    Count {
        /// The rank that sent it.
        source: RankId,
        /// The local expert.
        local_expert: u32,
        /// The count.
        seen: u32,
        /// The largest legal count.
        max: u32,
    },
    /// The sum of a core exceeds the rows that its share can receive, or all sums those that the rank can.
    Rows {
        /// The sum.
        seen: u64,
        /// The largest legal sum.
        max: u64,
    },
    /// The triple of a received row contradicts its slot or the shape.
    Triple {
        /// Row of `expand_x`.
        row: u32,
        /// Source rank, token, k index as read.
        seen: [i32; 3],
    },
    /// A core of the TP peer announces impossible rows, or rows outside this core's share.
    TpRows {
        /// The peer's core.
        core: CoreId,
        /// The first row.
        first: u32,
        /// The number of rows.
        rows: u32,
        /// One past the largest possible row.
        max: u64,
    },
    /// A value of an active token is not finite; dynamic quantisation needs finite values.
    NotFinite {
        /// The token.
        token: u32,
    },
    /// `ep_recv_counts` given to combine ends with more rows than `y` has.
    RecvCounts {
        /// The number of rows that it ends with.
        seen: i64,
        /// The number of rows of `y`, or the capacity if that is less.
        max: u64,
    },
    /// An entry of `ep_recv_counts` given to combine falls, or rises by more rows than its source can send.
    RecvCount {
        /// The index of the entry.
        slot: u32,
        /// The value seen.
        seen: i64,
        /// The least legal value.
        min: u32,
        /// The largest legal value.
        max: u32,
    },
    /// An entry of `expand_idx` given to combine is not a slot of its expert.
    ExpandIdx {
        /// The token.
        token: u32,
        /// k index.
        k: u32,
        /// The value seen.
        seen: i64,
        /// The number of slots of that expert.
        slots: u32,
    },
    /// A doorbell contradicts the operators before it.
    Doorbell {
        /// The value seen.
        seen: u64,
        /// The least legal value.
        min: u64,
        /// The largest legal value.
        max: u64,
    },
    /// A task record in the message area holds a value that no core writes.
    Task {
        /// The peer of the record.
        peer: RankId,
        /// The field, by the seed's name in snake case.
        field: &'static str,
        /// The value seen.
        seen: u64,
        /// The least legal value.
        min: u64,
        /// The largest legal value.
        max: u64,
    },
    /// A word names an operator that no rank can have begun (A2 hierarchy).
    Epoch {
        /// The place of the word.
        at: Place,
        /// The operator, counted from 1.
        seen: u64,
        /// The last possible operator.
        max: u64,
    },
    /// The flag of a row that is to be summed inside a server contradicts others of that token, or is missing though all
    /// rows are returned (A2 hierarchy).
    Part {
        /// The owner of the token.
        source: RankId,
        /// The token.
        token: u32,
        /// The number of the row among the token's rows there.
        position: u32,
        /// The number of rows that the flag states; 0 without a flag.
        seen: u32,
        /// The least legal number.
        min: u32,
        /// The largest legal number.
        max: u32,
    },
    /// A record from another server, or the word after the last, contradicts the shape (A2 hierarchy).
    Record {
        /// The rank that sent it.
        source: RankId,
        /// The number of the record.
        record: u32,
        /// The wrong field.
        field: &'static str,
        /// The value seen.
        seen: u64,
    },
    /// The fabric refused an access.
    Fault(Fault),
    /// An argument of the caller is too short for the shape (scratch, inputs), or a fabric returned another
    /// number of bytes than requested.
    Given(&'static str),
    /// An impossible state: a defect of this crate.
    Internal(&'static str),
}

/// A result whose error is a [`ProtocolError`] unless another one is named.
pub(crate) type Result<T, E = ProtocolError> = core::result::Result<T, E>;

impl From<Fault> for ProtocolError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl ProtocolError {
    /// Returns the EP rank that wrote the impossible value, if the error identifies it.
    #[must_use]
    pub const fn source(&self) -> Option<RankId> {
        match self {
            Self::Flag { awaited, .. } | Self::OtherCall { awaited, .. } => match awaited.flag {
                Flag::Tp => None,
                _ => awaited.source(),
            },
            Self::Count { source, .. } | Self::Grant { source, .. } | Self::Record { source, .. } => {
                Some(*source)
            }
            _ => None,
        }
    }

    /// Replaces the other rank by the name that `name` returns for it: physical, in an elastic domain. Triples stay as they
    /// were read, and faults name physical memory anyway.
    #[must_use]
    pub fn renamed(mut self, name: impl Fn(RankId) -> RankId) -> Self {
        match &mut self {
            Self::Flag { awaited, .. } | Self::OtherCall { awaited, .. } => *awaited = awaited.renamed(name),
            Self::Count { source, .. }
            | Self::Grant { source, .. }
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
            Self::OtherShape { made_for, given } => {
                write!(f, "made for another shape: fingerprint {made_for:#x}, of the step's shape {given:#x}")
            }
            Self::Selector { at, seen } => write!(f, "selector at {at} = {seen:#x}: must be 0 or 1"),
            Self::CoreWord { core, seen, epoch } => write!(
                f,
                "barrier word of core {core} = {seen:#x}: impossible while this core is at barrier {epoch} (modulo 4)"
            ),
            Self::Flag { awaited, seen } => flag(f, awaited, seen),
            Self::OtherCall { awaited: Wait { flag, rank, .. }, seen, expected } => write!(
                f,
                "rank {rank} is in {seen} by its {}, this rank in {expected}: one of them has left out a call, given another \
                 number, or combined another batch than it dispatched (numbers modulo {CALLS})",
                flag.name()
            ),
            Self::Grant { source, local_expert, seen, max } => write!(
                f,
                "grant of rank {source} for its local expert {local_expert} = {seen}: the rows do not fit from there on into its {max}"
            ),
            Self::SentRow { token, k, seen, max } => {
                write!(f, "sent_rows of token {token}, k {k} = {seen}: must be in [0, {max})")
            }
            Self::ResultsAt { seen } => write!(f, "row_table: results at {seen:#x}: no such area"),
            Self::Count { source, local_expert, seen, max } => write!(
                f,
                "count of rank {source} for local expert {local_expert} = {seen}: must be in [0, {max}]"
            ),
            Self::Rows { seen, max } => write!(f, "received rows = {seen}: must be in [0, {max}]"),
            Self::Triple { row, seen: [rank, token, k] } => {
                write!(f, "assist_info of row {row} = ({rank}, {token}, {k}): no such source")
            }
            Self::TpRows { core, first, rows, max } => write!(
                f,
                "core {core} of the TP peer announces {rows} rows from {first} on: must be its share of [0, {max})"
            ),
            Self::NotFinite { token } => write!(
                f,
                "token {token} is not finite before or after smoothing: quant_mode = 2 needs finite values"
            ),
            Self::RecvCounts { seen, max } => write!(
                f,
                "ep_recv_counts ends with {seen} rows, -1 if it is missing: must be in [0, {max}], as many as y has"
            ),
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
                write!(f, "word at {at} names operator {seen}: must be at most {max}")
            }
            Self::Record { source, record, field, seen } => {
                write!(f, "record {record} of rank {source}: {field} = {seen}: no such record")
            }
            Self::Part { source, token, position, seen, min, max } => write!(
                f,
                "flag of row {position} of token {token} of rank {source} states {seen} rows: must be in [{min}, {max}]"
            ),
            Self::Fault(fault) => fault.fmt(f),
            Self::OtherMachine => f.write_str("env is another protocol's than the machine"),
            Self::Given(what) => f.write_str(what),
            Self::Internal(what) => write!(f, "internal: {what}"),
        }
    }
}

/// Writes that a flag is neither empty nor the value that it must have.
fn flag(f: &mut fmt::Formatter<'_>, awaited: Wait, seen: u64) -> fmt::Result {
    let Wait { flag, rank, index: [a, b, c] } = awaited;
    match flag {
        Flag::Dispatch | Flag::Count => write!(
            f,
            "dispatch status of rank {rank} for local expert {a} = {seen:#x}: neither empty nor a flag"
        ),
        Flag::Tp => write!(f, "slot of core {a} of the TP peer = {seen:#x}: neither empty nor a flag"),
        Flag::Block => write!(
            f,
            "flag of block {c} of record {b} of rank {rank} for local expert {a} = {seen:#x}: neither empty nor the flag"
        ),
        Flag::Results => {
            write!(f, "flag of rank {rank} for its results = {seen:#x}: neither empty nor the flag")
        }
        Flag::Combine => write!(
            f,
            "combine status of rank {rank} for token {a}, k {b} = {seen:#x}: neither empty nor the flag"
        ),
        Flag::Token => write!(
            f,
            "token flag of rank {rank} for local expert {a} = {seen:#x}: neither empty nor the flag"
        ),
        _ => write!(f, "{} of rank {rank} = {seen:#x}: neither empty nor the flag", flag.name()),
    }
}

impl core::error::Error for ProtocolError {}
