//! WebAssembly: `workers.mjs` runs every processor in a worker over one shared memory, with a stack of its own.

use crate::stack::{STACK, STACKS};

/// The memory that workers share, as `workers.mjs` makes it.
pub(crate) const MEMORY_END: u64 = 1536 << 20;

#[link(wasm_import_module = "env")]
unsafe extern "C" {
    fn say(text: *const u8, len: usize);
    safe fn end(status: i32) -> !;
    safe fn rest();
}

/// Where the stack of a processor begins.
#[unsafe(no_mangle)]
extern "C" fn stack_top(processor: usize) -> usize {
    STACKS.get().addr() + (processor + 1) * STACK
}

pub(crate) fn start_others() {}

pub(crate) fn relax() {
    rest();
}

pub(crate) fn print(text: &str) {
    // SAFETY: `say` reads so many bytes there.
    unsafe { say(text.as_ptr(), text.len()) };
}

/// Ends all workers with status 0 if all went well, else with 1.
pub(crate) fn exit(well: bool) -> ! {
    end((!well).into())
}
