//! Operations on memory that the origin shares with the target. They take no message, and are complete when their calls return.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use super::Window;
use super::handle_messages::{carry_out, refusal};
use super::operations::Own;
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

/// A target's part of a window, in this process.
pub(super) struct Near<'a> {
    memory: *mut u8,
    lock: &'a AtomicU32,
    /// Whether the target is this rank, whose buffers may overlap with its own part.
    is_self: bool,
}

impl Window {
    /// Returns the part of a rank, if this process has mapped it.
    pub(super) fn near(&self, rank: u32) -> Option<Near<'_>> {
        let segment = self.segment.as_ref()?;
        let memory = segment.address(rank as usize) as *mut u8;
        Some(Near { memory, lock: segment.lock(rank as usize), is_self: rank == self.comm.rank })
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

    fn locked<T>(&self, call: impl FnOnce() -> T) -> Outcome<T> {
        net::wait_until(|| self.lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok())?;
        let _held = Held(self.lock);
        Ok(call())
    }
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
