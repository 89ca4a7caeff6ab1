//! Raises the pace of long messages where the learned rate is too low.
//!
//! A rate is learned on one connection, in a moment. A network that limits each connection by itself, or that was busy
//! in that moment, carries more. As long as the paced connections carry all that their paces permit, and lose nothing, the
//! rate may therefore be higher than the one that was learned. It is tried half as high again, and the trial is undone
//! unless the connections carry that too.

use std::time::{Duration, Instant};

/// Factor of a trial. It is large, so that connections at the true rate cannot seem to carry it.
const STEP: f64 = 1.5;

/// Part of the paces that connections carry if the paces are what limits them.
const FULL: f64 = 0.85;

/// Least bytes of a connection, and least time, between two looks: the kernel sends in bursts of up to 64 KiB or 1 ms.
const SPAN_BYTES: f64 = 256e3;
const SPAN_LEAST: Duration = Duration::from_millis(20);

/// Number of looks after which a trial has failed. One may fall into a pause of a processor.
const MISSES: u32 = 2;

/// Time without a trial after one has failed. It doubles up to the longest.
const REST_LEAST: Duration = Duration::from_secs(10);
const REST_MOST: Duration = Duration::from_secs(320);

/// Traffic of the paced connections since they were made.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Carried {
    pub(super) bytes: u64,
    /// Number of segments sent again.
    pub(super) resent: u64,
}

#[derive(Debug)]
pub(super) struct Climb {
    /// Learned rates are multiplied by this.
    factor: f64,
    /// Time and count of the first look at the present connections with the present paces.
    since: Option<(Instant, Carried)>,
    /// Number of looks, one after the other, in which connections carried less.
    misses: u32,
    rest: Duration,
    rests_until: Option<Instant>,
}

impl Default for Climb {
    fn default() -> Self {
        Self { factor: 1.0, since: None, misses: 0, rest: REST_LEAST, rests_until: None }
    }
}

impl Climb {
    /// Returns the rate by which to pace, from the learned one, both in bytes per second. `most` is the rate from which
    /// on nothing is paced: a higher one is returned only once the connections have carried `most`.
    pub(super) fn rate(&self, learned: f64, most: f64) -> f64 {
        if self.factor.is_infinite() { self.factor } else { (learned * self.factor).min(most.max(learned)) }
    }

    /// Forgets the last look: connections have come or gone.
    pub(super) fn begin_again(&mut self) {
        self.since = None;
    }

    /// Returns whether it is time for a look. The connections may carry `pace` bytes per second together.
    pub(super) fn is_due(&self, now: Instant, pace: f64, connections: usize) -> bool {
        let span =
            Duration::try_from_secs_f64(SPAN_BYTES * connections as f64 / pace).unwrap_or(Duration::MAX);
        self.since.is_none_or(|(since, _)| now.saturating_duration_since(since) >= span.max(SPAN_LEAST))
    }

