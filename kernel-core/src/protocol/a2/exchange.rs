//! Steps that dispatch and combine share: take a half, send a window to every rank, await windows, clear all flags.
//!
//! ```text
//! (Tail -> Task*)* -> Quiet -> Barrier -> [core 0: Flip -> Settle -> Ring] -> Rung
//! ```
//!
//! One quiet and one barrier stand between all writes of a rank's cores and the doorbell: they cover rows, counts, flags
//! and task records at once, since each core computes all counts itself. The quiet also covers the clears of the previous
//! operator. Core 0 waits for quiet again after its flip, since the cores read `bufferChosen` when they begin their next
//! operator, and the join covers outputs only.
//!
//! The window of a rank to itself is written in place, in WindowsIn: it needs no task, and no second copy.

use super::Bound;
use super::ring::{CoreBarrier, DoorbellSequence};
use crate::fabric::{Fabric, Progress, ProtocolError};
use crate::layout::a2_message::{Task, task_word};
use crate::layout::a2_window::{
    buffer_chosen, next_flag_place, sent_bytes, tail_flag, window_in, window_out,
};
use crate::layout::state::{Operator, Partition};
use crate::protocol::internal;
use crate::sync::flag;
use crate::units::{Offset, RankId};

/// The part of an operator that both kinds share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Exchange {
    pub(super) half: Partition,
    barrier: CoreBarrier,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Write the last flag of the window to rank `to`.
    Tail { to: u32 },
    /// Write a word of its task record.
    Task { to: u32, word: u32 },
    /// Ring the agent's doorbell.
    Ring(DoorbellSequence),
}

phase_names! { Phase of "Send.": Tail Task Ring }

impl Exchange {
    /// Creates the part for an operator that has not begun.
    pub(super) const fn new() -> Self {
        Self { half: Partition::P0, barrier: CoreBarrier::new(), phase: Phase::Ring(DoorbellSequence::Rung) }
    }

    pub(crate) const fn phase(&self) -> &'static str {
        match &self.phase {
            Phase::Ring(doorbell) => doorbell.name(),
            phase => phase.name(),
        }
    }

    /// Reads the half to use and the last barrier.
    pub(super) fn begin<V, F: Fabric + ?Sized>(env: Bound<'_, V>, fabric: &F) -> Result<Self, ProtocolError> {
        let at = buffer_chosen(env.shape);
        let half = match fabric.observe(at)? {
            0 => Partition::P0,
            1 => Partition::P1,
            seen => return Err(ProtocolError::Selector { at, seen }),
        };
        let barrier = CoreBarrier::begin(fabric, env.core)?;
        Ok(Self { half, barrier, phase: Phase::Tail { to: env.work.ranks.start } })
    }

    /// Writes into the window to `to`; the window to itself is written in place.
    pub(super) fn write_out<V, F: Fabric + ?Sized>(
        &self,
        env: Bound<'_, V>,
        fabric: &mut F,
        to: RankId,
        at: Offset,
        bytes: &[u8],
    ) -> Result<(), ProtocolError> {
        if to == env.rank {
            fabric.put(to, window_in(env.shape, self.half, to, at), bytes, &[])?;
        } else {
            fabric.write(window_out(env.shape, self.half, to, at), bytes)?;
        }
        Ok(())
    }

    /// Writes the last flags of the windows to the ranks of this core's share, which hold `rows_to` rows each, and has them
    /// sent. Returns `None` when that is done.
    #[inline(always)]
    pub(super) fn send<V, F: Fabric + ?Sized>(
        &mut self,
        env: Bound<'_, V>,
        fabric: &mut F,
        kind: Operator,
        rows_to: impl Fn(RankId) -> u32,
    ) -> Result<Option<Progress>, ProtocolError> {
        self.phase = match self.phase {
            Phase::Tail { to } if to >= env.work.ranks.end => Phase::Ring(DoorbellSequence::Quiet),
            Phase::Tail { to } => {
                let at = tail_flag(env.shape, kind, rows_to(RankId(to)));
                let word = u64::from(flag::WINDOW_FLAG).to_le_bytes();
                self.write_out(env, fabric, RankId(to), at, &word)?;
                if to == env.rank.0 { Phase::Tail { to: to + 1 } } else { Phase::Task { to, word: 0 } }
            }
            Phase::Task { to, word } => {
                let peer = RankId(to);
                let task = Task::new(env.shape, self.half, kind, env.rank, peer, rows_to(peer));
                let value = task.to_words().get(word as usize).copied().ok_or(internal("no such word"))?;
                fabric.store(task_word(self.half, peer, word), value)?;
                match word + 1 {
                    Task::WORDS => Phase::Tail { to: to + 1 },
                    word => Phase::Task { to, word },
                }
            }
            Phase::Ring(mut ring) => {
                let (half, chosen) = (self.half, Some(buffer_chosen(env.shape)));
                let progress = ring.step(env.core_ref(), fabric, &mut self.barrier, half, chosen)?;
                self.phase = Phase::Ring(ring);
                return Ok(progress);
            }
        };
        Ok(Some(Progress::Stepped))
    }

    /// Arrives at the next core barrier and waits there; returns `None` once all cores have arrived.
    pub(super) fn cross<V, F: Fabric + ?Sized>(
        &mut self,
        env: Bound<'_, V>,
        fabric: &mut F,
    ) -> Result<Option<Progress>, ProtocolError> {
        self.barrier.cross(env.core_ref(), fabric)
    }

    /// Returns whether the flag at `at` of the window from `source` has arrived.
    #[inline]
    pub(super) fn flag_is_in<V, F: Fabric + ?Sized>(
        &self,
        env: Bound<'_, V>,
        fabric: &F,
        source: RankId,
        at: Offset,
    ) -> Result<bool, ProtocolError> {
        Ok(flag::is_window_flag(fabric.observe(window_in(env.shape, self.half, source, at))?))
    }

    /// Clears the first word from `from` on, in the window from `source`, that holds a flag at a place where a flag could
    /// be read. Returns the place to continue at; `None` after the windows of this core's share.
    #[inline(always)]
    pub(super) fn clear<V, F: Fabric + ?Sized>(
        &self,
        env: Bound<'_, V>,
        fabric: &mut F,
        kind: Operator,
        rows_from: impl Fn(RankId) -> u32,
        (source, from): (u32, Offset),
    ) -> Result<Option<(u32, Offset)>, ProtocolError> {
        if source >= env.work.ranks.end {
            return Ok(None);
        }
        let rank = RankId(source);
        let end = sent_bytes(env.shape, kind, rows_from(rank));
        let mut at = next_flag_place(env.shape, from);
        while at < end {
            if self.flag_is_in(env, fabric, rank, at)? {
                fabric.store(window_in(env.shape, self.half, rank, at), 0)?;
                return Ok(Some((source, at + 1)));
            }
            at = next_flag_place(env.shape, at + 1);
        }
        Ok(Some((source + 1, 0)))
    }
}
