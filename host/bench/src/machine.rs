//! A description of the machine and the programs of a measurement.

use serde::Serialize;
use std::fs;
use veriep_case::memory::{field, memory_bytes};
use veriep_case::parallel::processors;

#[derive(Serialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    /// 0 where the system does not say.
    pub(crate) memory_bytes: u64,
    pub(crate) os: String,
    arch: &'static str,
}

impl Machine {
    pub(crate) fn here() -> Self {
        let model = field("/proc/cpuinfo", "model name");
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            cpu: model.unwrap_or_else(|| "unknown".to_owned()),
            cores: processors(),
            memory_bytes: memory_bytes("MemTotal").unwrap_or_default(),
            os: format!("{} {}", std::env::consts::OS, release.trim()).trim().to_owned(),
            arch: std::env::consts::ARCH,
        }
    }
}

/// What the processors have done since the machine was started, in ticks.
pub(crate) struct Ticks {
    all: u64,
    stolen: u64,
}

impl Ticks {
    /// `None` where the system does not say.
    pub(crate) fn now() -> Option<Self> {
        let text = fs::read_to_string("/proc/stat").ok()?;
        let ticks: Vec<u64> = text.lines().next()?.split_whitespace().skip(1).flat_map(str::parse).collect();
        // user, nice, system, idle, iowait, irq, softirq, steal; guests' are in user.
        Some(Self { all: ticks.iter().take(8).sum(), stolen: *ticks.get(7)? })
    }

    /// The share that the host of a virtual machine has given to others since then.
    pub(crate) fn stolen_since(then: Option<Self>) -> Option<f64> {
        let (then, now) = (then?, Self::now()?);
        let all = now.all.checked_sub(then.all).filter(|&all| all > 0)?;
        Some(now.stolen.saturating_sub(then.stolen) as f64 / all as f64)
    }
}

#[derive(Serialize)]
pub(crate) struct Versions {
    veriep: &'static str,
    /// A build without optimisation measures nothing.
    build: &'static str,
    /// Of the baselines.
    #[serde(skip_serializing_if = "Option::is_none")]
    mpi: Option<String>,
}

impl Versions {
    pub(crate) const fn new(mpi: Option<String>) -> Self {
        let build = if cfg!(debug_assertions) { "debug" } else { "release" };
        Self { veriep: env!("CARGO_PKG_VERSION"), build, mpi }
    }
}
