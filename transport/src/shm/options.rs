//! Options of the shared-memory transport, and the values that follow from them.

use super::copier::Stores;
use super::shuttles::SHUTTLES_BYTES;

/// Options of a shared-memory endpoint. One side decides the options that shape shared memory, and the other side
/// checks them: a channel's sender sizes its rings, and the lowest local rank sizes the arena.
#[derive(Clone, Debug)]
pub struct ShmOptions {
    /// Shortest piece of a longer message that the sender hands over at once, in bytes: the granularity of the pipeline
    /// between the sender's copy in and the receiver's copy out. Long messages go in pieces of up to four times as
    /// much. A multiple of 128.
    pub piece_bytes: usize,
    /// Bytes of a ring per channel and direction, while the budget lasts. A multiple of 4096.
    pub ring_bytes: usize,
    /// Limit on the rings that this rank creates for all of its sending, in bytes. Memory in which messages are answered in
    /// place may take a quarter as much in addition.
    pub staging_max: usize,
    /// Whether receivers read long messages straight from their sender's memory.
    pub single_copy: SingleCopy,
    /// With [`SingleCopy::Auto`], length in bytes from which a message in pages of any size is sent the way that proves
    /// quicker. Such a message may wait for its receiver, so the owner must not count on its being buffered.
    pub tried_min: usize,
    /// Kind of stores with which this rank copies into memory that others read.
    pub stores: Stores,
    /// Replaces the identity of the host, which is otherwise the kernel's boot id and network namespace. Ranks with
    /// different keys do not reach each other. For tests.
    pub host_key: Option<String>,
}

/// Whether receivers read long messages straight from their sender's memory, instead of through a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SingleCopy {
    /// Only where the kernel permits it and it is faster: for long messages whose source lies in huge pages, and for
    /// others where the sender's own messages show it.
    Auto,
    /// Never: this rank neither lets others read its memory nor reads theirs.
    Never,
    /// For messages of at least this many bytes, in pages of any size, where the kernel permits it. For measurements
    /// and tests.
    From(usize),
}

impl SingleCopy {
    /// Returns the setting for programs that only allow or forbid it.
    #[must_use]
    pub fn allowed(is_allowed: bool) -> Self {
        if is_allowed { Self::Auto } else { Self::Never }
    }
}

/// Length in bytes from which messages in huge pages go by rendezvous. From this length on, messages that the receiver
/// places gain, and messages that it declines lose no more than 5 %: see docs/measurements.md, "Messages in huge pages".
/// In 4 KiB pages, the outcome depends on the processor and the program, so each lane tries both ways: see the `tried`
/// module.
pub(crate) const SINGLE_COPY_MIN: usize = 512 << 10;

/// Default of [`ShmOptions::tried_min`]. Measurements: docs/measurements.md, "Messages read in place".
const TRIED_MIN: usize = 120 << 10;

impl ShmOptions {
    /// Returns the length in bytes from which messages may go by rendezvous.
    pub(crate) fn rendezvous_min(&self) -> usize {
        match self.single_copy {
            SingleCopy::Auto => self.tried_min.min(SINGLE_COPY_MIN),
            SingleCopy::Never => usize::MAX,
            // An empty message has no ranges.
            SingleCopy::From(bytes) => bytes.max(1),
        }
    }
}

/// Default length of the shortest piece in bytes, [`PIECES_MIN`] of which a message is cut into. Short pieces cost
/// more for their cells (about 60 ns each, near); with long pieces, the receiver begins later. Measurements:
/// docs/measurements.md, "Pieces and rings".
pub(crate) const PIECE_BYTES: usize = 16 * 1024;
/// A piece is at most this part of what is left of its message, unless that would be shorter than the shortest piece:
/// the first piece is soon there, and the last one is soon copied out.
pub(crate) const PIECES_MIN: usize = 4;
/// Longest piece, in shortest ones.
pub(crate) const PIECE_GROWTH: usize = 4;
/// Default length of a ring in bytes: several pieces, so that the two ends do not wait for each other's jitter, and a
/// quarter of a 1 MiB second-level cache.
pub(crate) const RING_BYTES: usize = 256 * 1024;
/// Default limit on staging in bytes: a thirty-second of the memory per core of a small machine (1 GiB), whatever the
/// number of local ranks.
const STAGING_MAX: usize = 32 << 20;

