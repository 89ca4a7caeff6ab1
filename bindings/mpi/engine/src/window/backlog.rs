//! Operations that take up memory: messages that have not left yet, and answers that have not come.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use kolo_transport::Unpoisoned;

use super::Operation;
use super::handle_messages::forsake;
use crate::error::Outcome;
use crate::net::{self, Completion};

/// The most bytes that the operations of one window take up, beside the last one: in its origin's memory until they leave (nearly all of
/// them are the data of puts and accumulates), and in a target's memory until an answer has left (the data of gets).
const BACKLOG_MAX_BYTES: usize = 64 << 20;

/// Messages under way.
#[derive(Debug, Default)]
pub(super) struct Backlog(Mutex<Queues>);

/// The end of what takes up memory.
#[derive(Debug)]
pub(super) enum Until {
    /// The message has left.
    Sent(Arc<Completion>),
    /// The answer has come.
    Answered(Arc<Operation>),
}

impl Until {
    fn is_over(&self) -> bool {
        match self {
            Self::Sent(done) => done.is_done(),
            Self::Answered(operation) => operation.is_over(),
        }
    }
}

/// Messages and answers with their lengths, the oldest first.
type Queue = VecDeque<(Until, usize)>;

#[derive(Debug, Default)]
struct Queues {
    /// By target. The messages of one target leave, and its answers come, in order, but a slow target does not hold up the others.
    by_target: BTreeMap<u32, Queue>,
    /// The sum of the lengths.
    bytes: usize,
}

impl Backlog {
    /// Adds a message to a target, or its answer, and waits while there are too many bytes. A program may start any number of operations
    /// before it waits for them.
    ///
    /// # Errors
    /// If the job has failed meanwhile. Answers no longer write to the program's memory after that.
    pub(super) fn add(&self, target: u32, until: Until, bytes: usize) -> Outcome {
        if until.is_over() {
            return Ok(());
        }
        let queues = || self.0.lock().unpoisoned();
        queues().add(target, until, bytes);
        net::wait_until(|| queues().has_room()).inspect_err(forsake)
    }
}

impl Queues {
    fn add(&mut self, target: u32, until: Until, bytes: usize) {
        let queue = self.by_target.entry(target).or_default();
        self.bytes -= forget_left(queue);
        queue.push_back((until, bytes));
        self.bytes += bytes;
    }

    fn has_room(&mut self) -> bool {
        if self.bytes > BACKLOG_MAX_BYTES {
            self.bytes -= self.by_target.values_mut().map(forget_left).sum::<usize>();
        }
        self.bytes <= BACKLOG_MAX_BYTES
    }
}

/// Forgets the oldest entries that are over. Returns the sum of their lengths.
fn forget_left(queue: &mut Queue) -> usize {
    let over = queue.iter().take_while(|(until, _)| until.is_over()).count();
    queue.drain(..over).map(|(_, bytes)| bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_have_left_do_not_count_behind_one_to_a_slow_target() {
        let (mut queues, slow, quick) = (Queues::default(), Completion::new(), Completion::new());
        queues.add(0, Until::Sent(slow), 1);
        queues.add(1, Until::Sent(Arc::clone(&quick)), BACKLOG_MAX_BYTES);
        assert!(!queues.has_room());
        quick.never_came();
        assert!(queues.has_room() && queues.bytes == 1);
    }
}
