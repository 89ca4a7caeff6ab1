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

/// Makes a system call fail with EPERM in this thread and in those that it starts from now on, as the filters of
/// containers do.
///
/// # Panics
/// If the system has no such filters.
pub fn refuse(call: libc::c_long) {
    let statement = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut filter = [
        // Loads the number of the system call.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32, 0, 1),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the kernel copies the filter, which is well-formed or refused.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program), 0, "no seccomp here");
    }
}
