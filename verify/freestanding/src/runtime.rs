//! Replacements for a C library: the entry, the exit, and, in `memory.rs`, the functions that compilers call by themselves.
//! Linux on x86-64; firmware brings its own.

#[path = "memory.rs"]
mod memory;

use core::arch::{asm, naked_asm};
use core::fmt;

/// The entry: aligns the stack and runs.
#[unsafe(no_mangle)]
#[unsafe(naked)]
extern "C" fn _start() -> ! {
    naked_asm!("xor ebp, ebp", "and rsp, -16", "call {run}", "ud2", run = sym run)
}

extern "C" fn run() -> ! {
    exit(crate::run())
}

/// Ends the process.
pub(crate) fn exit(status: i32) -> ! {
    // SAFETY: exit_group (231) takes the status in rdi and does not come back.
    unsafe { asm!("syscall", in("rax") 231, in("rdi") status, options(noreturn, nostack)) }
}

/// What a program says; what cannot be said is lost.
pub(crate) struct Console;

impl fmt::Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // SAFETY: write (1) reads `len` bytes at `text`, which are there, and changes rcx and r11 besides rax.
        unsafe {
            asm!("syscall", inout("rax") 1_u64 => _, in("rdi") 1, in("rsi") text.as_ptr(), in("rdx") text.len(),
                out("rcx") _, out("r11") _, options(nostack));
        }
        Ok(())
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    exit(101)
}
