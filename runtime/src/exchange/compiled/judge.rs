//! Judges which way of copying is quicker: each rank goes by the processor time of its own copies.
//!
//! The answer depends on the machine, on the pages and on the program. A buffer that its owner has not written since the
//! last call is read from caches at full speed. A buffer that was just written lies in the owner's caches, where the
//! kernel reads it at a third of the speed if processors are far apart. A rank therefore times some calls of each way,
//! takes the cheaper way, and tries the other now and then. The number of calls, and answers that all ranks have heard,
//! determine when to ask and when to try, so all ranks do so alike; only the answers are each rank's own.

use std::time::Duration;

use kolo_collectives::plan::Collective;
use kolo_transport::shm::EXCHANGE_ROW_BYTES;
use rustix::time::{ClockId, clock_gettime};

use super::places::PLACES_MIN;

/// Number of classes of lengths that are judged together: powers of two from [`PLACES_MIN`] on.
const CLASSES: usize = 16;

/// Number of calls between trials, at first and later.
const ROUNDS: [u32; 2] = [16, 512];

/// Number of calls with the first interval.
const EARLY: u32 = 64;

/// One call in this many is timed, besides the trials: the clock takes a third of a microsecond.
const TIMED: u32 = 8;

/// Reading in place is given up when it takes this many times as long, and taken up again when it takes less time than
/// parts do.
const WORTH: f32 = 1.1;

/// Cost of asking: an exchange.
const ASKING: Duration = Duration::from_nanos(1000);

/// The two ways of copying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    InPlace,
    InParts,
}

/// A rank's opinion of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opinion {
    /// Whether the ranks ask each other. All ranks have the same value.
    pub(super) asks: bool,
    /// Whether this rank agrees to reading in place.
    pub(super) is_for_it: bool,
    /// Whether the call's copies are timed.
    pub(super) is_timed: bool,
}

/// Verdicts by collective and length.
#[derive(Debug, Default)]
pub(super) struct Judge {
    classes: [[Class; CLASSES]; 2],
}

impl Judge {
    /// Returns the opinion of the next call among so many members.
    pub(super) fn consider(&mut self, collective: Collective, block: usize, members: usize) -> Opinion {
        let untouched = EXCHANGE_ROW_BYTES / (members * block);
        self.class(collective, block).consider(untouched as u32)
    }

    /// Notes whether all ranks have answered with a place.
    pub(super) fn heard(&mut self, collective: Collective, block: usize, all: bool) {
        self.class(collective, block).heard(all);
    }

    /// Notes the time of a call's copies.
    pub(super) fn took(&mut self, collective: Collective, block: usize, way: Way, spent: Duration) {
        let spent = if way == Way::InPlace { spent + ASKING } else { spent };
        self.class(collective, block).took(way, spent.as_secs_f32() / block as f32);
    }

    fn class(&mut self, collective: Collective, block: usize) -> &mut Class {
        let class = (block / PLACES_MIN).max(1).ilog2() as usize;
        &mut self.classes[usize::from(collective == Collective::AllToAll)][class.min(CLASSES - 1)]
    }
}

/// Calls of about the same length.
#[derive(Debug)]
struct Class {
    calls: u32,
    /// Whether a rank has declined outside of a trial. All ranks have the same value.
    is_declined: bool,
    /// Whether this rank agrees to reading in place.
    is_for_it: bool,
    /// The last two times of each way, per byte. The shorter one counts, in case the other call was disturbed.
    took: [[f32; 2]; 2],
}

impl Default for Class {
    fn default() -> Self {
        Self { calls: 0, is_declined: false, is_for_it: true, took: [[f32::INFINITY; 2]; 2] }
    }
}

impl Class {
    /// Returns the opinion of the next call. The first `untouched` calls go in parts: until all buffers of the exchange have
    /// been used, page faults would make parts look slow for as long as they are seldom tried.
    fn consider(&mut self, untouched: u32) -> Opinion {
        let turn = self.calls;
        self.calls = self.calls.wrapping_add(1);
        let Some(turn) = turn.checked_sub(untouched) else {
            return Opinion { asks: false, is_for_it: false, is_timed: false };
        };
        let round = ROUNDS[usize::from(turn >= EARLY)];
        let is_timed = turn.is_multiple_of(TIMED);
        match turn % round {
            // Trials: one call goes in parts, and the next two read in place. The first of these finds the buffers in
            // their owners' caches, so the second one counts.
            1 => Opinion { asks: false, is_for_it: false, is_timed: true },
            2 => Opinion { asks: true, is_for_it: true, is_timed: false },
            3 => Opinion { asks: true, is_for_it: true, is_timed: true },
            4 => Opinion { asks: true, is_for_it: self.is_for_it, is_timed: true },
            _ => Opinion { asks: !self.is_declined, is_for_it: self.is_for_it, is_timed },
        }
    }

    fn heard(&mut self, all: bool) {
        self.is_declined = !all;
    }

    fn took(&mut self, way: Way, seconds: f32) {
        let times = &mut self.took[way as usize];
        *times = [times[1], seconds];
        let [in_place, in_parts] = self.took.map(|[a, b]| a.min(b));
        self.is_for_it = if self.is_for_it { in_place <= WORTH * in_parts } else { in_place < in_parts };
    }
}

