//! The system's account of this process: descriptors, threads, processor time, memory.

use std::fs;
use std::time::Duration;

/// Open descriptors and threads of this process, and files in /dev/shm.
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
    /// Present holdings of this process.
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

/// Processor time that this process has used, all threads together.
#[must_use]
pub fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// A clock that all processes of this machine share, since it was started.
#[must_use]
pub fn machine_time() -> Duration {
    // Not rustix's, which is none on a kernel without a vDSO, such as that of the guests in tests/softroce.
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to a local variable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The most memory this process ever had resident, in bytes.
#[must_use]
pub fn peak_resident_bytes() -> u64 {
    status_kib("VmHWM:") << 10
}

/// Private and file-backed or shared memory resident now, in bytes.
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

/// Ends this process as a crash would, after so long.
///
/// # Panics
/// If the process cannot signal itself.
pub fn end_by_kill(after: Duration) {
    std::thread::sleep(after);
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
        .expect("a process may signal itself");
}

/// Stops this process after so long, until somebody lets it go on.
///
/// # Panics
/// If the process cannot signal itself.
pub fn stop(after: Duration) {
    std::thread::sleep(after);
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP)
        .expect("a process may signal itself");
}
