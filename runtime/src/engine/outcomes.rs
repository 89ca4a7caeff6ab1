//! Operations and transfers that are done, and the owners of their buffers.

use super::{Engine, Id, Owner, Phase};

impl Engine {
    /// Returns whether `id` is done (or never existed, or exists no more).
    pub(crate) fn is_done(&self, id: Id) -> bool {
        match id {
            Id::Operation { slot, generation } => {
                let entry = &self.slots[slot as usize];
                // A slot with another generation serves a later operation, and a reserved one will.
                entry.generation != generation
                    || matches!(entry.phase, Phase::Reserved | Phase::Done | Phase::Free)
            }
            Id::Transfer { slot, generation } => self.transfers.is_done(slot, generation),
        }
    }

    /// Returns whether there are collectives that are not done.
    pub(crate) fn has_open_collectives(&self) -> bool {
        self.running > 0
    }

    /// Returns the number of operations and transfers that are not done and may still matter to somebody when the
    /// communicator ends.
    pub(crate) fn needed_at_end(&self) -> usize {
        self.running + self.transfers.needed_at_end()
    }

    /// Gives an operation that is not done the number by which [`next_ended`](Self::next_ended) reports its end,
    /// whether or not anybody waits for it.
    pub(crate) fn number(&mut self, id: Id, number: u64) {
        if let Id::Operation { slot, .. } = id {
            self.slots[slot as usize].number = Some(number);
        }
    }

    /// Returns the number of an operation that has ended and was not yet reported.
    #[inline]
    pub(crate) fn next_ended(&mut self) -> Option<u64> {
        self.ended.pop()
    }

    /// Frees the slot of an operation that is done, and returns the buffers that it kept.
    pub(crate) fn finish(&mut self, id: Id) -> Option<Owner> {
        match id {
            Id::Operation { slot, .. } => {
                let entry = &mut self.slots[slot as usize];
                entry.number = None;
                entry.end(Phase::Free);
                self.free.push(slot);
                entry.keep.take()
            }
            Id::Transfer { slot, .. } => self.transfers.finish(slot),
        }
    }

    /// Frees the slot of an operation that is done, and releases the buffers that it kept.
    pub(crate) fn release(&mut self, id: Id) {
        let owner = self.finish(id);
        self.released.extend(owner);
    }

    /// Returns whether there are released owners.
    #[inline]
    pub(crate) fn has_released(&self) -> bool {
        !self.released.is_empty() || !self.transfers.released.is_empty()
    }

    /// Returns the released owners.
    #[must_use = "to be dropped once the communicator is unlocked"]
    pub(crate) fn take_released(&mut self) -> Vec<Owner> {
        let mut released = std::mem::take(&mut self.released);
        released.append(&mut self.transfers.released);
        released
    }

    /// Notes that nobody needs the result of `id` any more.
    pub(crate) fn forget(&mut self, id: Id) {
        if self.is_done(id) {
            self.release(id);
            return;
        }
        match id {
            Id::Operation { slot, .. } => self.slots[slot as usize].forgotten = true,
            Id::Transfer { slot, .. } => self.transfers.forget(slot),
        }
    }
}
