//! Callers' buffers that the members of an exchange read in place, with a single copy made by the kernel.
//!
//! # Protocol
//! A member publishes the address of its contribution, its place ([`Exchange::place`]), and the others copy from
//! there ([`Exchange::fetch`]). The exchange does not know about this: a caller that publishes places must make sure
//! that no member's call returns before all have read.
//!
//! # Taking places back
//! A member whose call fails releases its memory although others may be reading it. As with messages by rendezvous
//! (see `rendezvous`, "Taking a request back"), it first writes a word and executes a fence ([`Exchange::withdraw`]).
//! A reader reads, executes a fence, and looks at the word: if it is not set, every byte was read before the owner
//! had its memory back. One word serves all members, because a call that fails ends the exchange on all of them.
//!
//! # Trust
//! Places from others are passed to the kernel as addresses of the process that published them, and used in no other
//! way.

use super::endpoint::ShmEndpoint;
use super::exchange::Exchange;
use super::remote::{Far, Near, Remote};

/// A member's access to the others' memory.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// Access by member; `None` for this member itself.
    readers: Vec<Option<Remote>>,
    /// Whether this member reads all others' memory.
    reads_all: bool,
}

impl Places {
    /// Returns the access that an endpoint has which knows all members.
    pub(super) fn of(endpoint: &ShmEndpoint) -> Self {
        let mut readers = vec![None; endpoint.members.len()];
        for peer in &endpoint.peers {
            readers[peer.member as usize] = peer.remote;
        }
        let own = endpoint.member as usize;
        let reads_all = readers.iter().enumerate().all(|(member, reader)| member == own || reader.is_some());
        Self { readers, reads_all }
    }
}

impl Exchange {
    /// Returns the place of this member's memory at an address, to be published for [`Exchange::fetch`]. `None` if this
    /// member cannot read the others' memory.
    #[must_use]
    pub fn place(&self, at: *const u8) -> Option<u64> {
        // The address leaves the language here: the kernel will use it on behalf of another process.
        self.places.reads_all.then(|| at.expose_provenance() as u64)
    }

    /// Copies `len` bytes of a member's memory, from `offset` bytes beyond its published place. Returns `false` if
    /// they could not be read, or are invalid because a member has taken its memory back.
    ///
    /// # Safety
    /// `to` is valid for writes of `len` bytes, in memory of this process alone that nobody else uses meanwhile.
    #[must_use]
    pub unsafe fn fetch(&self, member: usize, place: u64, offset: usize, to: *mut u8, len: usize) -> bool {
        let Some(Some(remote)) = self.places.readers.get(member) else { return false };
        let (mut near, mut far) = (Near::new(), Far::new());
        near.push(to, len);
        far.push(std::ptr::without_provenance_mut(place.wrapping_add(offset as u64) as usize), len);
        // SAFETY: the caller's promise for `to`. Test: `members_read_each_other_in_place`.
        let is_read = unsafe { remote.read(&mut near, &mut far) }.is_ok();
        is_read && !self.is_withdrawn()
    }

    /// Returns whether a member took its memory back before this member's earlier reads were complete. Includes a fence.
    #[must_use]
    pub fn is_withdrawn(&self) -> bool {
        self.arena().is_withdrawn()
    }

    /// Takes this member's places back: reads by others that are not complete are invalid. The exchange is unusable
    /// afterwards.
    pub fn withdraw(&self) {
        self.arena().withdraw();
    }
}
