//! The A2 hierarchy (A2 stages article, stages 2 and 3): dispatch and combine over far writes between servers and shared memory
//! within a server.
//! A token crosses to another server once, to its relay, the rank with the same number there, which forwards it to every
//! near rank that needs it. Combine returns the same way: the relay sums inside the server and sends one row per token.
//! Cores issue all messages themselves, or gather them for an agent ([`Stage`]). `docs/spec/hierarchy.md` explains which words
//! each step awaits, and why that is safe.
//!
//! A machine has several **roles**: it sends, forwards, receives, sums. A role takes steps until it must wait; then the next
//! one that can move takes its turn, so no role waits while another could move. Only the agent's doorbell needs a core
//! barrier: cores announce everything else to each near rank by words of their own, and each core reads all counts itself.
//!
//! The driver must provide the **join**, as on A3: a core begins an operator only after every core of its rank has ended
//! the one before.

mod combine;
mod course;
mod dispatch;
mod issue;
mod stream;
mod sum;

use crate::protocol::kit::{Core, SHORT_BYTES, room};
use crate::protocol::{CombineInputs, Stage};
pub use combine::Combine;
pub use dispatch::Dispatch;

use crate::fabric::{Fabric, Flag, ProtocolError, Result, Wait};
use crate::inputs::Inputs;
use crate::layout::relay::{self, unmark};
use crate::layout::state::{Operator, Partition};
use crate::place::Place;
use crate::plan::split::{self};
use crate::plan::{relay as plan, route};
use crate::shape::Shape;
use crate::sync::call::{Numbering, TAG_BITS, Tag, Tags};
use crate::units::{CoreId, RankId, align_up};
use core::ops::Deref;

/// A core during an operator.
#[derive(Clone, Copy)]
struct Now<'s> {
    core: Core<'s>,
    epoch: Epoch,
}

impl<'s> Deref for Now<'s> {
    type Target = Core<'s>;

    fn deref(&self) -> &Core<'s> {
        &self.core
    }
}

impl Now<'_> {
    /// Returns the near rank with that number.
    fn near(&self, number: u32) -> RankId {
        self.shape.rank_on(self.work.server, number)
    }

    /// Returns the place of the front of record number `record` from `server`.
    fn record(&self, server: u32, record: u32) -> Place {
        match self.choices.stage {
            Stage::Two => {
                let which = (self.epoch.partition(), self.epoch.kind);
                Place::window(relay::gathered(self.shape, which, server, record))
            }
            Stage::Three => relay::record(self.shape, self.epoch.partition(), server, record),
        }
    }

    /// Returns the place of the end flag of the stream from `server`.
    fn end_flag(&self, server: u32) -> Place {
        match self.choices.stage {
            Stage::Two => Place::window(relay::gathered_end(self.shape, self.epoch.partition(), server)),
            Stage::Three => relay::end_flag(self.epoch.partition(), server),
        }
    }

    /// Returns the wait for the first near rank that has not begun this operator.
    fn outside<F: Fabric + ?Sized>(self, fabric: &F) -> Result<Option<Wait>> {
        for near in 0..self.shape.server_ranks() {
            let awaited = || Wait::new(Flag::Entered, self.near(near), &[]);
            if !self.epoch.is_reached(fabric.observe(relay::entered(near))?, awaited)? {
                return Ok(Some(awaited()));
            }
        }
        Ok(None)
    }

    /// Announces to near rank number `near` that this rank has begun the operator, and no longer reads its near area.
    fn enter<F: Fabric + ?Sized>(self, fabric: &mut F, near: u32) -> Result<()> {
        fabric.publish(self.near(near), relay::entered(self.work.number), self.epoch.word)?;
        Ok(())
    }
}

/// The context of a role in its turn; `W` is the type of the operator's scratch words.
struct Turn<'s, F: ?Sized, W> {
    core: Now<'s>,
    fabric: &'s mut F,
    inputs: &'s Inputs<'s>,
    combine_inputs: &'s CombineInputs<'s>,
    words: W,
    buffers: Buffers<'s>,
}

/// Returns the words of scratch that any core of the shape needs.
#[must_use]
pub fn scratch_words(shape: &Shape) -> usize {
    let first = |n| split::even(n, shape.aiv_num(), 0).end as usize;
    let (servers, tokens) = (shape.servers() as usize, first(shape.bs_max()));
    let pairs = tokens * shape.k() as usize;
    let counts = plan::forwards(shape, CoreId(0)).end as usize;
    let dispatch = pairs + route::destinations(shape) as usize + 2 * servers + counts;
    let followed = servers * (1 + tokens);
    let combine = followed + first(shape.servers()) * (combine::HEAD + combine::bitmap_words(shape));
    dispatch.max(combine)
}

