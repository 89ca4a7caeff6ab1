//! Futexes: sleeping on a word that several processes see.
//!
//! The words of [`Armed::Word`](crate::Armed) lie in memory shared between processes, so the *shared* form of the
//! futex is used throughout: a private wait on such a word would never be woken.

use std::io;
use std::num::NonZeroU32;
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex;
use rustix::time::{ClockId, Timespec};

use super::atomic::AtomicU32;

/// Sleeps while `word` holds `value`, for at most `timeout`. Returns on a wake-up, a signal or the timeout, and at
/// once if the word holds another value; the caller checks its condition in every case.
///
/// # Errors
/// If the system refuses to wait on this address, which it never does for the words of this crate.
pub fn wait_word(word: &AtomicU32, value: u32, timeout: Duration) -> io::Result<()> {
    let timeout = timespec(timeout);
    match futex::wait(word, futex::Flags::empty(), value, Some(&timeout)) {
        Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Like [`wait_word`], but only wake-ups with one of these bits end the sleep.
///
/// # Errors
/// As [`wait_word`].
pub fn wait_word_for(word: &AtomicU32, value: u32, bits: NonZeroU32, timeout: Duration) -> io::Result<()> {
    // This form of the call takes the time at which the sleep ends.
    let until = timespec(monotonic().saturating_add(timeout));
    match futex::wait_bitset(word, futex::Flags::empty(), value, Some(&until), bits) {
        Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Like [`wait_word`], but sleeps while every one of some words holds its value.
///
/// # Errors
/// On kernels before 5.16, and where a filter of system calls does not know the call. The thread has not slept then.
pub fn wait_words(words: &[(&AtomicU32, u32)], timeout: Duration) -> io::Result<()> {
    let wait = |(word, value): &(&AtomicU32, u32)| {
        let mut wait = futex::Wait::new();
        (wait.val, wait.flags) = (u64::from(*value), futex::WaitFlags::SIZE_U32);
        wait.uaddr = futex::WaitPtr::new(word.as_ptr().cast());
        wait
    };
    let waits: Vec<futex::Wait> = words.iter().map(wait).collect();
    // This form of the call, too, takes the time at which the sleep ends.
    let until = timespec(monotonic().saturating_add(timeout));
    match futex::waitv(&waits, futex::WaitvFlags::empty(), Some(&until), ClockId::Monotonic) {
        Ok(_) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Returns the time of the clock by which the kernel times waits. Rustix's function panics where the kernel's vDSO
/// has no clock, as under user-mode Linux.
fn monotonic() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec, which `now` is, and keeps no pointer to it. If the kernel lacks the
    // clock, the zeros end a wait at once. Tests: `shm::tests::exchange`, and all of tests/softroce.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// Wakes all threads that sleep on `word`.
pub(crate) fn wake_all(word: &AtomicU32) {
    // Waking cannot fail on a mapped, aligned address.
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}

/// Wakes the threads that sleep on `word` for one of these bits, or for any.
pub(crate) fn wake(word: &AtomicU32, bits: NonZeroU32) {
    // As in `wake_all`.
    let _ = futex::wake_bitset(word, futex::Flags::empty(), i32::MAX as u32, bits);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::thread;
    use std::time::Instant;

    use super::*;

    /// Sleeps on two words until the one at `changed` is set, and returns whether the system has such a sleep.
    fn is_woken_by(changed: usize) -> bool {
        const LONG: Duration = Duration::from_secs(60);
        let words = [AtomicU32::new(1), AtomicU32::new(2)];
        let begin = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| {
                words[changed].store(9, Ordering::SeqCst);
                wake(&words[changed], NonZeroU32::MIN);
            });
            while words[changed].load(Ordering::SeqCst) != 9 {
                if wait_words(&[(&words[0], 1), (&words[1], 2)], LONG).is_err() {
                    return false;
                }
            }
            assert!(begin.elapsed() < LONG, "the change of word {changed} woke nobody");
            true
        })
    }

    #[test]
    fn a_sleep_on_two_words_ends_with_either() {
        for n in 0..200 {
            if !is_woken_by(n % 2) {
                eprintln!("skipped: the system cannot wait for several words");
                return;
            }
        }
    }
}
