//! A flag that two threads pass to and fro: the minimum for any exchange between processors.

use std::sync::atomic::{AtomicU32, Ordering};

/// A word on a cache line of its own, with the adjacent line that processors fetch along with it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line(AtomicU32);

/// The two flags; each side sets one.
#[derive(Debug, Default)]
pub struct BareFlag {
    sides: [Line; 2],
}

/// One of the two sides.
#[derive(Debug)]
pub struct Side<'a> {
    own: &'a AtomicU32,
    other: &'a AtomicU32,
    begins: bool,
    round: u32,
}

impl BareFlag {
    /// Returns the side that begins a round trip (0), or the one that answers (1).
    ///
    /// # Panics
    /// If `index` is greater than 1.
    #[must_use]
    pub fn side(&self, index: usize) -> Side<'_> {
        Side { own: &self.sides[index].0, other: &self.sides[1 - index].0, begins: index == 0, round: 0 }
    }
}

impl Side<'_> {
    /// Makes one round trip. Spins until the other side answers, so both need a processor of their own.
    #[inline]
    pub fn round_trip(&mut self) {
        self.round = self.round.wrapping_add(1);
        if self.begins {
            self.own.store(self.round, Ordering::Release);
        }
        while self.other.load(Ordering::Acquire) != self.round {}
        if !self.begins {
            self.own.store(self.round, Ordering::Release);
        }
    }
}
