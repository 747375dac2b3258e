//! Lengths of the rows of programs, and the places that they have then.

use super::STRIDE;
use crate::fabric::WORD;
use crate::place::{Place, Region};

/// Bytes of a row or message at most.
pub const ROW_MAX: u64 = 64 * 1024;
/// The length of a row as programs name it, and the distance of two rows.
const LEN: u64 = 200;
const PITCH: u64 = 256;

/// The bytes of all rows: a row of byte `b` is what begins at index `b`. Two rows differ in every byte, and none has a byte of
/// fresh memory.
static BYTES: [u8; ROW_MAX as usize + 256] = {
    let mut bytes = [0; ROW_MAX as usize + 256];
    let mut at = 0;
    while at < bytes.len() {
        bytes[at] = (at % 251) as u8 + 1;
        at += 1;
    }
    bytes
};

/// The length of rows, and of the memory. The default is rows of 200 bytes, which need [`STRIDE`] bytes of window for
/// each repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    row: u64,
    window: u64,
    state: u64,
    line: u64,
}

impl Default for Extent {
    fn default() -> Self {
        Self::SHORT
    }
}

impl Extent {
    pub(super) const SHORT: Self = Self { row: LEN, window: 0, state: 0, line: WORD };

    /// Creates an extent with rows of `row` bytes, from 200 to [`ROW_MAX`] and a multiple of 8. Each repetition of a program
    /// needs [`stride`](Self::stride) bytes of window. `window` and `state` are the lengths of these regions: a program may use
    /// places far apart, so if they are longer than the strides, only repetition 0 is to be run in one memory. With 0 there are
    /// no such places.
    #[must_use]
    pub const fn new(row: u64, window: u64, state: u64) -> Option<Self> {
        let fits = row >= LEN && row <= ROW_MAX && row.is_multiple_of(8);
        if fits { Some(Self { row, window, state, line: WORD }) } else { None }
    }

    /// Sets the [line](crate::fabric::Fabric::line) of the memory: each word of a program gets one of its own, and what a program
    /// puts between words is between them. Without it programs have words of several ranks in one line, which a memory with
    /// longer lines than a word need not keep.
    #[must_use]
    pub const fn with_line(self, line: u64) -> Self {
        Self { line: if line < WORD { WORD } else { line }, ..self }
    }

    /// Returns the bytes of window that a repetition needs.
    #[must_use]
    pub const fn stride(self) -> u64 {
        2 * self.pitch()
    }

    /// Returns the bytes of state that a repetition needs: [`STRIDE`], or as many lines as that has words.
    #[must_use]
    pub const fn state_stride(self) -> u64 {
        self.apart(STRIDE)
    }

    /// Returns the offset in state of what programs have at `offset`: words are a line apart.
    const fn apart(self, offset: u64) -> u64 {
        offset / WORD * self.line + offset % WORD
    }

    /// Returns whether it has places far apart.
    #[cfg(test)]
    pub(super) const fn is_wide(self) -> bool {
        self.window > 0
    }

    const fn pitch(self) -> u64 {
        (self.row + PITCH - LEN).next_multiple_of(PITCH)
    }

    pub(super) const fn stride_of(self, at: Place) -> u64 {
        match at.region {
            Region::State => self.state_stride(),
            _ => self.stride(),
        }
    }

    pub(super) const fn end_of(self, at: Place) -> u64 {
        match at.region {
            Region::State => self.state,
            _ => self.window,
        }
    }

    /// Returns the place of a program's place in that repetition. What is in the second half of a row keeps its distance from the
    /// row's end.
    pub(super) const fn place(self, at: Place, repetition: u64) -> Place {
        let offset = match at.region {
            Region::State => self.apart(at.offset),
            _ => at.offset / PITCH * self.pitch() + self.inside(at.offset % PITCH),
        };
        Place { offset: offset + repetition * self.stride_of(at), ..at }
    }

    const fn inside(self, offset: u64) -> u64 {
        if offset < LEN / 2 { offset } else { offset + self.row - LEN }
    }

    /// Returns the length of what has the length `len` in programs: rows grow, what is shorter than half of a row does not.
    pub(super) fn len(self, len: usize) -> Option<usize> {
        let len = len as u64;
        let len = if len < LEN / 2 { len } else { len + self.row - LEN };
        (len <= ROW_MAX).then_some(len as usize)
    }

    /// Returns a row of that byte.
    pub(super) fn row(self, byte: u8, len: usize) -> Option<&'static [u8]> {
        BYTES.get(byte.into()..)?.get(..len)
    }

    /// A word of equal bytes in a window stands for the word that a row of that byte has there. Other words are what they are.
    pub(super) fn word(self, at: Place, word: u64) -> u64 {
        let byte = word as u8;
        let in_row =
            !matches!(at.region, Region::State) && byte != 0 && word == u64::from_le_bytes([byte; 8]);
        let start = self.inside(at.offset % PITCH) as usize + usize::from(byte);
        let there = BYTES.get(start..).and_then(|bytes| bytes.first_chunk()).filter(|_| in_row);
        there.map_or(word, |bytes| u64::from_le_bytes(*bytes))
    }
}
