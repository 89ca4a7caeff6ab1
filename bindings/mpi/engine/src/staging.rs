//! Memory for packed data and for messages, which is used again.
//!
//! The allocator returns long blocks to the system, and the kernel clears every page of the next one: a collective of some MiB would take
//! several times as long.

use std::sync::Mutex;

use kolo_transport::Unpoisoned;

/// The shortest block that is kept; the allocator keeps shorter ones itself.
const KEPT_MIN_BYTES: usize = 32 << 10;
/// As many bytes as are kept in all.
const KEPT_MAX_BYTES: usize = 64 << 20;

static FREE: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// A block of memory, whose contents are undefined at first. It moves with its owner, but its bytes stay at their address.
#[derive(Debug)]
pub struct Staging {
    memory: Vec<u8>,
    len: usize,
}

impl Staging {
    /// Takes a block of `len` bytes.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let found = if len < KEPT_MIN_BYTES { None } else { take(len, usize::MAX) };
        // At least one byte, so that empty memory has an address of its own too.
        Self { memory: found.unwrap_or_else(|| Vec::with_capacity(len.max(1))), len }
    }

    /// Returns the first byte.
    pub fn ptr(&mut self) -> *mut u8 {
        self.memory.as_mut_ptr()
    }

    /// Returns the number of bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns the first byte, for reading.
    #[must_use]
    pub const fn at(&self) -> *const u8 {
        self.memory.as_ptr()
    }

    /// Leaves out the bytes from `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

impl From<Vec<u8>> for Staging {
    fn from(memory: Vec<u8>) -> Self {
        let len = memory.len();
        Self { memory, len }
    }
}

/// Takes an empty block with room for `len` bytes, and not for many more, since the owner may keep it for long; `None` if there is no
/// memory.
#[must_use]
pub fn reserve(len: usize) -> Option<Vec<u8>> {
    let mut block =
        if len < KEPT_MIN_BYTES { None } else { take(len, len.saturating_mul(4)) }.unwrap_or_default();
    block.clear();
    block.try_reserve_exact(len).ok()?;
    Some(block)
}

/// Gives back a block that nobody needs any more.
pub fn recycle(block: Vec<u8>) {
    drop(Staging::from(block));
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.memory.capacity() >= KEPT_MIN_BYTES {
            give(std::mem::take(&mut self.memory));
        }
    }
}

/// Takes the smallest kept block that is long enough, and no longer than `most`.
fn take(len: usize, most: usize) -> Option<Vec<u8>> {
    let mut free = FREE.lock().unpoisoned();
    let fits = free.iter().enumerate().filter(|(_, block)| (len..=most).contains(&block.capacity()));
    let (at, _) = fits.min_by_key(|(_, block)| block.capacity())?;
    Some(free.swap_remove(at))
}

fn give(block: Vec<u8>) {
    let mut free = FREE.lock().unpoisoned();
    let mut kept: usize = free.iter().map(Vec::capacity).sum();
    if block.capacity() > KEPT_MAX_BYTES {
        return;
    }
    // The latest blocks are kept, since the next calls are likely to be alike.
    while kept + block.capacity() > KEPT_MAX_BYTES {
        kept -= free.remove(0).capacity();
    }
    free.push(block);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_used_again_by_the_next_call_for_which_it_is_long_enough() {
        // No other test takes blocks of this length.
        let len = 40 << 20;
        let mut first = Staging::new(len);
        let at = first.ptr();
        drop(first);
        assert_eq!(Staging::new(len - 1).ptr(), at);
        assert_ne!(Staging::new(2 * len).ptr(), at);
    }

    #[test]
    fn a_message_gets_no_block_that_is_much_longer() {
        recycle(Vec::with_capacity(20 << 20));
        let block = reserve(KEPT_MIN_BYTES).expect("memory");
        assert!((KEPT_MIN_BYTES..=4 * KEPT_MIN_BYTES).contains(&block.capacity()));
        assert!(reserve(usize::MAX).is_none());
    }

    #[test]
    fn a_short_block_stays_with_the_allocator() {
        let before = FREE.lock().unwrap().len();
        drop(Staging::new(KEPT_MIN_BYTES / 4));
        assert!(FREE.lock().unwrap().iter().all(|block| block.capacity() >= KEPT_MIN_BYTES), "{before}");
    }
}
