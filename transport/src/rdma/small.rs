//! Memory of the endpoint itself that peers need, and the number of peers for which lockable memory suffices.
//!
//! A peer's needs are estimated before anything relies on them. Peers that exceed the memory that this rank or the
//! peer may lock use another transport from the start. The caller's buffers are registered from the rest, and copied
//! if nothing is left.

use kolo_verbs::{Access, Error, MemoryLock, PinnedBuffer, ProtectionDomain};

use super::address::Address;
use super::channel::{BLOCK_BYTES, CHUNK_BYTES_LEAST};
use super::endpoint::RdmaEndpoint;
use super::options::RdmaOptions;
use super::registrations::Registrations;
use super::trouble::Trouble;
use super::wire::GRANTS;

/// Size of the queues of the first rail, which adapters pin (soft-RoCE does not): 512 sends of 256 bytes, 1700
/// receives of 16, 2600 completions of 64, and as much again for rounding up to powers of two.
const QUEUES_BYTES: u64 = 416 << 10;

/// Size of the queues of each further rail, and of the memory for its probes.
const RAIL_BYTES: u64 = 96 << 10;

/// Number of channels to a peer that a collective usually has in use: two lanes with four segments in flight each.
const CHANNELS_USUAL: u64 = 8;

/// Size of a channel's memory: its block, and the shortest possible staging.
const CHANNEL_BYTES: u64 = (BLOCK_BYTES.next_multiple_of(4096) + GRANTS as usize * CHUNK_BYTES_LEAST) as u64;

/// Memory that may be locked, and the peers' share of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lockable {
    /// Bytes left when the endpoint was opened; `None` without a limit.
    left: Option<u64>,
    /// Number of bytes that a peer needs.
    pub(super) per_peer: u64,
    /// Number of peers for which this suffices.
    pub(super) peers: u16,
}

impl Lockable {
    /// # Errors
    /// If the memory does not suffice for one peer; the text names the remedy.
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
                "each peer needs {} KiB of lockable memory, but only {} KiB are left: {}",
                per_peer >> 10,
                left >> 10,
                MemoryLock::remedy()
            )),
            None => Ok(Self { left, per_peer, peers }),
        }
    }

    /// Returns how many bytes of the caller's buffers each of `rails` adapters may register, beside the needs of
    /// `peers`. `None` without a limit.
    pub(super) fn for_buffers(&self, peers: usize, rails: usize) -> Option<u64> {
        Some(self.left?.saturating_sub(peers as u64 * self.per_peer) / rails.max(1) as u64)
    }
}

impl RdmaEndpoint {
    /// Returns the reason why a peer must not be used, if the memory that this rank or the peer may lock does not
    /// suffice for so many peers.
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
            "the memory that rank {rank} may lock is enough for {peers} of {} peers, which need {} KiB each: \
             {}",
            world_size - 1,
            self.lockable.per_peer >> 10,
            MemoryLock::remedy()
        ))
    }

    /// Gives the caller's buffers the lockable memory that the peers do not need.
    pub(super) fn share_out(&mut self) {
        let peers = self.peers.iter().filter(|peer| peer.address.is_some()).count();
        let room = self.lockable.for_buffers(peers, self.rails.len());
        self.registrations.iter_mut().for_each(|cache| cache.bound(room));
    }
}

/// Returns whether ranks `one` and `other` of a world use RDMA with each other, where each may have at most `peers`
/// peers. Both ends decide alike: the nearest ranks come first, since they are neighbours in rings.
fn affords(one: u32, other: u32, world_size: u32, peers: u16) -> bool {
    let apart = one.abs_diff(other);
    let distance = apart.min(world_size - apart);
    (2 * distance).min(world_size - 1) <= u32::from(peers)
}

/// Allocates memory for the endpoint itself. If lockable memory is short, unused registrations of buffers make room.
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
