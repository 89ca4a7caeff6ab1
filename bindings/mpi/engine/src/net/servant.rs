//! The progress thread (*servant* in names): advances messages while the program cannot, inside Kolo's collectives and for windows.
//!
//! It sleeps at the endpoints, so that a message wakes it, unless a thread of the program polls.
//!
//! While a thread is inside a collective, its rank may still have to answer an earlier message, or to take an unexpected message off its
//! ring so that the sender can go on. If operations are pending, the servant starts at once; otherwise it starts when the collective has
//! lasted for a while, so that short ones cost no wake-up.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use kolo::internal::wait::Pacer;
use kolo_transport::Unpoisoned;

use super::PENDING;
use crate::world;

/// Threads inside collectives in the lower half; in the upper half, the number of times that a thread has entered one.
static ABSENT: AtomicU64 = AtomicU64::new(0);
const ONCE: u64 = 1 << 32;
/// Whether only one thread at a time calls.
static ONE_CALLS: AtomicBool = AtomicBool::new(false);
/// Windows whose owners need not call MPI for accesses to make progress.
static WINDOWS: AtomicUsize = AtomicUsize::new(0);
static STOP: AtomicBool = AtomicBool::new(false);
static SERVANT: Mutex<Option<JoinHandle<()>>> = Mutex::new(None);

/// The interval at which the servant checks whether it is needed. A sender whose ring is full waits at most twice this long.
const LOOK: Duration = Duration::from_millis(10);
/// The longest sleep between two polls. Messages end a sleep at the endpoints.
const PAUSE: Duration = Duration::from_millis(1);
/// Sleeps grow up to this during one collective, since each poll takes the processor from a rank.
const PAUSE_MAX: Duration = LOOK;

/// Starts the servant.
pub(super) fn start() {
    let thread = Builder::new().name("kolo-mpi".to_owned()).spawn(run);
    *SERVANT.lock().unpoisoned() = thread.ok();
}

/// Ends the servant.
pub(crate) fn stop() {
    STOP.store(true, Ordering::Release);
    let servant = SERVANT.lock().unpoisoned().take();
    if let Some(servant) = servant {
        servant.thread().unpark();
        let _ = servant.join();
    }
}

fn run() {
    let (mut before, mut limit) = (0, PAUSE);
    let mut pacer = Pacer::beside_computation(world::policy());
    while !STOP.load(Ordering::Acquire) {
        let absent = ABSENT.load(Ordering::Relaxed);
        let same = std::mem::replace(&mut before, absent) == absent;
        let inside = !absent.is_multiple_of(ONCE) && (same || PENDING.load(Ordering::Relaxed) > 0);
        if !inside && WINDOWS.load(Ordering::Relaxed) == 0 {
            sleep_until_woken(LOOK);
            continue;
        }
        if !inside || !same {
            limit = PAUSE;
        }
        // The functions of a program with one thread do not expect to run beside it.
        let may_call = !ONE_CALLS.load(Ordering::Relaxed) || !absent.is_multiple_of(ONCE);
        let poll = || if may_call { super::poll_once() } else { super::wait::poll_without_calls() };
        if super::wait::somebody_polls() {
            // That thread takes whatever comes, unless an operator of the program keeps it.
            sleep_until_woken(PAUSE);
            poll();
        } else if poll() {
            pacer.moved();
            limit = PAUSE;
        } else if limit > PAUSE || super::wait::wants_sleep(&mut pacer) {
            super::rest::until_news(limit, |_| ());
            limit = (2 * limit).min(PAUSE_MAX);
        }
    }
}

fn sleep_until_woken(limit: Duration) {
    std::thread::park_timeout(limit);
}

fn wake() {
    if let Some(servant) = &*SERVANT.lock().unpoisoned() {
        servant.thread().unpark();
    }
}

/// A guard: while it exists, its thread does not poll.
#[derive(Debug)]
pub struct Absence(());

impl Absence {
    /// Begins the absence.
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

/// Adds `by` to [`ABSENT`].
#[inline]
fn change(by: u64) {
    if ONE_CALLS.load(Ordering::Relaxed) {
        // No other thread writes, and the servant only reads. A plain store takes a tenth of the time.
        ABSENT.store(ABSENT.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
    } else {
        ABSENT.fetch_add(by, Ordering::Relaxed);
    }
}

/// Sets whether several threads may call at a time. To be called before any does.
pub fn expect_threads(several: bool) {
    ONE_CALLS.store(!several, Ordering::Relaxed);
}

/// Returns whether the servant polls even though no thread is inside a collective.
pub(super) fn may_poll() -> bool {
    WINDOWS.load(Ordering::Relaxed) > 0
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
