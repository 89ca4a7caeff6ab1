//! Ring of the operations started last, which one thread writes and others read without a lock.
//!
//! Every call writes here, and a lock would cost two atomic exchanges in each. Operation `n` (from 0) is stored in slot
//! `n mod SLOTS`, and `begun` counts the operations written. A reader keeps only entries that cannot have been
//! overwritten:
//! 1. The writer stores `begun = n` before it touches the slot of operation `n`; a release fence lies between them.
//! 2. The reader loads `begun` once more after the slots; an acquire fence lies between them.
//! 3. A reader that saw any part of operation `n` therefore sees `begun >= n`, and drops entries that are `SLOTS` or more behind it.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::call::CallLabel;

/// Number of slots: one more than are remembered, since one may be in the middle of a write. A rank is rarely further
/// ahead of another, and as text the entries stay well under 2 KiB. A power of two, because every call divides by it.
const SLOTS: u64 = 16;

/// An operation that was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Start {
    pub(super) sequence: u64,
    pub(super) label: CallLabel,
}

#[derive(Debug, Default)]
struct Slot {
    sequence: AtomicU64,
    kind: AtomicU64,
    count: AtomicU64,
}

/// The ring of operations.
#[derive(Debug)]
pub(super) struct Recent {
    slots: [Slot; SLOTS as usize],
    begun: AtomicU64,
}

impl Default for Recent {
    fn default() -> Self {
        Self { slots: array::from_fn(|_| Slot::default()), begun: AtomicU64::new(0) }
    }
}

impl Recent {
    /// Adds an operation. Only one thread at a time may call this.
    #[inline]
    pub(super) fn push(&self, start: Start) {
        let begun = self.begun.load(Ordering::Relaxed);
        fence(Ordering::Release);
        let slot = self.slot(begun);
        slot.sequence.store(start.sequence, Ordering::Relaxed);
        slot.kind.store(start.label.kind, Ordering::Relaxed);
        slot.count.store(start.label.count, Ordering::Relaxed);
        self.begun.store(begun + 1, Ordering::Release);
    }

    /// Returns all remembered operations, oldest first. The last one is always among them.
    pub(super) fn all(&self) -> Vec<Start> {
        loop {
            let upto = self.begun.load(Ordering::Acquire);
            if upto == 0 {
                return Vec::new();
            }
            let first = upto.saturating_sub(SLOTS - 1);
            let mut found: Vec<Start> = (first..upto).map(|n| self.read(n)).collect();
            fence(Ordering::Acquire);
            let now = self.begun.load(Ordering::Relaxed);
            let lost = (now + 1).saturating_sub(SLOTS).saturating_sub(first);
            if lost < found.len() as u64 {
                found.drain(..lost as usize);
                return found;
            }
        }
    }

    /// Returns the last operation.
    pub(super) fn last(&self) -> Option<Start> {
        self.all().pop()
    }

    fn read(&self, n: u64) -> Start {
        let slot = self.slot(n);
        let (kind, count) = (slot.kind.load(Ordering::Relaxed), slot.count.load(Ordering::Relaxed));
        Start { sequence: slot.sequence.load(Ordering::Relaxed), label: CallLabel { kind, count } }
    }

    #[inline]
    fn slot(&self, n: u64) -> &Slot {
        &self.slots[(n % SLOTS) as usize]
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn start(n: u64) -> Start {
        Start { sequence: n, label: CallLabel { kind: !n, count: n ^ 0x5555 } }
    }

    #[test]
    fn the_last_ones_are_remembered() {
        let recent = Recent::default();
        assert_eq!((recent.all(), recent.last()), (Vec::new(), None));
        for n in 0..40 {
            recent.push(start(n));
            let first = (n + 1).saturating_sub(SLOTS - 1);
            assert_eq!(recent.all(), (first..=n).map(start).collect::<Vec<_>>());
        }
    }

    /// A reader gets whole entries without gaps while a writer keeps overwriting the ring.
    #[test]
    fn nobody_reads_what_is_being_written() {
        const PUSHED: u64 = 200_000;
        let recent = Recent::default();
        thread::scope(|scope| {
            scope.spawn(|| (0..PUSHED).for_each(|n| recent.push(start(n))));
            loop {
                let found = recent.all();
                let Some(last) = found.last().map(|last| last.sequence) else { continue };
                let first = last + 1 - found.len() as u64;
                assert_eq!(found, (first..=last).map(start).collect::<Vec<_>>());
                if last == PUSHED - 1 {
                    return;
                }
            }
        });
    }
}
