//! The words by which ranks announce to each other that rows have arrived.

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

/// The meaning of an observed flag word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Nothing yet.
    Empty,
    /// The flag, with this count (0 for [`ARRIVED`]).
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

/// Decodes a word that is [`ARRIVED`] or empty.
#[must_use]
pub(crate) const fn arrived(word: u64) -> Seen {
    match word {
        0 => Seen::Empty,
        ARRIVED => Seen::Flag(0),
        _ => Seen::Corrupt,
    }
}

/// Returns whether a word of an A2 window holds [the flag](WINDOW_FLAG).
#[must_use]
pub const fn is_window_flag(word: u64) -> bool {
    word as u32 == WINDOW_FLAG
}
