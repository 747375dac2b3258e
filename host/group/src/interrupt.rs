//! Requests that signals make of the program. Asked to end early, what can end between two rounds does, and reports what there is.

use core::sync::atomic::{AtomicBool, Ordering};

/// Whether the program has been asked to end early. A signal sets it.
pub static ASKED: AtomicBool = AtomicBool::new(false);

/// Whether a dump of the group's memory has been asked for. A signal sets it.
pub static DUMP: AtomicBool = AtomicBool::new(false);

/// Whether the program has been asked to end early.
pub fn is_asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// Whether a dump has been asked for since the last call.
pub(crate) fn take_dump() -> bool {
    DUMP.swap(false, Ordering::Relaxed)
}
