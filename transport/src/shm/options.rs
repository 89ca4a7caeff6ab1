//! What can be chosen about the shared-memory transport, and what follows from it.

/// Options of a shared-memory endpoint. The fields that shape shared memory are decided by one side and checked
/// by the other: a channel's sender sizes its rings, the lowest local rank sizes the arena.
#[derive(Clone, Debug)]
pub struct ShmOptions {
    /// Longest piece of a message that is handed over at once, in bytes: the grain of the pipeline between the
    /// sender's copy in and the receiver's copy out. A multiple of 128.
    pub piece_bytes: usize,
    /// Bytes of staging per channel and direction, as long as the budget lasts. A multiple of 4096.
    pub ring_bytes: usize,
    /// Bound on the staging that this rank creates for all of its sending, in bytes.
    pub staging_max: usize,
    /// Whether there are more local ranks than processors for them. Decides how [`Flat`](super::Flat) waits; the
    /// lowest local rank's word counts for the group.
    pub oversubscribed: bool,
    /// Stands for the identity of the host, instead of the kernel's boot id and network namespace. Ranks with
    /// different keys do not reach each other. For tests.
    pub host_key: Option<String>,
}

/// Bytes of a piece. Measured between two processes on two cores of one third-level cache (2 x 1 MiB second-level,
/// 32 MiB third-level), GB/s one way at 64 KiB / 1 MiB / 8 MiB, with rings of 128 KiB:
///
/// | piece | 64 KiB | 1 MiB | 8 MiB | one 32 KiB message, µs |
/// | ---: | ---: | ---: | ---: | ---: |
/// | 4 KiB | | | | 1.21 |
/// | 8 KiB | 55 | 43 | 39 | 0.86 |
/// | 16 KiB | 57 | 51 | 45 | 0.83 |
/// | 32 KiB | 55 | 44 | 42 | 0.94 |
/// | 64 KiB | 52 | 47 | 42 | |
///
/// Shorter pieces pay for their cells (about 60 ns each), longer ones for the time until the receiver can begin.
pub(crate) const PIECE_BYTES: usize = 16 * 1024;
/// Eight pieces: with two, the ends wait for each other's jitter (41 GB/s at 1 MiB instead of 51), and with more they
/// leave the second-level cache, of which this is an eighth: the channels of 4 lanes in both directions fit beside
/// the user's data.
pub(crate) const RING_BYTES: usize = 128 * 1024;
/// A thirty-second of what a small machine has per core (1 GiB), whatever the number of local ranks.
const STAGING_MAX: usize = 32 << 20;

impl Default for ShmOptions {
    fn default() -> Self {
        Self {
            piece_bytes: PIECE_BYTES,
            ring_bytes: RING_BYTES,
            staging_max: STAGING_MAX,
            oversubscribed: false,
            host_key: None,
        }
    }
}

/// Smallest ring that a channel gets when the budget is tight: a page.
pub(crate) const RING_MIN_BYTES: usize = 4096;
/// Largest ring that is accepted from a peer: bounds what its segment makes us map.
pub(crate) const RING_MAX_BYTES: usize = 4 << 20;
/// Channels to one peer at most, whatever the world: the executor's lanes are fewer.
pub(crate) const CHANNELS_MAX: u16 = 64;
/// Channels to one peer at least.
const CHANNELS_MIN: usize = 8;
/// Channels to all peers together, so that even the smallest rings of all stay within a quarter of the default
/// budget: 1024 x (4 KiB control + 4 KiB ring) = 8 MiB.
const CHANNELS_TOTAL: usize = 1024;
/// Control page of a channel.
pub(crate) const CONTROL_BYTES: usize = 4096;

/// Shares the staging budget out among the channels as they are first used.
///
/// Every channel that may still come is reserved its smallest ring; what is left beyond that is given in shares of
/// one 128th, so that the first 64 channels of a rank get 128 KiB each out of 32 MiB, the next 128 get 64 KiB, and
/// so on. The sum never exceeds the budget, or the reserve if that is larger: 8 MiB up to 128 local ranks, and
/// 8 channels x 8 KiB for each local rank beyond.
#[derive(Debug)]
pub(crate) struct Budget {
    left: usize,
    unopened: usize,
    ring_bytes: usize,
}

impl Budget {
    /// A budget for channels to `peers` peers.
    pub(crate) fn new(options: &ShmOptions, channels_max: u16, peers: usize) -> Self {
        let unopened = usize::from(channels_max) * peers;
        Self { left: options.staging_max, unopened, ring_bytes: options.ring_bytes }
    }

    /// Whether every channel can have its full ring.
    pub(crate) fn is_ample(&self) -> bool {
        self.unopened * (self.ring_bytes + CONTROL_BYTES) <= self.left
    }

    /// Size of the ring for one more channel.
    pub(crate) fn take(&mut self) -> usize {
        let ring = if self.is_ample() {
            self.ring_bytes
        } else {
            let reserve = self.unopened * (RING_MIN_BYTES + CONTROL_BYTES);
            let share = self.left.saturating_sub(reserve) / 128;
            let share = share.next_power_of_two() / if share.is_power_of_two() { 1 } else { 2 };
            share.clamp(RING_MIN_BYTES, self.ring_bytes)
        };
        self.unopened = self.unopened.saturating_sub(1);
        self.left = self.left.saturating_sub(ring + CONTROL_BYTES);
        ring
    }
}

/// Channels per peer in a world of this size.
pub(crate) fn channels_max(world_size: u32) -> u16 {
    let share = CHANNELS_TOTAL / (world_size.max(1) as usize);
    u16::try_from(share.clamp(CHANNELS_MIN, CHANNELS_MAX.into())).unwrap_or(CHANNELS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staging_is_bounded_whatever_the_world() {
        for world_size in [1u32, 2, 3, 4, 8, 16, 17, 64, 128] {
            let options = ShmOptions::default();
            let mut budget = Budget::new(&options, channels_max(world_size), world_size as usize - 1);
            let channels = usize::from(channels_max(world_size)) * (world_size as usize - 1);
            let sum: usize = (0..channels).map(|_| budget.take() + CONTROL_BYTES).sum();
            assert!(sum <= options.staging_max, "{world_size} ranks: {sum} bytes");
        }
    }

    #[test]
    fn first_channels_of_a_large_world_get_full_rings() {
        let mut budget = Budget::new(&ShmOptions::default(), channels_max(64), 63);
        assert!((0..48).all(|_| budget.take() == RING_BYTES));
    }
}
