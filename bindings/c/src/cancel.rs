//! A thread is not cancelled inside Kolo: unwinding it from there would leave locks held and buffers in use.

use std::ffi::c_int;

unsafe extern "C" {
    // POSIX; the crate libc has it for other systems only.
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE` of glibc and musl.
const DISABLE: c_int = 1;

/// While it lives, a `pthread_cancel` of this thread is kept for later. They may be nested.
#[derive(Debug)]
pub(crate) struct Uncancelled {
    before: c_int,
}

impl Uncancelled {
    pub(crate) fn new() -> Self {
        let mut before = DISABLE;
        // SAFETY: writes to a local variable; never fails for this state, and concerns this thread alone.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        Self { before }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        let mut unused = DISABLE;
        // SAFETY: as above; the state is the one that this thread had. Tested by `tests/c/cancel.c`.
        unsafe { pthread_setcancelstate(self.before, &raw mut unused) };
    }
}
