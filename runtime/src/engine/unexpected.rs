//! Unexpected messages: no receive asks for them when they arrive, and they stand before a message that is asked for.

use kolo_transport::Piece;

use super::listed::Listed;

/// A message that is buffered or on its way into the buffer.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) tag: u64,
    /// Number of the message among those of all ranks, so that a receive from any source takes the oldest.
    pub(super) arrival: u64,
    /// The receive that gets the message once all of it is there.
    pub(super) claimed: Option<u16>,
    piece: Listed,
    // Not a box: see `Listed`.
    memory: Vec<u8>,
}

// SAFETY: the piece points into `memory`, which this value owns.
unsafe impl Send for Stored {}

impl Stored {
    pub(super) fn new(tag: u64, len: usize) -> Self {
        let mut memory = vec![0; len];
        let piece = Listed::new(Piece { ptr: memory.as_mut_ptr(), len });
        Self { tag, arrival: 0, claimed: None, piece, memory }
    }

    /// Returns the memory that the message goes to.
    pub(super) fn pieces(&self) -> &[Piece] {
        self.piece.pieces()
    }

    pub(super) fn len(&self) -> usize {
        self.memory.len()
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory
    }
}

/// Cost of a message besides its bytes, so that a flood of empty messages is bounded too.
const OVERHEAD_BYTES: usize = size_of::<Stored>();

/// Limit on buffered bytes, and the bytes buffered so far.
#[derive(Debug)]
pub(super) struct Allowance {
    max: usize,
    taken: usize,
    arrivals: u64,
}

impl Allowance {
    pub(super) const fn new(max: usize) -> Self {
        Self { max, taken: 0, arrivals: 0 }
    }

    /// Takes room for a message of `len` bytes, if there is enough.
    pub(super) fn take(&mut self, len: u64) -> Option<usize> {
        let len = usize::try_from(len).ok()?;
        let cost = len.checked_add(OVERHEAD_BYTES)?;
        if cost > self.max - self.taken {
            return None;
        }
        self.taken += cost;
        Some(len)
    }

    pub(super) fn give_back(&mut self, len: usize) {
        self.taken -= len + OVERHEAD_BYTES;
    }

    /// Returns the number of the message that has just arrived.
    pub(super) fn arrival(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }

    pub(super) const fn max(&self) -> usize {
        self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_allowance_bounds_long_messages_and_many_empty_ones() {
        let mut allowance = Allowance::new(1000);
        assert_eq!(allowance.take(u64::MAX), None);
        assert_eq!(allowance.take(1000), None, "the message itself costs something");
        assert_eq!(allowance.take(500), Some(500));
        assert_eq!(allowance.take(500), None);
        allowance.give_back(500);
        let empty = std::iter::repeat_with(|| allowance.take(0)).take_while(Option::is_some).count();
        assert_eq!(empty, 1000 / OVERHEAD_BYTES);
    }
}
