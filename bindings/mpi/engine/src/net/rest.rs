//! Sleeping until a message or an acknowledgement comes from another rank.
//!
//! 1. A thread has the endpoints wake it, polls once more, and only then releases the lock and sleeps.
//! 2. It sleeps on a word or on descriptors of the endpoints. It counts itself under the lock ([`ASLEEP`]), and [`Net::close`] waits for it.
//! 3. Another thread may consume the event, so each sleep has a limit. A thread that wakes arms
//!    the endpoints again for those that still sleep.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use kolo::internal::wait::{sleep, sleep_on_fds, sleep_on_word};
use kolo_transport::{Armed, arm_all};

use super::{Net, net};

/// Threads that sleep on a word or descriptor of an endpoint.
static ASLEEP: AtomicUsize = AtomicUsize::new(0);

/// The word or descriptors that end a sleep.
enum Alarm {
    Word(*const AtomicU32, u32),
    Descriptors(Vec<RawFd>),
}

/// Sleeps until an event comes, at most `limit`. Before that, `settle` posts the receives that the steps check themselves. Returns whether
/// anything moved.
pub(super) fn until_news(limit: Duration, settle: impl FnOnce(&mut Net)) -> bool {
    let Ok(mut net) = net() else {
        sleep(limit);
        return false;
    };
    settle(&mut net);
    // From here on the endpoints watch for it.
    if net.poll() {
        return true;
    }
    let alarm = net.arm();
    if net.poll() {
        net.rise();
        return true;
    }
    ASLEEP.fetch_add(1, Ordering::Relaxed);
    drop(net);
    match alarm {
        Some(Alarm::Word(word, value)) => {
            // SAFETY: the word lies in a mapping that an endpoint holds, and endpoints live until nobody sleeps here (rule 2).
            sleep_on_word(unsafe { &*word }, value, std::num::NonZeroU32::MAX, limit);
        }
        Some(Alarm::Descriptors(all)) => {
            // SAFETY: the endpoints own the descriptors, and live until nobody sleeps here (rule 2).
            let all: Vec<_> = all.iter().map(|fd| unsafe { BorrowedFd::borrow_raw(*fd) }).collect();
            sleep_on_fds(&all, limit);
        }
        None => sleep(limit),
    }
    ASLEEP.fetch_sub(1, Ordering::Release);
    super::net().is_ok_and(|mut net| net.rise())
}

/// Whether a thread sleeps at an endpoint. None begins to while the caller has the lock.
pub(super) fn anybody_sleeps() -> bool {
    ASLEEP.load(Ordering::Acquire) > 0
}

impl Net {
    /// Has the endpoints wake a thread; none if they have nothing to wake it for.
    fn arm(&mut self) -> Option<Alarm> {
        let (mut words, mut descriptors) = (Vec::new(), Vec::new());
        arm_all(&mut self.ends, |armed| match armed {
            Armed::Idle => {}
            Armed::Word(word, value) => words.push((std::ptr::from_ref(word), value)),
            Armed::Fd(fd) => descriptors.push(fd.as_raw_fd()),
        });
        match (words.as_slice(), descriptors.is_empty()) {
            ([(word, value)], true) => Some(Alarm::Word(*word, *value)),
            (_, false) => Some(Alarm::Descriptors(descriptors)),
            _ => None,
        }
    }

    /// Disarms the endpoints, or has them wake the other threads that still sleep. Returns whether anything moved.
    fn rise(&mut self) -> bool {
        self.ends.iter_mut().for_each(|end| end.disarm());
        if !anybody_sleeps() {
            return false;
        }
        self.arm();
        let moved = self.poll();
        if moved {
            // Nothing else wakes them for an event that this thread has taken.
            self.ends.iter_mut().for_each(|end| end.rouse());
        }
        moved
    }
}
