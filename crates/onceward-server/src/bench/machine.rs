//! What the figures were measured on: cores, memory, kernel, file system, versions.
//!
//! Everything is read from files that Linux has; elsewhere a field is null. Nothing here fails.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

/// The machine, for the report.
pub(crate) fn environment(folder: Option<&Path>) -> Value {
    json!({
        "cores": cores(),
        "memory_mb": field_kb("/proc/meminfo", "MemTotal:").map(|kb| kb / 1024),
        "kernel": kernel(),
        "file_system": folder.and_then(file_system),
        "onceward": env!("CARGO_PKG_VERSION"),
        "sqlite": rusqlite::version(),
        "optimised": !cfg!(debug_assertions),
    })
}

fn kernel() -> Option<String> {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    Some(text.trim().to_string())
}

/// Cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// What the process holds in memory now, how much of that is not mapped files, and what it held at
/// most, in MB.
pub(crate) fn memory_mb() -> [Option<u64>; 3] {
    let of = |name| field_kb("/proc/self/status", name).map(|kb| kb / 1024);
    ["VmRSS:", "RssAnon:", "VmHWM:"].map(of)
}

/// What another process holds in memory that is not mapped files, in KB.
pub(crate) fn own_kb(pid: u32) -> Option<u64> {
    field_kb(&format!("/proc/{pid}/status"), "RssAnon:")
}

fn field_kb(file: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// The type of the file system that a folder is on: that of the longest mount point above it.
fn file_system(folder: &Path) -> Option<String> {
    let folder = folder.canonicalize().ok()?;
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let mounted = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        Some((words.next()?, words.next()?))
    });
    let above = mounted.filter(|(point, _)| folder.starts_with(point));
    above.max_by_key(|(point, _)| point.len()).map(|(_, kind)| kind.to_string())
}
