//! Handles of asynchronous operations.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::communicator::{Shared, leak_in_child};
use crate::drive::{self, Ticket};
use crate::engine::Engine;
use crate::error::Result;

/// An asynchronous operation. It makes progress whether or not anybody waits.
///
/// The operation owns its buffers, so a handle may be dropped or leaked at any time: the operation then goes on and the
/// buffers are freed when it is done.
#[derive(Debug)]
#[must_use = "the result of the operation comes from `wait`"]
pub struct Work<B> {
    shared: Arc<Shared>,
    ticket: Ticket,
    /// The others of a group of messages.
    more: Vec<Ticket>,
    /// Whether the slot in the engine has been given back.
    finished: bool,
    /// Gets the result out of what the operation kept, and where its message came from.
    extract: fn(Kept, Option<u32>) -> Option<B>,
}

/// What the engine keeps alive for an operation.
pub(crate) type Kept = Box<dyn Any + Send>;

impl<B: 'static> Work<B> {
    /// A handle whose operation keeps a `B`.
    pub(crate) fn new(shared: Arc<Shared>, ticket: Ticket) -> Self {
        Self::extracting(shared, ticket, |kept, _| kept.downcast::<B>().ok().map(|b| *b))
    }

    /// A handle whose result is a part of what its operation keeps.
    pub(crate) fn extracting(
        shared: Arc<Shared>,
        ticket: Ticket,
        extract: fn(Kept, Option<u32>) -> Option<B>,
    ) -> Self {
        Self { shared, ticket, more: Vec::new(), finished: false, extract }
    }

    /// The handle of several messages; it gives the result of this one.
    pub(crate) fn with_more(mut self, more: Vec<Ticket>) -> Self {
        self.more = more;
        self
    }

    /// Whether the operation is over. Makes a little progress; never blocks for long.
    #[must_use]
    pub fn is_done(&self) -> bool {
        if !self.shared.is_ours() {
            return true;
        }
        let mut core = self.shared.core();
        let is_done = |engine: &Engine| self.tickets().all(|ticket| engine.is_done(ticket.id));
        is_done(&core.engine) || {
            core.progress();
            is_done(&core.engine) || core.engine.failure().is_some()
        }
    }

    /// Gives up: this operation and everything else on the communicator, on all ranks, fails with `reason`. Returns at
    /// once; [`Work::wait`] then gives the error.
    pub fn abort(&self, reason: &str) {
        drive::abort(&self.shared, reason);
    }

    fn tickets(&self) -> impl Iterator<Item = Ticket> {
        std::iter::once(self.ticket).chain(self.more.iter().copied())
    }

    /// Waits for the operation and gives back its buffer. Blocks, at most as long as the communicator's time-out.
    ///
    /// # Errors
    /// As the blocking form of the call. The buffer is dropped.
    pub fn wait(self) -> Result<B> {
        let limit = self.shared.config.timeout;
        self.wait_within(limit)
    }

    /// As [`Work::wait`], with a time-out of its own.
    ///
    /// # Errors
    /// As [`Work::wait`].
    pub fn wait_within(mut self, limit: Duration) -> Result<B> {
        // In a child made by `fork` this is dropped, which leaves the operation alone.
        self.shared.check_process(|| self.ticket.waited)?;
        self.finished = true;
        let begin = (!self.more.is_empty()).then(Instant::now);
        for Ticket { id, waited } in std::mem::take(&mut self.more) {
            let left = limit.saturating_sub(begin.map_or(Duration::ZERO, |begin| begin.elapsed()));
            match drive::wait_for(&self.shared, self.shared.core(), id, waited, left) {
                Ok(mut core) => drop(core.engine.finish(id)),
                Err(error) => {
                    // The engine has been aborted: nothing touches any buffer any more.
                    drop(self.shared.core().engine.finish(self.ticket.id));
                    return Err(error);
                }
            }
        }
        let Ticket { id, waited } = self.ticket;
        let left = limit.saturating_sub(begin.map_or(Duration::ZERO, |begin| begin.elapsed()));
        let mut core = match drive::wait_for(&self.shared, self.shared.core(), id, waited, left) {
            Ok(core) => core,
            Err(error) => {
                // As above.
                drop(self.shared.core().engine.finish(id));
                return Err(error);
            }
        };
        let source = core.engine.other_end(id);
        let keep = core.engine.finish(id);
        drive::end(&self.shared, &mut core, waited);
        drop(core);
        // Every caller of a constructor hands the engine what `extract` expects.
        Ok(keep
            .and_then(|keep| (self.extract)(keep, source))
            .expect("an operation keeps what its handle promises"))
    }
}

impl<B> Drop for Work<B> {
    fn drop(&mut self) {
        if !leak_in_child(&self.shared) && !self.finished {
            for ticket in std::iter::once(self.ticket).chain(self.more.drain(..)) {
                self.shared.core().engine.forget(ticket.id);
            }
        }
    }
}
