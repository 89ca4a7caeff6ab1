//! Protection for threads that another thread may cancel (`pthread_cancel`), as in C programs.
//!
//! A cancelled thread ends at its next cancellation point: a system call of the C library that may block. Inside a
//! call, that would leave locks held and buffers in use. Cancellation is therefore held off wherever a call may reach
//! such a point. A call that is over within its first polls makes no such system call, and pays nothing.

use std::sync::OnceLock;

/// Functions that hold cancellation off.
#[derive(Clone, Copy, Debug)]
pub struct HoldOff {
    /// Holds cancellation off for this thread. Returns the previous state.
    pub begin: fn() -> i32,
    /// Restores the previous state.
    pub end: fn(i32),
}

static HOLD_OFF: OnceLock<HoldOff> = OnceLock::new();

/// Sets the functions that hold cancellation off inside calls from now on, for bindings to languages whose threads may
/// be cancelled. The first caller decides. Covers [`Communicator::call_raw`](crate::Communicator::call_raw); around
/// other calls, the binding holds cancellation off by itself.
pub fn hold_off_by(hold_off: HoldOff) {
    let _ = HOLD_OFF.set(hold_off);
}

/// Guard during which this thread is not cancelled. Guards may be nested.
pub(crate) struct Whole(Option<(fn(i32), i32)>);

impl Whole {
    #[inline]
    pub(crate) fn new() -> Self {
        Self(HOLD_OFF.get().map(|hold_off| (hold_off.end, (hold_off.begin)())))
    }
}

impl Drop for Whole {
    #[inline]
    fn drop(&mut self) {
        if let Some((end, before)) = self.0 {
            end(before);
        }
    }
}
