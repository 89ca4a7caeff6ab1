//! Watching whether another host is alive: its kernel acknowledges data whatever its processes do.
//!
//! A stopped or busy process does not read, but its kernel still answers. A host without power or behind a cut cable
//! does not answer at all. A silent kernel is therefore a stronger sign than a silent process, and is given up sooner.
//! Both ends of a connection watch each other in this way once a group can go on after a loss
//! ([`Control::watch_hosts`](super::Control::watch_hosts)). Until then a lost host ends the job, which justifies more
//! patience. After half of the limit, the host is also probed outside the connection ([`Probes`]), because a connection
//! is slow to notice that the network works again.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::coordinator_state::ConnectionId;
use super::probe::Probes;
use super::stream::{Acknowledged, TcpHandle};

/// Number of messages sent within the limit. A cut is therefore noticed at most one such part of the limit late.
const HEARTBEATS: u32 = 16;

/// Divisor of the limit that gives the silence after which the host is also probed.
const SUSPICION: u32 = 2;

/// Number of probes within the limit.
const PROBES: u32 = 32;

/// Most probes under way at a time, to one host and to all hosts.
const PROBES_TO_ONE: usize = 8;
const PROBES_TO_ALL: usize = 2048;

/// Coordinator's time between heartbeats per connection. With 4096 ranks, each is checked once a second.
const PER_RANK: Duration = Duration::from_micros(250);

/// Returns the time between two heartbeats on a watched connection.
pub(crate) fn period(limit: Duration, world_size: u32) -> Duration {
    (limit / HEARTBEATS).max(PER_RANK * world_size)
}

/// Returns the silence after which a host is suspected, and the time between two probes from then on.
pub(crate) fn suspicion(limit: Duration) -> (Duration, Duration) {
    (limit / SUSPICION, limit / PROBES)
}

/// A connection whose other end is watched.
#[derive(Debug)]
pub(crate) struct HostMonitor {
    tcp: TcpHandle,
    /// Address at which the host is probed.
    at: Option<SocketAddr>,
    probes: Probes,
    limit: Duration,
    silence: Silence,
}

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// Send a heartbeat.
    Heartbeat,
    /// Wait for the answer to earlier data. More data would not help: a kernel resends a little lost data soon, and
    /// takes ever longer for a lot of it.
    Wait,
    /// The host has been silent for too long.
    Silent(Duration),
}

/// How long a kernel has left data unanswered.
#[derive(Debug)]
struct Silence {
    /// Time when all earlier data was answered, or when the last answer came.
    since: Instant,
    /// Time of the next check.
    due: Instant,
    period: Duration,
    /// Length of the silence when the host was last suspected, and was probed outside the connection.
    suspected: Option<Duration>,
}

impl Silence {
    fn new(period: Duration, now: Instant) -> Self {
        Self { since: now, due: now + period, period, suspected: None }
    }

    /// Checks the host. `probed`: the host has answered a probe.
    fn check(&mut self, answered: Acknowledged, probed: bool, limit: Duration, now: Instant) -> Check {
        let was_stopped = now.saturating_duration_since(self.due) > self.period;
        self.due = now + self.period;
        let silence = now.saturating_duration_since(self.since);
        // If this process was itself stopped, its last message may only have been sent now.
        if was_stopped || answered.all || probed || answered.ago < silence {
            (self.since, self.suspected) = (now, None);
            return if answered.all { Check::Heartbeat } else { Check::Wait };
        }
        let (suspicious_after, beat) = suspicion(limit);
        if silence < suspicious_after {
            return Check::Wait;
        }
        self.due = now + beat;
        let before = self.suspected.replace(silence);
        // With many ranks, each is checked so rarely that no probe may have been sent before. This process may also
        // have been late to send one.
        let was_probed = before.is_some_and(|before| before + 2 * beat >= limit);
        if silence >= limit && was_probed { Check::Silent(silence) } else { Check::Wait }
    }
}

impl HostMonitor {
    /// Starts watching. `port` is the port of the other end's listener, which accepts connections and which firewalls
    /// let through.
    pub(crate) fn new(
        tcp: TcpHandle,
        port: Option<u16>,
        limit: Duration,
        world_size: u32,
        now: Instant,
    ) -> Self {
        let at = tcp.peer().map(|peer| SocketAddr::new(peer.ip(), port.unwrap_or(peer.port())));
        let most = PROBES_TO_ONE.min(PROBES_TO_ALL / world_size.max(1) as usize).max(1);
        let silence = Silence::new(period(limit, world_size), now);
        Self { tcp, at, probes: Probes::at_most(most), limit, silence }
    }

    /// Returns the time of the next check.
    pub(crate) const fn due(&self) -> Instant {
        self.silence.due
    }

    pub(crate) fn check(&mut self, now: Instant) -> Check {
        let Some(answered) = self.tcp.acknowledged() else {
            // The task that reads the connection reports how it has ended.
            self.silence = Silence::new(self.silence.period, now);
            return Check::Wait;
        };
        let check = self.silence.check(answered, self.probes.are_answered(), self.limit, now);
        match self.at {
            Some(at) if self.silence.suspected.is_some() => self.probes.send(at),
            _ => self.probes.forget(),
        }
        check
    }
}

