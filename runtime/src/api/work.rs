//! Handles of asynchronous operations.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::communicator::{Core, Deadline, Shared, leak_in_child};
use crate::drive::{self, Ticket};
use crate::engine::Engine;
use crate::error::{Error, Result};

/// An asynchronous operation. It makes progress whether or not a thread waits.
///
/// The operation owns its buffers, so a handle may be dropped or leaked at any time. The operation then goes on, and
/// its buffers are freed when it is done.
///
/// # As a future
/// A handle is also a [`Future`] of the result of [`Work::wait`], for any executor. Awaiting it does not block, and
/// the thread that completes the operation wakes the task. The communicator's time-out counts from the first poll.
/// Dropping the future, as a time-out of the executor does, leaves the operation alone.
///
/// ```
/// # async fn train(comm: &kolo::Communicator) -> kolo::Result<()> {
/// let weights = comm.all_reduce_start(vec![1.0_f32; 1 << 16], kolo::ReduceOp::Sum)?;
/// let biases = comm.all_reduce_start(vec![1.0_f32; 16], kolo::ReduceOp::Sum)?;
/// // Both are under way, while other tasks run on this thread.
/// let (weights, biases) = (weights.await?, biases.await?);
/// # drop((weights, biases));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the result of the operation comes from `wait`"]
pub struct Work<B> {
    shared: Arc<Shared>,
    tickets: Tickets,
    /// Whether the operation's slot in the engine has been given back.
    finished: bool,
    /// End of the communicator's time-out for the task that awaits the handle, if there is one.
    deadline: Option<Deadline>,
    /// Extracts the result from the memory that the operation kept and the source of its message.
    extract: fn(Kept, Option<u32>) -> Option<B>,
}

/// The tickets of an operation, or of the messages of a group.
#[derive(Clone, Debug)]
struct Tickets {
    first: Ticket,
    more: Vec<Ticket>,
}

impl Tickets {
    fn iter(&self) -> impl Iterator<Item = Ticket> {
        std::iter::once(self.first).chain(self.more.iter().copied())
    }
}

/// Lets a second thread wait for an operation that the thread with its handle drives. For bindings.
#[derive(Clone, Debug)]
pub struct SecondWait {
    shared: Arc<Shared>,
    tickets: Tickets,
}

impl SecondWait {
    /// Ends the operation and everything else on the communicator, because this wait's limit has passed. The thread
    /// that has the handle gets the error. Does nothing if the operation is over.
    pub fn time_out(&self, limit: Duration) {
        if !self.shared.is_ours() {
            return;
        }
        let core = self.shared.core();
        let unfinished = self.tickets.iter().find(|ticket| !core.engine.is_done(ticket.id));
        if let Some(Ticket { id, waited }) = unfinished {
            let peers = core.waiting_for(id);
            drop(core);
            drop(drive::time_out(&self.shared, waited, limit, &peers));
        }
    }
}

/// Memory that the engine keeps alive for an operation.
pub(crate) type Kept = Box<dyn Any + Send>;

