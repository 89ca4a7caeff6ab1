//! A flag that goes to and fro between two threads: the least that any exchange between processors takes.

use std::sync::atomic::{AtomicU32, Ordering};

/// On a line of its own, and on the one that processors fetch beside it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line(AtomicU32);

/// The two flags, one set by each side.
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
    /// The side that begins a round trip (0), or the one that answers (1).
    ///
    /// # Panics
    /// If there is no such side.
    #[must_use]
    pub fn side(&self, index: usize) -> Side<'_> {
        Side { own: &self.sides[index].0, other: &self.sides[1 - index].0, begins: index == 0, round: 0 }
    }
}

impl Side<'_> {
    /// One round trip. Waits, with nothing but looking, for the other side: both need a processor of their own.
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
