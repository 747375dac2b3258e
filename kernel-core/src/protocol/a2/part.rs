//! Parts of both operators: take a half, send a window to every rank, await windows, clear all flags.
//!
//! ```text
//! Send   (Tail -> Task*)* -> Quiet -> Barrier -> [core 0: Flip -> Settle -> Ring] -> Rung
//! ```
//!
//! One quiet and one barrier are between all writes of a rank's cores and the doorbell: they cover rows, counts, flags
//! and task records at once, since each core computes all counts itself. The quiet also covers the clears of the previous
//! operator. Core 0 waits for quiet again after its flip, since the cores read `bufferChosen` when they begin their next
//! operator, and the join covers outputs only.
//!
//! The window of a rank to itself is written in place, in WindowsIn: it needs no task, and no second copy.

use super::split_words;
use crate::fabric::{Fabric, Flag, Progress, Result, Wait};
use crate::layout::a2_message::{Task, task_word};
use crate::layout::a2_window::{
    buffer_chosen, next_flag_place, sent_bytes, tail_flag, window_in, window_out,
};
use crate::layout::state::{Operator, Partition};
use crate::protocol::kit::{Context, Core, DoorbellSequence, Outcome, internal};
use crate::sync::call::Tags;
use crate::sync::selector::{self, Chosen};
use crate::sync::{barrier, flag};
use crate::units::{Offset, RankId};

/// The state of an operator apart from its phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Round {
    kind: Operator,
    pub(super) half: Partition,
    tags: Tags,
    /// The word that names the next operator's half.
    next_chosen: u64,
    /// The last barrier that was passed or arrived at.
    pub(super) epoch: u32,
}

impl Round {
    /// Creates the state of an operator that has not begun.
    pub(super) const fn new(kind: Operator) -> Self {
        Self { kind, half: Partition::P0, tags: Tags::NONE, next_chosen: 0, epoch: 0 }
    }

    /// Reads the half to use and the last barrier.
    pub(super) fn begin(&mut self, cx: &Context<'_, impl Fabric + ?Sized>) -> Result<()> {
        let numbering = cx.core.numbering(self.kind, cx.inputs);
        let Chosen { turn, next } = selector::chosen(cx.fabric, buffer_chosen(cx.core.shape), numbering)?;
        (self.half, self.tags, self.next_chosen) = (turn.partition, turn.tags, next);
        self.epoch = barrier::current_epoch(cx.fabric, cx.core.id)?;
        Ok(())
    }

    /// Writes into the window to `to`; the window to itself is written in place.
    pub(super) fn write_out<F: Fabric + ?Sized>(
        &self,
        core: Core<'_>,
        fabric: &mut F,
        to: RankId,
        at: Offset,
        bytes: &[u8],
    ) -> Result<()> {
        if to == core.rank {
            fabric.put(to, window_in(core.shape, self.half, to, at), bytes, &[])?;
        } else {
            fabric.write(window_out(core.shape, self.half, to, at), bytes)?;
        }
        Ok(())
    }

    /// Returns whether the flag at `at` of the window from `source` has arrived, the word that `awaited` returns.
    #[inline]
    pub(super) fn has_arrived(
        &self,
        cx: &Context<'_, impl Fabric + ?Sized>,
        source: RankId,
        at: Offset,
        awaited: impl FnOnce() -> Wait,
    ) -> Result<bool> {
        flag::in_window(cx.fabric, window_in(cx.core.shape, self.half, source, at), self.tags, awaited)
    }

    /// Returns the two halves of the word with a flag of this operator: flag and tag.
    pub(super) const fn flag_words(&self) -> [u32; 2] {
        let word = flag::window_flag(self.tags);
        [word as u32, (word >> 32) as u32]
    }

    /// Awaits the last flag of the window of `rows` rows from `source`.
    pub(super) fn await_rows(
        &self,
        cx: &Context<'_, impl Fabric + ?Sized>,
        source: RankId,
        rows: u32,
    ) -> Outcome {
        let at = tail_flag(cx.core.shape, self.kind, rows);
        let awaited = || Wait::new(Flag::WindowRows, source, &[rows]);
        Ok(if self.has_arrived(cx, source, at, awaited)? {
            Progress::Done
        } else {
            Progress::Pending(awaited())
        })
    }
}

