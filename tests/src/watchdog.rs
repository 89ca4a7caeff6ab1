//! Deadlines for tests: a hang becomes a failure that names itself.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use kolo_transport::Unpoisoned;

/// Runs `body` on a thread of its own and returns its result.
///
/// # Panics
/// If `body` does not end within `limit` (its thread is then left alone), or with the panic of `body`.
pub fn within<R: Send + 'static>(
    limit: Duration,
    what: &str,
    body: impl FnOnce() -> R + Send + 'static,
) -> R {
    let (done, ended) = mpsc::channel::<()>();
    let thread = std::thread::Builder::new()
        .name(what.to_owned())
        .spawn(move || {
            // Dropped at the end, even if `body` panics.
            let _done = done;
            body()
        })
        .unwrap_or_else(|error| panic!("{what}: no thread: {error}"));
    match ended.recv_timeout(limit) {
        Ok(()) | Err(RecvTimeoutError::Disconnected) => {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        }
        Err(RecvTimeoutError::Timeout) => panic!("{what}: hangs; not done after {limit:?}"),
    }
}

/// [`within`] half a minute, which is long compared to any test.
///
/// # Panics
/// As [`within`].
pub fn bounded<R: Send + 'static>(what: &str, body: impl FnOnce() -> R + Send + 'static) -> R {
    within(Duration::from_secs(30), what, body)
}

/// Runs `body`; returns its result and its duration.
pub fn timed<R>(body: impl FnOnce() -> R) -> (R, Duration) {
    let start = Instant::now();
    let value = body();
    (value, start.elapsed())
}

/// Returns the shortest of several runs: the duration if nothing else uses the processor.
pub fn quickest(mut body: impl FnMut()) -> Duration {
    (0..10).map(|_| timed(&mut body).1).min().unwrap_or_default()
}

/// A barrier for the test's own threads, independent of the code under test. Fails instead of hanging if one of them
/// has panicked.
#[derive(Debug)]
pub struct Gate {
    threads: usize,
    arrived: Mutex<usize>,
    moved: Condvar,
}

impl Gate {
    /// Makes a barrier for `threads` threads.
    #[must_use]
    pub const fn new(threads: usize) -> Self {
        Self { threads, arrived: Mutex::new(0), moved: Condvar::new() }
    }

    /// Waits until all threads have called as often as this one.
    ///
    /// # Panics
    /// If they do not call within 15 seconds.
    pub fn wait(&self) {
        let mut arrived = self.arrived.lock().unpoisoned();
        *arrived += 1;
        let all = arrived.next_multiple_of(self.threads);
        self.moved.notify_all();
        let until = Instant::now() + Duration::from_secs(15);
        while *arrived < all {
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "another thread of the test does not come");
            (arrived, _) = self.moved.wait_timeout(arrived, left).unpoisoned();
        }
    }
}
