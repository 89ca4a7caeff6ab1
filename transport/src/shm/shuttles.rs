//! Shuttles: memory that passes between the two ends of a channel with their messages.
//!
//! An answer lies best where the message lay: the processor that has read the message has these cache lines already.
//! Each end of a channel holds the shuttles of its own segment at first. A piece in a shuttle takes the shuttle along, so that
//! the receiver holds it afterwards, and sends its next piece in the shuttle that came last. An end that holds no shuttle
//! sends through its ring, so shuttles need no credits: once the receiver of a one-way stream holds all of them, the
//! stream goes through the ring. Measurements: docs/measurements.md, "Pieces and rings".
//!
//! # Trust
//! Each shuttle is held by exactly one end. A piece in a shuttle that this end holds, or in a segment that it does not know,
//! is an error of the peer. A peer that writes into a shuttle that it does not hold garbles payload and nothing else.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::sys::map::Mapping;

/// Number of shuttles in the segment of each end, and of the pieces of a message that is longer than the shortest
/// pieces.
pub(super) const SHUTTLES: usize = 4;
/// Length of a shuttle.
pub(crate) const SHUTTLE_BYTES: usize = 64 << 10;
/// Length of one end's shuttles together.
pub(crate) const SHUTTLES_BYTES: usize = SHUTTLES * SHUTTLE_BYTES;

/// A shuttle as this end names it: those of its own segment come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shuttle(u8);

const _: () = assert!(2 * SHUTTLES == 1 << Shuttle::BITS && 4 * 2 * SHUTTLES <= 32);

impl Shuttle {
    /// Number of bits of a shuttle's name.
    pub(crate) const BITS: u32 = 3;

    /// Returns the name by which the other end knows the shuttle.
    pub(crate) fn at_peer(self) -> u32 {
        u32::from(self.0) ^ SHUTTLES as u32
    }

    /// Returns the shuttle of that name. Bits above the name are dropped.
    pub(crate) fn named(name: u32) -> Self {
        Self(name as u8 & ((1 << Self::BITS) - 1))
    }
}

/// The shuttles that one end holds, in a word: their names in the lower half, four bits each and the latest lowest, and a
/// bit for each shuttle in the upper half.
#[derive(Clone, Copy)]
struct Held(u64);

impl Held {
    const fn bit(shuttle: Shuttle) -> u64 {
        1 << (32 + shuttle.0)
    }

    fn latest(self) -> Option<Shuttle> {
        (self.0 != 0).then(|| Shuttle::named(self.0 as u32))
    }

    /// Returns what is left without the latest shuttle. There must be one.
    fn without_latest(self) -> Self {
        let bits = (self.0 >> 32 << 32) & !Self::bit(Shuttle::named(self.0 as u32));
        Self(bits | u64::from(self.0 as u32 >> 4))
    }

    /// Returns what is held with one shuttle more, which must not be held.
    fn with(self, shuttle: Shuttle) -> Self {
        let bits = (self.0 >> 32 << 32) | Self::bit(shuttle);
        Self(bits | u64::from((self.0 as u32) << 4 | u32::from(shuttle.0)))
    }

    fn contains(self, shuttle: Shuttle) -> bool {
        self.0 & Self::bit(shuttle) != 0
    }
}

/// The shuttles of a channel, as its sending and its receiving lane share them.
#[derive(Debug, Default)]
pub(crate) struct Shuttles {
    /// The shuttles that this end holds. Only the endpoint's owner uses the word; it is atomic because both lanes refer to
    /// it.
    held: AtomicU64,
    /// Mapping and offset of the shuttles in the own segment and in the peer's, once they are known.
    halves: [OnceLock<(Arc<Mapping>, usize)>; 2],
}

impl Shuttles {
    /// Adds the shuttles at `offset` of the segment in which this end sends, and holds them if `granted`.
    pub(crate) fn add_own(&self, map: Arc<Mapping>, offset: usize, granted: bool) {
        if self.halves[0].set((map, offset)).is_ok() && granted {
            (0..SHUTTLES as u8).for_each(|i| self.put(Shuttle(i)));
        }
    }

