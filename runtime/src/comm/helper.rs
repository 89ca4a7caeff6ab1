//! The helper thread: makes progress with asynchronous operations while nobody waits for them.
//!
//! It exists from the first asynchronous call on, sleeps while there is nothing to do, and stands back while another
//! thread drives the engine for itself.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::shared::Shared;
use super::waited::Waited;
use super::watch::Watch;

/// Whether there is a helper, and whether it should go.
#[derive(Debug, Default)]
pub(crate) struct State {
    thread: Option<JoinHandle<()>>,
    /// Counts the occasions to look for work. The helper never takes the core while it holds this state, since
    /// others take this state while they hold the core.
    calls: u64,
    stop: bool,
}

const HELPING: Waited = Waited::other("progress of asynchronous operations");

impl Shared {
    /// Makes sure that a helper runs and has noticed new work.
    pub(crate) fn call_helper(self: &Arc<Self>) {
        let mut state = self.helper_state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.thread.is_none() && !state.stop {
            let shared = Arc::clone(self);
            state.thread = std::thread::Builder::new()
                .name(format!("kolo-helper-{}", self.rank))
                .spawn(move || shared.help())
                .map_err(|error| tracing::warn!(%error, "no helper thread: asynchronous operations progress in wait"))
                .ok();
        }
        state.calls += 1;
        self.helper_wake.notify_one();
    }

    /// Tells a sleeping helper to look again.
    pub(crate) fn wake_helper(&self) {
        let mut state = self.helper_state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.thread.is_some() {
            state.calls += 1;
            self.helper_wake.notify_one();
        }
    }

    /// Ends the helper.
    pub(crate) fn stop_helper(&self) {
        self.leaving.store(true, Ordering::Relaxed);
        let thread = {
            let mut state = self.helper_state.lock().unwrap_or_else(PoisonError::into_inner);
            state.stop = true;
            self.helper_wake.notify_one();
            state.thread.take()
        };
        // The last handle may be dropped on the helper itself, which must not wait for its own end.
        if let Some(thread) = thread.filter(|t| t.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }

    fn help(&self) {
        let mut seen = 0;
        loop {
            {
                let mut state = self.helper_state.lock().unwrap_or_else(PoisonError::into_inner);
                while state.calls == seen && !state.stop {
                    state = self.helper_wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                if state.stop {
                    return;
                }
                seen = state.calls;
            }
            self.drive_unattended();
        }
    }

    /// Drives until somebody else does, nothing is left, or something failed (whoever waits will find out).
    fn drive_unattended(&self) {
        let mut watch = Watch::new(self, HELPING, Duration::MAX);
        let mut core = self.core();
        loop {
            let moved = core.engine.turn();
            let stop = core.engine.outstanding() == 0
                || core.engine.failure().is_some()
                || core.closed
                || self.membership.abort_flag().is_raised()
                || self.drivers.load(Ordering::Relaxed) > 0
                || self.leaving.load(Ordering::Relaxed);
            if stop {
                break;
            }
            match watch.pause(core, moved, |_| Vec::new()) {
                Ok(next) => core = next,
                Err(_) => return self.rest(),
            }
        }
        let failed = core.engine.failure().is_some() || self.membership.abort_flag().is_raised();
        drop(core);
        if failed {
            // Perhaps nobody waits here for long, but the other ranks must know.
            drop(self.fail(HELPING));
            self.rest();
        }
    }

    /// After a failure there is nothing to drive until the communicator is dropped.
    fn rest(&self) {
        let mut state = self.helper_state.lock().unwrap_or_else(PoisonError::into_inner);
        while !state.stop {
            state = self.helper_wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
