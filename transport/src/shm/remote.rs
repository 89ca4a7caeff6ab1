//! Reads another process's memory, with proof that it is the right process.
//!
//! The kernel checks every address, so a wrong address is an error and never a fault in this process. The kernel does
//! not check the identity of the process: its number may have passed to another process, or it may have started
//! another program. Every call therefore also reads the peer's *beacon*: 16 bytes that hold the cookie of the peer's
//! endpoint and vanish with that endpoint, at an address that the endpoint has published. One call reads one address
//! space, so the beacon vouches for the rest of the same call.

use std::fs;
use std::io;

use libc::iovec;

use super::address::Address;

/// Maximum number of ranges of the peer's memory in a message; more do not fit in the cell of the request.
pub(crate) const FAR_RUNS: usize = 6;
/// Maximum number of ranges of this process's memory that one call fills.
pub(crate) const NEAR_RUNS: usize = 32;
const COOKIE_BYTES: usize = 16;

/// An endpoint's cookie, at an address that stays the same until the endpoint is dropped.
#[derive(Debug)]
pub(crate) struct Beacon(Box<[u8; COOKIE_BYTES]>);

impl Beacon {
    pub(crate) fn new(cookie: [u8; COOKIE_BYTES]) -> Self {
        Self(Box::new(cookie))
    }

    /// Returns the address at which peers read the beacon.
    pub(crate) fn address(&self) -> u64 {
        self.0.as_ptr().addr() as u64
    }
}

/// A list of memory ranges of one process. The first entry is reserved for the beacon.
#[derive(Debug)]
pub(crate) struct Runs<const N: usize> {
    runs: [iovec; N],
    count: usize,
    bytes: usize,
}

/// Ranges of the peer's memory, behind the beacon.
pub(crate) type Far = Runs<{ FAR_RUNS + 1 }>;
/// Ranges of this process's memory, behind the beacon.
pub(crate) type Near = Runs<{ NEAR_RUNS + 1 }>;

impl<const N: usize> Runs<N> {
    pub(crate) fn new() -> Self {
        Self { runs: [iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; N], count: 1, bytes: 0 }
    }

    /// Appends a range. The list must have room.
    pub(crate) fn push(&mut self, at: *mut u8, len: usize) {
        self.runs[self.count] = iovec { iov_base: at.cast(), iov_len: len };
        self.count += 1;
        self.bytes += len;
    }

    /// Returns the total length of the ranges.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Reason why memory could not be read.
#[derive(Debug)]
pub(crate) enum Unread {
    /// The endpoint is gone: its process has dropped it, or the number belongs to another process by now.
    Gone,
    /// The kernel refused. It also does so if it knows no such process, or none with memory, which is no proof of a
    /// death: a process whose main thread has ended lives on in the others.
    Refused(io::Error),
}

/// A process whose memory can be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remote {
    pid: i32,
    beacon: u64,
    cookie: [u8; COOKIE_BYTES],
}

impl Remote {
    /// Returns access to the memory of the endpoint at `address`, without trying it. Every read reports whether it
    /// succeeded.
    pub(crate) fn of(address: &Address) -> Result<Self, String> {
        let pid = i32::try_from(address.pid).map_err(|_| "its process ID is not valid".to_owned())?;
        Ok(Self { pid, beacon: address.beacon, cookie: address.cookie })
    }

    /// Tries to read the beacon of the endpoint at `address`. The error says in a few words why that failed.
    pub(crate) fn probe(address: &Address) -> Result<Self, String> {
        let remote = Self::of(address)?;
        // SAFETY: the read fills nothing but its own copy of the beacon.
        match unsafe { remote.read(&mut Near::new(), &mut Far::new()) } {
            Ok(()) => Ok(remote),
            Err(Unread::Gone) => Err("its process is not visible here".to_owned()),
            Err(Unread::Refused(error)) => Err(refusal(&error, ptrace_scope().as_deref())),
        }
    }

