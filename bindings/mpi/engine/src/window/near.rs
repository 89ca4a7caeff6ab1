//! Operations on memory that the origin shares with the target. They take no message, and are complete when their calls return.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use super::Window;
use super::handle_messages::{carry_out, refusal};
use super::operations::Own;
use super::shared::Word;
use super::wire::Message;
use crate::datatype::{self, Shape};
use crate::error::Outcome;
use crate::net;
use crate::staging;

/// The longest copy of an origin's data that is kept for the next operation.
const KEPT_BYTES: usize = 4 << 20;

thread_local! {
    static PACKED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The bits of [`Word::Access`] beside the number of ranks that share the lock: one rank has it for itself, or wants it, so that no further
/// ranks get to share it.
const EXCLUSIVE: u32 = 1 << 31;
const WANTED: u32 = 1 << 30;

/// A target's part of a window, in this process.
pub(super) struct Near<'a> {
    memory: *mut u8,
    accumulates: &'a AtomicU32,
    access: &'a AtomicU32,
    /// Whether the target is this rank, whose buffers may overlap with its own part.
    is_self: bool,
}

impl Window {
    /// Returns the part of a rank, if this process has mapped it.
    pub(super) fn near(&self, rank: u32) -> Option<Near<'_>> {
        let segment = self.segment.as_ref()?;
        let memory = segment.address(rank as usize) as *mut u8;
        let word = |word| segment.word(rank as usize, word);
        let (accumulates, access) = (word(Word::Accumulates), word(Word::Access));
        Some(Near { memory, accumulates, access, is_self: rank == self.comm.rank })
    }
}

impl Near<'_> {
    /// Copies this rank's elements to the positions, which are checked and have as many bytes.
    pub(super) fn put(&self, own: &Own, shape: &Shape) {
        // SAFETY: the positions lie in the target's part, and the program has lent its elements to the call. Two ranks' memory does not
        // overlap, and this rank's is copied first. Test: `windows`.
        unsafe {
            match own.flat().filter(|_| !self.is_self) {
                Some(data) => shape.unpack_from(data, self.memory),
                None => drop(packed(own, |data| shape.unpack(data, self.memory))),
            }
        }
        fence(Ordering::SeqCst);
    }

    /// Copies the data at the positions to this rank's elements, which have as many bytes.
    pub(super) fn get(&self, own: &Own, shape: &Shape) {
        fence(Ordering::SeqCst);
        // SAFETY: as in `put`.
        unsafe {
            if let Some(data) = own.flat().filter(|_| !self.is_self) {
                shape.pack_to(self.memory, data);
            } else {
                let mut data = Vec::new();
                shape.pack(self.memory, &mut data);
                own.sink().put(&data);
            }
        }
    }

    /// Carries out an operation that is atomic with respect to others of its kind. If there is a `result`, it receives the target's former
    /// contents.
    ///
    /// # Errors
    /// If the job fails while another rank has the lock.
    pub(super) fn combine(&self, message: Message<'_>, own: Option<&Own>, result: Option<&Own>) -> Outcome {
        let of = datatype::builtin(message.of).filter(|of| of.size() > 0).ok_or_else(refusal)?;
        let given = message.data;
        let carry_out = |data: &[u8]| {
            // SAFETY: the positions lie in the target's part, and only the owner of the lock combines data there. Test: `windows`.
            unsafe { carry_out(&Message { data, ..message }, of, self.memory) }
        };
        let former = self.locked(|| match own {
            Some(own) => packed(own, carry_out),
            None => carry_out(given),
        })?;
        let former = former.ok_or_else(refusal)?;
        if let Some(result) = result {
            result.sink().put(&former);
        }
        staging::recycle(former);
        Ok(())
    }

    /// Waits for the target's lock.
    ///
    /// # Errors
    /// If the job fails while other ranks have the lock.
    pub(super) fn acquire(&self, is_exclusive: bool) -> Outcome {
        net::wait_until(|| if is_exclusive { try_exclusive(self.access) } else { try_shared(self.access) })
    }

    /// Releases the target's lock, which this rank has.
    pub(super) fn release(&self) {
        if self.access.load(Ordering::Relaxed) & EXCLUSIVE != 0 {
            self.access.fetch_and(!EXCLUSIVE, Ordering::Release);
        } else {
            self.access.fetch_sub(1, Ordering::Release);
        }
    }

    fn locked<T>(&self, call: impl FnOnce() -> T) -> Outcome<T> {
        let lock = self.accumulates;
        net::wait_until(|| lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok())?;
        let _held = Held(lock);
        Ok(call())
    }
}

fn try_shared(word: &AtomicU32) -> bool {
    let now = word.load(Ordering::Relaxed);
    now & (EXCLUSIVE | WANTED) == 0
        && word.compare_exchange(now, now + 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

fn try_exclusive(word: &AtomicU32) -> bool {
    let now = word.load(Ordering::Relaxed);
    if now & !WANTED == 0 {
        // Others that also want it say so again.
        return word.compare_exchange(now, EXCLUSIVE, Ordering::Acquire, Ordering::Relaxed).is_ok();
    }
    word.fetch_or(WANTED, Ordering::Relaxed);
    false
}

/// Releases a lock, also if the call that holds it panics.
struct Held<'a>(&'a AtomicU32);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

/// Calls `call` with a copy of the elements' data.
fn packed<T>(own: &Own, call: impl FnOnce(&[u8]) -> T) -> T {
    PACKED.with_borrow_mut(|data| {
        data.clear();
        own.pack(data);
        let result = call(data);
        if data.capacity() > KEPT_BYTES {
            *data = Vec::new();
        }
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_wants_the_lock_for_itself_is_not_overtaken() {
        let word = AtomicU32::new(0);
        let near = Near { memory: std::ptr::null_mut(), accumulates: &word, access: &word, is_self: false };
        assert!(try_shared(&word) && try_shared(&word));
        assert!(!try_exclusive(&word) && !try_shared(&word), "it is wanted");
        near.release();
        assert!(!try_exclusive(&word), "one rank is left");
        near.release();
        assert!(!try_shared(&word) && try_exclusive(&word));
        assert!(!try_shared(&word) && !try_exclusive(&word) && !try_exclusive(&word));
        near.release();
        assert!(!try_shared(&word) && try_exclusive(&word), "two ranks have wanted it");
        near.release();
        assert!(try_shared(&word));
        near.release();
        assert_eq!(word.into_inner(), 0);
    }
}