/// Returns the bytes of scratch that any core of the shape needs: a record to send, one to forward or a partial sum, a row
/// of f32 and a result.
#[must_use]
pub const fn scratch_bytes(shape: &Shape) -> usize {
    2 * buffer_len(shape) + 3 * align_up(shape.row_bytes(), 32) as usize
}

const fn buffer_len(shape: &Shape) -> usize {
    relay::record_pitch(shape) as usize
}

/// The scratch bytes by purpose.
struct Buffers<'u> {
    /// A record to send, or its own server's partial sum.
    send: &'u mut [u8],
    /// A record to forward.
    held: &'u mut [u8],
    /// A row of f32.
    sums: &'u mut [u8],
    /// A result.
    out: &'u mut [u8],
}

// Inlined: a result in memory is read in wider pieces than it was written in, and such a load waits for all earlier stores,
// among them those of the row that the step before has put.
#[inline(always)]
fn split_bytes<'u>(shape: &Shape, row: &'u mut [u8]) -> Result<Buffers<'u>> {
    let row_bytes = align_up(shape.row_bytes(), 32) as usize;
    let (send, rest) = row.split_at_mut_checked(buffer_len(shape)).ok_or(SHORT_BYTES)?;
    let (held, rest) = rest.split_at_mut_checked(buffer_len(shape)).ok_or(SHORT_BYTES)?;
    let (sums, rest) = rest.split_at_mut_checked(2 * row_bytes).ok_or(SHORT_BYTES)?;
    Ok(Buffers { send, held, sums: room(sums, 2 * shape.row_bytes())?, out: room(rest, shape.row_bytes())? })
}

/// Returns the first `len` bytes of the row of a record or of a partial sum.
#[inline(always)]
fn row_of(record: &mut [u8], len: u64) -> Result<&mut [u8]> {
    room(record.get_mut(relay::ROW as usize..).unwrap_or_default(), len)
}

/// The operator that a core is in, as its words state it, and its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Epoch {
    /// The operator's number, counted from 1, above the tag of its call, if words have tags.
    word: u64,
    kind: Operator,
    is_checked: bool,
    /// Whether numbers in words have come round, or may before a word of this operator is read.
    comes_round: bool,
}

/// The number of bits of an epoch in a word, beside 16 bits for a number ([`relay::mark`]).
const EPOCH_BITS: u32 = 48;
/// The operators by which a rank can be ahead of another one, with much to spare. Once numbers in words have come round, one that
/// is further ahead is an old one.
const AHEAD_MAX: u64 = 1 << 20;

impl Epoch {
    /// Creates the epoch of an operator that has not begun.
    const fn none(kind: Operator) -> Self {
        Self { word: 0, kind, is_checked: false, comes_round: false }
    }

    /// Begins the next operator. It has one store.
    fn begin<F: Fabric + ?Sized>(numbering: Numbering, fabric: &mut F, core: CoreId) -> Result<Self> {
        // Epochs count by themselves, so calls that are given no number need none.
        let tag = if numbering.given.is_some() { numbering.tag(None) } else { Tags::NONE.tag };
        let number = fabric.observe(relay::epoch(core))?.wrapping_add(1);
        fabric.store(relay::epoch(core), number)?;
        Ok(Self { is_checked: numbering.is_checked(), ..Self::none(numbering.kind) }.numbered(number, tag))
    }

    /// Returns the epoch of the operator with this number, counted from 1, as words state it.
    const fn numbered(self, number: u64, tag: Tag) -> Self {
        // 2 follows the last number that fits into a word: a word that holds 0 has never been written, and the parity goes on.
        let in_words = match number.checked_sub(self.last() + 1) {
            None => number,
            Some(beyond) => 2 + beyond % (self.last() - 1),
        };
        let word = in_words << self.shift() | tag.bits();
        Self { word, comes_round: number > self.last() - AHEAD_MAX, ..self }
    }

    /// Returns the number of bits by which words have the operator's number above its tag.
    const fn shift(self) -> u32 {
        if self.is_checked { TAG_BITS } else { 0 }
    }

