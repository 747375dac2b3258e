//! Stacks of the processors, painted before anybody is on them.

use crate::{CPUS, Shared};

/// Bytes of each.
pub(crate) const STACK: usize = 1 << 16;
/// What the frames that paint lie in.
const TOP: usize = 1 << 10;
const PAINT: u64 = 0x5AA5_C33C_9669_F00F;

#[repr(C, align(16))]
pub(crate) struct Stacks([[u64; STACK / 8]; CPUS]);

/// The stack of processor `n` ends `n + 1` times [`STACK`] behind the beginning.
pub(crate) static STACKS: Shared<Stacks> = Shared::new(Stacks([[0; _]; _]));

fn words(processor: usize) -> impl Iterator<Item = *mut u64> {
    let low = STACKS.get().cast::<u64>().wrapping_add(processor * (STACK / 8));
    (0..STACK / 8).map(move |word| low.wrapping_add(word))
}

/// Paints the stack of a processor, which runs this on it.
#[inline(never)]
pub(crate) fn paint(processor: usize) {
    for word in words(processor).take((STACK - TOP) / 8) {
        // SAFETY: a word of the stack below all frames, which nothing else uses.
        unsafe { word.write_volatile(PAINT) };
    }
}

/// Bytes that a processor has used at most.
pub(crate) fn used(processor: usize) -> usize {
    // SAFETY: a word of the stack of a processor that has come to its end, or of the one that runs this.
    let clean = words(processor).take_while(|word| unsafe { word.read_volatile() } == PAINT);
    STACK - 8 * clean.count()
}
