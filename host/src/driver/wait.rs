//! How to wait: for flags, which are plain stores that wake nobody, and for other processes.

use super::Failure;
use crate::world::{Phase, World};
use core::time::Duration;
use std::thread;

/// Idle passes with a spin hint, before the worker yields its processor.
const SPINS: u32 = 64;
/// Idle passes with a yield, before the worker sleeps between passes.
const YIELDS: u32 = 2048;
/// How long it sleeps then. Nobody can wake it: a flag is a plain store.
const PARK: Duration = Duration::from_micros(200);

/// What a worker does behind so many passes in vain.
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

/// Waits until all processes have come to the next meeting; by one thread of each.
///
/// # Errors
/// The group has been stopped.
pub(crate) fn meet(world: &World) -> Result<(), Failure> {
    if world.is_alone() {
        return Ok(());
    }
    world.enter(Phase::Meets);
    let (nth, mut passes) = (world.arrive(), 0);
    while !world.all_have_come(nth) {
        if world.is_stopped() {
            return Err(Failure::Stopped);
        }
        passes += 1;
        idle(passes);
    }
    Ok(())
}
