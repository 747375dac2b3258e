//! The words by which ranks announce to each other that rows have arrived.

use crate::fabric::{Fabric, Result, Wait};
use crate::place::Place;
use crate::sync::call::{Tag, Tags};

pub use crate::layout::a2_window::FLAG as WINDOW_FLAG;

/// The flag value: 1.0f.
pub const FLAG: u32 = 0x3F80_0000;

/// A flag that covers data and has no count: of combine, `TokenFlag`, of a fullmesh_v2 block. It is the first two of eight
/// flag words; the other six are left out.
pub const ARRIVED: u64 = (FLAG as u64) << 32 | FLAG as u64;

/// Returns a dispatch status word: flag in word 0, count in word 1, published together.
#[must_use]
pub const fn status(count: u32) -> u64 {
    (count as u64) << 32 | FLAG as u64
}

/// The meaning of a dispatch status word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Nothing yet.
    Empty,
    /// The flag, with this count.
    Flag(u32),
    /// Neither: no sender writes this word.
    Corrupt,
}

/// Decodes a dispatch status word.
#[must_use]
pub const fn dispatch(word: u64) -> Seen {
    match (word as u32, (word >> 32) as u32) {
        (0, 0) => Seen::Empty,
        (FLAG, count) => Seen::Flag(count),
        _ => Seen::Corrupt,
    }
}

/// Returns the wait `awaited` for the word at `at` unless it is [`ARRIVED`] in the call of `tags`.
///
/// # Errors
/// The word is neither that nor empty, it is another call's, or the fabric refuses.
#[inline(always)]
pub(crate) fn missing<F: Fabric + ?Sized>(
    fabric: &F,
    at: Place,
    tags: Tags,
    awaited: Wait,
) -> Result<Option<Wait>> {
    // The two usual words first: most polls see one of them.
    let seen = fabric.observe(at)?;
    if seen == tags.with(ARRIVED) {
        return Ok(None);
    }
    if seen == 0 {
        return Ok(Some(awaited));
    }
    match tags.read(seen, awaited)? {
        None => Ok(Some(awaited)),
        Some(_) => Err(awaited.refused(seen)),
    }
}

/// Returns the count in the dispatch status word at `at`, the word `awaited`; `None` if it is empty.
///
/// # Errors
/// The word has no flag, it is another call's, or the fabric refuses.
#[inline(always)]
pub(crate) fn count<F: Fabric + ?Sized>(
    fabric: &F,
    at: Place,
    tags: Tags,
    awaited: Wait,
) -> Result<Option<u32>> {
    let seen = fabric.observe(at)?;
    if seen as u32 == tags.with(FLAG as u64) as u32 {
        return Ok(Some((seen >> 32) as u32));
    }
    if seen == 0 {
        return Ok(None);
    }
    match tags.read(seen, awaited)? {
        None => Ok(None),
        Some(_) => Err(awaited.refused(seen)),
    }
}

/// Returns whether the A2 flag of the call of `tags`, the word that `awaited` returns, is at `at`.
///
/// # Errors
/// The flag is another call's, or the fabric refuses.
#[inline(always)]
pub(crate) fn in_window<F: Fabric + ?Sized>(
    fabric: &F,
    at: Place,
    tags: Tags,
    awaited: impl FnOnce() -> Wait,
) -> Result<bool> {
    window(fabric.observe(at)?, tags, awaited)
}

/// Returns whether a word is the A2 flag of the call of `tags`, the word that `awaited` returns.
///
/// # Errors
/// The flag is another call's.
#[inline(always)]
pub(crate) fn window(seen: u64, tags: Tags, awaited: impl FnOnce() -> Wait) -> Result<bool> {
    if !is_window_flag(seen) {
        return Ok(false);
    }
    if !tags.is_checked {
        return Ok(true);
    }
    let tag = Tag::of(seen >> 32);
    if tag.bits() != seen >> 32 {
        return Err(awaited().refused(seen));
    }
    tags.judge(tag, awaited)
}

/// Returns the word with the A2 flag of the call of `tags`.
pub(crate) const fn window_flag(tags: Tags) -> u64 {
    tags.tag.bits() << 32 | WINDOW_FLAG as u64
}

/// Returns whether a word of an A2 window holds [the flag](WINDOW_FLAG).
#[must_use]
pub const fn is_window_flag(word: u64) -> bool {
    word as u32 == WINDOW_FLAG
}
