//! The words by which ranks announce to each other that rows have arrived.

use crate::fabric::{Fabric, Result, Wait};
use crate::place::Place;

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

/// Returns the wait `awaited` for the word at `at` unless it is [`ARRIVED`].
///
/// # Errors
/// The word is neither that nor empty, or the fabric refuses.
#[inline(always)]
pub(crate) fn missing<F: Fabric + ?Sized>(fabric: &F, at: Place, awaited: Wait) -> Result<Option<Wait>> {
    let seen = fabric.observe(at)?;
    match seen {
        0 => Ok(Some(awaited)),
        ARRIVED => Ok(None),
        _ => Err(awaited.refused(seen)),
    }
}

/// Returns the count in the dispatch status word at `at`, or `awaited` if it is empty.
///
/// # Errors
/// The word has no flag, or the fabric refuses.
#[inline(always)]
pub(crate) fn count<F: Fabric + ?Sized>(fabric: &F, at: Place, awaited: Wait) -> Result<Result<u32, Wait>> {
    let seen = fabric.observe(at)?;
    match dispatch(seen) {
        Seen::Empty => Ok(Err(awaited)),
        Seen::Flag(count) => Ok(Ok(count)),
        Seen::Corrupt => Err(awaited.refused(seen)),
    }
}

/// Returns whether a word of an A2 window holds [the flag](WINDOW_FLAG).
#[must_use]
pub const fn is_window_flag(word: u64) -> bool {
    word as u32 == WINDOW_FLAG
}
