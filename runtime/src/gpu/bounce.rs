//! Bounce buffers for calls on GPU memory that take the exchange: the call runs on copies in pinned host memory.
//!
//! Ranks with host memory take the same path, and see no difference.

use kolo_collectives::plan::{Collective, Placement};
use kolo_gdr::Copies;
use kolo_transport::Error;

use crate::call::Call;
use crate::engine::{Staging, failed};

/// Alignment of buffers: two cache lines.
const ALIGN: usize = 128;

/// Most pinned memory that is kept between calls. Calls that wait for their turn get more
/// bounce buffers until those in use are longer than this.
const KEPT_BYTES: usize = 64 << 20;

/// Pinned memory and the stream that fills and empties it. Both are kept between calls.
#[derive(Debug)]
pub(crate) struct Bounce {
    // Declared first, so that copies settle before the memory is freed.
    copies: Option<Copies<()>>,
    memory: Staging,
    /// Copies to be made before the call, and after it.
    load: Option<Part>,
    store: Option<Part>,
}

/// A copy: source, target, bytes.
type Part = (*const u8, *mut u8, usize);

// SAFETY: the parts name the caller's memory, which stays as it is until the copies are over, and the bounce buffer's
// own.
unsafe impl Send for Bounce {}

impl Default for Bounce {
    fn default() -> Self {
        Self { copies: None, memory: Staging::new(), load: None, store: None }
    }
}

impl Bounce {
    /// Makes room for those buffers of a call that are GPU memory. Returns a call on that room.
    pub(crate) fn prepare(&mut self, call: &Call) -> Result<Call, Error> {
        let (input, output) = call.bytes();
        let in_place = call.placement == Placement::InPlace;
        let mut bounced = call.clone();
        bounced.gpus = None;
        (self.load, self.store) = (None, None);
        let Some(gpu) = call.gpus().any() else { return Ok(bounced) };
        // In place, one buffer lies within the other.
        let room = if in_place { input.max(output) } else { input.next_multiple_of(ALIGN) + output };
        self.memory.reserve(room.max(1));
        self.memory.pin(gpu)?;
        if self.copies.as_ref().is_none_or(|copies| copies.gpu().number() != gpu.number()) {
            self.copies = Some(Copies::new(gpu).map_err(failed)?);
        }
        let start = self.memory.ptr();
        let (from, to) = if in_place {
            let longer = if input > output { call.input } else { call.output.cast_const() };
            let at = |address: *const u8| start.wrapping_add(address.addr().wrapping_sub(longer.addr()));
            (at(call.input), at(call.output))
        } else {
            (start, start.wrapping_add(input.next_multiple_of(ALIGN)))
        };
        if call.gpus().input.is_some() {
            bounced.input = from;
            self.load = Some((call.input, from, input)).filter(|part| part.2 > 0);
        }
        if call.gpus().output.is_some() {
            bounced.output = to;
            let left_alone = call.collective == Collective::ExScan && call.member.rank == 0;
            self.store =
                Some((to.cast_const(), call.output, output)).filter(|part| part.2 > 0 && !left_alone);
        }
        Ok(bounced)
    }

    /// Starts to copy the call's input. Returns the number of bytes.
    ///
    /// # Safety
    /// The buffers of the prepared call are valid until the copies are over.
    pub(crate) unsafe fn load(&mut self) -> Result<usize, Error> {
        let part = self.load.take();
        // SAFETY: the caller's promise, passed on.
        unsafe { self.start(part) }
    }

    /// Starts to copy the call's output. Returns the number of bytes.
    ///
    /// # Safety
    /// See [`Bounce::load`].
    pub(crate) unsafe fn store(&mut self) -> Result<usize, Error> {
        let part = self.store.take();
        // SAFETY: the caller's promise, passed on.
        unsafe { self.start(part) }
    }

    /// # Safety
    /// As [`Bounce::load`], of a part of that call.
    unsafe fn start(&mut self, part: Option<Part>) -> Result<usize, Error> {
        let Some((part, copies)) = part.zip(self.copies.as_mut()) else { return Ok(0) };
        // SAFETY: the host's side is pinned memory of this bounce buffer and long enough; the copies are settled before
        // it is freed. The rest is the caller's promise.
        unsafe { copies.start([part], ()) }.map_err(failed)?;
        Ok(part.2)
    }

    /// Returns whether the started copies are over.
    pub(crate) fn poll(&mut self) -> Result<bool, Error> {
        let Some(copies) = &mut self.copies else { return Ok(true) };
        while !copies.is_idle() {
            if copies.poll().map_err(failed)?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the length of its memory.
    pub(crate) fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.copies.as_ref().is_none_or(Copies::is_idle)
    }

    /// Waits until no copy is under way.
    pub(crate) fn settle(&mut self) {
        if let Some(copies) = &mut self.copies {
            copies.settle();
        }
    }
}

/// Bounce buffers that are not in use, and the bytes copied through all of them.
#[derive(Debug, Default)]
pub(crate) struct Bounces {
    free: Vec<Bounce>,
    pub(crate) loaded_bytes: u64,
    pub(crate) stored_bytes: u64,
}

impl Bounces {
    /// Takes a bounce buffer for a call, which becomes a call on that buffer, and starts to copy the input.
    ///
    /// # Errors
    /// If the GPU's driver refuses.
    ///
    /// # Safety
    /// See [`Bounce::load`].
    pub(crate) unsafe fn load(&mut self, call: &mut Call) -> Result<Box<Bounce>, Error> {
        let mut bounce = Box::new(self.free.pop().unwrap_or_default());
        *call = bounce.prepare(call)?;
        // SAFETY: the caller's promise.
        self.loaded_bytes += unsafe { bounce.load() }? as u64;
        Ok(bounce)
    }

    /// Returns whether a call may get a bounce buffer before its turn, while others have `taken` bytes of them.
    pub(crate) fn has_room(taken: usize) -> bool {
        taken <= KEPT_BYTES
    }

    /// Keeps a bounce buffer for a later call.
    pub(crate) fn give_back(&mut self, bounce: Bounce) {
        let kept: usize = self.free.iter().map(Bounce::bytes).sum();
        if kept + bounce.bytes() <= KEPT_BYTES {
            self.free.push(bounce);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_kept_is_bounded_together() {
        let mut bounces = Bounces::default();
        for _ in 0..24 {
            let mut bounce = Bounce::default();
            bounce.memory.reserve(KEPT_BYTES / 4);
            bounces.give_back(bounce);
        }
        assert_eq!(bounces.free.len(), 4);
    }
}
