//! Word or descriptors on which an owner sleeps, and the arming of all of its endpoints before it does.

use std::os::fd::BorrowedFd;

use crate::Endpoint;
use crate::sys::atomic::AtomicU32;

/// How the owner is going to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParkBy {
    /// On a futex word; only if every endpoint that is not [idle](Armed::Idle) offers one.
    Word,
    /// With `poll(2)` on file descriptors.
    Fd,
}

/// Something to sleep on.
#[derive(Clone, Copy, Debug)]
pub enum Armed<'a> {
    /// Nothing is outstanding here; this endpoint will not wake the owner.
    Idle,
    /// Sleep while the word holds this value.
    Word(&'a AtomicU32, u32),
    /// Sleep until the descriptor is readable.
    Fd(BorrowedFd<'a>),
}

/// Arms all endpoints, and passes each answer to `each`. Returns how the owner is to sleep: on a word if all endpoints with
/// anything outstanding offer one. An owner that waits only for its own host is thus woken through memory; waking it
/// through a socket would cost both ends several system calls.
pub fn arm_all(endpoints: &mut [Box<dyn Endpoint>], mut each: impl FnMut(Armed<'_>)) -> ParkBy {
    let mut by = ParkBy::Word;
    for endpoint in endpoints.iter_mut().filter(|endpoint| !endpoint.caps().park_word) {
        let armed = endpoint.arm(ParkBy::Fd);
        if !matches!(armed, Armed::Idle) {
            by = ParkBy::Fd;
        }
        each(armed);
    }
    for endpoint in endpoints.iter_mut().filter(|endpoint| endpoint.caps().park_word) {
        each(endpoint.arm(by));
    }
    by
}
