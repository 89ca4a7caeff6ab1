//! Where threads wait for their turns.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex};

use kolo_transport::Unpoisoned;

use super::SLEEP_MAX;

/// A place where threads sleep until the calls before theirs are over.
#[derive(Debug, Default)]
pub(crate) struct Turnstile {
    /// Number of finished turns that threads were last told.
    over: Mutex<u64>,
    moved: Condvar,
    sleepers: AtomicU32,
}

impl Turnstile {
    /// Notes that a thread is about to [`sleep`](Self::sleep). It does so while it holds the lock under which turns
    /// end.
    pub(crate) fn announce(&self) {
        self.sleepers.fetch_add(1, Ordering::Relaxed);
    }

    /// Sleeps while no more than `over` turns are over, at most [`SLEEP_MAX`]. Allowed only after
    /// [`announce`](Self::announce).
    pub(crate) fn sleep(&self, over: u64) {
        let told = self.over.lock().unpoisoned();
        if *told <= over {
            drop(self.moved.wait_timeout(told, SLEEP_MAX).unpoisoned());
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Reports that `over` turns are over, and wakes sleeping threads. Called under the lock under which turns end.
    #[inline]
    pub(crate) fn tell(&self, over: u64) {
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            *self.over.lock().unpoisoned() = over;
            self.moved.notify_all();
        }
    }
}
