//! Memory of our own that peers need, and how many peers what may be locked is enough for.
//!
//! A peer's needs are reckoned before anything relies on them: peers beyond the memory that this rank, or they, may lock go another way
//! from the start. The caller's buffers are registered from the rest, and copied where nothing is left.

use kolo_verbs::{Access, Error, MemoryLock, PinnedBuffer, ProtectionDomain};

use super::address::Address;
use super::channel::{BLOCK_BYTES, CHUNK_BYTES_LEAST};
use super::endpoint::RdmaEndpoint;
use super::options::RdmaOptions;
use super::registrations::Registrations;
use super::trouble::Trouble;
use super::wire::GRANTS;

/// Queues of the first rail: adapters pin theirs (soft-RoCE does not). 512 sends of 256 bytes, 1700 receives of 16, 2600
/// completions of 64, and as many again for rounding up to powers of two.
const QUEUES_BYTES: u64 = 416 << 10;

/// Queues of each further rail, and the memory of its probes.
const RAIL_BYTES: u64 = 96 << 10;

/// Channels that a collective usually has in use to a peer: two lanes with four segments in flight each.
const CHANNELS_USUAL: u64 = 8;

/// Of a channel: its block, and staging as short as it gets.
const CHANNEL_BYTES: u64 = (BLOCK_BYTES.next_multiple_of(4096) + GRANTS as usize * CHUNK_BYTES_LEAST) as u64;

/// Memory that may be locked, and the peers' share of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lockable {
    /// Bytes left when the endpoint was opened; none without a limit.
    left: Option<u64>,
    /// Bytes that a peer takes.
    pub(super) per_peer: u64,
    /// Peers that this is enough for.
    pub(super) peers: u16,
}

impl Lockable {
    /// # Errors
    /// That it is not enough for one peer, and what to do.
    pub(super) fn of(options: &RdmaOptions, rails: usize) -> Result<Self, String> {
        let lock = match options.lockable_bytes {
            Some(bytes) => MemoryLock::Limited { bytes },
            None => MemoryLock::current(),
        };
        let left = lock.left();
        let bounce = (rails * GRANTS as usize * CHUNK_BYTES_LEAST) as u64;
        let per_peer = QUEUES_BYTES + RAIL_BYTES * rails as u64 + CHANNELS_USUAL * CHANNEL_BYTES + bounce;
        let peers = left.map_or(u16::MAX, |left| u16::try_from(left / per_peer).unwrap_or(u16::MAX));
        match left.filter(|_| peers == 0) {
            Some(left) => Err(format!(
                "each peer needs {} KiB of memory that may be locked, and {} KiB are left: {}",
                per_peer >> 10,
                left >> 10,
                MemoryLock::remedy()
            )),
            None => Ok(Self { left, per_peer, peers }),
        }
    }

    /// Bytes of the caller's buffers that each of `rails` adapters may hold, beside what `peers` need.
    pub(super) fn for_buffers(&self, peers: usize, rails: usize) -> Option<u64> {
        Some(self.left?.saturating_sub(peers as u64 * self.per_peer) / rails.max(1) as u64)
    }
}

impl RdmaEndpoint {
    /// Why a peer is not to be reached though it could be: what this rank or the peer may lock is not enough for so many.
    pub(super) fn beyond(&self, peer: u32, address: &Address) -> Option<String> {
        let world_size = self.peers.len() as u32;
        if affords(self.rank, peer, world_size, self.lockable.peers.min(address.peers)) {
            return None;
        }
        let (rank, peers) = match self.lockable.peers <= address.peers {
            true => (self.rank, self.lockable.peers),
            false => (peer, address.peers),
        };
        Some(format!(
            "what rank {rank} may lock is enough for {peers} of {} peers, which need {} KiB each: {}",
            world_size - 1,
            self.lockable.per_peer >> 10,
            MemoryLock::remedy()
        ))
    }

    /// Leaves of what may be locked to the caller's buffers what the peers do not need.
    pub(super) fn share_out(&mut self) {
        let peers = self.peers.iter().filter(|peer| peer.address.is_some()).count();
        let room = self.lockable.for_buffers(peers, self.rails.len());
        self.registrations.iter_mut().for_each(|cache| cache.bound(room));
    }
}

/// Whether ranks `one` and `other` of so many reach each other where locked memory is enough for so many peers of each.
/// Both ends decide alike: the nearest come first, since they are each other's neighbours in rings.
fn affords(one: u32, other: u32, world_size: u32, peers: u16) -> bool {
    let apart = one.abs_diff(other);
    let distance = apart.min(world_size - apart);
    (2 * distance).min(world_size - 1) <= u32::from(peers)
}

/// Memory of our own. Registrations of buffers that nobody uses make room for it.
pub(super) fn allocate(
    domain: &ProtectionDomain,
    registrations: &mut [Registrations],
    len: usize,
    access: Access,
) -> Result<PinnedBuffer, Trouble> {
    let is_short = |error: &Error| error.errno() == Some(libc::ENOMEM);
    match domain.allocate(len, access) {
        Err(error) if is_short(&error) => {
            for cache in registrations.iter_mut() {
                cache.drop_kept();
            }
            domain.allocate(len, access).map_err(|error| match is_short(&error) {
                true => Trouble::Short(len, error),
                false => error.into(),
            })
        }
        other => other.map_err(Trouble::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_affords_no_more_peers_than_it_may_and_both_ends_agree() {
        for world_size in 2..40_u32 {
            for peers in 0..40_u16 {
                for one in 0..world_size {
                    let reached = |other: &u32| affords(one, *other, world_size, peers);
                    let others = (0..world_size).filter(|other| *other != one);
                    let count = others.clone().filter(reached).count();
                    assert!(count <= usize::from(peers), "{world_size} ranks, {peers} peers: {count}");
                    assert!(u32::from(peers) < world_size - 1 || count as u32 == world_size - 1);
                    assert!(
                        others.clone().all(|other| reached(&other) == affords(other, one, world_size, peers))
                    );
                }
            }
        }
    }

    #[test]
    fn what_may_be_locked_is_shared_out() {
        let options = |bytes| RdmaOptions { lockable_bytes: Some(bytes), ..RdmaOptions::default() };
        let words = Lockable::of(&options(64 << 10), 1).unwrap_err();
        assert!(words.contains("64 KiB are left") && words.contains("ulimit -l unlimited"), "{words}");
        let eight = Lockable::of(&options(8 << 20), 1).unwrap();
        assert!(eight.peers >= 3, "the usual limit of a service is enough for four ranks: {eight:?}");
        let room = eight.for_buffers(3, 1).unwrap();
        assert_eq!(room, (8 << 20) - 3 * eight.per_peer);
        assert_eq!(eight.for_buffers(100, 1), Some(0));
    }
}
