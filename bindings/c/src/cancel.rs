//! Keeps threads from being cancelled inside Kolo, which would leave locks held and buffers in use.

use std::ffi::c_int;

use kolo_rs::internal::cancel::HoldOff;

unsafe extern "C" {
    // A function of POSIX, which the crate libc declares for other systems only.
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE` of glibc and musl.
const DISABLE: c_int = 1;

/// A guard: while it exists, a `pthread_cancel` of this thread is deferred. Guards may be nested.
#[derive(Debug)]
pub(crate) struct Uncancelled {
    before: c_int,
}

/// The same for the runtime. A call may end within the runtime's first polls, so the runtime defers cancellation only where the call may
/// reach a cancellation point.
pub(crate) const BY_RUNTIME: HoldOff = HoldOff { begin: disable, end: restore };

fn disable() -> c_int {
    let mut before = DISABLE;
    // SAFETY: writes to a local variable; never fails for this state, and affects this thread alone.
    unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
    before
}

fn restore(before: c_int) {
    let mut unused = DISABLE;
    // SAFETY: as above; the state is one that this thread had. Tested by `tests/c/cancel.c`.
    unsafe { pthread_setcancelstate(before, &raw mut unused) };
}

impl Uncancelled {
    pub(crate) fn new() -> Self {
        Self { before: disable() }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        restore(self.before);
    }
}
