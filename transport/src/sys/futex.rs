//! Sleeping on a word that several processes see.
//!
//! The words of [`Armed::Word`](crate::Armed) lie in memory shared between processes, so the *shared* form of the
//! futex is used throughout: a private wait on such a word would never be woken.

use std::io;
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex;
use rustix::time::Timespec;

use super::atomic::AtomicU32;

/// Sleeps while `word` holds `value`, at most `timeout`. Returns on a wake-up, a signal, the timeout, or at once
/// when the word holds something else: the caller looks again in every case.
///
/// # Errors
/// If the system refuses to wait on this address, which it never does for the words of this crate.
pub fn wait_word(word: &AtomicU32, value: u32, timeout: Duration) -> io::Result<()> {
    let timeout = Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    match futex::wait(word, futex::Flags::empty(), value, Some(&timeout)) {
        Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Wakes everybody who sleeps on `word`.
pub(crate) fn wake_all(word: &AtomicU32) {
    // Waking cannot fail on a mapped, aligned address.
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}
