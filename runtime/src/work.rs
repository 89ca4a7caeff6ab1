//! Handles of asynchronous operations.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use crate::comm::{Shared, Ticket};
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
    /// Whether the slot in the engine has been given back.
    finished: bool,
    /// Gets the result out of what the operation kept.
    extract: fn(Kept) -> Option<B>,
}

/// What the engine keeps alive for an operation.
pub(crate) type Kept = Box<dyn Any + Send>;

impl<B: 'static> Work<B> {
    /// A handle whose operation keeps a `B`.
    pub(crate) fn new(shared: Arc<Shared>, ticket: Ticket) -> Self {
        Self::extracting(shared, ticket, |kept| kept.downcast::<B>().ok().map(|b| *b))
    }

    /// A handle whose result is a part of what its operation keeps.
    pub(crate) fn extracting(shared: Arc<Shared>, ticket: Ticket, extract: fn(Kept) -> Option<B>) -> Self {
        Self { shared, ticket, finished: false, extract }
    }

    /// Whether the operation is over. Makes a little progress; never blocks for long.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let mut core = self.shared.core();
        core.engine.is_done(self.ticket.id) || {
            core.engine.turn();
            core.engine.is_done(self.ticket.id) || core.engine.failure().is_some()
        }
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
        let Ticket { id, waited } = self.ticket;
        self.finished = true;
        let core = self.shared.core();
        let result = self.shared.wait_for(core, id, waited, limit);
        let mut core = match result {
            Ok(core) => core,
            Err(error) => {
                // The engine has been aborted: nothing touches the buffer any more.
                drop(self.shared.core().engine.finish(id));
                return Err(error);
            }
        };
        let keep = core.engine.finish(id);
        self.shared.end(&mut core, waited);
        drop(core);
        // Every caller of a constructor hands the engine what `extract` expects.
        Ok(keep.and_then(self.extract).expect("an operation keeps what its handle promises"))
    }
}

impl<B> Drop for Work<B> {
    fn drop(&mut self) {
        if !self.finished {
            self.shared.forget(self.ticket);
        }
    }
}
