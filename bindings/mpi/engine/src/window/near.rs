//! Operations on memory that the origin shares with the target. They take no message, and are complete when their calls return.

use std::sync::atomic::{AtomicU32, Ordering, fence};

use super::Window;
use super::handle_messages::{carry_out, refusal};
use super::operations::Own;
use super::shared::{Segment, Word};
use super::wire::Message;
use crate::datatype::{self, Shape};
use crate::error::Outcome;
use crate::net;
use crate::staging;

/// The bits of [`Word::Access`] beside the number of ranks that share the lock: one rank has it for itself, or wants it, so that no further
/// ranks get to share it.
const EXCLUSIVE: u32 = 1 << 31;
const WANTED: u32 = 1 << 30;

/// A target's part of a window, in this process.
pub(super) struct Near<'a> {
    segment: &'a Segment,
    rank: usize,
}

impl Window {
    /// Returns the part of a rank, if this process has mapped it.
    pub(super) fn near(&self, rank: u32) -> Option<Near<'_>> {
        self.segment.as_ref().map(|segment| Near { segment, rank: rank as usize })
    }
}

impl Near<'_> {
    fn memory(&self) -> *mut u8 {
        self.segment.address(self.rank) as *mut u8
    }

    fn word(&self, word: Word) -> &AtomicU32 {
        self.segment.word(self.rank, word)
    }

    /// Returns where the data of this rank's elements begins, if it has no gaps and lies outside of the window.
    fn apart(&self, own: &Own) -> Option<*mut u8> {
        own.flat().filter(|data| !self.segment.overlaps(*data as usize, own.bytes()))
    }

    /// Copies this rank's elements to the positions, which are checked.
    ///
    /// # Errors
    /// If the positions have another number of bytes.
    pub(super) fn put(&self, own: &Own, shape: &Shape) -> Outcome {
        let fits = match self.apart(own).filter(|_| own.bytes() == shape.bytes()) {
            Some(data) => {
                // SAFETY: the positions lie in the target's part, and the program has lent its elements to the call. Test: `windows`.
                unsafe { shape.unpack_from(data, self.memory()) };
                Some(())
            }
            // SAFETY: likewise, from a copy of the elements.
            None => own.with_packed(|data| unsafe { shape.unpack(data, self.memory()) }),
        };
        fence(Ordering::SeqCst);
        fits.ok_or_else(refusal)
    }

    /// Copies the data at the positions to this rank's elements, as far as there is room.
    pub(super) fn get(&self, own: &Own, shape: &Shape) {
        fence(Ordering::SeqCst);
        match self.apart(own).filter(|_| own.bytes() == shape.bytes()) {
            // SAFETY: as in `put`.
            Some(data) => unsafe { shape.pack_to(self.memory(), data) },
            None => {
                let mut data = staging::reserve(shape.bytes()).unwrap_or_default();
                // SAFETY: as in `put`, to a copy.
                unsafe { shape.pack(self.memory(), &mut data) };
                own.sink().put(&data);
                staging::recycle(data);
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
            unsafe { carry_out(&Message { data, ..message }, of, self.memory()) }
        };
        let former = self.locked(|| match own {
            Some(own) => own.with_packed(carry_out),
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
        let word = self.word(Word::Access);
        net::wait_until(|| if is_exclusive { try_exclusive(word) } else { try_shared(word) })
    }

    /// Releases the target's lock, which this rank has.
    pub(super) fn release(&self) {
        release(self.word(Word::Access));
    }

    fn locked<T>(&self, call: impl FnOnce() -> T) -> Outcome<T> {
        let lock = self.word(Word::Accumulates);
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

fn release(word: &AtomicU32) {
    if word.load(Ordering::Relaxed) & EXCLUSIVE != 0 {
        word.fetch_and(!EXCLUSIVE, Ordering::Release);
    } else {
        word.fetch_sub(1, Ordering::Release);
    }
}

/// Releases a lock, also if the call that holds it panics.
struct Held<'a>(&'a AtomicU32);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_wants_the_lock_for_itself_is_not_overtaken() {
        let word = AtomicU32::new(0);
        assert!(try_shared(&word) && try_shared(&word));
        assert!(!try_exclusive(&word) && !try_shared(&word), "it is wanted");
        release(&word);
        assert!(!try_exclusive(&word), "one rank is left");
        release(&word);
        assert!(!try_shared(&word) && try_exclusive(&word));
        assert!(!try_shared(&word) && !try_exclusive(&word) && !try_exclusive(&word));
        release(&word);
        assert!(!try_shared(&word) && try_exclusive(&word), "two ranks have wanted it");
        release(&word);
        assert!(try_shared(&word));
        release(&word);
        assert_eq!(word.into_inner(), 0);
    }
}
