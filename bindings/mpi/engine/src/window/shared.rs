//! Shared memory of a window whose ranks are all on one host.

use std::ffi::CString;
use std::sync::atomic::AtomicU32;

use crate::error::{Class, Fail, Outcome, fail};

/// Distance between the words of two ranks.
const WORDS_BYTES: usize = 128;

/// Words for each rank's part of a window, on cache lines of their own.
#[derive(Clone, Copy)]
pub(super) enum Word {
    /// 1 while a rank accumulates there.
    Accumulates = 0,
    /// The lock of `MPI_Win_lock`.
    Access = 64,
}

/// A mapping of the memory of all ranks of a window, with the words of each rank's part behind it.
#[derive(Debug)]
pub(super) struct Segment {
    at: usize,
    len: usize,
    /// The offset of each rank's part.
    pub(super) starts: Vec<usize>,
}

fn path(name: u64) -> Outcome<CString> {
    CString::new(format!("/kolo-mpi-{name:016x}")).map_err(|error| Fail::new(Class::Intern, error))
}

impl Segment {
    /// Makes the memory, under a name by which other ranks of the host map it until the name is [forgotten](Self::forget).
    pub(super) fn create(name: u64, len: usize, starts: Vec<usize>) -> Outcome<Self> {
        Self::open(name, len, starts, libc::O_CREAT | libc::O_EXCL)
    }

    /// Maps memory that another rank has made.
    pub(super) fn map(name: u64, len: usize, starts: Vec<usize>) -> Outcome<Self> {
        Self::open(name, len, starts, 0)
    }

    fn open(name: u64, len: usize, starts: Vec<usize>, flags: libc::c_int) -> Outcome<Self> {
        let (path, len) = (path(name)?, len.next_multiple_of(WORDS_BYTES) + WORDS_BYTES * starts.len());
        let system =
            |what: &str| Fail::new(Class::NoMem, format!("{what}: {}", std::io::Error::last_os_error()));
        // SAFETY: plain system calls; the descriptor is closed on every path, and the returned value owns the mapping.
        unsafe {
            let fd = libc::shm_open(path.as_ptr(), flags | libc::O_RDWR, 0o600);
            if fd < 0 {
                return Err(system("shared memory for a window"));
            }
            // Allocate the pages now: if memory ran out later, the system would kill a process that touches it.
            if flags != 0 && libc::posix_fallocate(fd, 0, len as libc::off_t) != 0 {
                libc::close(fd);
                libc::shm_unlink(path.as_ptr());
                return fail(Class::NoMem, format!("{len} bytes of shared memory are not available"));
            }
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let at = libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, 0);
            let failure = system("mapping the shared memory of a window");
            libc::close(fd);
            if at == libc::MAP_FAILED { Err(failure) } else { Ok(Self { at: at as usize, len, starts }) }
        }
    }

    /// Removes the name; the memory stays.
    pub(super) fn forget(name: u64) {
        if let Ok(path) = path(name) {
            // SAFETY: a plain system call.
            unsafe { libc::shm_unlink(path.as_ptr()) };
        }
    }

    /// Returns the address of a rank's part in this process.
    pub(super) fn address(&self, rank: usize) -> usize {
        self.at + self.starts[rank]
    }

    /// Returns whether memory of this process overlaps with the mapping.
    pub(super) fn overlaps(&self, at: usize, len: usize) -> bool {
        at < self.at + self.len && at.saturating_add(len) > self.at
    }

    /// Returns a word of a rank's part.
    pub(super) fn word(&self, rank: usize, word: Word) -> &AtomicU32 {
        let at = self.at + self.len - WORDS_BYTES * (self.starts.len() - rank) + word as usize;
        // SAFETY: the word lies in the mapping, behind all parts, is aligned, and was zero at first. Only such words lie there, and this
        // value keeps the mapping. Test: `windows`.
        unsafe { AtomicU32::from_ptr(at as *mut u32) }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping; the window is gone, so the program may no longer use the memory.
        unsafe { libc::munmap(self.at as *mut libc::c_void, self.len) };
    }
}
