//! Whether there is a helper thread, what it knows of and what it is doing. What it does is in `drive`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// See the module.
#[derive(Debug)]
pub(crate) struct Helper {
    // The helper never takes the core while it holds this, since others take this while they hold the core.
    state: Mutex<HelperState>,
    pub(crate) wake: Condvar,
    /// Whether something was started that the helper has not yet seen done.
    pub(crate) pending: AtomicBool,
    /// Whether it sleeps or is about to, or has not begun.
    ///
    /// Whoever gives it work changes `pending` or the number of drivers, and then looks at this; the helper sets this, and
    /// then looks at those. All of it is in one order, so at least one of them sees what the other did.
    pub(crate) asleep: AtomicBool,
    /// Whether the communicator is being dropped.
    pub(crate) leaving: AtomicBool,
}

#[derive(Debug, Default)]
pub(crate) struct HelperState {
    pub(crate) thread: Option<JoinHandle<()>>,
    pub(crate) stop: bool,
}

impl Default for Helper {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            wake: Condvar::new(),
            pending: AtomicBool::new(false),
            asleep: AtomicBool::new(true),
            leaving: AtomicBool::new(false),
        }
    }
}

impl Helper {
    pub(crate) fn state(&self) -> MutexGuard<'_, HelperState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whoever drove has stopped: the helper goes on with what is left.
    pub(crate) fn look(&self) {
        if self.pending.load(Ordering::SeqCst) && self.asleep.load(Ordering::SeqCst) {
            let _state = self.state();
            self.wake.notify_one();
        }
    }
}
