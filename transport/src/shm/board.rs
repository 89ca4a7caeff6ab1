//! The board: state that the ranks of a host show each other outside any message, namely the abort word and their
//! latest operation.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::arena::{Arena, Wake};
use super::endpoint::ShmEndpoint;
use super::host::NAME_BYTES;
use crate::sys::atomic::{AtomicU32, fence};
use crate::sys::unix;

/// A handle on the group's abort word and announcements, for any thread.
#[derive(Clone, Debug)]
pub struct Board {
    arena: Arena,
    member: u32,
    bell: Arc<unix::Socket>,
    /// Names of the members' datagram sockets.
    bell_names: Arc<[[u8; NAME_BYTES]]>,
}

impl ShmEndpoint {
    /// Returns the group's board; `None` before [`establish`](crate::Endpoint::establish). After that it cannot fail: all
    /// ranks must have the exchange, or none, and a rank without a board would have none.
    #[must_use]
    pub fn board(&self) -> Option<Board> {
        let arena = self.arena.clone()?;
        let mut names = vec![self.identity.bell_name(); self.members.len()];
        for peer in &self.peers {
            names[peer.member as usize] = peer.bell_name;
        }
        Some(Board { arena, member: self.member, bell: Arc::clone(&self.bell), bell_names: names.into() })
    }
}

#[cfg(all(test, kolo_model))]
impl Board {
    /// Makes a board without sockets: in a model, no thread sleeps on a descriptor.
    pub(super) fn modelled(arena: Arena, member: u32) -> Self {
        use crate::sys::unshared::Unshared;

        let bell = crate::sys::memfd::create_sealed("kolo-model", 1).expect("a descriptor");
        let bell_names = vec![[0; NAME_BYTES]; arena.members() as usize].into();
        Self { arena, member, bell: Arc::new(Unshared::new(bell)), bell_names }
    }
}

impl Board {
    /// Sets the abort word to `value` unless it is set already, and wakes all ranks of this host, however they sleep.
    /// The number of the epoch that is given up makes a good `value`.
    ///
    /// # Panics
    /// If `value` is 0.
    pub fn abort(&self, value: u32) {
        assert_ne!(value, 0, "0 means that there is no abort");
        let _ = self.arena.abort_word().compare_exchange(0, value, Ordering::SeqCst, Ordering::Relaxed);
        self.arena.ring_bell_always();
        fence(Ordering::SeqCst);
        for (member, name) in (0..).zip(self.bell_names.iter()) {
            if self.arena.wake(member) == Wake::Nudge {
                let _ = unix::nudge(&self.bell, name);
            }
        }
    }

    /// Returns the value of the abort word: 0 until a rank of this host aborts.
    #[must_use]
    pub fn aborted(&self) -> u32 {
        self.abort_word().load(Ordering::Acquire)
    }

    /// Returns the abort word itself, for use inside a waiting loop.
    #[must_use]
    pub fn abort_word(&self) -> &AtomicU32 {
        self.arena.abort_word()
    }

    /// Shows the other ranks two words that say which operation this rank executes. These are two plain stores: a
    /// reader may see the first word of one announcement with the second word of the previous or next one.
    pub fn announce(&self, first: u64, second: u64) {
        let (first_word, second_word) = self.arena.announcement(self.member);
        second_word.store(second, Ordering::Relaxed);
        first_word.store(first, Ordering::Release);
    }

    /// Returns a member's last announcement, or zeros if there is none. Members are the indices of
    /// [`ShmEndpoint::members`].
    ///
    /// # Panics
    /// If there is no such member.
    #[must_use]
    pub fn announced(&self, member: usize) -> (u64, u64) {
        let (first, second) = self.arena.announcement(u32::try_from(member).unwrap_or(u32::MAX));
        let first = first.load(Ordering::Acquire);
        (first, second.load(Ordering::Relaxed))
    }

    /// Returns the number of members.
    #[must_use]
    pub fn members(&self) -> usize {
        self.arena.members() as usize
    }
}
