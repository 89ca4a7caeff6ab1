//! Staging memory that an operation works in.

use std::alloc::{Layout as AllocLayout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;

use kolo_gdr::{Gpu, Pinned};
use kolo_transport::Error;

use super::copies::failed;

/// Page-aligned memory that grows and is reused.
#[derive(Debug)]
pub(crate) struct Staging {
    // Released before the memory is freed: see `Drop`.
    pin: Option<Pinned>,
    ptr: NonNull<u8>,
    bytes: usize,
}

// SAFETY: Staging owns its allocation; nothing else refers to it except through its owner.
unsafe impl Send for Staging {}

impl Staging {
    const ALIGN: usize = 4096;

    pub(crate) const fn new() -> Self {
        Self { pin: None, ptr: NonNull::dangling(), bytes: 0 }
    }

    /// Makes sure that there are at least `bytes`. The contents are lost when the memory grows.
    pub(crate) fn reserve(&mut self, bytes: usize) {
        if bytes <= self.bytes {
            return;
        }
        *self = Self::new();
        let layout = Self::layout(bytes);
        // SAFETY: the size is not zero, since it exceeds `self.bytes`.
        let ptr = unsafe { alloc(layout) };
        self.ptr = NonNull::new(ptr).unwrap_or_else(|| handle_alloc_error(layout));
        self.bytes = bytes;
    }

    /// Pins the memory, so that a GPU can copy from and to it by itself.
    pub(crate) fn pin(&mut self, gpu: &Arc<Gpu>) -> Result<(), Error> {
        if self.pin.is_none() && self.bytes > 0 {
            // SAFETY: the memory stays as it is until the pin is dropped: see `reserve` and `Drop`.
            let pin = unsafe { gpu.pin(self.ptr(), self.bytes) };
            self.pin = Some(pin.map_err(failed)?);
        }
        Ok(())
    }

    pub(crate) fn ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn layout(bytes: usize) -> AllocLayout {
        AllocLayout::from_size_align(bytes, Self::ALIGN).expect("staging is far below isize::MAX")
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        self.pin = None;
        if self.bytes > 0 {
            // SAFETY: allocated in `reserve` with the same layout.
            unsafe { dealloc(self.ptr.as_ptr(), Self::layout(self.bytes)) };
        }
    }
}
