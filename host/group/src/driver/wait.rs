//! Waiting: for flags, which are plain stores that wake no thread, and for other processes.

use super::Failure;
use crate::world::{Phase, World};
use core::time::Duration;
use std::thread;

/// Idle passes with a spin hint, before the worker yields its processor.
const SPINS: u32 = 64;
/// Idle passes with a yield, before the worker sleeps between passes.
const YIELDS: u32 = 2048;
/// How long it sleeps then. Nothing can wake it: a flag is a plain store.
const PARK: Duration = Duration::from_micros(200);

/// What a worker does after so many passes in vain.
pub(crate) fn idle(passes: u32) {
    if passes == 0 {
    } else if passes < SPINS {
        core::hint::spin_loop();
    } else if passes < SPINS + YIELDS {
        thread::yield_now();
    } else {
        thread::sleep(PARK);
    }
}

/// How a thread waits that looks again and again.
#[derive(Debug)]
pub(crate) struct Rest<'w> {
    #[cfg_attr(
        not(target_os = "linux"),
        expect(dead_code, reason = "waiters of processes, which only Linux has")
    )]
    world: &'w World,
    /// Looks in vain, in a row.
    passes: u32,
    /// While it is a waiter, the notifications before the next look.
    #[cfg(target_os = "linux")]
    notifications: Option<u32>,
}

impl<'w> Rest<'w> {
    pub(crate) const fn new(world: &'w World) -> Self {
        Self {
            world,
            passes: 0,
            #[cfg(target_os = "linux")]
            notifications: None,
        }
    }

    /// Looks in vain, in a row.
    pub(crate) const fn passes(&self) -> u32 {
        self.passes
    }

    /// This one has moved: others may have something to see.
    pub(crate) fn moved(&mut self) {
        self.passes = 0;
        #[cfg(target_os = "linux")]
        if self.world.is_crowded() {
            self.unregister();
            self.world.notify();
        }
    }

    /// A look was in vain: waits for the next one.
    pub(crate) fn in_vain(&mut self) {
        self.passes += 1;
        #[cfg(target_os = "linux")]
        if self.world.is_crowded() {
            // Only a registered waiter that has then looked in vain may sleep.
            self.notifications = Some(match self.notifications {
                None => self.world.register_waiter(),
                Some(seen) => self.world.wait(seen),
            });
            return;
        }
        idle(self.passes);
    }

    #[cfg(target_os = "linux")]
    fn unregister(&mut self) {
        if self.notifications.take().is_some() {
            self.world.unregister_waiter();
        }
    }
}

#[cfg(target_os = "linux")]
impl Drop for Rest<'_> {
    fn drop(&mut self) {
        self.unregister();
    }
}

/// Waits until all processes have come to the next meeting; by one thread of each.
///
/// # Errors
/// The group has been stopped.
pub(crate) fn meet(world: &World) -> Result<(), Failure> {
    if world.is_alone() {
        return Ok(());
    }
    world.enter(Phase::Meets);
    let nth = world.arrive();
    let mut rest = Rest::new(world);
    rest.moved();
    while !world.all_have_come(nth) {
        if world.is_stopped() {
            return Err(Failure::Stopped);
        }
        world.carry();
        rest.in_vain();
    }
    world.enter(Phase::Starts);
    Ok(())
}
