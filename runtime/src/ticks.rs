//! A clock for records. It is cheaper to read than the system's, and its readings are converted only when a record is
//! read.
//!
//! A call of a few cache lines takes 150 ns, and two reads of the system's clock would add 50. Reading the processor's
//! time-stamp counter takes a sixth of that, and is done where the kernel itself trusts the counter. The counter's rate
//! is computed when a record is read, from one read of the system's clock at the start and one at that moment.

use std::time::{Duration, Instant};

/// A reading of the counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tick(u64);

/// The counter and its origin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticks {
    epoch: Instant,
    first: Tick,
    is_counter: bool,
}

impl Ticks {
    /// Starts the clock.
    pub(crate) fn start() -> Self {
        let mut ticks = Self { epoch: Instant::now(), first: Tick(0), is_counter: counter::is_trusted() };
        ticks.first = ticks.now();
        ticks
    }

    /// Reads the counter.
    #[inline]
    pub(crate) fn now(&self) -> Tick {
        if self.is_counter {
            return Tick(counter::read());
        }
        Tick(u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Returns a scale that converts past readings.
    pub(crate) fn scale(&self) -> Scale {
        let (elapsed, now) = (self.epoch.elapsed(), self.now());
        let ticks = now.0.saturating_sub(self.first.0).max(1);
        let seconds_per_tick = if self.is_counter { elapsed.as_secs_f64() / ticks as f64 } else { 1e-9 };
        Scale { first: self.first, seconds_per_tick }
    }
}

/// Length of a tick, with the origin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    first: Tick,
    seconds_per_tick: f64,
}

impl Scale {
    /// Returns the time from the start to a reading.
    pub(crate) fn since_start(&self, tick: Tick) -> Duration {
        self.between(self.first, tick)
    }

    /// Returns the time between two readings.
    pub(crate) fn between(&self, from: Tick, to: Tick) -> Duration {
        Duration::from_secs_f64(to.0.saturating_sub(from.0) as f64 * self.seconds_per_tick)
    }
}

#[cfg(target_arch = "x86_64")]
mod counter {
    use std::sync::OnceLock;

    /// Returns whether the kernel keeps its own time by the counter. The counter then runs at one rate, and alike on
    /// all processors.
    pub(super) fn is_trusted() -> bool {
        static TRUSTED: OnceLock<bool> = OnceLock::new();
        *TRUSTED.get_or_init(|| {
            let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
            std::fs::read_to_string(path).is_ok_and(|name| name.trim() == "tsc")
        })
    }

    #[inline]
    pub(super) fn read() -> u64 {
        // SAFETY: every processor of this architecture has the instruction. A kernel that forbids it to programs
        // (`prctl(PR_SET_TSC)`) also forbids it to the system's own clock functions, which use it where it is trusted.
        unsafe { std::arch::x86_64::_rdtsc() }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod counter {
    pub(super) fn is_trusted() -> bool {
        false
    }

    pub(super) fn read() -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agrees_with_the_system(ticks: Ticks) {
        let (before, from) = (Instant::now(), ticks.now());
        while before.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        let (to, took) = (ticks.now(), before.elapsed());
        let scale = ticks.scale();
        let measured = scale.between(from, to);
        // A processor that is taken away between two reads shifts one of them.
        assert!(measured <= took + Duration::from_millis(5), "{measured:?} in {took:?}");
        assert!(measured >= Duration::from_millis(15), "{measured:?} in {took:?}");
        assert!(scale.since_start(to) >= measured);
    }

    #[test]
    fn ticks_are_time() {
        agrees_with_the_system(Ticks::start());
    }

    #[test]
    fn without_the_counter_too() {
        let start = Ticks::start();
        agrees_with_the_system(Ticks { is_counter: false, first: Tick(0), ..start });
    }
}
