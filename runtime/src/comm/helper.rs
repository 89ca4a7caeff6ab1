//! The helper thread: makes progress with asynchronous operations while nobody waits for them.
//!
//! It exists from the first asynchronous call on, and stands back while another thread drives the engine for itself.
//!
//! To wake a sleeping thread costs a system call and, where ranks share processors, a turn of somebody else's: more than
//! most short operations. So after some work the helper naps for a while and looks by itself whether there is more; only
//! then does it sleep until it is called.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::shared::Shared;
use super::waited::Waited;
use super::watch::Watch;

/// Between two looks of a helper that naps: what an operation may lose that is started meanwhile.
const NAP: Duration = Duration::from_micros(200);

/// How long a helper naps after the last work, before it sleeps.
const NAPS_MAX: Duration = Duration::from_millis(10);

const HELPING: Waited = Waited::other("progress of asynchronous operations");

/// Whether there is a helper, what it knows of and what it is doing.
#[derive(Debug)]
pub(crate) struct Helper {
    // The helper never takes the core while it holds this, since others take this while they hold the core.
    state: Mutex<State>,
    wake: Condvar,
    /// Whether something was started that the helper has not yet seen done.
    pending: AtomicBool,
    /// Whether it sleeps or is about to, or has not begun.
    ///
    /// Whoever gives it work changes `pending` or the number of drivers, and then looks at this; the helper sets this, and
    /// then looks at those. All of it is in one order, so at least one of them sees what the other did.
    asleep: AtomicBool,
    /// Whether the communicator is being dropped.
    leaving: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    thread: Option<JoinHandle<()>>,
    stop: bool,
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
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whoever drove has stopped: the helper goes on with what is left.
    pub(super) fn look(&self) {
        if self.pending.load(Ordering::SeqCst) && self.asleep.load(Ordering::SeqCst) {
            let _state = self.state();
            self.wake.notify_one();
        }
    }
}

impl Shared {
    /// Makes sure that a helper runs and will notice new work.
    pub(crate) fn call_helper(self: &Arc<Self>) {
        let helper = &self.helper;
        helper.pending.store(true, Ordering::SeqCst);
        if !helper.asleep.load(Ordering::SeqCst) {
            return;
        }
        let mut state = helper.state();
        if state.thread.is_none() && !state.stop {
            let shared = Arc::clone(self);
            state.thread = std::thread::Builder::new()
                .name(format!("kolo-helper-{}", self.rank))
                .spawn(move || shared.lend(|| shared.help()))
                .map_err(|error| tracing::warn!(%error, "no helper thread: asynchronous operations progress in wait"))
                .ok();
        }
        helper.wake.notify_one();
    }

    /// Ends the helper.
    pub(crate) fn stop_helper(&self) {
        self.helper.leaving.store(true, Ordering::Relaxed);
        let thread = {
            let mut state = self.helper.state();
            state.stop = true;
            self.helper.wake.notify_one();
            state.thread.take()
        };
        // The last handle may be dropped on the helper itself, which must not wait for its own end.
        if let Some(thread) = thread.filter(|t| t.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }

    fn help(&self) {
        let helper = &self.helper;
        let mut worked = Instant::now();
        helper.asleep.store(false, Ordering::SeqCst);
        let mut state = helper.state();
        while !state.stop {
            if self.is_unattended() {
                drop(state);
                if !self.drive_unattended() {
                    // After a failure there is nothing to drive until the communicator is dropped.
                    return;
                }
                worked = Instant::now();
                state = helper.state();
            } else if worked.elapsed() < NAPS_MAX {
                state = helper.wake.wait_timeout(state, NAP).unwrap_or_else(PoisonError::into_inner).0;
            } else {
                helper.asleep.store(true, Ordering::SeqCst);
                while !state.stop && !self.is_unattended() {
                    state = helper.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                helper.asleep.store(false, Ordering::SeqCst);
            }
        }
    }

    /// Whether there is work that nobody does.
    fn is_unattended(&self) -> bool {
        self.helper.pending.load(Ordering::SeqCst) && self.drivers.load(Ordering::SeqCst) == 0
    }

    /// Drives until somebody else does or nothing is left; false if something failed, which whoever waits will find out.
    fn drive_unattended(&self) -> bool {
        let mut watch = Watch::beside_computation(self, HELPING);
        let mut core = self.core();
        loop {
            let moved = core.turn();
            if core.engine.outstanding() == 0 {
                // Whoever starts something more holds the core, and says so afterwards.
                self.helper.pending.store(false, Ordering::SeqCst);
                break;
            }
            let stop = core.engine.failure().is_some()
                || core.closed
                || self.membership.abort_flag().is_raised()
                || self.drivers.load(Ordering::Relaxed) > 0
                || self.helper.leaving.load(Ordering::Relaxed);
            if stop {
                break;
            }
            match watch.pause(core, moved, |_| Vec::new()) {
                Ok(next) => core = next,
                Err(_) => return false,
            }
        }
        let failed = core.engine.failure().is_some() || self.membership.abort_flag().is_raised();
        drop(core);
        if failed {
            // Perhaps nobody waits here for long, but the other ranks must know.
            drop(self.fail(HELPING));
        }
        !failed
    }
}
