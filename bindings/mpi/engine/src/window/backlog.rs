//! Operations whose messages have not left yet.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use super::handle_messages::forsake;
use crate::error::Outcome;
use crate::net::{self, Completion};

/// The most bytes that operations of one window keep in memory until they leave, beside those of the last operation.
const BACKLOG_MAX_BYTES: usize = 64 << 20;

/// Messages under way.
#[derive(Debug, Default)]
pub(super) struct Backlog(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    /// Messages with their lengths, the oldest first.
    messages: VecDeque<(Arc<Completion>, usize)>,
    /// The sum of the lengths.
    bytes: usize,
}

impl Backlog {
    /// Adds a message, and waits while too many bytes have not left. A program may start any number of operations before it waits for
    /// them.
    ///
    /// # Errors
    /// If the job has failed meanwhile. Answers no longer write to the program's memory after that.
    pub(super) fn add(&self, done: Arc<Completion>, bytes: usize) -> Outcome {
        if done.is_done() {
            return Ok(());
        }
        let queue = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        queue().add(done, bytes);
        net::wait_until(|| queue().bytes_left() <= BACKLOG_MAX_BYTES).inspect_err(forsake)
    }
}

impl Queue {
    fn add(&mut self, done: Arc<Completion>, bytes: usize) {
        self.messages.push_back((done, bytes));
        self.bytes += bytes;
    }

    /// Forgets messages that have left, up to the first that has not. Returns the bytes of the others.
    fn bytes_left(&mut self) -> usize {
        while self.messages.front().is_some_and(|(done, _)| done.is_done())
            && let Some((_, bytes)) = self.messages.pop_front()
        {
            self.bytes -= bytes;
        }
        self.bytes
    }
}
