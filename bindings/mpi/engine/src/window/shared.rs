//! Memory that the ranks of a host share.

use std::ffi::CString;

use crate::error::{Class, Fail, Outcome, fail};

/// A mapping of the memory of all ranks of a window.
#[derive(Debug)]
pub(super) struct Segment {
    at: usize,
    len: usize,
    /// Where each rank's part begins.
    pub(super) starts: Vec<usize>,
}

fn path(name: u64) -> Outcome<CString> {
    CString::new(format!("/kolo-mpi-{name:016x}")).map_err(|error| Fail::new(Class::Intern, error))
}

impl Segment {
    /// Makes the memory, under a name that others of the host map it by, until it is [forgotten](Self::forget).
    pub(super) fn create(name: u64, len: usize, starts: Vec<usize>) -> Outcome<Self> {
        Self::open(name, len, starts, libc::O_CREAT | libc::O_EXCL)
    }

    /// Maps memory that another rank has made.
    pub(super) fn map(name: u64, len: usize, starts: Vec<usize>) -> Outcome<Self> {
        Self::open(name, len, starts, 0)
    }

    fn open(name: u64, len: usize, starts: Vec<usize>, flags: libc::c_int) -> Outcome<Self> {
        let (path, len) = (path(name)?, len.max(1));
        let system =
            |what: &str| Fail::new(Class::NoMem, format!("{what}: {}", std::io::Error::last_os_error()));
        // SAFETY: plain system calls; the descriptor is closed on every way out, and the mapping is the value's.
        unsafe {
            let fd = libc::shm_open(path.as_ptr(), flags | libc::O_RDWR, 0o600);
            if fd < 0 {
                return Err(system("shared memory for a window"));
            }
            // Pages are taken now, since a process that touches more than there is would be killed.
            if flags != 0 && libc::posix_fallocate(fd, 0, len as libc::off_t) != 0 {
                libc::close(fd);
                libc::shm_unlink(path.as_ptr());
                return fail(Class::NoMem, format!("there are no {len} bytes of shared memory"));
            }
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let at = libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, 0);
            let failure = system("mapping the shared memory of a window");
            libc::close(fd);
            if at == libc::MAP_FAILED { Err(failure) } else { Ok(Self { at: at as usize, len, starts }) }
        }
    }

    /// Takes the name away; the memory stays.
    pub(super) fn forget(name: u64) {
        if let Ok(path) = path(name) {
            // SAFETY: a plain system call.
            unsafe { libc::shm_unlink(path.as_ptr()) };
        }
    }

    /// Where a rank's part is here.
    pub(super) fn address(&self, rank: usize) -> usize {
        self.at + self.starts[rank]
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own; the window is gone, and with it the program's leave to use it.
        unsafe { libc::munmap(self.at as *mut libc::c_void, self.len) };
    }
}
