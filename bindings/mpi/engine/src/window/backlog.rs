//! Operations whose messages have not left yet.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use super::handle_messages::forsake;
use crate::error::Outcome;
use crate::net::{self, Completion};

/// The most bytes that messages of one window take up in its origin's memory until they leave, beside the last one. Nearly all of them are
/// the data of puts and accumulates. Answers to gets are not counted.
const BACKLOG_MAX_BYTES: usize = 64 << 20;

/// Messages under way.
#[derive(Debug, Default)]
pub(super) struct Backlog(Mutex<Queues>);

/// Messages with their lengths, the oldest first.
type Queue = VecDeque<(Arc<Completion>, usize)>;

#[derive(Debug, Default)]
struct Queues {
    /// Messages by target. Those to one target leave in order, but those to a slow target do not hold up the others.
    by_target: BTreeMap<u32, Queue>,
    /// The sum of the lengths.
    bytes: usize,
}

impl Backlog {
    /// Adds a message to a target, and waits while too many bytes have not left. A program may start any number of operations before it
    /// waits for them.
    ///
    /// # Errors
    /// If the job has failed meanwhile. Answers no longer write to the program's memory after that.
    pub(super) fn add(&self, target: u32, done: Arc<Completion>, bytes: usize) -> Outcome {
        if done.is_done() {
            return Ok(());
        }
        let queues = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        queues().add(target, done, bytes);
        net::wait_until(|| queues().has_room()).inspect_err(forsake)
    }
}

impl Queues {
    fn add(&mut self, target: u32, done: Arc<Completion>, bytes: usize) {
        let queue = self.by_target.entry(target).or_default();
        self.bytes -= forget_left(queue);
        queue.push_back((done, bytes));
        self.bytes += bytes;
    }

    fn has_room(&mut self) -> bool {
        if self.bytes > BACKLOG_MAX_BYTES {
            self.bytes -= self.by_target.values_mut().map(forget_left).sum::<usize>();
        }
        self.bytes <= BACKLOG_MAX_BYTES
    }
}

/// Forgets the messages that have left. Returns the sum of their lengths.
fn forget_left(queue: &mut Queue) -> usize {
    let left = queue.iter().take_while(|(done, _)| done.is_done()).count();
    queue.drain(..left).map(|(_, bytes)| bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_have_left_do_not_count_behind_one_to_a_slow_target() {
        let (mut queues, slow, quick) = (Queues::default(), Completion::new(), Completion::new());
        queues.add(0, slow, 1);
        queues.add(1, Arc::clone(&quick), BACKLOG_MAX_BYTES);
        assert!(!queues.has_room());
        quick.never_came();
        assert!(queues.has_room() && queues.bytes == 1);
    }
}
