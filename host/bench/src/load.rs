//! Detects other processes that used the processors during a measurement, which makes its times unusable.
#![allow(unsafe_code)]

use serde::Serialize;
use std::fs;
use std::time::Instant;

/// From which share on of the time in which a process waited for a processor, or the host gave it to others, ratios are in
/// doubt.
const SHARE_BUSY: f64 = 0.1;
/// From which number on a worker is preempted too often, each second; who is alone is so now and then.
const SWITCHES_BUSY: f64 = 50.0;

/// What was going on while the machines of a point had their turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Load {
    /// The share of the time in which a task waited for a processor, of whatever program. Absent where the system does not say.
    pub(crate) pressure: Option<f64>,
    /// How often a worker had to leave its processor to another task, each second.
    pub(crate) switches_per_s: Option<f64>,
    /// Whether ratios are in doubt.
    pub(crate) busy: bool,
}

/// Counters of the system and of this process, read at one time or summed over some.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    seconds: f64,
    waited_us: Option<u64>,
    switches: Option<u64>,
}

pub(crate) struct Moment(Instant, Counters);

impl Moment {
    pub(crate) fn now() -> Self {
        let counters = Counters { seconds: 0.0, waited_us: waited_us(), switches: switches() };
        Self(Instant::now(), counters)
    }

    /// What has been counted since then.
    pub(crate) fn elapsed(&self) -> Counters {
        let Self(then, Counters { waited_us: waited, switches: switched, .. }) = self;
        let since = |now: Option<u64>, then: &Option<u64>| Some(now?.saturating_sub((*then)?));
        Counters {
            seconds: then.elapsed().as_secs_f64(),
            waited_us: since(waited_us(), waited),
            switches: since(switches(), switched),
        }
    }
}

impl Counters {
    pub(crate) fn add(&mut self, more: Self) {
        if more.seconds == 0.0 {
            return;
        }
        let is_first = self.seconds == 0.0;
        let sum = |a: Option<u64>, b: Option<u64>| if is_first { b } else { Some(a? + b?) };
        self.waited_us = sum(self.waited_us, more.waited_us);
        self.switches = sum(self.switches, more.switches);
        self.seconds += more.seconds;
    }

    /// What they say of so many workers.
    pub(crate) fn load(self, workers: usize, stolen_share: Option<f64>) -> Load {
        if self.seconds == 0.0 {
            return Load::default();
        }
        let pressure = self.waited_us.map(|waited| (waited as f64 / 1e6 / self.seconds).min(1.0));
        let switches_per_s = self.switches.map(|n| n as f64 / self.seconds / workers.max(1) as f64);
        let busy = pressure.is_some_and(|share| share >= SHARE_BUSY)
            || switches_per_s.is_some_and(|n| n >= SWITCHES_BUSY)
            || stolen_share.is_some_and(|share| share >= SHARE_BUSY);
        Load { pressure, switches_per_s, busy }
    }
}

/// Microseconds in which some task has waited for a processor, since the machine was started.
fn waited_us() -> Option<u64> {
    let text = fs::read_to_string("/proc/pressure/cpu").ok()?;
    let some = text.lines().find(|line| line.starts_with("some "))?;
    some.rsplit_once("total=")?.1.parse().ok()
}

/// How often threads of this process have had to leave a processor.
fn switches() -> Option<u64> {
    // SAFETY: all fields are numbers, for which zero is a value.
    let mut usage: libc::rusage = unsafe { core::mem::zeroed() };
    // SAFETY: `usage` is a place for what is asked for, and only this call uses it.
    let status = unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    u64::try_from(usage.ru_nivcsw).ok().filter(|_| status == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_busy_from_any_of_its_signs() {
        let load =
            |waited_us, switches, stolen| Counters { seconds: 2.0, waited_us, switches }.load(2, stolen);
        let idle = load(Some(20_000), Some(10), Some(0.0));
        assert_eq!(idle, Load { pressure: Some(0.01), switches_per_s: Some(2.5), busy: false });
        assert!(load(Some(200_000), Some(0), None).busy, "a tenth of two seconds");
        assert!(load(Some(0), Some(200), None).busy, "each of two workers fifty times a second");
        assert!(load(Some(0), Some(0), Some(0.1)).busy);
        assert!(!load(None, None, None).busy);
        assert_eq!(Counters::default().load(2, Some(0.5)), Load::default(), "nothing was measured");
    }

    #[test]
    fn counters_add_up() {
        let mut sum = Counters::default();
        sum.add(Counters { seconds: 1.0, waited_us: Some(5), switches: None });
        sum.add(Counters { seconds: 2.0, waited_us: Some(7), switches: Some(1) });
        assert_eq!((sum.seconds, sum.waited_us, sum.switches), (3.0, Some(12), None));
    }
}
