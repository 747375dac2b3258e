//! Memory of the ranks: what is after the program and is zero when a machine starts.

use crate::arch;
use harness::memory::{Arena, PAGE};
use veriep_core::fabric::raw::Segment;

unsafe extern "C" {
    /// Where it begins, as the linker says.
    static __heap_base: u8;
}

pub(crate) fn arena() -> Arena {
    let base = ((&raw const __heap_base).expose_provenance() as u64).next_multiple_of(PAGE);
    let block = Segment::new(core::ptr::with_exposed_provenance_mut(base as usize), arch::MEMORY_END - base);
    // SAFETY: memory that the machine has and nothing else uses. All processors take the same of it; each drives a core or an agent
    // of its own, and core 0 alone asks for experts and results, between two joins.
    unsafe { Arena::new(block) }
}