/// Processor time of the copies of a call.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stopwatch {
    spent: Option<Duration>,
}

impl Stopwatch {
    /// Makes a stopwatch that measures only if `is_timed`.
    pub(super) fn new(is_timed: bool) -> Self {
        Self { spent: is_timed.then_some(Duration::ZERO) }
    }

    /// Notes the beginning of a copy.
    pub(super) fn start(&self) -> Option<Duration> {
        self.spent.map(|_| processor_time())
    }

    /// Notes the end of a copy.
    pub(super) fn stop(&mut self, begun: Option<Duration>) {
        if let (Some(spent), Some(begun)) = (&mut self.spent, begun) {
            *spent += processor_time().saturating_sub(begun);
        }
    }

    /// Forgets the time measured so far.
    pub(super) fn reset(&mut self) {
        *self = Self::new(self.spent.is_some());
    }

    /// Returns the sum, if it was measured.
    pub(super) fn spent(&self) -> Option<Duration> {
        self.spent
    }
}

/// Returns the processor time of this thread, since ranks that share processors take turns.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates calls of several ranks whose copies take these times each way. Returns how many calls read in place.
    fn make(ranks: &mut [Class], calls: u32, took: &[[f32; 2]]) -> u32 {
        let mut in_place = 0;
        for _ in 0..calls {
            let opinions: Vec<Opinion> = ranks.iter_mut().map(|rank| rank.consider(UNTOUCHED)).collect();
            assert!(opinions.iter().all(|o| o.asks == opinions[0].asks), "all ask or none does");
            let all = opinions[0].asks && opinions.iter().all(|opinion| opinion.is_for_it);
            in_place += u32::from(all);
            for ((class, opinion), took) in ranks.iter_mut().zip(opinions).zip(took) {
                if opinion.asks {
                    class.heard(all);
                }
                if opinion.is_timed {
                    let way = if all { Way::InPlace } else { Way::InParts };
                    class.took(way, took[way as usize]);
                }
            }
        }
        in_place
    }

    const UNTOUCHED: u32 = 40;

    /// Makes the classes of two ranks that have used all buffers.
    fn classes() -> [Class; 2] {
        let mut ranks = [Class::default(), Class::default()];
        assert_eq!(make(&mut ranks, UNTOUCHED, &[[1.0, 9.0]; 2]), 0);
        ranks
    }

    #[test]
    fn the_quicker_way_is_taken_but_for_trials() {
        let mut ranks = classes();
        assert_eq!(make(&mut ranks, EARLY, &[[1.0, 2.0]; 2]), EARLY - EARLY / ROUNDS[0]);
        assert_eq!(make(&mut ranks, 512, &[[1.0, 2.0]; 2]), 511);
        let mut ranks = classes();
        assert!(make(&mut ranks, EARLY, &[[2.0, 1.0]; 2]) <= 3 * EARLY / ROUNDS[0], "tries");
        assert!(make(&mut ranks, 1024, &[[2.0, 1.0]; 2]) <= 4, "tries");
    }

    #[test]
    fn calls_with_page_faults_do_not_count() {
        let mut ranks = classes();
        assert!(ranks[0].took[Way::InParts as usize].iter().all(|took| took.is_infinite()));
        assert!(make(&mut ranks, EARLY, &[[2.0, 1.0]; 2]) <= 3 * EARLY / ROUNDS[0], "tries");
    }

    #[test]
    fn one_rank_that_loses_declines_for_all() {
        let mut ranks = classes();
        make(&mut ranks, EARLY, &[[1.0, 2.0], [2.0, 1.0]]);
        assert!(make(&mut ranks, 512, &[[1.0, 2.0], [2.0, 1.0]]) <= 2, "tries");
    }

    #[test]
    fn changes_are_noticed() {
        let mut ranks = classes();
        make(&mut ranks, 1000, &[[1.0, 2.0]; 2]);
        // As if the program had begun to write its buffers.
        assert!(make(&mut ranks, 1000, &[[4.0, 2.0]; 2]) < 4 * TIMED);
        make(&mut ranks, 512, &[[1.0, 2.0]; 2]);
        assert!(make(&mut ranks, 1000, &[[1.0, 2.0]; 2]) > 900);
    }

    #[test]
    fn the_first_call_in_place_does_not_count() {
        let (mut class, mut was_in_place, mut in_place) = (Class::default(), false, 0);
        for _ in 0..EARLY {
            let opinion = class.consider(0);
            let way = if opinion.asks && opinion.is_for_it { Way::InPlace } else { Way::InParts };
            let took = match way {
                Way::InPlace if was_in_place => 1.0,
                Way::InPlace => 4.0,
                Way::InParts => 2.0,
            };
            was_in_place = way == Way::InPlace;
            in_place += u32::from(was_in_place);
            if opinion.asks {
                class.heard(was_in_place);
            }
            if opinion.is_timed {
                class.took(way, took);
            }
        }
        assert!(in_place > EARLY / 2, "{in_place} of {EARLY}");
    }

    #[test]
    fn one_call_that_took_long_is_forgiven() {
        let mut class = Class::default();
        for took in [1.0, 1.0, 100.0] {
            class.took(Way::InParts, 2.0);
            class.took(Way::InPlace, took);
        }
        assert!(class.is_for_it);
    }
}
