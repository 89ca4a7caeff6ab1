//! Places among the blocking operations, for calls that do not know yet whether they become operations.

use super::{Engine, Id, Job, Phase};

/// A place among the blocking operations. Later operations wait until it is used or given up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reservation {
    slot: u16,
}

impl Engine {
    /// Reserves the next place. There is [room](Engine::has_room).
    pub(crate) fn reserve(&mut self) -> Reservation {
        Reservation { slot: self.join_group(0) }
    }

    /// Starts a blocking operation in its place, or queues it.
    ///
    /// # Safety
    /// See [`Engine::start`].
    pub(crate) unsafe fn start_reserved(&mut self, reservation: Reservation, job: Job) -> Id {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.start_in(reservation.slot, job) }
    }

    /// Gives a place up, and starts the operation that waits for it.
    pub(crate) fn unreserve(&mut self, Reservation { slot }: Reservation) {
        self.groups[0].retain(|other| *other != slot);
        self.slots[slot as usize].phase = Phase::Free;
        self.free.push(slot);
        let waits = self.groups[0].front().map(|first| &self.slots[*first as usize].phase);
        if matches!(waits, Some(Phase::Queued(_))) {
            self.start_first(0);
            // Its thread may sleep, with nothing to look at until now.
            self.rouse();
        }
    }
}