impl Default for ShmOptions {
    fn default() -> Self {
        Self {
            piece_bytes: PIECE_BYTES,
            ring_bytes: RING_BYTES,
            staging_max: STAGING_MAX,
            single_copy: SingleCopy::Auto,
            tried_min: TRIED_MIN,
            stores: Stores::Auto,
            host_key: None,
        }
    }
}

/// Smallest ring that a channel gets when the budget is tight: one page.
pub(crate) const RING_MIN_BYTES: usize = 4096;
/// Largest ring that this side accepts from a peer, which bounds the size of the mapping that the peer's segment
/// takes.
pub(crate) const RING_MAX_BYTES: usize = 4 << 20;
/// Maximum number of channels to one peer, in a world of any size: the executor uses fewer lanes.
pub(crate) const CHANNELS_MAX: u16 = 64;
/// Minimum number of channels to one peer: one for messages, and 32 for calls, so that a large job need not have fewer
/// segments in flight, between hosts too. An unused channel costs address space only.
const CHANNELS_MIN: usize = 33;
/// Number of channels to all peers together for which memory is reserved. Even if all of them have the smallest ring,
/// they stay within a quarter of the default budget: 1024 x (4 KiB control + 4 KiB ring) = 8 MiB.
const CHANNELS_TOTAL: usize = 1024;
/// Minimum number of channels to one peer for which memory is reserved.
const CHANNELS_RESERVED_MIN: usize = 8;
/// The part of the limit on staging that shuttles may take in addition: one in this many.
const SHUTTLES_PART: usize = 4;
/// Length of a channel's control page.
pub(crate) const CONTROL_BYTES: usize = 4096;

/// Divides the staging budget among the channels as they are first used.
///
/// Half of the budget is reserved for channels alike: each channel that may still be opened is reserved a ring of the
/// *floor*, the greatest power of two that fits. The rest of the budget is handed out in shares: each opened channel
/// gets a 32nd of what is left. With 8 local ranks and 32 MiB, the floor is 32 KiB; the first 30 channels of a rank
/// get 256 KiB each, the next ones 128 KiB, and so on. The sum never exceeds the budget, or the sum of the smallest
/// rings for all channels if that is more: 8 MiB up to 128 local ranks, and 8 channels x 8 KiB for each local rank
/// beyond.
///
/// In a world of 32 ranks or more, a rank may open more channels than these. The further ones get shares of what is left,
/// and at least the floor, so that the sum may exceed the budget.
#[derive(Debug)]
pub(crate) struct Budget {
    left: usize,
    unopened: usize,
    ring_bytes: usize,
    floor: usize,
    /// Number of channels that may still get shuttles.
    shuttled: usize,
}

/// The memory of one more channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) ring_bytes: usize,
    pub(crate) has_shuttles: bool,
}

impl Budget {
    /// Returns the budget for channels to `peers` peers in a world of this size.
    pub(crate) fn new(options: &ShmOptions, world_size: u32, peers: usize) -> Self {
        let unopened = channels(world_size, CHANNELS_RESERVED_MIN) * peers;
        let ring_bytes = options.ring_bytes;
        let is_ample = unopened * (ring_bytes + CONTROL_BYTES) <= options.staging_max;
        let fair = (options.staging_max / 2).checked_div(unopened).unwrap_or(0).saturating_sub(CONTROL_BYTES);
        let floor =
            if is_ample { ring_bytes } else { power_of_two_below(fair).clamp(RING_MIN_BYTES, ring_bytes) };
        // The floor consists of whole pages: it is a power of two of at least a page, or `ring_bytes`.
        let shuttled = options.staging_max / SHUTTLES_PART / SHUTTLES_BYTES;
        Self { left: options.staging_max, unopened, ring_bytes, floor, shuttled }
    }

    /// Returns the size of the smallest ring that a channel gets.
    pub(crate) fn floor(&self) -> usize {
        self.floor
    }

