//! Short synchronous copies from and to GPU memory, for messages too short for an adapter to fetch by itself.

use std::sync::{Arc, Mutex};

use kolo_gdr::{Copies, Gpu};
use kolo_transport::{DeviceCopier, Error, Unpoisoned};

use super::copies::failed;
use super::staging::Staging;

/// Longest single copy: as long as a transport's staging buffer.
const SYNC_COPY_BYTES: usize = 128 << 10;

/// Copies through pinned memory of its own, on a stream of its own, so that the program's work on other streams does
/// not delay it.
#[derive(Debug)]
pub(crate) struct SyncCopier(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    // Declared first, so that copies settle before the memory is freed.
    copies: Copies<()>,
    memory: Staging,
}

impl SyncCopier {
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Result<Self, Error> {
        let copies = Copies::new(gpu).map_err(failed)?;
        let mut memory = Staging::new();
        memory.reserve(SYNC_COPY_BYTES);
        memory.pin(gpu)?;
        Ok(Self(Mutex::new(Inner { copies, memory })))
    }

    /// Calls `each` with pinned memory for one part after the other of `len` bytes.
    fn in_parts(
        &self,
        len: usize,
        mut each: impl FnMut(&mut Copies<()>, *mut u8, usize, usize) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut inner = self.0.lock().unpoisoned();
        let Inner { copies, memory } = &mut *inner;
        (0..len)
            .step_by(SYNC_COPY_BYTES)
            .try_for_each(|at| each(copies, memory.ptr(), at, SYNC_COPY_BYTES.min(len - at)))
    }
}

impl DeviceCopier for SyncCopier {
    unsafe fn load(&self, from: *const u8, to: *mut u8, len: usize) -> Result<(), String> {
        self.in_parts(len, |copies, here, at, bytes| {
            // SAFETY: the caller's promise; the pinned memory is as long as a part, and locked.
            unsafe {
                copies.start([(from.wrapping_add(at), here, bytes)], ())?;
                copies.finish()?;
                here.copy_to_nonoverlapping(to.add(at), bytes);
            }
            Ok(())
        })
    }

    unsafe fn store(&self, from: *const u8, to: *mut u8, len: usize) -> Result<(), String> {
        self.in_parts(len, |copies, here, at, bytes| {
            // SAFETY: as above.
            unsafe {
                from.add(at).copy_to_nonoverlapping(here, bytes);
                copies.start([(here.cast_const(), to.wrapping_add(at), bytes)], ())?;
            }
            copies.finish()
        })
    }
}
