//! The system's account of processes, as far as it is read from `/proc`.

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use std::fs;

/// The state of a process, as the system reports it.
pub(super) struct State {
    /// It has ended. It is still listed until its parent has waited for it.
    pub(super) is_dead: bool,
    /// In ticks since the machine was started.
    pub(super) began: u64,
    pub(super) exit_code: Option<i32>,
}

/// Whether the system still knows a process, asked without `/proc`: that may be another space's, or beyond the limit of open files.
pub(super) fn is_known(pid: u64) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    // One that this process may not signal is there all the same.
    pid.is_some_and(|pid| !matches!(test_kill_process(pid), Err(Errno::SRCH)))
}

pub(super) fn state(pid: u64) -> Option<State> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // A name may have brackets of its own. After it are numbers, of which the manual counts the first as the third.
    let (_, fields) = text.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    Some(State {
        is_dead: matches!(fields.first(), Some(&("Z" | "X"))),
        began: fields.get(22 - 3)?.parse().ok()?,
        exit_code: fields.get(52 - 3).and_then(|code| code.parse().ok()),
    })
}

/// The scope of process numbers: this start of the machine, and a space of numbers.
pub(super) fn system() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let space = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{} {}", boot.trim(), space.display())
}
