//! Counting allocations, to hold transports to their promise to make none in the steady state.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, counting per thread. A test binary installs it with
/// `#[global_allocator] static ALLOCATOR: CountingAllocator = CountingAllocator;`; without that, counts stay 0 and
/// cases that need them are skipped.
#[derive(Clone, Copy, Debug)]
pub struct CountingAllocator;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static LIVE_BYTES: Cell<i64> = const { Cell::new(0) };
}

impl CountingAllocator {
    /// Allocations that this thread has made.
    #[must_use]
    pub fn allocations() -> u64 {
        ALLOCATIONS.get()
    }

    /// Bytes that this thread has allocated and not freed; negative if it freed what others allocated.
    #[must_use]
    pub fn live_bytes() -> i64 {
        LIVE_BYTES.get()
    }
}

fn count(allocations: u64, bytes: i64) {
    // While a thread ends its counters may be gone; what it allocates then is of no interest.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + allocations));
    let _ = LIVE_BYTES.try_with(|live| live.set(live.get() + bytes));
}

// SAFETY: everything is handed on to the system's allocator as it came; the counters are plain cells without a
// destructor, so that counting allocates nothing.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as i64);
        // SAFETY: the caller's obligation, unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(0, -(layout.size() as i64));
        // SAFETY: the caller's obligation, unchanged.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(1, new_size as i64 - layout.size() as i64);
        // SAFETY: the caller's obligation, unchanged.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}
