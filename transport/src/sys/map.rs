//! A shared mapping, with bounds-checked typed access.
//!
//! # Why this is sound
//! Other processes may write to this memory at any time, so this module never makes a `&` or `&mut` to its plain
//! bytes. Words that both sides use are accessed as atomics: every bit pattern is a valid integer, the mapping is
//! page aligned, and [`Mapping::atomic`] checks offset and alignment. Payload is accessed through raw pointers whose
//! range [`Mapping::bytes`] has checked. The file is sealed against shrinking ([`memfd`](super::memfd)), so a checked
//! address stays backed as long as the mapping lives.

use std::ffi::c_void;
use std::io;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

use super::atomic::Atomic;

/// A read-write mapping of a whole sealed file, or of private memory. Unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    /// A second mapping of the whole file, made when a part of this one became private.
    file: OnceLock<Box<Self>>,
}

// SAFETY: the mapping is plain memory that belongs to no thread; all access goes through atomics or through raw
// pointers whose users state their own argument.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` bytes of `fd`, which must be that long and sealed (see
    /// [`check_sealed`](super::memfd::check_sealed)).
    pub(crate) fn new(fd: impl AsFd, bytes: usize) -> io::Result<Self> {
        // SAFETY: the kernel picks a fresh address range, so no existing object is touched.
        let base = unsafe {
            rustix::mm::mmap(ptr::null_mut(), bytes, ProtFlags::empty(), MapFlags::SHARED, fd.as_fd(), 0)?
        };
        let map = Self::at(base, bytes)?;
        // Most of a file is never used. After mlockall(MCL_FUTURE), the kernel would back all of it, but it backs no memory
        // without access.
        // SAFETY: the range is the new mapping, and the calls do not change its contents.
        unsafe {
            let _ = rustix::mm::munlock(base, bytes);
            rustix::mm::mprotect(base, bytes, MprotectFlags::READ | MprotectFlags::WRITE)?;
        }
        Ok(map)
    }

    /// Maps zeroed memory that no other process sees.
    pub(crate) fn private(bytes: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as in `new`.
        let base =
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, protection, MapFlags::PRIVATE)? };
        Self::at(base, bytes)
    }

    fn at(base: *mut c_void, bytes: usize) -> io::Result<Self> {
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| io::Error::other("mapped at null"))?;
        Ok(Self { base, bytes, file: OnceLock::new() })
    }

    /// Returns the address of `offset..offset + len`.
    ///
    /// # Panics
    /// If the range is not inside the mapping. Offsets come only from constants and checked geometry.
    #[inline]
    pub(crate) fn bytes(&self, offset: usize, len: usize) -> *mut u8 {
        let end = offset.checked_add(len).expect("offset overflows");
        assert!(end <= self.bytes, "range {offset}..{end} is beyond a mapping of {} bytes", self.bytes);
        // SAFETY: `offset` is at most the length of the mapping, checked above.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Returns the atomic at `offset`.
    ///
    /// # Panics
    /// If it is not inside the mapping or not aligned.
    #[inline]
    pub(crate) fn atomic<T: Atomic>(&self, offset: usize) -> &T {
        let at = self.bytes(offset, T::BYTES);
        assert!(at.addr().is_multiple_of(T::BYTES), "offset {offset} is not aligned");
        // SAFETY: the address is in bounds and aligned, as just checked; these bytes are accessed as atomics only;
        // the reference lives no longer than the mapping.
        unsafe { T::at(at) }
    }

    /// Returns its length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// Asks for huge pages for a range that begins at a page, and has the kernel back it now. Kernels that support
    /// neither back it on first touch.
    ///
    /// # Panics
    /// If the range is not inside the mapping.
    pub(crate) fn back(&self, offset: usize, len: usize) -> io::Result<()> {
        let at = self.bytes(offset, len).cast();
        // SAFETY: the range is inside the mapping; neither call changes its contents.
        let populated = unsafe {
            let _ = rustix::mm::madvise(at, len, Advice::LinuxHugepage);
            rustix::mm::madvise(at, len, Advice::LinuxPopulateWrite)
        };
        match populated {
            Err(errno) if errno != rustix::io::Errno::INVAL => Err(errno.into()),
            _ => Ok(()),
        }
    }

    /// Makes the kernel zero the mapping in every child that `fork` makes. Only for private mappings.
    pub(crate) fn wipe_on_fork(&self) -> io::Result<()> {
        // SAFETY: the range is the mapping; its contents stay in this process.
        Ok(unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.bytes, Advice::LinuxWipeOnFork) }?)
    }

    /// Frees the pages of a shared mapping for all processes that map the file, and those that have become private. All
    /// of them then read as zeroes.
    pub(crate) fn discard(&self) {
        self.file().free(0, self.bytes);
        if self.file.get().is_some() {
            // SAFETY: the range is the mapping, and its owner no longer reads it.
            // Test: `memory_that_was_taken_private_is_freed`.
            let _ =
                unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.bytes, Advice::LinuxDontNeed) };
        }
    }

    /// Replaces a range of whole pages, which are still the file's, by private copies, which the other mappings no
    /// longer reach. Frees the file's pages, which then read as zeroes there. Bytes that others write meanwhile may be
    /// in the copy or not.
    ///
    /// # Errors
    /// If there is no address space or memory. The range may then not be used any more.
    ///
    /// # Panics
    /// If the range is not inside the mapping, or does not consist of whole pages.
    pub(crate) fn take_private(&self, offset: usize, len: usize) -> io::Result<()> {
        /// Number of bytes copied at a time, which bounds the memory needed beside the pages that are freed: a huge
        /// page, since the kernel frees only whole ones.
        const PIECE_BYTES: usize = 2 << 20;
        let page = rustix::param::page_size();
        assert!(offset.is_multiple_of(page) && len.is_multiple_of(page), "{offset} and {len} are not pages");
        let to = self.bytes(offset, len);
        if self.file.get().is_none() {
            let file = self.duplicate()?;
            self.file.get_or_init(|| Box::new(file));
        }
        let (file, end) = (self.file(), offset + len);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: the range inside this mapping stays plain memory without invariants, and its bytes follow from the
        // other mapping of the file. Test: `memory_that_was_taken_private_is_freed`.
        unsafe { rustix::mm::mmap_anonymous(to.cast(), len, ProtFlags::READ | ProtFlags::WRITE, flags)? };
        let mut at = offset;
        while at < end {
            let piece = (at + 1).next_multiple_of(PIECE_BYTES).min(end) - at;
            self.back(at, piece)?;
            let (from, to) = (file.bytes(at, piece), self.bytes(at, piece));
            // SAFETY: both ranges are inside their mappings, which are different memory now.
            unsafe { ptr::copy_nonoverlapping(from.cast_const(), to, piece) };
            file.free(at, piece);
            at += piece;
        }
        // Others may have read or written since, which allocates pages again.
        file.free(offset, len);
        Ok(())
    }

    /// Returns the mapping in which every page is the file's: this one while no part of it is private.
    fn file(&self) -> &Self {
        self.file.get().map_or(self, |file| file)
    }

    /// Maps the file of a shared mapping once more.
    fn duplicate(&self) -> io::Result<Self> {
        // SAFETY: with an old size of 0, the kernel leaves the old range as it is, and picks a fresh one for the new
        // mapping of the same pages.
        let base = unsafe {
            rustix::mm::mremap(self.base.as_ptr().cast(), 0, self.bytes, rustix::mm::MremapFlags::MAYMOVE)?
        };
        Self::at(base, self.bytes)
    }

    /// Frees pages of the file. If the kernel refuses, they are freed when the last mapping goes.
    fn free(&self, offset: usize, len: usize) {
        let at = self.bytes(offset, len).cast();
        // SAFETY: the range is inside the mapping, and its owner no longer reads it there.
        let _ = unsafe { rustix::mm::madvise(at, len, Advice::LinuxRemove) };
    }

    /// Asks the kernel to back a range now rather than on first touch. This is a hint: refusal is not an error.
    pub(crate) fn populate(&self, offset: usize, len: usize) {
        let at = self.bytes(offset, len);
        // SAFETY: the range is inside the mapping; populating changes no contents.
        let _ = unsafe { rustix::mm::madvise(at.cast(), len, Advice::LinuxPopulateWrite) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this range was mapped by a constructor of `Mapping`, and every reference into it borrows from
        // `self`; raw pointers are kept only beside an `Arc` of this mapping.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
