//! The flight recorder: what the cores of a process did last, in a file that outlives it, also when it is killed.
//!
//! A group has a folder with a file for each process. The file is mapped, and never grows: it has a place for each core, which
//! holds what the core is in and waits for, and for each worker a ring of the last [`Event`](crate::events::Event)s of
//! the cores that it polls, 32 bytes each. Rows and own words are left out. [`layout`] says what lies where, `writer` records, [`notes`]
//! makes the files and writes down who died, and [`reader`] takes them for what they are after a crash: foreign bytes.
//!
//! Nothing is flushed: the system keeps what a process has stored in a shared mapping, however the process ends. A machine that
//! loses its power loses the record too.

mod clock;
pub mod layout;
pub mod notes;
pub mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub use layout::About;
pub use notes::{End, Folder, How, Notes, file_name};
pub(crate) use notes::{state, system};
pub use reader::{Process, Record, State};
pub use writer::Writer;

use rustix::time::{ClockId, clock_gettime};
use std::time::{SystemTime, UNIX_EPOCH};

/// Entries of a ring: 256 KiB.
pub const ENTRIES: usize = 8192;

/// Nanoseconds of a clock that all processes of a machine share.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// Microseconds since 1970.
#[must_use]
pub fn wall_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}