/// Sending the windows to the ranks of this core's share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Send {
    /// Write the last flag of the window to rank `to`.
    Tail { to: u32 },
    /// Write a word of its task record.
    Task { to: u32, word: u32 },
    /// Ring the agent's doorbell.
    Ring(DoorbellSequence),
}

phase_names! { Send of "Send.": Tail Task Ring }

impl Send {
    pub(super) fn new(core: Core<'_>) -> Self {
        Self::Tail { to: core.work.ranks.start }
    }

    pub(super) const fn phase(&self) -> &'static str {
        match self {
            Self::Ring(doorbell) => doorbell.name(),
            phase => phase.name(),
        }
    }

    /// Advances the part by one step.
    #[inline(always)]
    pub(super) fn step(&mut self, round: &mut Round, cx: &mut Context<'_, impl Fabric + ?Sized>) -> Outcome {
        let (core, fabric) = (cx.core, &mut *cx.fabric);
        let (shape, kind, half) = (core.shape, round.kind, round.half);
        *self = match *self {
            Self::Tail { to } if to >= core.work.ranks.end => Self::Ring(DoorbellSequence::Quiet),
            Self::Tail { to } => {
                let rows = split_words(core, cx.scratch.words)?.rows_to(kind, RankId(to));
                let word = round.flag_words().map(u32::to_le_bytes);
                round.write_out(
                    core,
                    fabric,
                    RankId(to),
                    tail_flag(shape, kind, rows),
                    word.as_flattened(),
                )?;
                if to == core.rank.0 { Self::Tail { to: to + 1 } } else { Self::Task { to, word: 0 } }
            }
            Self::Task { to, word } => {
                let rows = split_words(core, cx.scratch.words)?.rows_to(kind, RankId(to));
                let task = Task::new(shape, half, kind, core.rank, RankId(to), rows).to_words();
                let value = task.get(word as usize).copied().ok_or(internal("no such word"))?;
                fabric.store(task_word(half, RankId(to), word), value)?;
                match word + 1 {
                    Task::WORDS => Self::Tail { to: to + 1 },
                    word => Self::Task { to, word },
                }
            }
            Self::Ring(ref mut doorbell) => {
                let chosen = Some((buffer_chosen(shape), round.next_chosen));
                return doorbell.step(core.core_ref(), fabric, &mut round.epoch, half, chosen);
            }
        };
        Ok(Progress::Stepped)
    }
}

/// Clearing the words that hold a flag, in the windows of this core's share, where a flag could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Clear {
    source: u32,
    /// The byte of the window from `source` to continue at.
    from: Offset,
}

impl Clear {
    pub(super) fn new(core: Core<'_>) -> Self {
        Self { source: core.work.ranks.start, from: 0 }
    }

    /// Clears the next word.
    #[inline(always)]
    pub(super) fn step(&mut self, round: &Round, cx: &mut Context<'_, impl Fabric + ?Sized>) -> Outcome {
        let (core, source) = (cx.core, RankId(self.source));
        if self.source >= core.work.ranks.end {
            return Ok(Progress::Done);
        }
        let rows = split_words(core, cx.scratch.words)?.rows_from(round.kind, source);
        let end = sent_bytes(core.shape, round.kind, rows);
        let mut at = next_flag_place(core.shape, self.from);
        while at < end {
            let place = window_in(core.shape, round.half, source, at);
            // Whatever call it is of: later operators read it as a flag.
            if flag::is_window_flag(cx.fabric.observe(place)?) {
                cx.fabric.store(place, 0)?;
                self.from = at + 1;
                return Ok(Progress::Stepped);
            }
            at = next_flag_place(core.shape, at + 1);
        }
        *self = Self { source: self.source + 1, from: 0 };
        Ok(Progress::Stepped)
    }
}
