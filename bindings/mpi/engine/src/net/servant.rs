//! The servant: a thread that advances messages while the program cannot, inside Kolo's collectives and for windows.
//!
//! While a thread is inside a collective, its rank may still have to answer an earlier message, or to take an unexpected message off its
//! ring so that the sender can go on. If operations are pending, the servant starts at once; otherwise it starts after a moment, so that a
//! collective does not cost a wake-up.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use super::PENDING;

/// Threads inside collectives.
static ABSENT: AtomicUsize = AtomicUsize::new(0);
/// Windows whose owners need not call MPI for accesses to make progress.
static WINDOWS: AtomicUsize = AtomicUsize::new(0);
static STOP: AtomicBool = AtomicBool::new(false);
static SERVANT: Mutex<Option<JoinHandle<()>>> = Mutex::new(None);

/// The interval at which the servant checks whether it is needed. A sender whose ring is full waits at most this long.
const LOOK: Duration = Duration::from_millis(10);
/// The pause between two polls that moved nothing: at first, and at most.
const PAUSE: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(1);

/// Starts the servant.
pub(super) fn start() {
    let thread = Builder::new().name("kolo-mpi".to_owned()).spawn(run);
    *SERVANT.lock().unwrap_or_else(PoisonError::into_inner) = thread.ok();
}

/// Ends the servant.
pub(crate) fn stop() {
    STOP.store(true, Ordering::Release);
    let servant = SERVANT.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(servant) = servant {
        servant.thread().unpark();
        let _ = servant.join();
    }
}

fn run() {
    let mut pause = PAUSE;
    while !STOP.load(Ordering::Acquire) {
        let needed = ABSENT.load(Ordering::Relaxed) > 0 || WINDOWS.load(Ordering::Relaxed) > 0;
        if !needed {
            sleep_until_woken(LOOK);
            pause = PAUSE;
            continue;
        }
        if super::poll_once() {
            pause = PAUSE;
        } else {
            sleep_until_woken(pause);
            pause = (pause * 5 / 4).min(PAUSE_MAX);
        }
    }
}

fn sleep_until_woken(limit: Duration) {
    std::thread::park_timeout(limit);
}

fn wake() {
    if let Some(servant) = &*SERVANT.lock().unwrap_or_else(PoisonError::into_inner) {
        servant.thread().unpark();
    }
}

/// A guard: while it exists, its thread does not poll.
#[derive(Debug)]
pub struct Absence(());

impl Absence {
    /// Begins the absence.
    #[must_use]
    pub fn begin() -> Self {
        ABSENT.fetch_add(1, Ordering::Relaxed);
        if PENDING.load(Ordering::Relaxed) > 0 {
            wake();
        }
        Self(())
    }
}

impl Drop for Absence {
    fn drop(&mut self) {
        ABSENT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts a window that is made (`more`) or freed.
pub fn serve_windows(more: bool) {
    if more {
        WINDOWS.fetch_add(1, Ordering::Relaxed);
        wake();
    } else {
        WINDOWS.fetch_sub(1, Ordering::Relaxed);
    }
}
