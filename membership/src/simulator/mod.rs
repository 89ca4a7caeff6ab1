//! Many members in one thread and in virtual time, over a network that loses, delays, doubles and cuts, and with deaths and pauses at
//! every point. Everything follows from a seed.
//!
//! A run that breaks an invariant is made shorter, by leaving out faults while it still breaks one, and shown with its seed.
//! `KOLO_SIMULATE_STEPS` sets the steps, `KOLO_SIMULATE_SEED` the first seed.

mod faults;
mod run;
mod world;

/// An error in the rules, which the simulator must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// Any half is a quorum.
    AnyHalf,
    /// Promises do not tell what was accepted.
    Forgets,
    /// A proposer takes its own value although another may have been chosen.
    OwnChoice,
    /// Acceptors go on hearing the dead.
    HearsTheDead,
}

/// SplitMix64 (G. Steele, D. Lea, C. Flood, OOPSLA 2014).
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }
}
