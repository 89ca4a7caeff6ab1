//! Futures without an executor: a thread that sleeps until its waker unparks it.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

/// Unparks a thread, and counts how often.
#[derive(Debug)]
pub struct Unpark {
    thread: Thread,
    /// Number of wake-ups so far.
    pub wakes: AtomicUsize,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.wakes.fetch_add(1, Ordering::SeqCst);
        self.thread.unpark();
    }
}

/// Returns a waker of this thread.
#[must_use]
pub fn unpark() -> Arc<Unpark> {
    Arc::new(Unpark { thread: std::thread::current(), wakes: AtomicUsize::new(0) })
}

/// Runs a future on this thread, which sleeps in between; returns the result and the number of polls.
pub fn run<F: Future>(future: F) -> (F::Output, usize) {
    let mut future = pin!(future);
    let waker = Waker::from(unpark());
    for polls in 1.. {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return (output, polls);
        }
        std::thread::park();
    }
    unreachable!("a thread is not parked so often");
}
