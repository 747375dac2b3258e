//! The memory that this machine still has.

use memmap2::MmapOptions;
use std::fs;

/// Returns whether the system would grant so many bytes. Ask it before a size that a file or a request may have chosen is allocated.
pub fn has_room(bytes: usize) -> bool {
    MmapOptions::new().len(bytes.max(1)).map_anon().is_ok()
}

/// Of the machine: all (`MemTotal`), or what a new program could use (`MemAvailable`). Nothing where the system does not say.
pub fn memory_bytes(which: &str) -> Option<u64> {
    bytes("/proc/meminfo", which)
}

/// Returns the most bytes of memory that this program has held, or `None` where the system does not say.
pub fn peak_bytes() -> Option<u64> {
    bytes("/proc/self/status", "VmHWM")
}

fn bytes(path: &str, name: &str) -> Option<u64> {
    let kib = field(path, name)?;
    Some(kib.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

/// Returns the value after a name in a file of `/proc`.
pub fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}
