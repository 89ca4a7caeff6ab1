//! The thread that advances messages while the program cannot: inside a collective of Kolo's, and for windows.
//!
//! While a thread is inside a collective, an earlier message of its rank may still have to be answered, or one that nobody
//! expects be taken off its ring so that its sender gets on. Where something is pending the servant starts at once, else once a
//! collective has lasted for a while, so that short ones cost no wake-up.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use super::PENDING;

/// Threads inside collectives in the lower half, and in the upper one how often a thread has gone there.
static ABSENT: AtomicU64 = AtomicU64::new(0);
const ONCE: u64 = 1 << 32;
/// Whether only one thread at a time calls.
static ONE_CALLS: AtomicBool = AtomicBool::new(false);
/// Windows whose owners need not call.
static WINDOWS: AtomicUsize = AtomicUsize::new(0);
static STOP: AtomicBool = AtomicBool::new(false);
static SERVANT: Mutex<Option<JoinHandle<()>>> = Mutex::new(None);

/// How often the servant looks whether it is needed: a sender whose ring is full waits for twice as long at most.
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
    let (mut pause, mut before) = (PAUSE, 0);
    while !STOP.load(Ordering::Acquire) {
        let absent = ABSENT.load(Ordering::Relaxed);
        let same = std::mem::replace(&mut before, absent) == absent;
        let inside = absent % ONCE > 0 && (same || PENDING.load(Ordering::Relaxed) > 0);
        if !inside && WINDOWS.load(Ordering::Relaxed) == 0 {
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
    #[inline]
    pub fn begin() -> Self {
        change(ONCE + 1);
        if PENDING.load(Ordering::Relaxed) > 0 {
            wake();
        }
        Self(())
    }
}

impl Drop for Absence {
    #[inline]
    fn drop(&mut self) {
        change(1_u64.wrapping_neg());
    }
}

/// Adds to [`ABSENT`].
#[inline]
fn change(by: u64) {
    if ONE_CALLS.load(Ordering::Relaxed) {
        // Nobody else writes, and the servant only reads: this takes a tenth of the time.
        ABSENT.store(ABSENT.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
    } else {
        ABSENT.fetch_add(by, Ordering::Relaxed);
    }
}

/// Says whether several threads may call at a time. Before any does.
pub fn expect_threads(several: bool) {
    ONE_CALLS.store(!several, Ordering::Relaxed);
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
