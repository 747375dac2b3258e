//! Eventcounts: where processes outnumber processors, a worker that waits sleeps until another process notifies its own. A yield
//! would not give the processor to the process that it waits for.

use super::World;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use core::time::Duration;
use rustix::thread::Timespec;
use rustix::thread::futex::{self, Flags};

/// The longest wait, since a process that is stopped is not notified by those who died.
pub(super) const WAIT_MAX: Duration = Duration::from_millis(5);
/// The same where something may come from processes elsewhere, which do not notify.
pub(super) const WAIT_MAX_FAR: Duration = Duration::from_micros(200);

/// The eventcount of a process: its workers wait for it, and all others notify it.
#[derive(Clone, Copy, Debug)]
pub(in crate::world) struct Eventcount<'a> {
    pub(in crate::world) waiters: &'a AtomicU64,
    pub(in crate::world) notifications: &'a AtomicU32,
}

impl Eventcount<'_> {
    /// Counts the caller as a waiter, and returns how many notifications there were. Another process will notify of what the caller
    /// does not see after this call.
    pub(super) fn register_waiter(self) -> u32 {
        self.waiters.fetch_add(1, Ordering::Relaxed);
        // With the one of `World::notify`: either that one sees this waiter, or the waiter sees what was written before.
        fence(Ordering::SeqCst);
        self.notifications.load(Ordering::Acquire)
    }

    /// Sleeps until there are more notifications than those, but for no longer than `limit`. Returns how many there are: the
    /// caller then looks for what it waits for.
    pub(super) fn wait(self, seen: u32, limit: Duration) -> u32 {
        let limit = Timespec { tv_sec: limit.as_secs().cast_signed(), tv_nsec: limit.subsec_nanos().into() };
        // Whatever ends it, the caller looks again.
        let _ = futex::wait(self.notifications, Flags::empty(), seen, Some(&limit));
        self.notifications.load(Ordering::Acquire)
    }

    /// The caller waits no longer.
    pub(super) fn unregister_waiter(self) {
        self.waiters.fetch_sub(1, Ordering::Relaxed);
    }

    /// Wakes all waiters, after a fence.
    fn notify(self) {
        if self.waiters.load(Ordering::Relaxed) > 0 {
            self.notifications.fetch_add(1, Ordering::Release);
            let _ = futex::wake(self.notifications, Flags::empty(), i32::MAX.unsigned_abs());
        }
    }
}

impl World {
    /// Counts a worker of this process as a waiter, as of [`Eventcount::register_waiter`].
    pub(crate) fn register_waiter(&self) -> u32 {
        self.board.eventcount(self.me).register_waiter()
    }

    /// Lets it sleep, as of [`Eventcount::wait`].
    pub(crate) fn wait(&self, seen: u32) -> u32 {
        self.board.eventcount(self.me).wait(seen, self.links.wait_max)
    }

    /// It waits no longer.
    pub(crate) fn unregister_waiter(&self) {
        self.board.eventcount(self.me).unregister_waiter();
    }

    /// Wakes the waiting workers of other processes, because there may be something new to see.
    pub(crate) fn notify(&self) {
        fence(Ordering::SeqCst);
        for process in (0..self.processes()).filter(|&process| process != self.me) {
            self.board.eventcount(process).notify();
        }
    }
}
