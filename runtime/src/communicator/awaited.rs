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

/// Operations that are looked after although no thread waits for them: tasks await them, or the program polls them.
#[derive(Debug, Default)]
pub(crate) struct Awaited {
    open: Vec<Awaiting>,
    /// Tasks whose operation is over, and that are not yet woken.
    to_wake: Vec<Waker>,
}

#[derive(Debug)]
struct Awaiting {
    id: Id,
    /// The task to wake. A program that polls a collective has none, and no time limit either, since it may do other work
    /// between polls.
    task: Option<Task>,
}

#[derive(Debug)]
struct Task {
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
        match self.open.iter_mut().find(|awaiting| awaiting.id == id).and_then(|known| known.task.as_mut()) {
            Some(known) if known.waker.will_wake(waker) => None,
            Some(known) => Some(std::mem::replace(&mut known.waker, waker.clone())),
            None => {
                self.open.retain(|polled| polled.id != id);
                self.open.push(Awaiting { id, task: Some(Task { waited, deadline, waker: waker.clone() }) });
                None
            }
        }
    }

    /// Notes that the program polls a collective, and found that it is not over.
    pub(crate) fn note_poll(&mut self, id: Id) {
        if !self.open.iter().any(|awaiting| awaiting.id == id) {
            self.open.push(Awaiting { id, task: None });
        }
    }

    /// Forgets an operation that is neither awaited nor polled any more. Returns the waker of its task.
    #[must_use = "dropped once the core is free"]
    pub(crate) fn remove(&mut self, id: Id) -> Option<Waker> {
        let at = self.open.iter().position(|awaiting| awaiting.id == id)?;
        self.open.remove(at).task.map(|task| task.waker)
    }

    /// Returns the operations. Some may be over.
    pub(super) fn operations(&self) -> impl Iterator<Item = Id> {
        self.open.iter().map(|awaiting| awaiting.id)
    }

    /// Finds out which operations are over.
    #[inline]
    pub(super) fn look(&mut self, engine: &Engine) {
        if !self.open.is_empty() {
            let over = self.open.extract_if(.., |awaiting| engine.is_done(awaiting.id));
            self.to_wake.extend(over.filter_map(|awaiting| awaiting.task).map(|task| task.waker));
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
        all.extend(self.open.drain(..).filter_map(|awaiting| awaiting.task).map(|task| task.waker));
        all
    }

    fn tasks(&self) -> impl Iterator<Item = (Id, &Task)> {
        self.open.iter().filter_map(|awaiting| Some((awaiting.id, awaiting.task.as_ref()?)))
    }

    /// Returns the operation that a task has awaited for longest.
    pub(crate) fn first(&self) -> Option<(Id, Waited)> {
        self.tasks().next().map(|(id, task)| (id, task.waited))
    }

    /// Returns an operation that a task has awaited for longer than its limit, with that limit.
    pub(crate) fn overdue(&self) -> Option<(Id, Waited, Duration)> {
        if self.open.is_empty() {
            return None;
        }
        let now = Instant::now();
        let (id, late) = self.tasks().find(|(_, task)| task.deadline.at.is_some_and(|at| at <= now))?;
        Some((id, late.waited, late.deadline.limit))
    }
}
