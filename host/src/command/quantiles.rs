//! Times as people read them.

use core::time::Duration;
use hdrhistogram::Histogram;
use serde::Serialize;

/// Of a list of times, in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Quantiles {
    /// The least: on a machine that others use too, what comes nearest to the truth.
    pub(super) min: f64,
    pub(super) median: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
}

impl Quantiles {
    /// `None` of no times.
    pub(super) fn of(times: &[Duration]) -> Option<Self> {
        let mut histogram = Histogram::<u64>::new(4).ok()?;
        for time in times {
            histogram.record(time.as_nanos() as u64).ok()?;
        }
        let at = |q| histogram.value_at_quantile(q) as f64 / 1e6;
        (!times.is_empty()).then(|| Self { min: at(0.0), median: at(0.5), p90: at(0.9), p99: at(0.99) })
    }
}

/// A time in milliseconds.
pub(super) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
