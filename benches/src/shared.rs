//! Memory that the processes of a job share, for measurements without Kolo.

use std::error::Error;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use kolo::Communicator;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// The first page holds the barrier.
const BARRIER_BYTES: usize = 4096;
/// Offsets of the barrier's two words, on cache lines of their own.
const ARRIVED: usize = 0;
const GENERATION: usize = 128;

/// A piece of memory that all ranks map, with a barrier. It has no name, and is freed when all ranks have dropped it.
#[derive(Debug)]
pub struct Shared {
    base: *mut u8,
    len: usize,
    ranks: u32,
    /// Whether there are more ranks than processors, so that waiting ranks yield.
    yields: bool,
}

impl Shared {
    /// Allocates `len` bytes, all zero. This is a collective call of ranks on one host. Blocks until all have mapped
    /// the memory.
    ///
    /// # Errors
    /// If the system refuses the memory, or rank 0's file cannot be opened.
    pub fn new(comm: &Communicator, len: usize) -> Result<Self, Box<dyn Error>> {
        let len = len + BARRIER_BYTES;
        let made = memfd_create("bench", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&made, len as u64)?;
        let mut place = [i64::from(std::process::id()), i64::from(made.as_raw_fd())];
        comm.broadcast(&mut place, 0)?;
        let path = format!("/proc/{}/fd/{}", place[0], place[1]);
        let file = File::options().read(true).write(true).open(&path).map_err(|e| format!("{path}: {e}"))?;
        // SAFETY: a mapping at an address of the system's choice touches nothing that exists.
        let base = unsafe {
            mmap(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0)?
        };
        comm.barrier()?;
        let processors = std::thread::available_parallelism()?.get();
        let ranks = comm.world_size();
        Ok(Self { base: base.cast(), len, ranks, yields: ranks as usize > processors })
    }

    /// Returns the beginning of the memory, which has `len` bytes and is aligned to a page.
    #[must_use]
    pub fn base(&self) -> *mut u8 {
        self.base.wrapping_add(BARRIER_BYTES)
    }

    /// Waits for all ranks. Earlier writes of each rank are visible to all afterwards.
    #[inline]
    pub fn wait(&self) {
        let (arrived, generation) = (self.word(ARRIVED), self.word(GENERATION));
        let now = generation.load(Ordering::Acquire);
        if arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.ranks {
            arrived.store(0, Ordering::Relaxed);
            generation.store(now.wrapping_add(1), Ordering::Release);
            return;
        }
        while generation.load(Ordering::Acquire) == now {
            if self.yields {
                std::thread::yield_now();
            }
        }
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: inside the barrier's page, which is mapped for as long as `self` lives, aligned, and used by all ranks
        // as these words only.
        unsafe { AtomicU32::from_ptr(self.base.add(at).cast()) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; whoever uses `base` borrows `self`.
        let unmapped = unsafe { munmap(self.base.cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}
