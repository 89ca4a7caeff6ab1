//! Simulator of many members in one thread and in virtual time. Its network loses, delays, duplicates and cuts off
//! messages, and members die and pause at any point. Everything follows from a seed.
//!
//! A run that breaks an invariant is shortened by leaving out faults for as long as it still breaks one, and then shown
//! with its seed. `KOLO_SIMULATE_STEPS` sets the number of steps, `KOLO_SIMULATE_SEED` the first seed.

mod faults;
mod run;
mod world;

/// An error seeded into the rules, which the simulator must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// Any half of the members is a quorum.
    AnyHalf,
    /// Promises do not report accepted values.
    Forgets,
    /// A proposer takes its own value although another one may have been chosen.
    OwnChoice,
    /// Acceptors still hear messages of the dead.
    HearsTheDead,
}

/// Random numbers by SplitMix64 (G. Steele, D. Lea, C. Flood, OOPSLA 2014).
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
