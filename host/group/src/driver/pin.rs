//! Threads that keep their processor, as a measurement wants them. Advice: where the system refuses, nothing changes.

/// Keeps this thread on the `nth` of the processors that it may use, counted around.
#[cfg(target_os = "linux")]
pub fn pin(nth: usize) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let processors: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect();
    let mut one = CpuSet::new();
    if let Some(&cpu) = processors.get(nth.checked_rem(processors.len()).unwrap_or_default()) {
        one.set(cpu);
        let _ = sched_setaffinity(None, &one);
    }
}

/// Not here.
#[cfg(not(target_os = "linux"))]
pub fn pin(_nth: usize) {}
