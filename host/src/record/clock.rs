//! The time of entries. To ask the system costs more than to write an entry, so the processor's counter is asked, if the system
//! itself takes its time from there.
#![allow(unsafe_code)]

use super::now;
use core::sync::atomic::{AtomicU64, Ordering};
use std::fs;

/// A counter must have been watched for so long before its speed is known.
const WATCHED: u64 = 2_000_000;

/// Nanoseconds of the clock that all processes of a machine share.
#[derive(Debug)]
pub(super) struct Clock {
    /// Whether the counter is one for all processors.
    counts: bool,
    /// The counter and the time at the start, and at the last look.
    start: (u64, u64),
    looked: [AtomicU64; 2],
    /// Nanoseconds of a count, times 2^32; 0 before they are known.
    speed: AtomicU64,
}

impl Clock {
    pub(super) fn new() -> Self {
        let source = fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
        let counts = cfg!(target_arch = "x86_64") && source.is_ok_and(|source| source.trim() == "tsc");
        let start = both();
        Self { counts, start, looked: [start.0, start.1].map(AtomicU64::new), speed: AtomicU64::new(0) }
    }

    /// Compares the counter with the time, so that they do not drift apart. Nobody else may use the clock meanwhile.
    pub(super) fn look(&self) {
        let (counted, time) = both();
        let (counts, ns) = (counted.wrapping_sub(self.start.0), time - self.start.1);
        if self.counts && ns >= WATCHED && counts > 0 {
            self.speed.store(((u128::from(ns) << 32) / u128::from(counts)) as u64, Ordering::Relaxed);
            self.looked[0].store(counted, Ordering::Relaxed);
            self.looked[1].store(time, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(super) fn now(&self) -> u64 {
        let speed = self.speed.load(Ordering::Relaxed);
        if speed == 0 {
            return now();
        }
        let [counted, time] = &self.looked;
        let counts = count().saturating_sub(counted.load(Ordering::Relaxed));
        time.load(Ordering::Relaxed) + ((u128::from(counts) * u128::from(speed)) >> 32) as u64
    }
}

/// Returns the counter and the time, of four attempts the closest pair: a thread may lose its processor between the two.
fn both() -> (u64, u64) {
    let attempt = |_| {
        let (counted, time) = (count(), now());
        (count().saturating_sub(counted), (counted, time))
    };
    let (_, both) = (0..4).map(attempt).min().unwrap_or_default();
    both
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn count() -> u64 {
    // SAFETY: every processor of this kind has the counter, and Linux lets programs read it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn count() -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    #[test]
    fn the_counter_tells_the_time_of_the_system() {
        let clock = Clock::new();
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(3));
            let (before, seen, after) = (now(), clock.now(), now());
            // A look may have been interrupted.
            let near = before.saturating_sub(200_000)..after + 200_000;
            assert!(near.contains(&seen), "{before} {seen} {after}");
            clock.look();
        }
    }
}
