//! A moment at which all calls of a communicator end, whatever time-outs they have of their own.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kolo_transport::Unpoisoned;

/// The time limit. Threads read it whenever they begin to wait, so reading takes no lock.
#[derive(Debug)]
pub(crate) struct TimeLimit {
    /// Origin of the times.
    since: Instant,
    /// End of the limit in nanoseconds since the origin; 0 if there is none.
    until: AtomicU64,
    /// The time that the limit gave when it was set, in nanoseconds.
    whole: AtomicU64,
    limits: Mutex<Limits>,
}

/// The limits of which the earlier one is in force.
#[derive(Clone, Copy, Debug, Default)]
struct Limits {
    own: Option<End>,
    /// The limit of the communicator that this one was split off.
    outer: Option<End>,
}

impl Limits {
    fn in_force(self) -> Option<End> {
        self.own.into_iter().chain(self.outer).min_by_key(|end| end.until)
    }
}

/// A moment, and the time that was left until then when it was set.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    until: Instant,
    whole: Duration,
}

/// The longest time of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) left: Duration,
    /// The limit that an error names: the time that the caller chose, of which `left` may be the rest.
    pub(crate) named: Duration,
}

impl From<Duration> for Limit {
    fn from(limit: Duration) -> Self {
        Self { left: limit, named: limit }
    }
}

impl TimeLimit {
    pub(super) fn none() -> Self {
        let (until, whole) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { since: Instant::now(), until, whole, limits: Mutex::default() }
    }

    /// Sets the communicator's own limit for calls that begin to wait from now on.
    pub(super) fn set(&self, until: Option<Instant>) {
        let end = |until: Instant| End { until, whole: until.saturating_duration_since(Instant::now()) };
        self.change(|limits| limits.own = until.map(end));
    }

    /// Sets the limit of the communicator that this one was split off.
    pub(super) fn set_outer(&self, end: Option<End>) {
        self.change(|limits| limits.outer = end);
    }

    /// Returns the limit in force.
    pub(super) fn in_force(&self) -> Option<End> {
        self.limits.lock().unpoisoned().in_force()
    }

    fn change(&self, change: impl FnOnce(&mut Limits)) {
        let mut limits = self.limits.lock().unpoisoned();
        change(&mut limits);
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let end = limits.in_force();
        let until = end.map_or(0, |end| nanos(end.until.saturating_duration_since(self.since)).max(1));
        self.whole.store(end.map_or(0, |end| nanos(end.whole)), Ordering::Relaxed);
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

    /// Returns the earlier one of this limit and that of a call.
    pub(crate) fn within(&self, call: Limit) -> Limit {
        let whole = || Duration::from_nanos(self.whole.load(Ordering::Relaxed));
        let earlier = self.left().filter(|left| *left < call.left);
        earlier.map_or(call, |left| Limit { left, named: whole() })
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
        let call = Limit::from(Duration::from_secs(200));
        assert!(limit.within(call).left <= Duration::from_secs(100));
        assert!(limit.within(call).named > Duration::from_secs(90));
        assert_eq!(
            limit.within(Limit { left: Duration::from_secs(50), ..call }).named,
            call.named,
            "it ends earlier"
        );
        // A moment in the past, even before the limit was made.
        limit.set(Some(limit.since));
        assert_eq!(limit.left(), Some(Duration::ZERO));
        limit.set(None);
        assert_eq!(limit.left(), None);
    }

    #[test]
    fn the_earlier_limit_counts() {
        let (parent, child) = (TimeLimit::none(), TimeLimit::none());
        let at = |seconds| Some(Instant::now() + Duration::from_secs(seconds));
        let is_about = |seconds| child.left().is_some_and(|left| left.as_secs().abs_diff(seconds) <= 10);
        parent.set(at(100));
        child.set_outer(parent.in_force());
        assert!(is_about(100));
        child.set(at(1000));
        assert!(is_about(100));
        child.set(at(50));
        assert!(is_about(50));
        child.set(None);
        assert!(is_about(100), "the parent's holds on");
        child.set_outer(None);
        assert_eq!(child.left(), None);
    }
}
