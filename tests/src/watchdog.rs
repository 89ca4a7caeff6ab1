//! Deadlines for tests: a hang becomes a failure that names itself.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Runs `body` on a thread of its own and returns what it returned.
///
/// # Panics
/// If it is not done within `limit` (the thread is then left alone), or with the panic of `body`.
pub fn within<R: Send + 'static>(
    limit: Duration,
    what: &str,
    body: impl FnOnce() -> R + Send + 'static,
) -> R {
    let (done, ended) = mpsc::channel::<()>();
    let thread = std::thread::Builder::new()
        .name(what.to_owned())
        .spawn(move || {
            // Dropped at the end, also when `body` panics.
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

/// [`within`] half a minute, which is long beside what any test takes.
///
/// # Panics
/// As [`within`].
pub fn bounded<R: Send + 'static>(what: &str, body: impl FnOnce() -> R + Send + 'static) -> R {
    within(Duration::from_secs(30), what, body)
}

/// Runs `body` and tells how long it took.
pub fn timed<R>(body: impl FnOnce() -> R) -> (R, Duration) {
    let start = Instant::now();
    let value = body();
    (value, start.elapsed())
}
