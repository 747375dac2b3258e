//! Signals that programs, not libraries, answer.

use core::sync::atomic::AtomicBool;
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR2};
use signal_hook::{flag, low_level};
use std::io;
use veriep_case::error::{Error, STATUS_INTERRUPTED};
use veriep_group::interrupt::{ASKED, DUMP};

/// Seconds in which a program that has been asked for what there is must end by itself. Batch systems wait longer before they kill.
const ANSWERS: u32 = 10;

/// The signals that a program answers, beside a file that grows beyond its limit.
#[derive(Clone, Copy, Debug)]
pub struct Answers {
    /// It writes a dump when it is asked to.
    pub dumps: bool,
    /// A launcher has started it as one process of several.
    pub is_launched: bool,
    /// It reports what there is when it is asked to end early.
    pub ends_early: bool,
}

impl Answers {
    /// None.
    pub const NONE: Self = Self { dumps: false, is_launched: false, ends_early: false };

    /// Prepares the answers.
    ///
    /// # Errors
    /// The system has no room for a handler.
    pub fn prepare(self) -> Result<(), Error> {
        self.prepared().map_err(|e| Error::Request(format!("cannot answer signals: {e}")))
    }

    fn prepared(self) -> io::Result<()> {
        refuse_by_errors()?;
        if self.dumps {
            note_dumps()?;
        }
        // The terminal signals all processes of a group; the parent decides.
        #[cfg(target_os = "linux")]
        if veriep_group::world::is_child() {
            return ignore_interrupts();
        }
        #[cfg(target_os = "linux")]
        if self.is_launched {
            return heed_launcher();
        }
        if self.ends_early { note_interrupts() } else { Ok(()) }
    }
}

/// A file beyond the limit of its size: writing fails, instead of killing the program.
fn refuse_by_errors() -> io::Result<()> {
    ignore(libc::SIGXFSZ)
}

/// The first Ctrl-C or SIGTERM asks for what there is, the second one ends the program; so does the system's clock, if the first
/// one has no answer. What waits for an answer, experts that take long or a worker that is stuck, need not come to ask.
#[allow(unsafe_code)]
fn note_interrupts() -> io::Result<()> {
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
fn ignore_interrupts() -> io::Result<()> {
    [SIGINT, SIGTERM].into_iter().try_for_each(ignore)
}

/// A launcher has the terminal: what it sends to end the group asks for what there is. With SIGUSR1 some say that a process has
/// died, which is seen anyway.
#[cfg(target_os = "linux")]
fn heed_launcher() -> io::Result<()> {
    flag::register(SIGINT, &ASKED)?;
    flag::register(SIGTERM, &ASKED)?;
    ignore(libc::SIGUSR1)
}

/// A signal that ends the program unless it is noted asks for a dump.
fn note_dumps() -> io::Result<()> {
    flag::register(SIGUSR2, &DUMP).map(drop)
}
