//! A processor and the ranks that take turns on it.
//!
//! A rank runs until it has nothing to do; then it yields to the next rank of the processor, in a circle. A waiting
//! rank polls once in its turn and yields again, so that a turn costs a switch whether or not there was something to
//! do.

/// The ranks on one processor.
#[derive(Clone, Debug)]
pub(super) struct Processor {
    /// Time at which the processor is done with its current work.
    pub(super) free: f64,
    /// The record of its last step.
    pub(super) record: Option<u32>,
    /// Position of the rank whose turn it is.
    holder: usize,
    /// Lanes that wait for the turn of their rank, as slot and lane, by position.
    waiting: Vec<Vec<(u16, u16)>>,
    /// Whether a call of [`Processor::turn`] is scheduled.
    turn_due: bool,
}

/// The time at which a lane may go on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Claim {
    /// Immediately.
    Now,
    /// At the turn of its rank.
    At(f64),
    /// After other work; if a time is given, the caller must call [`Processor::turn`] then.
    Queued(Option<f64>),
}

impl Processor {
    /// Makes a processor for `ranks` ranks.
    pub(super) fn new(ranks: usize) -> Self {
        Self { free: 0.0, record: None, holder: 0, waiting: vec![Vec::new(); ranks], turn_due: false }
    }

    /// Requests the processor for a lane of the rank at `place`; passing the turn on takes `switch`.
    pub(super) fn claim(&mut self, place: usize, lane: (u16, u16), at: f64, switch: f64) -> Claim {
        let ranks = self.waiting.len();
        if ranks == 1 {
            return Claim::Now;
        }
        if at < self.free {
            self.waiting[place].push(lane);
            let due = (!self.turn_due).then_some(self.free);
            self.turn_due = true;
            return Claim::Queued(due);
        }
        if self.holder == place && at <= self.free + switch {
            return Claim::Now;
        }
        // All ranks have been waiting: on average half of them come before this one.
        self.holder = place;
        if switch == 0.0 {
            return Claim::Now;
        }
        self.free = at + 0.5 * ranks as f64 * switch;
        Claim::At(self.free)
    }

    /// Passes the turn to the next rank in the circle with something to do, now that the current work is done. Returns
    /// its position, its lanes, when they go on, and when to call again if others still wait.
    pub(super) fn turn(&mut self, at: f64, switch: f64) -> (usize, Vec<(u16, u16)>, f64, Option<f64>) {
        self.turn_due = false;
        let ranks = self.waiting.len();
        let mut lanes = Vec::new();
        if self.free <= at {
            let next = (0..ranks).find(|on| !self.waiting[(self.holder + on) % ranks].is_empty());
            if let Some(on) = next {
                self.holder = (self.holder + on) % ranks;
                self.free = at + on as f64 * switch;
                lanes = std::mem::take(&mut self.waiting[self.holder]);
            }
        }
        self.turn_due = self.waiting.iter().any(|lanes| !lanes.is_empty());
        (self.holder, lanes, self.free, self.turn_due.then_some(self.free))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_it_goes_on_and_others_wait_for_their_turn() {
        let mut processor = Processor::new(3);
        assert_eq!(processor.claim(0, (0, 0), 0.0, 1.0), Claim::Now);
        processor.free = 10.0;
        assert_eq!(processor.claim(2, (0, 1), 5.0, 1.0), Claim::Queued(Some(10.0)));
        assert_eq!(processor.claim(0, (0, 2), 6.0, 1.0), Claim::Queued(None));
        // The rank's own lane comes first, then the turn passes over a rank with nothing to do.
        assert_eq!(processor.turn(10.0, 1.0), (0, vec![(0, 2)], 10.0, Some(10.0)));
        assert_eq!(processor.turn(10.0, 1.0), (2, vec![(0, 1)], 12.0, None));
        // After idling, a wait of half a round.
        assert_eq!(processor.claim(2, (0, 1), 20.0, 1.0), Claim::At(21.5));
        assert_eq!(processor.claim(2, (0, 1), 21.5, 1.0), Claim::Now);
    }

    #[test]
    fn turns_that_cost_nothing_are_not_passed_back_and_forth() {
        let mut processor = Processor::new(2);
        for place in [0, 1, 0, 1] {
            assert_eq!(processor.claim(place, (0, 0), 1.0, 0.0), Claim::Now);
        }
    }

    #[test]
    fn a_processor_of_ones_own_is_always_at_hand() {
        let mut processor = Processor::new(1);
        processor.free = 10.0;
        assert_eq!(processor.claim(0, (0, 0), 3.0, 1.0), Claim::Now);
    }
}