    /// Returns the last number that fits into a word.
    const fn last(self) -> u64 {
        (1 << (EPOCH_BITS - self.shift())) - 1
    }

    /// Returns the operator's number, as words have it.
    const fn number(self) -> u64 {
        self.word >> self.shift()
    }

    const fn partition(self) -> Partition {
        Partition::of(self.number().wrapping_sub(1))
    }

    /// Returns by how many operators a word's epoch is ahead of this one; `None` if it is behind.
    #[inline]
    const fn ahead(self, seen: u64) -> Option<u64> {
        let seen = seen >> self.shift();
        if !self.comes_round {
            return seen.checked_sub(self.number());
        }
        let ahead = seen.wrapping_sub(self.number()) & self.last();
        if seen != 0 && ahead <= AHEAD_MAX { Some(ahead) } else { None }
    }

    /// Returns whether the writer of `seen` has begun this operator or a later one.
    ///
    /// # Errors
    /// It is in another call.
    fn is_reached(self, seen: u64, awaited: impl FnOnce() -> Wait) -> Result<bool> {
        match self.ahead(seen) {
            None => Ok(false),
            Some(0) => self.judge(seen, awaited).map(|()| true),
            Some(_) => Ok(true),
        }
    }

    /// Returns whether the data flag at `at` has arrived; refuses a later epoch, which no rank can have begun.
    fn front<F: Fabric + ?Sized>(
        self,
        fabric: &F,
        at: Place,
        awaited: impl FnOnce() -> Wait,
    ) -> Result<bool> {
        self.is(at, fabric.observe(at)?, awaited)
    }

    /// Returns the number beside the epoch at `at`, if that epoch has arrived.
    fn number_at<F: Fabric + ?Sized>(
        self,
        fabric: &F,
        at: Place,
        awaited: impl FnOnce() -> Wait,
    ) -> Result<Option<u32>> {
        let (epoch, number) = unmark(fabric.observe(at)?);
        Ok(self.is(at, epoch, awaited)?.then_some(number))
    }

    /// Returns the number beside the epoch at `at`, if that epoch has arrived from a near rank. The word by which that rank
    /// [enters](Now::outside) the operator shows whether it is in another call.
    fn number_of_near<F: Fabric + ?Sized>(self, fabric: &F, at: Place) -> Result<Option<u32>> {
        let (epoch, number) = unmark(fabric.observe(at)?);
        match self.ahead(epoch) {
            Some(0) => Ok((epoch == self.word).then_some(number)),
            None => Ok(None),
            Some(_) => Err(self.later(at, epoch)),
        }
    }

    const fn later(self, at: Place, seen: u64) -> ProtocolError {
        ProtocolError::Epoch { at, seen: seen >> self.shift(), max: self.number() }
    }

    #[inline(always)]
    fn is(self, at: Place, seen: u64, awaited: impl FnOnce() -> Wait) -> Result<bool> {
        if seen == self.word {
            return Ok(true);
        }
        match self.ahead(seen) {
            None => Ok(false),
            Some(0) => self.judge(seen, awaited).map(|()| true),
            Some(_) => Err(self.later(at, seen)),
        }
    }

    /// Refuses a word of this epoch that has another call's tag.
    fn judge(self, seen: u64, awaited: impl FnOnce() -> Wait) -> Result<()> {
        if !self.is_checked || seen == self.word {
            return Ok(());
        }
        let [seen, expected] = [seen, self.word].map(Tag::of);
        Err(ProtocolError::OtherCall { awaited: awaited(), seen, expected })
    }
}

/// The operator that a rank has begun last, for tools that read its memory: they judge words as its cores do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun(Epoch);

impl Begun {
    /// Returns operator `number` of a core, counted from 1, with the tag of its call; `checked` says whether words have tags.
    #[must_use]
    pub const fn of(number: u64, tag: Tag, checked: bool) -> Self {
        let none = Epoch { is_checked: checked, ..Epoch::none(Operator::Dispatch) };
        Self(none.numbered(number, if checked { tag } else { Tags::NONE.tag }))
    }

    /// Returns whether the writer of an epoch, after [`unmark`], has begun this operator or a later one.
    ///
    /// # Errors
    /// It is in another call.
    pub fn is_reached(self, seen: u64, awaited: Wait) -> Result<bool> {
        self.0.is_reached(seen, || awaited)
    }
}

static_assertions::const_assert!(size_of::<Combine>() <= 512);

#[cfg(test)]
mod tests;