/// The watched connections of a coordinator.
#[derive(Debug, Default)]
pub(crate) struct HostMonitors(HashMap<ConnectionId, HostMonitor>);

/// Result of checking all of them.
#[derive(Debug, Default)]
pub(crate) struct Checked {
    pub(crate) silent: Vec<(ConnectionId, Duration)>,
    pub(crate) due: Vec<ConnectionId>,
}

impl HostMonitors {
    pub(crate) fn watch(&mut self, connection: ConnectionId, monitor: HostMonitor) {
        self.0.insert(connection, monitor);
    }

    pub(crate) fn forget(&mut self, connection: ConnectionId) {
        self.0.remove(&connection);
    }

    /// Returns the time of the next check, if any rank is watched.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.0.values().map(HostMonitor::due).min()
    }

    pub(crate) fn check(&mut self, now: Instant) -> Checked {
        let mut checked = Checked::default();
        for (connection, monitor) in self.0.iter_mut().filter(|(_, monitor)| now >= monitor.due()) {
            match monitor.check(now) {
                Check::Silent(silence) => checked.silent.push((*connection, silence)),
                Check::Heartbeat => checked.due.push(*connection),
                Check::Wait => {}
            }
        }
        for (connection, _) in &checked.silent {
            self.0.remove(connection);
        }
        checked
    }
}

/// Formats the error text for a host that was silent for so long.
pub(crate) fn text(silence: Duration) -> String {
    format!("its host has not answered for {:.1} s", silence.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(1);

    /// Returns the time at which a kernel is found silent. It answers at once, except while it is `away`. The watching
    /// process is `stopped` for a time.
    fn noticed(away: std::ops::Range<u64>, stopped: std::ops::Range<u64>) -> Option<u64> {
        /// Milliseconds until a kernel resends lost data.
        const AGAIN: u64 = 200;
        let began = Instant::now();
        let at = |ms: u64| began + Duration::from_millis(ms);
        let mut silence = Silence::new(period(LIMIT, 8), began);
        let (mut sent, mut answered_at, mut probed) = (None, 0, false);
        for ms in 0..5000 {
            if sent.is_some_and(|since: u64| (ms - since).is_multiple_of(AGAIN)) && !away.contains(&ms) {
                (sent, answered_at) = (None, ms);
            }
            if stopped.contains(&ms) || at(ms) < silence.due {
                continue;
            }
            let answered = Acknowledged { all: sent.is_none(), ago: Duration::from_millis(ms - answered_at) };
            match silence.check(answered, std::mem::take(&mut probed), LIMIT, at(ms)) {
                Check::Heartbeat => sent = Some(ms + 1),
                Check::Wait => {}
                Check::Silent(_) => return Some(ms),
            }
            probed = silence.suspected.is_some() && !away.contains(&ms);
        }
        None
    }

    #[test]
    fn a_host_that_is_away_for_less_than_the_limit_is_not_silent_and_one_for_longer_soon_is() {
        for began in 1000..1300 {
            assert_eq!(noticed(began..began + 960, 0..0), None, "away at {began}");
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
    fn of_many_ranks_each_is_checked_less_often() {
        assert_eq!(period(LIMIT, 8), LIMIT / HEARTBEATS);
        assert_eq!(period(LIMIT, 4096), Duration::from_millis(1024));
    }

    #[test]
    fn a_host_that_is_checked_seldom_is_probed_before_it_counts_as_silent() {
        let began = Instant::now();
        let later = |ms| began + Duration::from_millis(ms);
        let unanswered = |ms| Acknowledged { all: false, ago: Duration::from_millis(ms) };
        let mut silence = Silence::new(period(LIMIT, 4096), began);
        assert_eq!(silence.check(unanswered(2000), false, LIMIT, later(1024)), Check::Wait);
        assert_eq!(silence.due, later(1024) + LIMIT / PROBES);
        let mut answers = Silence::new(period(LIMIT, 4096), began);
        let _ = answers.check(unanswered(2000), false, LIMIT, later(1024));
        assert_eq!(answers.check(unanswered(2032), true, LIMIT, later(1056)), Check::Wait);
        assert_eq!((answers.since, answers.suspected), (later(1056), None));
        let silent = Check::Silent(Duration::from_millis(1056));
        assert_eq!(silence.check(unanswered(2032), false, LIMIT, later(1056)), silent);
    }

    #[test]
    fn whoever_probes_late_probes_once_more() {
        let began = Instant::now();
        let mut silence = Silence::new(period(LIMIT, 8), began);
        let mut check = |ms| {
            let unanswered = Acknowledged { all: false, ago: Duration::from_millis(ms) };
            silence.check(unanswered, false, LIMIT, began + Duration::from_millis(ms))
        };
        let times = [63, 126, 189, 252, 315, 378, 441, 504, 590, 680, 770, 860, 935, 1003];
        assert_eq!(times.map(&mut check), [Check::Wait; 14]);
        assert_eq!(check(1035), Check::Silent(Duration::from_millis(1035)));
    }
}
