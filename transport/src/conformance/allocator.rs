//! A counting allocator, to check transports' promise to allocate nothing in the steady state.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator with counters per thread. A test binary installs it with `#[global_allocator] static
/// ALLOCATOR: CountingAllocator = CountingAllocator;`. Without that, the counts stay 0, and cases that need them are
/// skipped.
#[derive(Clone, Copy, Debug)]
pub struct CountingAllocator;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static LIVE_BYTES: Cell<i64> = const { Cell::new(0) };
}

impl CountingAllocator {
    /// Returns the number of allocations that this thread has made.
    #[must_use]
    pub fn allocations() -> u64 {
        ALLOCATIONS.get()
    }

    /// Returns the number of bytes that this thread has allocated and not freed; negative if it freed memory of other
    /// threads.
    #[must_use]
    pub fn live_bytes() -> i64 {
        LIVE_BYTES.get()
    }
}

fn count(allocations: u64, bytes: i64) {
    // While a thread ends, its counters may be gone; allocations at that time are of no interest.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + allocations));
    let _ = LIVE_BYTES.try_with(|live| live.set(live.get() + bytes));
}

// SAFETY: all calls are forwarded unchanged to the system's allocator; the counters are plain cells without a
// destructor, so counting allocates nothing.
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
