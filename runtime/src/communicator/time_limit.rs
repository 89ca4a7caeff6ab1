//! A moment at which all calls of a communicator end, whatever time-outs they have of their own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The time limit. Threads read it whenever they begin to wait, so it has no lock.
#[derive(Debug)]
pub(crate) struct TimeLimit {
    /// Origin of the times.
    since: Instant,
    /// End of the limit in nanoseconds since the origin; 0 if there is none.
    until: AtomicU64,
    /// The time that the limit gave when it was set, in nanoseconds.
    whole: AtomicU64,
}

impl TimeLimit {
    pub(super) fn none() -> Self {
        Self { since: Instant::now(), until: AtomicU64::new(0), whole: AtomicU64::new(0) }
    }

    /// Sets the limit for calls that begin to wait from now on.
    pub(crate) fn set(&self, until: Option<Instant>) {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let whole = until.map_or(0, |until| nanos(until.saturating_duration_since(Instant::now())));
        let until = until.map_or(0, |until| nanos(until.saturating_duration_since(self.since)).max(1));
        self.whole.store(whole, Ordering::Relaxed);
        self.until.store(until, Ordering::Relaxed);
    }

    /// Returns the time left for calls, if it is limited.
    #[inline]
    pub(crate) fn left(&self) -> Option<Duration> {
        match self.until.load(Ordering::Relaxed) {
            0 => None,
            until => Some(Duration::from_nanos(until).saturating_sub(self.since.elapsed())),
        }
    }

    /// Returns the time that the limit gave when it was set.
    pub(crate) fn whole(&self) -> Duration {
        Duration::from_nanos(self.whole.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_ends_at_nothing() {
        let limit = TimeLimit::none();
        assert_eq!(limit.left(), None);
        limit.set(Some(Instant::now() + Duration::from_secs(100)));
        assert!(
            limit
                .left()
                .is_some_and(|left| left > Duration::from_secs(90) && left <= Duration::from_secs(100))
        );
        assert!(limit.whole() > Duration::from_secs(90));
        // A moment in the past, even before the limit was made.
        limit.set(Some(limit.since));
        assert_eq!(limit.left(), Some(Duration::ZERO));
        limit.set(None);
        assert_eq!(limit.left(), None);
    }
}