impl<B: 'static> Work<B> {
    /// Makes a handle whose operation keeps a `B`.
    pub(crate) fn new(shared: Arc<Shared>, ticket: Ticket) -> Self {
        Self::extracting(shared, ticket, |kept, _| kept.downcast::<B>().ok().map(|b| *b))
    }

    /// Makes a handle whose result is a part of the memory that its operation keeps.
    pub(crate) fn extracting(
        shared: Arc<Shared>,
        ticket: Ticket,
        extract: fn(Kept, Option<u32>) -> Option<B>,
    ) -> Self {
        let tickets = Tickets { first: ticket, more: Vec::new() };
        Self { shared, tickets, finished: false, deadline: None, extract }
    }

    /// Makes the handle wait for further messages too. Its result stays that of the first.
    pub(crate) fn with_more(mut self, more: Vec<Ticket>) -> Self {
        self.tickets.more = more;
        self
    }

    /// Returns whether the operation is over, successfully or not. Makes a little progress; never blocks for long.
    ///
    /// If a polled collective needs a rank that has left, it ends (with an error) about a second after anything last
    /// moved on the communicator. A message stays unfinished then, since a program may poll for one that need not
    /// come; [`Work::wait`] returns the error. The communicator's time-out does not apply to polls, between which a
    /// program may do other work.
    #[must_use]
    pub fn is_done(&self) -> bool {
        if !self.shared.is_ours() {
            return true;
        }
        drive::lend(&self.shared, || {
            let mut core = self.shared.core();
            let next = |engine: &Engine| self.tickets.iter().find(|ticket| !engine.is_done(ticket.id));
            let mut unfinished = next(&core.engine);
            if unfinished.is_some() {
                core.progress();
                unfinished = next(&core.engine).filter(|_| core.engine.failure().is_none());
            }
            if let Some(Ticket { id, waited }) = unfinished {
                let is_collective = waited.summary().is_some();
                if is_collective {
                    core.awaited.note_poll(id);
                }
                // Without a helper thread, only this one finds what ends the operation.
                if self.shared.attendance.is_refused() {
                    let must_end = match is_collective {
                        true => drive::must_end(&self.shared, &core, id),
                        false => self.shared.membership.abort_flag().is_raised(),
                    };
                    unfinished = unfinished.filter(|_| !must_end);
                }
            }
            if core.awaited.has_to_wake() {
                drive::wake_tasks(core);
            }
            unfinished.is_none()
        })
    }

    /// Aborts this operation and everything else on the communicator, on all ranks, with `reason`. Returns at once;
    /// [`Work::wait`] then returns the error.
    pub fn abort(&self, reason: &str) {
        drive::abort(&self.shared, reason);
    }

    /// Returns what a thread needs that waits for the thread which has the handle.
    #[doc(hidden)]
    #[must_use]
    pub fn second_wait(&self) -> SecondWait {
        SecondWait { shared: Arc::clone(&self.shared), tickets: self.tickets.clone() }
    }

    /// Waits for the operation and gives its buffer back. Blocks at most as long as the communicator's time-out.
    ///
    /// # Errors
    /// As the blocking form of the call. The buffer is dropped.
    pub fn wait(self) -> Result<B> {
        let limit = self.shared.config.timeout;
        self.wait_within(limit)
    }

    /// Like [`Work::wait`], with a time-out of its own.
    ///
    /// # Errors
    /// See [`Work::wait`].
    pub fn wait_within(mut self, limit: Duration) -> Result<B> {
        self.finish(limit)
    }

    /// Waits for the operation, once. In a child made by `fork` the operation is left alone.
    fn finish(&mut self, limit: Duration) -> Result<B> {
        self.shared.check_process(|| self.tickets.first.waited)?;
        self.await_no_more();
        self.finished = true;
        let (keep, source) = drive::lend(&self.shared, || wait(&self.shared, &self.tickets, limit))?;
        // Each caller of a constructor gives the engine the memory that its `extract` expects.
        Ok(keep
            .and_then(|keep| (self.extract)(keep, source))
            .expect("an operation keeps what its handle promises"))
    }

    /// Returns whether [`Work::finish`] would return at once. Otherwise the task is woken when it would.
    fn is_over_or_wakes(&mut self, task: &Waker) -> bool {
        let mut core = self.shared.core();
        let next = |engine: &Engine| self.tickets.iter().find(|ticket| !engine.is_done(ticket.id));
        if next(&core.engine).is_some() {
            core.progress();
        }
        let next = next(&core.engine);
        // If the cause of a failure is not known yet, the helper thread finds it, and then wakes the task.
        let has_failed = core.engine.failure().is_some() && self.shared.fault.cause().is_some();
        let Some(Ticket { id, waited }) = next.filter(|_| !core.closed && !has_failed) else {
            drive::wake_tasks(core);
            return true;
        };
        let limit = self.shared.config.timeout;
        let limit = || self.shared.time_limit.within(limit.into());
        let deadline = *self.deadline.get_or_insert_with(|| Deadline::after(limit()));
        let replaced = core.awaited.add(id, waited, deadline, task);
        drive::wake_tasks(core);
        drop(replaced);
        if !drive::call_helper(&self.shared) {
            // Without a helper thread only the task itself advances the operation, and finds what ends it.
            if drive::ends_unhelped(&self.shared, id) {
                return true;
            }
            task.wake_by_ref();
        }
        false
    }
}

impl<B: 'static> Future for Work<B> {
    type Output = Result<B>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<B>> {
        if self.finished {
            let problem = "this operation's result was already returned; a completed future must not be \
                           polled again";
            let context = self.shared.context(self.tickets.first.waited);
            return Poll::Ready(Err(Error::Usage { context, problem: problem.to_owned() }));
        }
        let shared = Arc::clone(&self.shared);
        if shared.is_ours() && !drive::lend(&shared, || self.is_over_or_wakes(context.waker())) {
            return Poll::Pending;
        }
        let limit = self.shared.config.timeout;
        Poll::Ready(self.finish(limit))
    }
}

/// Waits for an operation and for further messages. Returns the memory that the operation kept, and the source of its
/// message.
fn wait(shared: &Shared, tickets: &Tickets, limit: Duration) -> Result<(Option<Kept>, Option<u32>)> {
    let first = tickets.first.id;
    let in_turn = tickets.more.iter().copied().chain([tickets.first]);
    let release = |core: &mut Core, id| {
        if id != first {
            core.engine.release(id);
        }
    };
    let waited = drive::wait_for_all(shared, shared.core(), in_turn, limit, release);
    let mut core = waited.inspect_err(|_| {
        // The engine has been aborted, so nothing touches any buffer any more.
        shared.core().engine.release(first);
    })?;
    let source = core.engine.other_end(first);
    Ok((core.engine.finish(first), source))
}

impl<B> Work<B> {
    /// Withdraws the wakers of the task that has awaited this handle.
    fn await_no_more(&mut self) {
        if self.deadline.take().is_some() {
            let mut core = self.shared.core();
            let tasks: Vec<_> =
                self.tickets.iter().filter_map(|ticket| core.awaited.remove(ticket.id)).collect();
            drop(core);
            drop(tasks);
        }
    }
}

impl<B> Drop for Work<B> {
    fn drop(&mut self) {
        if !leak_in_child(&self.shared) && !self.finished {
            for ticket in self.tickets.iter() {
                let mut core = self.shared.core();
                let task = core.awaited.remove(ticket.id);
                core.engine.forget(ticket.id);
                drop(core);
                drop(task);
            }
        }
    }
}
