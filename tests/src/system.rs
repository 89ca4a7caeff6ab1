//! Resources that the system counts for this process: descriptors, threads, processor time, memory.

use std::fs;
use std::time::Duration;

/// Resources of this process, and the files in /dev/shm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holdings {
    /// Open descriptors.
    pub descriptors: usize,
    /// Threads.
    pub threads: usize,
    /// Entries of /dev/shm, of all processes.
    pub shm_files: usize,
    /// Memory mappings.
    pub mappings: usize,
}

impl Holdings {
    /// Returns the present resources of this process.
    #[must_use]
    pub fn now() -> Self {
        let entries = |path: &str| fs::read_dir(path).map_or(0, Iterator::count);
        Self {
            descriptors: entries("/proc/self/fd"),
            threads: entries("/proc/self/task"),
            shm_files: entries("/dev/shm"),
            mappings: fs::read_to_string("/proc/self/maps").map_or(0, |text| text.lines().count()),
        }
    }
}

/// Returns the processor time that this process has used, over all threads.
#[must_use]
pub fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Returns the time of a clock that all processes of this machine share, since the machine was started.
#[must_use]
pub fn machine_time() -> Duration {
    // Rustix's clock does not work on a kernel without a vDSO, such as that of the guests in tests/softroce.
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes only to a local variable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Returns the peak resident memory of this process, in bytes.
#[must_use]
pub fn peak_resident_bytes() -> u64 {
    status_kib("VmHWM:") << 10
}

/// Returns the private, and the file-backed or shared memory that is resident now, in bytes.
#[must_use]
pub fn resident_bytes() -> (u64, u64) {
    let shared = status_kib("RssShmem:") + status_kib("RssFile:");
    (status_kib("RssAnon:") << 10, shared << 10)
}

fn status_kib(field: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|rest| rest.split_whitespace().next()).and_then(|kib| kib.parse().ok()).unwrap_or(0)
}

/// Kills this process, as a crash would, after this time.
///
/// # Panics
/// If the process cannot signal itself.
pub fn end_by_kill(after: Duration) {
    std::thread::sleep(after);
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
        .expect("a process may signal itself");
}

/// Stops this process after this time, until it is continued.
///
/// # Panics
/// If the process cannot signal itself.
pub fn stop(after: Duration) {
    std::thread::sleep(after);
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP)
        .expect("a process may signal itself");
}