    /// Fills the ranges `near` from the peer's ranges `far`, which have the same total length.
    ///
    /// # Safety
    /// The ranges in `near` are writable, and nobody else uses them during the call. `far` may hold any addresses.
    pub(crate) unsafe fn read(&self, near: &mut Near, far: &mut Far) -> Result<(), Unread> {
        debug_assert_eq!(near.bytes, far.bytes, "as many bytes here as there");
        let mut seen = [0u8; COOKIE_BYTES];
        near.runs[0] = iovec { iov_base: seen.as_mut_ptr().cast(), iov_len: COOKIE_BYTES };
        let beacon = std::ptr::without_provenance_mut(self.beacon as usize);
        far.runs[0] = iovec { iov_base: beacon, iov_len: COOKIE_BYTES };
        // SAFETY: the kernel writes only to the ranges in `near`, for which the caller vouches, and to `seen`; it
        // checks those in `far`. The counts are those of the arrays' filled parts.
        let read = unsafe {
            libc::process_vm_readv(
                self.pid,
                near.runs.as_ptr(),
                near.count as libc::c_ulong,
                far.runs.as_ptr(),
                far.count as libc::c_ulong,
                0,
            )
        };
        if read < 0 {
            let error = io::Error::last_os_error();
            return Err(Unread::Refused(error));
        }
        let read = read as usize;
        if read < COOKIE_BYTES || seen != self.cookie {
            return Err(Unread::Gone);
        }
        if read != COOKIE_BYTES + far.bytes {
            return Err(Unread::Refused(io::Error::from_raw_os_error(libc::EFAULT)));
        }
        Ok(())
    }
}

/// Returns the setting of Yama, on systems that have it.
fn ptrace_scope() -> Option<String> {
    fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok().map(|text| text.trim().to_owned())
}

/// Describes a refusal by the kernel, for people.
fn refusal(error: &io::Error, ptrace_scope: Option<&str>) -> String {
    match (error.raw_os_error(), ptrace_scope) {
        (Some(libc::EPERM), Some(scope)) if scope != "0" => format!("ptrace_scope is {scope}"),
        (Some(libc::EPERM), _) => "the kernel does not permit reading its memory".to_owned(),
        (Some(libc::ENOSYS), _) => "the kernel has no process_vm_readv".to_owned(),
        // No such process, or no memory at the beacon's address: in this namespace, the number belongs to another one.
        (Some(libc::ESRCH | libc::EFAULT), _) => "its process is not visible here".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::host::{Host, NAME_BYTES};
    use super::*;

    fn address(beacon: &Beacon, cookie: [u8; 16], pid: u32) -> Address {
        let host = Host { boot: [0; 16], namespace: 0 };
        Address {
            host,
            uid: 0,
            pid,
            process: 0,
            name: [0; NAME_BYTES],
            cookie,
            beacon: beacon.address(),
            is_registered: false,
        }
    }

    #[test]
    fn reads_this_process_and_no_other_program() {
        let beacon = Beacon::new([5; 16]);
        let own = std::process::id();
        let remote = Remote::probe(&address(&beacon, [5; 16], own)).expect("its own memory");
        let source: Vec<u8> = (0..100).collect();
        let mut target = vec![0u8; 100];
        let (mut near, mut far) = (Near::new(), Far::new());
        near.push(target.as_mut_ptr(), 1);
        near.push(target[1..].as_mut_ptr(), 99);
        far.push(source.as_ptr().cast_mut(), 60);
        far.push(source[60..].as_ptr().cast_mut(), 40);
        // SAFETY: the target belongs to this test.
        unsafe { remote.read(&mut near, &mut far) }.expect("read");
        assert_eq!(source, target);
        assert!(
            Remote::probe(&address(&beacon, [6; 16], own)).expect_err("other cookie").contains("visible")
        );
        assert!(Remote::probe(&address(&beacon, [5; 16], u32::MAX)).is_err());
        assert!(Remote::probe(&address(&beacon, [5; 16], i32::MAX as u32)).is_err());
    }

    #[test]
    fn wild_addresses_are_refused() {
        let beacon = Beacon::new([5; 16]);
        let remote = Remote::probe(&address(&beacon, [5; 16], std::process::id())).expect("its own memory");
        for at in [0usize, 8, 1 << 63, usize::MAX - 50] {
            let mut target = [0u8; 100];
            let (mut near, mut far) = (Near::new(), Far::new());
            near.push(target.as_mut_ptr(), 100);
            far.push(std::ptr::without_provenance_mut(at), 100);
            // SAFETY: the target belongs to this test.
            assert!(matches!(unsafe { remote.read(&mut near, &mut far) }, Err(Unread::Refused(_))), "{at}");
        }
    }

    #[test]
    fn refusals_in_words() {
        let text = |code, scope| refusal(&io::Error::from_raw_os_error(code), scope);
        assert_eq!(text(libc::EPERM, Some("2")), "ptrace_scope is 2");
        assert_eq!(text(libc::EPERM, Some("0")), "the kernel does not permit reading its memory");
        assert_eq!(text(libc::EPERM, None), "the kernel does not permit reading its memory");
        assert_eq!(text(libc::ENOSYS, None), "the kernel has no process_vm_readv");
    }
}
