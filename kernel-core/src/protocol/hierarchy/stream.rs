//! Following a stream: the records of one rank of another server, in the order in which they were sent.
//!
//! There is no order within a message, so a flag does not cover its own record. Messages arrive one after the other: a
//! record is complete when the flag of the next one is seen, or the end flag, which is a message too. An agent sends the
//! records as one task, whose end flag is its last word: when that is seen, all records are complete.

use super::{Epoch, Now};
use crate::fabric::{Fabric, Flag, ProtocolError, Result, Wait};
use crate::layout::relay;
use crate::protocol::Stage;
use crate::units::RankId;

/// The state of the next record of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The requested record is complete.
    Record,
    /// The stream has ended before it.
    End,
    /// It has not arrived yet.
    Missing(Wait),
}

/// Returns the state of record number `record` of the stream from `server`.
pub(super) fn next<F: Fabric + ?Sized>(core: Now<'_>, fabric: &F, server: u32, record: u32) -> Result<Next> {
    let shape = core.shape;
    let source = shape.relay(core.rank, server);
    let awaited = || Wait::new(Flag::Record, source, &[record]);
    let flag = |number| core.epoch.front(fabric, core.record(server, number), awaited);
    let complete = match core.epoch.number_at(fabric, core.end_flag(server), awaited)? {
        Some(records) if records > shape.bs_max() => {
            let seen = records.into();
            return Err(ProtocolError::Record { source, record, field: "records", seen });
        }
        Some(records) if record >= records => return Ok(Next::End),
        Some(_) => true,
        None if core.choices.stage == Stage::Two => false,
        // Only the end flag can follow the last possible record.
        None => record + 1 < shape.bs_max() && flag(record + 1)?,
    };
    if !complete {
        return Ok(Next::Missing(awaited()));
    }
    if !flag(record)? {
        return Err(ProtocolError::Record { source, record, field: "front flag", seen: 0 });
    }
    Ok(Next::Record)
}

/// Returns token and pairs of a complete record.
pub(super) fn token_and_pairs<F: Fabric + ?Sized>(
    core: Now<'_>,
    fabric: &F,
    server: u32,
    record: u32,
) -> Result<(u32, u32)> {
    let at = core.record(server, record);
    let word = fabric.observe(relay::behind(at, relay::TOKEN))?;
    Ok((word as u32, (word >> 32) as u32))
}

pub(super) fn write_front(record: &mut [u8], epoch: Epoch, token: u32, pairs: u32) {
    let words = [epoch.word, u64::from(pairs) << 32 | u64::from(token), 0, 0];
    for (to, word) in record.as_chunks_mut().0.iter_mut().zip(words) {
        *to = word.to_le_bytes();
    }
}

/// Creates the error of a record of the stream from `server`.
pub(super) fn wrong(
    core: Now<'_>,
    server: u32,
    record: u32,
    field: &'static str,
    seen: u32,
) -> ProtocolError {
    let source: RankId = core.shape.relay(core.rank, server);
    ProtocolError::Record { source, record, field, seen: seen.into() }
}