    /// Returns the share of one more channel, and takes it from the budget.
    pub(crate) fn take(&mut self) -> Share {
        let reserve = self.unopened * (self.floor + CONTROL_BYTES);
        let share = power_of_two_below(self.left.saturating_sub(reserve) / 32);
        let ring = share.clamp(self.floor, self.ring_bytes);
        self.unopened = self.unopened.saturating_sub(1);
        self.left = self.left.saturating_sub(ring + CONTROL_BYTES);
        let has_shuttles = self.shuttled > 0 && ring >= SHUTTLES_BYTES;
        self.shuttled -= usize::from(has_shuttles);
        Share { ring_bytes: ring, has_shuttles }
    }
}

/// Returns the largest power of two up to `n`, or 0 for 0.
fn power_of_two_below(n: usize) -> usize {
    n.checked_ilog2().map_or(0, |bits| 1 << bits)
}

/// Returns the number of channels per peer in a world of this size.
pub(crate) fn channels_max(world_size: u32) -> u16 {
    u16::try_from(channels(world_size, CHANNELS_MIN)).unwrap_or(CHANNELS_MAX)
}

fn channels(world_size: u32, least: usize) -> usize {
    (CHANNELS_TOTAL / (world_size.max(1) as usize)).clamp(least, CHANNELS_MAX.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(share: Share) -> usize {
        share.ring_bytes + CONTROL_BYTES + if share.has_shuttles { SHUTTLES_BYTES } else { 0 }
    }

    #[test]
    fn staging_is_bounded_whatever_the_world() {
        for world_size in [1u32, 2, 3, 4, 8, 16, 17, 64, 128] {
            let options = ShmOptions::default();
            let peers = world_size as usize - 1;
            let mut budget = Budget::new(&options, world_size, peers);
            let reserved = budget.unopened;
            let sum: usize = (0..reserved).map(|_| bytes(budget.take())).sum();
            let limit = options.staging_max + options.staging_max / SHUTTLES_PART;
            assert!(sum <= limit, "{world_size} ranks: {sum} bytes");
            let worst = ShmOptions { staging_max: 0, ..options };
            let mut budget = Budget::new(&worst, world_size, peers);
            let sum: usize = (0..reserved).map(|_| bytes(budget.take())).sum();
            assert!(sum <= 8 << 20, "{world_size} ranks, no budget: {sum} bytes");
        }
    }

    #[test]
    fn large_worlds_have_channels_for_all_segments_in_flight() {
        assert_eq!([2, 16, 31, 32, 114, 1000, 16384].map(channels_max), [64, 64, 33, 33, 33, 33, 33]);
    }

    #[test]
    fn nobody_gets_less_than_the_floor() {
        for (world_size, floor) in
            [(2, RING_BYTES), (4, 64 << 10), (8, 32 << 10), (16, 8 << 10), (64, 8 << 10)]
        {
            let channels = usize::from(channels_max(world_size)) * (world_size as usize - 1);
            let mut budget = Budget::new(&ShmOptions::default(), world_size, world_size as usize - 1);
            assert_eq!(budget.floor(), floor, "{world_size} ranks");
            let rings: Vec<usize> = (0..channels).map(|_| budget.take().ring_bytes).collect();
            assert!(
                rings.iter().all(|r| (floor..=RING_BYTES).contains(r) && r.is_multiple_of(RING_MIN_BYTES))
            );
        }
    }

    #[test]
    fn first_channels_of_a_large_world_get_full_rings() {
        let mut budget = Budget::new(&ShmOptions::default(), 64, 63);
        assert!((0..40).all(|_| budget.take().ring_bytes == RING_BYTES));
    }

    #[test]
    fn long_rings_have_shuttles_while_the_budget_lasts() {
        let shares = |options: &ShmOptions| {
            let mut budget = Budget::new(options, 2, 1);
            (0..64).filter(|_| budget.take().has_shuttles).count()
        };
        assert_eq!(shares(&ShmOptions::default()), 32);
        assert_eq!(shares(&ShmOptions { ring_bytes: 128 << 10, ..ShmOptions::default() }), 0);
        assert_eq!(shares(&ShmOptions { staging_max: 0, ..ShmOptions::default() }), 0);
    }
}
