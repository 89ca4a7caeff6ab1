//! The amount of memory that this process may lock, which bounds the memory that it can register.

use std::fs;

/// `CAP_IPC_LOCK`, see capabilities(7): it exempts a process from the limit.
const CAP_IPC_LOCK: u32 = 14;

pub(crate) const REMEDY: &str = "raise it (`ulimit -l unlimited`; `memlock` in /etc/security/limits.conf; \
    LimitMEMLOCK=infinity in a service; --ulimit memlock=-1 of a container)";

/// The limit on locked memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum MemoryLock {
    /// There is no limit, or it does not apply to this process.
    Unlimited,
    /// Limit on all registrations of the process together.
    Limited {
        /// `RLIMIT_MEMLOCK`, the soft limit.
        bytes: u64,
    },
}

impl MemoryLock {
    /// Returns the present limit.
    pub fn current() -> Self {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the call writes one `rlimit`.
        let failed = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } != 0;
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        if failed || limit.rlim_cur == libc::RLIM_INFINITY || has_capability(&status, CAP_IPC_LOCK) {
            Self::Unlimited
        } else {
            Self::Limited { bytes: limit.rlim_cur }
        }
    }

    /// Returns how many more bytes this process can register; `None` without a limit.
    #[must_use]
    pub fn left(self) -> Option<u64> {
        let Self::Limited { bytes } = self else { return None };
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Some(bytes.saturating_sub(pinned(&status)))
    }

    /// Returns how to raise the limit.
    #[must_use]
    pub fn remedy() -> &'static str {
        REMEDY
    }

    /// Checks whether this limit permits registering `bytes` bytes.
    ///
    /// # Errors
    /// A sentence for people, with the remedy.
    pub fn check(self, bytes: u64) -> Result<(), String> {
        match self {
            Self::Limited { bytes: limit } if limit < bytes => {
                Err(format!("{bytes} bytes must be registered, but only {limit} may be locked: {REMEDY}"))
            }
            _ => Ok(()),
        }
    }
}

fn pinned(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

fn has_capability(status: &str, number: u32) -> bool {
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
        .is_some_and(|set| set >> number & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read_from_the_effective_set() {
        assert!(has_capability("CapPrm:\t0\nCapEff:\t0000000000004000\n", CAP_IPC_LOCK));
        assert!(!has_capability("CapPrm:\t4000\nCapEff:\t0000000000003fff\n", CAP_IPC_LOCK));
        assert!(!has_capability("", CAP_IPC_LOCK));
    }

    #[test]
    fn pinned_memory_counts() {
        assert_eq!(pinned("VmLck:\t 4 kB\nVmPin:\t     640 kB\n"), 640 << 10);
        assert_eq!(pinned("VmLck:\t 4 kB\n"), 0);
        assert_eq!(MemoryLock::Unlimited.left(), None);
        let left = MemoryLock::Limited { bytes: 1 << 40 }.left().expect("a limit");
        assert!(left > 0 && left <= 1 << 40, "{left}");
    }

    #[test]
    fn a_limit_below_the_need_says_what_to_do() {
        assert!(MemoryLock::Unlimited.check(u64::MAX).is_ok());
        assert!(MemoryLock::Limited { bytes: 65536 }.check(65536).is_ok());
        let words = MemoryLock::Limited { bytes: 65536 }.check(65537).unwrap_err();
        assert!(words.contains("65536") && words.contains("ulimit -l unlimited"), "{words}");
    }
}
