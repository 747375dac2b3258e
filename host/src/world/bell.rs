//! Where processes outnumber processors, a worker that waits sleeps until another process rings. A yield would not give the
//! processor to the process that it waits for.

use super::World;
use core::sync::atomic::{Ordering, fence};
use core::time::Duration;
use rustix::thread::Timespec;
use rustix::thread::futex::{self, Flags};

/// Nobody sleeps longer, since a process that is stopped is not rung by those who died.
const NAP: Duration = Duration::from_millis(5);
/// Where something may come from processes elsewhere, which do not ring.
const SHORT_NAP: Duration = Duration::from_micros(200);

impl World {
    /// Asks other processes to ring. What the caller does not see after this call, somebody will ring for.
    pub(crate) fn listen(&self) -> u32 {
        self.board.asleep(self.me).fetch_add(1, Ordering::Relaxed);
        // With the one of `ring`: either the ringer sees that somebody listens, or this one sees what was written before.
        fence(Ordering::SeqCst);
        self.rung()
    }

    /// How often others have rung.
    pub(crate) fn rung(&self) -> u32 {
        self.board.bell(self.me).load(Ordering::Acquire)
    }

    /// Sleeps until others have rung more often than that.
    pub(crate) fn sleep(&self, rung: u32) {
        let nap = if self.post.get().is_some() { SHORT_NAP } else { NAP };
        let nap = Timespec { tv_sec: 0, tv_nsec: nap.subsec_nanos().into() };
        // Whatever ends it, the caller looks again.
        let _ = futex::wait(self.board.bell(self.me), Flags::empty(), rung, Some(&nap));
    }

    /// Others need not ring any more.
    pub(crate) fn wake_up(&self) {
        self.board.asleep(self.me).fetch_sub(1, Ordering::Relaxed);
    }

    /// Wakes the sleeping workers of other processes, because there may be something new to see.
    pub(crate) fn ring(&self) {
        fence(Ordering::SeqCst);
        for process in (0..self.processes()).filter(|&process| process != self.me) {
            if self.board.asleep(process).load(Ordering::Relaxed) > 0 {
                let bell = self.board.bell(process);
                bell.fetch_add(1, Ordering::Release);
                let _ = futex::wake(bell, Flags::empty(), i32::MAX.unsigned_abs());
            }
        }
    }
}
