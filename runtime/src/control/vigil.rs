//! Whether another host is there: its kernel acknowledges what is sent to it, whatever its processes do.
//!
//! A stopped or busy process does not read, and its kernel still answers. A host without power, or behind a cut cable, does not. So silence
//! of a kernel means more than that of a process, and is judged sooner. Both ends of a connection watch each other in this way once
//! a group can go on after a loss ([`Control::watch_hosts`](super::Control::watch_hosts)); until then a lost host ends the job, which is worth more patience.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::coordinator_state::ConnectionId;
use super::line::{Answered, Line};

/// Something is sent so many times within the limit: a cut is noticed later by one part of them at most.
const BEATS: u32 = 16;

/// Work of the coordinator for one connection, in time between beats: 4096 ranks are looked at once a second.
const PER_RANK: Duration = Duration::from_micros(250);

/// Between two beats on a watched connection.
pub(crate) fn period(limit: Duration, world_size: u32) -> Duration {
    (limit / BEATS).max(PER_RANK * world_size)
}

/// A connection whose other end is watched.
#[derive(Debug)]
pub(crate) struct Vigil {
    line: Line,
    limit: Duration,
    silence: Silence,
}

/// What follows of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Something is to be sent.
    Ask,
    /// Something is under way. More of it would be in the way: a kernel sends little that is lost again soon, and much ever later.
    Wait,
    /// It has been silent for too long.
    Silent(Duration),
}

/// For how long a kernel has left something unanswered.
#[derive(Debug)]
struct Silence {
    /// All that was sent before was answered, or something was since.
    since: Instant,
    /// When it is looked at next.
    due: Instant,
    period: Duration,
}

impl Silence {
    fn new(period: Duration, now: Instant) -> Self {
        Self { since: now, due: now + period, period }
    }

    fn look(&mut self, answered: Answered, limit: Duration, now: Instant) -> Look {
        let was_stopped = now.saturating_duration_since(self.due) > self.period;
        self.due = now + self.period;
        let silence = now.saturating_duration_since(self.since);
        // A beat of a process that was itself stopped has perhaps only gone now.
        if was_stopped || answered.all || answered.ago < silence {
            self.since = now;
            return if answered.all { Look::Ask } else { Look::Wait };
        }
        if silence >= limit { Look::Silent(silence) } else { Look::Wait }
    }
}

impl Vigil {
    pub(crate) fn new(line: Line, limit: Duration, world_size: u32, now: Instant) -> Self {
        Self { line, limit, silence: Silence::new(period(limit, world_size), now) }
    }

    /// When to look.
    pub(crate) const fn due(&self) -> Instant {
        self.silence.due
    }

    pub(crate) fn look(&mut self, now: Instant) -> Look {
        let Some(answered) = self.line.answered() else {
            // Its reader tells how it has ended.
            self.silence = Silence::new(self.silence.period, now);
            return Look::Wait;
        };
        self.silence.look(answered, self.limit, now)
    }
}

/// Those of a coordinator.
#[derive(Debug, Default)]
pub(crate) struct Vigils(HashMap<ConnectionId, Vigil>);

/// What follows of a look at all of them.
#[derive(Debug, Default)]
pub(crate) struct Looked {
    pub(crate) silent: Vec<(ConnectionId, Duration)>,
    pub(crate) asked: Vec<ConnectionId>,
}

impl Vigils {
    pub(crate) fn watch(&mut self, connection: ConnectionId, vigil: Vigil) {
        self.0.insert(connection, vigil);
    }

    pub(crate) fn forget(&mut self, connection: ConnectionId) {
        self.0.remove(&connection);
    }

    /// When the next look is due, if anybody is watched.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.0.values().map(Vigil::due).min()
    }

    pub(crate) fn look(&mut self, now: Instant) -> Looked {
        let mut looked = Looked::default();
        for (connection, vigil) in self.0.iter_mut().filter(|(_, vigil)| now >= vigil.due()) {
            match vigil.look(now) {
                Look::Silent(silence) => looked.silent.push((*connection, silence)),
                Look::Ask => looked.asked.push(*connection),
                Look::Wait => {}
            }
        }
        for (connection, _) in &looked.silent {
            self.0.remove(connection);
        }
        looked
    }
}

/// What is said of a host that was silent for so long.
pub(crate) fn text(silence: Duration) -> String {
    format!("its host has not answered for {:.1} s", silence.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(1);

    /// When a kernel is found silent that answers at once, except while it is away. The one that looks is stopped for a time.
    fn noticed(away: std::ops::Range<u64>, stopped: std::ops::Range<u64>) -> Option<u64> {
        /// As a kernel sends again what is lost.
        const AGAIN: u64 = 200;
        let began = Instant::now();
        let at = |ms: u64| began + Duration::from_millis(ms);
        let mut silence = Silence::new(period(LIMIT, 8), began);
        let (mut sent, mut answered_at) = (None, 0);
        for ms in 0..5000 {
            if sent.is_some_and(|since: u64| (ms - since).is_multiple_of(AGAIN)) && !away.contains(&ms) {
                (sent, answered_at) = (None, ms);
            }
            if stopped.contains(&ms) || at(ms) < silence.due {
                continue;
            }
            let answered = Answered { all: sent.is_none(), ago: Duration::from_millis(ms - answered_at) };
            match silence.look(answered, LIMIT, at(ms)) {
                Look::Ask => sent = Some(ms + 1),
                Look::Wait => {}
                Look::Silent(_) => return Some(ms),
            }
        }
        None
    }

    #[test]
    fn a_host_that_is_away_for_less_than_the_limit_is_not_silent_and_one_for_longer_soon_is() {
        for began in 1000..1300 {
            assert_eq!(noticed(began..began + 800, 0..0), None, "away at {began}");
            let after = noticed(began..9999, 0..0).map(|ms| ms - began);
            assert!(after.is_some_and(|ms| (1000..1130).contains(&ms)), "away at {began}: {after:?}");
        }
    }

    #[test]
    fn whoever_was_stopped_itself_does_not_count_that_time() {
        for began in 1000..1300 {
            assert_eq!(noticed(began + 900..began + 1100, began..began + 1000), None, "stopped at {began}");
        }
    }

    #[test]
    fn of_many_ranks_each_is_looked_at_less_often() {
        assert_eq!(period(LIMIT, 8), LIMIT / BEATS);
        assert_eq!(period(LIMIT, 4096), Duration::from_millis(1024));
    }
}
