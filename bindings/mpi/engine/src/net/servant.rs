//! The thread that advances messages while the program cannot: inside a collective of Kolo's, and for windows.
//!
//! While a thread is inside a collective, an earlier message of its rank may still have to be answered, or one that nobody
//! expects be taken off its ring so that its sender gets on. Where something is pending the servant starts at once, else after
//! a moment, so that a collective costs no wake-up.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use super::PENDING;

/// Threads inside collectives.
static ABSENT: AtomicUsize = AtomicUsize::new(0);
/// Windows whose owners need not call.
static WINDOWS: AtomicUsize = AtomicUsize::new(0);
static STOP: AtomicBool = AtomicBool::new(false);
static SERVANT: Mutex<Option<JoinHandle<()>>> = Mutex::new(None);

/// How often the servant looks whether it is needed: a sender whose ring is full waits for so long at most.
const LOOK: Duration = Duration::from_millis(10);
/// Between two polls that moved nothing: at first, and after a while.
const PAUSE: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(1);

/// Starts it.
pub(super) fn start() {
    let thread = Builder::new().name("kolo-mpi".to_owned()).spawn(run);
    *SERVANT.lock().unwrap_or_else(PoisonError::into_inner) = thread.ok();
}

/// Ends it.
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

/// While it lives, this thread does not poll.
#[derive(Debug)]
pub struct Absence(());

impl Absence {
    /// Begins.
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

/// There is one window more, or one less.
pub fn serve_windows(more: bool) {
    if more {
        WINDOWS.fetch_add(1, Ordering::Relaxed);
        wake();
    } else {
        WINDOWS.fetch_sub(1, Ordering::Relaxed);
    }
}