    /// Adds the shuttles at `offset` of the segment in which the peer sends.
    pub(crate) fn add_peers(&self, map: Arc<Mapping>, offset: usize) {
        let _ = self.halves[1].set((map, offset));
    }

    /// Returns the shuttle that came last of those that this end holds.
    #[inline]
    pub(crate) fn latest(&self) -> Option<Shuttle> {
        self.held().latest()
    }

    /// Gives away the [latest](Self::latest) shuttle.
    #[inline]
    pub(crate) fn pass(&self) {
        self.held.store(self.held().without_latest().0, Ordering::Relaxed);
    }

    /// Takes a shuttle that has come.
    #[inline]
    pub(crate) fn put(&self, shuttle: Shuttle) {
        self.held.store(self.held().with(shuttle).0, Ordering::Relaxed);
    }

    #[inline]
    fn held(&self) -> Held {
        Held(self.held.load(Ordering::Relaxed))
    }

    /// Returns the memory of a shuttle, if its segment is known.
    #[inline]
    pub(crate) fn at(&self, shuttle: Shuttle) -> Option<*mut u8> {
        let (half, i) = (usize::from(shuttle.0) / SHUTTLES, usize::from(shuttle.0) % SHUTTLES);
        let (map, offset) = self.halves[half].get()?;
        Some(map.bytes(offset + i * SHUTTLE_BYTES, SHUTTLE_BYTES))
    }

    /// Returns the memory of a shuttle in which the peer says that a piece of `len` bytes lies, if that can be.
    #[inline]
    pub(crate) fn arrived(&self, shuttle: Shuttle, len: usize) -> Option<*mut u8> {
        if len > SHUTTLE_BYTES || self.held().contains(shuttle) { None } else { self.at(shuttle) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(map: &Arc<Mapping>, own: usize) -> Shuttles {
        let end = Shuttles::default();
        end.add_own(map.clone(), own, true);
        end.add_peers(map.clone(), SHUTTLES_BYTES - own);
        end
    }

    #[test]
    fn each_shuttle_is_held_by_one_end() {
        let map = Arc::new(Mapping::private(2 * SHUTTLES_BYTES).expect("memory"));
        let ends = [end(&map, 0), end(&map, SHUTTLES_BYTES)];
        let mut state = 1u32;
        for _ in 0..1000 {
            state = state.wrapping_mul(0x9e37_79b1).rotate_left(7) ^ 0x55;
            let from = (state & 1) as usize;
            let Some(shuttle) = ends[from].latest() else { continue };
            let at = ends[from].at(shuttle).expect("known");
            let there = Shuttle::named(shuttle.at_peer());
            assert_eq!(ends[1 - from].arrived(there, SHUTTLE_BYTES), Some(at));
            ends[from].pass();
            ends[1 - from].put(there);
            assert_eq!(ends[1 - from].latest(), Some(there));
            assert_eq!(ends[1 - from].arrived(there, 1), None, "it is held");
            let held = |end: &Shuttles| (end.held.load(Ordering::Relaxed) >> 32).count_ones();
            assert_eq!(held(&ends[0]) + held(&ends[1]), 2 * SHUTTLES as u32);
        }
    }

    #[test]
    fn a_shuttle_is_no_longer_than_it_is_and_not_in_an_unknown_segment() {
        let map = Arc::new(Mapping::private(2 * SHUTTLES_BYTES).expect("memory"));
        let end = Shuttles::default();
        end.add_peers(map.clone(), SHUTTLES_BYTES);
        assert_eq!(end.latest(), None);
        let theirs = Shuttle::named(SHUTTLES as u32);
        assert!(end.arrived(theirs, SHUTTLE_BYTES).is_some());
        assert_eq!(end.arrived(theirs, SHUTTLE_BYTES + 1), None);
        assert_eq!(end.arrived(Shuttle::named(0), 1), None);
    }
}
