//! Signals that the program, not the library, answers.

use core::sync::atomic::AtomicBool;
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR2};
use signal_hook::{flag, low_level};
use std::io;
use veriep::error::STATUS_INTERRUPTED;
use veriep::interrupt::{ASKED, DUMP};

/// Seconds in which a program that has been asked for what there is must end by itself. Batch systems wait longer before they kill.
const ANSWERS: u32 = 10;

/// A file beyond the limit of its size: writing fails, instead of killing the program.
pub(crate) fn refuse_by_errors() -> io::Result<()> {
    ignore(libc::SIGXFSZ)
}

/// The first Ctrl-C or SIGTERM asks for what there is, the second one ends the program; so does the system's clock, if the first
/// one has no answer. What waits for an answer, experts that take long or a worker that is stuck, need not come to ask.
#[allow(unsafe_code)]
pub(crate) fn note_interrupts() -> io::Result<()> {
    let note = || {
        say(b"note: the report of what there is follows within 10 s; Ctrl-C or SIGTERM again ends at once\n");
        // SAFETY: a signal handler may set the clock, and nothing else here does.
        unsafe { libc::alarm(ANSWERS) };
    };
    let late = || {
        say(b"error: interrupted: no round has ended for 10 s, so there is no report\n");
        low_level::exit(STATUS_INTERRUPTED.into());
    };
    // SAFETY: it calls only what a signal handler may.
    unsafe { low_level::register(libc::SIGALRM, late) }?;
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, STATUS_INTERRUPTED.into(), &ASKED)?;
        flag::register(signal, &ASKED)?;
        // SAFETY: it calls only what a signal handler may.
        unsafe { low_level::register(signal, note) }?;
    }
    Ok(())
}

/// Writes to standard error, as a signal handler may.
#[allow(unsafe_code)]
fn say(line: &[u8]) {
    // SAFETY: `line` has so many bytes, and a signal handler may write.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}

/// Sets a flag that no code reads.
fn ignore(signal: i32) -> io::Result<()> {
    static IGNORED: AtomicBool = AtomicBool::new(false);
    flag::register(signal, &IGNORED).map(drop)
}

/// Ctrl-C and SIGTERM, which batch systems send to all processes, are the parent's to answer.
#[cfg(target_os = "linux")]
pub(crate) fn ignore_interrupts() -> io::Result<()> {
    [SIGINT, SIGTERM].into_iter().try_for_each(ignore)
}

/// A launcher has the terminal: what it sends to end the group asks for what there is. With SIGUSR1 some say that a process has
/// died, which is seen anyway.
#[cfg(target_os = "linux")]
pub(crate) fn heed_launcher() -> io::Result<()> {
    flag::register(SIGINT, &ASKED)?;
    flag::register(SIGTERM, &ASKED)?;
    ignore(libc::SIGUSR1)
}

/// A signal that ends the program unless it is noted asks for a dump.
pub(crate) fn note_dumps() -> io::Result<()> {
    flag::register(SIGUSR2, &DUMP).map(drop)
}
