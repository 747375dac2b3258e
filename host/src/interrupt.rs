//! What signals ask of the program. Asked to end early, what can end between two rounds does, and reports what there is.

use core::sync::atomic::{AtomicBool, Ordering};

static ASKED: AtomicBool = AtomicBool::new(false);
static DUMP: AtomicBool = AtomicBool::new(false);

/// Asks; whether that was done before. A signal handler may call it.
pub fn ask() -> bool {
    ASKED.swap(true, Ordering::Relaxed)
}

/// Whether somebody has asked.
pub fn is_asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// Asks for a dump of the group's memory. A signal handler may call it.
pub fn ask_for_dump() {
    DUMP.store(true, Ordering::Relaxed);
}

/// Whether somebody has asked for one since the last call.
pub(crate) fn take_dump() -> bool {
    DUMP.swap(false, Ordering::Relaxed)
}
