//! The system's account of this process.

use std::fs;
use std::io;
use std::time::Duration;

/// A field of `/proc/self/status` that is in KiB, such as `VmRSS:`.
///
/// # Errors
/// If there is none.
pub fn kib(field: &str) -> io::Result<u64> {
    let text = fs::read_to_string("/proc/self/status")?;
    let words = text.lines().find_map(|line| line.strip_prefix(field)?.split_whitespace().next());
    words
        .and_then(|kib| kib.parse().ok())
        .ok_or_else(|| io::Error::other(format!("/proc/self/status has no {field}")))
}

/// Processor time that this process has used, all threads together.
#[must_use]
pub fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