    /// Looks at what the connections have carried. They may carry `pace` bytes per second together. `is_most` is whether
    /// they are paced by the highest rate at which anything is.
    pub(super) fn look(&mut self, now: Instant, carried: Carried, pace: f64, is_most: bool) {
        let Some((since, before)) = self.since.replace((now, carried)) else { return };
        let seconds = now.saturating_duration_since(since).as_secs_f64();
        let bytes = carried.bytes.saturating_sub(before.bytes);
        let is_full = bytes as f64 >= FULL * pace * seconds;
        let rests = self.rests_until.is_some_and(|until| now < until);
        self.misses = if is_full { 0 } else { self.misses + 1 };
        if is_full && carried.resent == before.resent && !rests {
            self.factor = if is_most { f64::INFINITY } else { self.factor * STEP };
            self.since = None;
        } else if self.misses >= MISSES && self.factor > 1.0 {
            self.factor = (self.factor / STEP).max(1.0);
            self.rests_until = Some(now + self.rest);
            self.rest = (2 * self.rest).min(REST_MOST);
            (self.misses, self.since) = (0, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: f64 = 1.3e9;

    /// Paces a connection on a path of a learned and a true rate for some seconds. The path loses a segment in each
    /// look in which it is given too much, if `loses`. Returns the factor after each second, and the number of trials.
    fn paced(climb: &mut Climb, learned: f64, rate: f64, loses: bool, seconds: usize) -> (Vec<f64>, usize) {
        let start = Instant::now();
        let mut now = start;
        let mut carried = Carried::default();
        let (mut factors, mut trials) = (Vec::new(), 0);
        while factors.len() < seconds {
            let pace = 0.95 * climb.rate(learned, MOST);
            if pace.is_infinite() {
                factors.resize(seconds, f64::INFINITY);
                break;
            }
            if climb.is_due(now, pace, 1) {
                let before = climb.factor;
                climb.look(now, carried, pace, climb.rate(learned, MOST) >= MOST);
                trials += usize::from(climb.factor > before);
            }
            now += Duration::from_millis(1);
            carried.bytes += (pace.min(rate) / 1e3) as u64;
            carried.resent += u64::from(loses && pace > rate);
            if now.saturating_duration_since(start).as_millis() as usize >= 1000 * (factors.len() + 1) {
                factors.push(climb.factor);
            }
        }
        (factors, trials)
    }

    #[test]
    fn the_true_rate_is_left_after_a_short_trial_and_seldom_tried_again() {
        for learned in [0.9e8, 1e8] {
            let (factors, trials) = paced(&mut Climb::default(), learned, 1e8, true, 60);
            assert!(factors.iter().filter(|factor| **factor > 1.0).count() <= 1, "{factors:?}");
            assert!((2..=4).contains(&trials), "{trials} in a minute, with rests of 10, 20 and 40 s");
        }
        assert_eq!(
            paced(&mut Climb::default(), 1.1e8, 1e8, true, 60).1,
            0,
            "the path loses segments already"
        );
    }

    #[test]
    fn a_rate_that_was_learned_too_low_is_raised_to_the_true_one() {
        for part in [0.05, 0.11, 0.2, 0.3, 0.5, 0.6] {
            let (factors, _) = paced(&mut Climb::default(), part * 1e8, 1e8, true, 5);
            let reached = 0.95 * part * factors[1];
            assert!((0.56..=1.18).contains(&reached), "{reached} of the path from {part}");
            assert!(factors[1..].iter().all(|factor| factor == &factors[1]), "{factors:?}");
        }
    }

    #[test]
    fn a_path_that_loses_segments_is_not_given_more() {
        let mut climb = Climb::default();
        let start = Instant::now();
        for ms in 0..100 {
            let carried = Carried { bytes: ms * 100_000, resent: ms };
            climb.look(start + Duration::from_millis(ms), carried, 1e8, false);
        }
        assert_eq!(climb.factor, 1.0);
    }

    #[test]
    fn a_raised_rate_falls_when_the_path_carries_less() {
        let mut climb = Climb::default();
        assert!(paced(&mut climb, 1e7, 1e8, true, 2).0[1] > 6.0);
        climb.begin_again();
        assert_eq!(paced(&mut climb, 1e7, 1e7, true, 2).0[1], 1.0);
    }

    #[test]
    fn a_path_that_carries_the_highest_rate_is_no_longer_paced() {
        assert_eq!(paced(&mut Climb::default(), 6e8, 3e9, false, 1).0, [f64::INFINITY]);
        let (factors, _) = paced(&mut Climb::default(), 1.1e9, 1.17e9, true, 1);
        assert!(factors[0].is_finite(), "a path of 10 Gbit/s is paced: {factors:?}");
        assert_eq!(Climb::default().rate(2e9, MOST), 2e9, "nothing is paced from there on");
    }

    #[test]
    fn connections_that_come_or_go_void_a_look() {
        let mut climb = Climb::default();
        let start = Instant::now();
        climb.look(start, Carried::default(), 1e8, false);
        assert!(!climb.is_due(start + Duration::from_millis(19), 1e8, 1));
        assert!(
            !climb.is_due(start + Duration::from_millis(25), 1e8, 10),
            "each connection carries some bytes"
        );
        climb.begin_again();
        climb.look(start + Duration::from_millis(10), Carried { bytes: 1 << 30, resent: 0 }, 1e8, false);
        assert_eq!(climb.factor, 1.0);
    }
}
