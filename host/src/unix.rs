//! What the program, not the library, asks of the system: that a refusal comes as an error with a line, not as a signal.
#![allow(unsafe_code)]

use core::alloc::{GlobalAlloc, Layout};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::alloc::System;
use std::io::{Cursor, Write};
use veriep::error::STATUS_INTERRUPTED;

/// A file beyond the limit of its size: writing fails, instead of killing the program.
pub(crate) fn refuse_by_errors() {
    // SAFETY: this signal has no handler that could be lost, and ignoring it runs no code.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Seconds in which a program that has been asked for what there is must end by itself. Batch systems wait longer before they kill.
const ANSWERS: u32 = 10;

/// The first Ctrl-C or SIGTERM asks for what there is, the second one ends the program; so does the system's clock, if the first
/// one has no answer. What waits for an answer, experts that take long or a worker that is stuck, need not come to ask.
pub(crate) fn note_interrupts() {
    extern "C" fn note(_: libc::c_int) {
        if veriep::interrupt::ask() {
            end_with(b"");
        }
        say(b"note: the report of what there is follows within 10 s; Ctrl-C or SIGTERM again ends at once\n");
        // SAFETY: a signal handler may set the clock, and nothing else here does.
        unsafe { libc::alarm(ANSWERS) };
    }
    extern "C" fn late(_: libc::c_int) {
        end_with(b"error: interrupted: no round has ended for 10 s, so there is no report\n");
    }
    let [noted, is_late]: [extern "C" fn(libc::c_int); 2] = [note, late];
    for (signal, handler) in [(libc::SIGINT, noted), (libc::SIGTERM, noted), (libc::SIGALRM, is_late)] {
        // SAFETY: the handlers call nothing but an atomic and what may be called in one; the signals had none before.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}

/// Writes to standard error, as a signal handler may.
fn say(line: &[u8]) {
    // SAFETY: `line` has so many bytes, and a signal handler may write.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}

/// Ends the program with a line, whatever state it is in.
fn end_with(line: &[u8]) -> ! {
    say(line);
    // SAFETY: the process ends here without running anything of its own.
    unsafe { libc::_exit(STATUS_INTERRUPTED.into()) }
}

/// Ctrl-C and SIGTERM, which batch systems send to all processes, are somebody else's to answer.
#[cfg(target_os = "linux")]
pub(crate) fn ignore_interrupts() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: ignoring a signal runs no code.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// A launcher has the terminal: what it sends to end the group asks for what there is. With SIGUSR1 some say that a process has
/// died, which is seen anyway.
#[cfg(target_os = "linux")]
pub(crate) fn heed_launcher() {
    extern "C" fn end(_: libc::c_int) {
        veriep::interrupt::ask();
    }
    let handler: extern "C" fn(libc::c_int) = end;
    for (signal, action) in [
        (libc::SIGINT, handler as libc::sighandler_t),
        (libc::SIGTERM, handler as libc::sighandler_t),
        (libc::SIGUSR1, libc::SIG_IGN),
    ] {
        // SAFETY: the handler stores to an atomic, which one may do, and ignoring a signal runs no code; of these signals SIGINT
        // alone has had a handler, which does no more.
        unsafe { libc::signal(signal, action) };
    }
}

/// A signal that ends the program unless it is noted asks for a dump.
pub(crate) fn note_dumps() {
    extern "C" fn note(_: libc::c_int) {
        veriep::interrupt::ask_for_dump();
    }
    let handler: extern "C" fn(libc::c_int) = note;
    // SAFETY: the handler stores to an atomic, which one may do; the signal had none before.
    unsafe { libc::signal(libc::SIGUSR2, handler as libc::sighandler_t) };
}

/// The system's memory. When there is no more, the program ends with a line and the status of a request that cannot be met.
pub(crate) struct Memory;

#[global_allocator]
static MEMORY: Memory = Memory;

// SAFETY: every call goes to `System` with the caller's arguments, and what that returns goes back, so `System`'s guarantees
// hold. Only null does not go back: it ends the process. Nothing here allocates or unwinds.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: what the caller promises is what `System` asks for.
        granted(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above, and `memory` came from `System`.
        unsafe { System.dealloc(memory, layout) };
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        granted(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as in `dealloc`.
        granted(unsafe { System.realloc(memory, layout, size) }, size)
    }
}

fn granted(memory: *mut u8, size: usize) -> *mut u8 {
    if memory.is_null() {
        end_without(size);
    }
    memory
}

/// Ends the program without asking for memory.
#[cold]
fn end_without(size: usize) -> ! {
    static SAID: AtomicBool = AtomicBool::new(false);
    while SAID.swap(true, Ordering::Relaxed) {
        // Another thread is about to end all.
        std::thread::sleep(Duration::from_secs(1));
    }
    let mut line = [0_u8; 96];
    let mut cursor = Cursor::new(&mut line[..]);
    // Longer than any number makes it.
    let _ = writeln!(cursor, "error: out of memory: the system refuses {size} bytes more");
    let len = cursor.position() as usize;
    // SAFETY: `line` has `len` bytes. The process ends here without running anything of its own, whatever state it is in.
    unsafe {
        libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), len);
        libc::_exit(2)
    }
}
