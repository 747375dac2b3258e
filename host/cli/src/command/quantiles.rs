//! Times as people read them.

use core::time::Duration;
use hdrhistogram::Histogram;
use serde::Serialize;

/// Of a list of times, in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Quantiles {
    /// The least: on a machine that others use too, what comes nearest to the truth.
    pub min: f64,
    pub median: f64,
    pub p90: f64,
    pub p99: f64,
}

impl Quantiles {
    /// `None` of no times.
    pub fn of(times: &[Duration]) -> Option<Self> {
        let mut histogram = Histogram::<u64>::new(4).ok()?;
        for time in times {
            histogram.record(time.as_nanos() as u64).ok()?;
        }
        let at = |q| histogram.value_at_quantile(q) as f64 / 1e6;
        (!times.is_empty()).then(|| Self { min: at(0.0), median: at(0.5), p90: at(0.9), p99: at(0.99) })
    }
}

/// A time in milliseconds.
pub fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
