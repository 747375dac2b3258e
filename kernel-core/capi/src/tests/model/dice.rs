//! Samples, the same in every run.

use std::env;

/// xorshift64*.
#[derive(Clone)]
pub(super) struct Dice(u64);

impl Dice {
    /// The samples of group `number`. `VERIEP_SEED` draws others.
    pub(super) fn new(number: u64) -> Self {
        let seed = number_from("VERIEP_SEED", 1);
        let mut dice = Self((0x9E37_79B9_7F4A_7C15 ^ seed).wrapping_mul(2 * number + 1) | 1);
        dice.next();
        dice
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number below `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        ((self.next() >> 16) % end as u64) as usize
    }

    /// True once in `n` times.
    pub(super) fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub(super) fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// A number that the environment may give.
pub(super) fn number_from(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |value| value.parse().unwrap())
}
