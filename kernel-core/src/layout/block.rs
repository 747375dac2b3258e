//! A record of fullmesh_v2: the bytes of a plain record as a stream, cut into blocks that each carry a flag of their own.
//!
//! ```text
//! stream   0 ........ 479   480 ........ 959   960 .... last        data, padding, scale field, triple
//!              |                |                  |
//! memory   +0 payload 480 B   +512 payload 480 B  +1024 payload, shorter      byte i: i / 480 * 512 + i % 480
//!          +480 flag 32 B     +992 flag 32 B      +1504 flag 32 B             block b: b * 512 + 480
//! ```
//!
//! A flag field uses 8 bytes. Scale field and triple start at multiples of 32 in the stream, and so does every block's
//! payload: neither lies across two blocks.

use super::affine::{Index, Named};
use super::expr::Expr;
use super::fixed::Fixed;
use super::quantity::{Memory, number};
use super::record;
use crate::place::Place;
use crate::shape::Shape;
pub use crate::shape::sizes::BLOCK_PAYLOAD as PAYLOAD;
use crate::shape::sizes::{BLOCK, SCALE_FIELD};
use crate::units::{Offset, div_floor};
use core::ops::Range;
use static_assertions::const_assert;

const_assert!(PAYLOAD.is_multiple_of(SCALE_FIELD));
const_assert!(record::Triple::BYTES <= SCALE_FIELD);
const_assert!(PAYLOAD < BLOCK);

/// Returns the number of blocks of a record.
#[must_use]
pub const fn count(shape: &Shape) -> u32 {
    number::BlockCount(&Memory::of_any(shape)) as u32
}

/// Returns the range of the stream that block `block` carries, for a stream of `len` bytes.
#[must_use]
pub const fn stream(block: u32, len: u64) -> Range<u64> {
    let (start, end) = (block as u64 * PAYLOAD, (block as u64 + 1) * PAYLOAD);
    Range { start: if start < len { start } else { len }, end: if end < len { end } else { len } }
}

/// Returns the place of block `block` of the record at `record`.
#[must_use]
pub const fn block(record: Place, block: u32) -> Place {
    const BLOCKS: Fixed<1> = Named::Blocks.fixed([Index::Block]);
    Place { offset: record.offset + BLOCKS.at(block).offset, ..record }
}

/// Returns the place of the flag of block `block` of the record at `record`.
#[must_use]
pub const fn flag(record: Place, block: u32) -> Place {
    const FLAGS: Fixed<1> = Named::BlockFlags.fixed([Index::Block]);
    Place { offset: record.offset + FLAGS.at(block).offset, ..record }
}

/// What the place of a byte of the stream follows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Streamed {
    /// The byte, counted from the start of the stream.
    Byte,
}

/// The block that carries a byte, as a formula.
pub const BLOCK_OF: Expr<Streamed> = expr!(Streamed: Byte / {PAYLOAD});

/// The offset of a byte from the start of its record, as a formula.
pub const BYTE: Expr<Streamed> = expr!(Streamed: Byte + ((Byte / {PAYLOAD}) * {BLOCK - PAYLOAD}));

/// Returns the offset of byte `i` of a record's stream from the record's start.
pub(crate) const fn byte(i: Offset) -> Offset {
    let block = div_floor(i, PAYLOAD);
    block * BLOCK + (i - block * PAYLOAD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formulas_of_a_byte_are_what_machines_compute() {
        for i in 0..10 * PAYLOAD {
            let [number, at] = [BLOCK_OF, BYTE].map(|formula| formula.value(&|Streamed::Byte| i));
            assert_eq!(at, byte(i));
            // A block is sent as this piece of the stream.
            let piece = stream(number as u32, 10 * PAYLOAD);
            assert!(piece.contains(&i), "{i}: {piece:?}");
            assert_eq!(at - block(Place::window(0), number as u32).offset, i - piece.start, "{i}");
        }
    }
}
