//! Decisions: the fuzzer's bytes as long as there are any, then dice of a seed. So a few bytes make a long run, and
//! any prefix of it can be steered.

use arbitrary::Unstructured;

/// A source of decisions.
#[derive(Debug)]
pub struct Tape<'a> {
    bytes: Unstructured<'a>,
    dice: u64,
}

impl<'a> Tape<'a> {
    /// Decisions of these bytes, then of this seed.
    pub fn new(bytes: &'a [u8], seed: u64) -> Self {
        Self { bytes: Unstructured::new(bytes), dice: seed }
    }

    pub fn byte(&mut self) -> u8 {
        if self.bytes.is_empty() { self.dice() as u8 } else { self.bytes.arbitrary().unwrap_or(0) }
    }

    pub fn word(&mut self) -> u64 {
        if self.bytes.is_empty() { self.dice() } else { self.bytes.arbitrary().unwrap_or(0) }
    }

    /// In `0..n`; 0 when `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        let number = if n <= 256 { self.byte().into() } else { self.word() };
        number.checked_rem(n as u64).unwrap_or(0) as usize
    }

    /// True once in `n`.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }

    /// Of the seed, whatever bytes are left: content that need not be steered.
    pub fn dice(&mut self) -> u64 {
        self.dice = self.dice.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed(self.dice)
    }
}

/// A number that looks like no other (splitmix64).
pub const fn mixed(n: u64) -> u64 {
    let z = (n ^ (n >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Has a struct read from bytes field by field. As the derive of `arbitrary` does, which wants a feature of `syn` that
/// nothing else wants: with it `serde`, and all that uses it, would be built once more for the tests of this crate.
macro_rules! read_in_order {
    ($name:ident { $($field:ident),* }) => {
        impl<'a> arbitrary::Arbitrary<'a> for $name {
            fn arbitrary(bytes: &mut arbitrary::Unstructured<'a>) -> arbitrary::Result<Self> {
                // Fields of a literal are evaluated as they are there.
                Ok(Self { $($field: bytes.arbitrary()?),* })
            }
        }
    };
}
pub(crate) use read_in_order;
