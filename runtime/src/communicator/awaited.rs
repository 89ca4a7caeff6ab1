//! Tasks that await started operations and are to be woken when these are over.
//!
//! Wakers are users' code: they may take locks, run a task, or drop the last reference to one, with handles of
//! operations in it. No thread may therefore wake or drop a waker while it holds the core. It takes the wakers from
//! here, and releases the core first.

use std::task::Waker;
use std::time::{Duration, Instant};

use super::time_limit::Limit;
use crate::call::Waited;
use crate::engine::{Engine, Id};

/// Operations that tasks await.
#[derive(Debug, Default)]
pub(crate) struct Awaited {
    waiting: Vec<Awaiting>,
    /// Tasks whose operation is over, and that are not yet woken.
    to_wake: Vec<Waker>,
    /// The collectives that the program polls. They have no time limit, since a program may do other work between polls.
    polled: Vec<Id>,
}

#[derive(Debug)]
struct Awaiting {
    id: Id,
    waited: Waited,
    deadline: Deadline,
    waker: Waker,
}

/// The moment at which a task will have waited for too long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    /// The limit that the task was given.
    pub(crate) limit: Duration,
    /// End of the limit; `None` without a limit.
    pub(crate) at: Option<Instant>,
}

impl Deadline {
    /// Returns the deadline of a wait that begins now.
    pub(crate) fn after(limit: Limit) -> Self {
        Self { limit: limit.named, at: Instant::now().checked_add(limit.left) }
    }
}

impl Awaited {
    /// Lets this task be woken when the operation is over. Returns the waker that it replaces.
    #[must_use = "dropped once the core is free"]
    pub(crate) fn add(&mut self, id: Id, waited: Waited, deadline: Deadline, waker: &Waker) -> Option<Waker> {
        match self.waiting.iter_mut().find(|awaiting| awaiting.id == id) {
            Some(known) if known.waker.will_wake(waker) => None,
            Some(known) => Some(std::mem::replace(&mut known.waker, waker.clone())),
            None => {
                self.waiting.push(Awaiting { id, waited, deadline, waker: waker.clone() });
                None
            }
        }
    }

    /// Forgets the task that awaits the operation. Returns its waker.
    #[must_use = "dropped once the core is free"]
    pub(crate) fn remove(&mut self, id: Id) -> Option<Waker> {
        let at = self.waiting.iter().position(|awaiting| awaiting.id == id)?;
        Some(self.waiting.remove(at).waker)
    }

    /// Notes that the program polls a collective, and found that it is not over.
    pub(crate) fn note_poll(&mut self, id: Id) {
        if !self.polled.contains(&id) {
            self.polled.push(id);
        }
    }

    /// Notes that the program will not poll the operation any more.
    pub(crate) fn forget_poll(&mut self, id: Id) {
        self.polled.retain(|polled| *polled != id);
    }

    /// Returns the collectives that the program polls. Some may be over.
    pub(crate) fn polled(&self) -> &[Id] {
        &self.polled
    }

    /// Finds out which operations are over.
    #[inline]
    pub(super) fn look(&mut self, engine: &Engine) {
        if !self.polled.is_empty() {
            self.polled.retain(|id| !engine.is_done(*id));
        }
        if !self.waiting.is_empty() {
            let over = self.waiting.extract_if(.., |awaiting| engine.is_done(awaiting.id));
            self.to_wake.extend(over.map(|awaiting| awaiting.waker));
        }
    }

    /// Returns whether there is a task to wake.
    #[inline]
    pub(crate) fn has_to_wake(&self) -> bool {
        !self.to_wake.is_empty()
    }

    /// Returns the tasks to wake.
    #[must_use = "to be woken once the core is free"]
    pub(crate) fn take_to_wake(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.to_wake)
    }

    /// Returns all tasks, since the communicator ends.
    #[must_use = "to be woken once the core is free"]
    pub(crate) fn take_all(&mut self) -> Vec<Waker> {
        let mut all = self.take_to_wake();
        all.extend(self.waiting.drain(..).map(|awaiting| awaiting.waker));
        all
    }

    /// Returns the operation that a task has awaited for longest.
    pub(crate) fn first(&self) -> Option<(Id, Waited)> {
        self.waiting.first().map(|awaiting| (awaiting.id, awaiting.waited))
    }

    /// Returns an operation that a task has awaited for longer than its limit, with that limit.
    pub(crate) fn overdue(&self) -> Option<(Id, Waited, Duration)> {
        if self.waiting.is_empty() {
            return None;
        }
        let now = Instant::now();
        let late = self.waiting.iter().find(|awaiting| awaiting.deadline.at.is_some_and(|at| at <= now))?;
        Some((late.id, late.waited, late.deadline.limit))
    }
}
