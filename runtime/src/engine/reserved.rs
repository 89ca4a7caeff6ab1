//! Places of operations in the order of their group.

use super::{Engine, GROUPS, Id, Job, Phase};
use crate::call::Form;
use crate::reduce::DefaultFloats;

/// A place for an operation. Later operations of the group wait until it is used or given up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reservation {
    slot: u16,
}

impl Engine {
    /// Reserves the place of the next call. There is [room](Engine::has_room).
    pub(crate) fn reserve(&mut self, form: Form) -> Reservation {
        let group = match form {
            Form::Blocking => 0,
            Form::Started => {
                let turn = self.asynchronous_calls % u64::from(GROUPS - 1);
                self.asynchronous_calls += 1;
                1 + turn as u16
            }
        };
        let slot = self.take_slot();
        self.groups[group as usize].push_back(slot);
        let entry = &mut self.slots[slot as usize];
        (entry.phase, entry.group, entry.forgotten) = (Phase::Reserved, group, false);
        Reservation { slot }
    }

    /// Starts an operation in its place, or queues it.
    ///
    /// # Safety
    /// Until the operation is done or [`Engine::abort`] has returned, the job's buffers are valid and nobody else
    /// touches them.
    pub(crate) unsafe fn start(&mut self, Reservation { slot }: Reservation, mut job: Job) -> Id {
        let _floats = DefaultFloats::enter();
        let entry = &mut self.slots[slot as usize];
        let generation = entry.next_generation();
        entry.keep = job.keep.take();
        self.running += 1;
        if self.groups[entry.group as usize].front() == Some(&slot) {
            // SAFETY: the caller's promise, passed on.
            let launched = unsafe { self.launch(slot, job) };
            self.went_on(slot, launched);
        } else {
            entry.phase = Phase::Queued(Box::new(job));
        }
        Id::Operation { slot, generation }
    }

    /// Gives up the place of a blocking call, and starts the operation that waits for it.
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
