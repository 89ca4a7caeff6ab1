//! Decides which messages are sent at once, and which are announced first.

use super::Net;

/// The longest message that is sent eagerly, without an announcement. A ring of shared memory holds about as much, so that programs that
/// send before they receive do not deadlock.
pub(super) const EAGER_BYTES: usize = 64 << 10;

/// As [`EAGER_BYTES`], to ranks with which this one shares no memory. An announcement takes a round trip there. See docs/measurements.md,
/// "Announced messages of MPI".
pub(super) const FAR_EAGER_BYTES: usize = 256 << 10;

impl Net {
    /// Returns whether this rank shares memory with all of these ranks.
    #[must_use]
    pub fn shares_memory(&self, ranks: &[u32]) -> bool {
        let shares = |via: usize| self.ends[via].caps().park_word;
        ranks.iter().all(|rank| *rank == self.rank || self.via[*rank as usize].is_some_and(shares))
    }

    /// Returns whether a message of `bytes` between this rank and another one is announced first.
    #[inline]
    pub(super) fn is_announced(&self, peer: u32, bytes: usize) -> bool {
        bytes > EAGER_BYTES && (bytes > FAR_EAGER_BYTES || self.shares_memory(&[peer]))
    }
}
