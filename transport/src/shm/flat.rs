//! The tiny path: an all-gather of a few cache lines among all ranks of one host.
//!
//! # A round
//! Every member publishes one payload of at most [`FLAT_MAX`] bytes, and then waits until it has seen all others
//! publish theirs. Small payloads lie in the line that carries the flag, so a round costs each member one line
//! transfer per peer.
//!
//! ```text
//! line:   0  word     round (mod 2^32, in the upper half) | length
//!         8  tag
//!        16  payload  up to 112 bytes, of which 48 share the line with the word
//! ```
//! A longer payload lies in the member's buffer. The word is stored last with release, and loaded with acquire.
//!
//! # Why two lines and two buffers are enough
//! Round `k` uses those of parity `k mod 2`. Only the member itself writes them.
//! 1. A member publishes round `k + 1` only after it has seen every member publish round `k`
//!    ([`Flat::publish`] insists), and after it has done with the payloads of round `k`: [`Flat::payload`] borrows
//!    the `Flat` that `publish` needs for itself.
//! 2. So when member `m` writes round `k + 2`, over its round `k`, it has seen everybody publish round `k + 1`;
//!    hence everybody is done with round `k`, and nobody reads what `m` overwrites.
//! 3. A line that is polled in round `k` therefore holds round `k - 2` or `k`, never `k + 2`: comparing for
//!    equality is enough. Rounds are compared mod 2^32, and differ by 2 at most.
//!
//! # Two ways to wait
//! *Spinning*: each member looks at the lines of the others, with plain loads only. *Oversubscribed*, when there are
//! more members than processors: the members also count themselves in one word, and the last to arrive moves one
//! epoch word, which is all that the others look at; so a member that is scheduled before its peers have arrived
//! touches one line and yields. By rule 1 nobody arrives in round `k + 1` before all have arrived in round `k`, so
//! the count lies in `n (k - 1) ..= n k` during round `k`, and the last is who makes it `n k`.
//!
//! Either way a member may sleep on the bell: see [`Flat::arm`]. The argument is that of the doorbells.

use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::arena::{Arena, FLAT_MAX};
use super::board::Board;
use super::endpoint::ShmEndpoint;

const LINE_BYTES: usize = 128;
const LINE_TAG: usize = 8;
const LINE_PAYLOAD: usize = 16;
/// Longest payload that shares its lines with the flag.
pub const FLAT_INLINE: usize = LINE_BYTES - LINE_PAYLOAD;

/// A member called something else than this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlatMismatch {
    /// Who, as an index into [`Flat::ranks`].
    pub member: usize,
    /// The tag it published.
    pub tag: u64,
    /// The length it published, in bytes.
    pub len: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Between rounds.
    Idle,
    /// Published, not all seen.
    Waiting { tag: u64, len: usize },
    /// All seen, payloads may be read.
    Complete { len: usize },
}

/// One member's part in flat exchanges. All ranks of the communicator are members, in rank order.
#[derive(Debug)]
pub struct Flat {
    arena: Arena,
    board: Board,
    ranks: Vec<u32>,
    member: u32,
    is_oversubscribed: bool,
    /// Lines of all members for the two parities.
    lines: [*mut u8; 2],
    /// The current round, or the last one between rounds. The first is 1.
    round: u64,
    state: State,
    /// Members below this were seen in the current round.
    seen: u32,
    /// What the bell was when the owner said that it would sleep.
    armed_at: Option<u32>,
}

// SAFETY: the pointers go into the arena's mapping, which `arena` keeps alive and which belongs to no thread.
unsafe impl Send for Flat {}

impl ShmEndpoint {
    /// The tiny path, if all ranks of the world are on this host. Once per endpoint, after
    /// [`establish`](crate::Endpoint::establish); it stays usable without the endpoint.
    #[must_use]
    pub fn flat(&mut self) -> Option<Flat> {
        if self.is_flat_taken || self.members.len() != self.world_size as usize {
            return None;
        }
        let arena = self.arena.clone()?;
        let board = self.board()?;
        self.is_flat_taken = true;
        Some(Flat {
            lines: [arena.flat_line(0, 0), arena.flat_line(0, 1)],
            is_oversubscribed: arena.is_oversubscribed(),
            arena,
            board,
            ranks: self.members.clone(),
            member: self.member,
            round: 0,
            state: State::Idle,
            seen: 0,
            armed_at: None,
        })
    }
}

impl Flat {
    /// Number of members.
    #[must_use]
    pub fn members(&self) -> usize {
        self.ranks.len()
    }

    /// This rank's index among the members.
    #[must_use]
    pub fn member(&self) -> usize {
        self.member as usize
    }

    /// Ranks of the members, ascending.
    #[must_use]
    pub fn ranks(&self) -> &[u32] {
        &self.ranks
    }

    /// Whether the group waits the oversubscribed way.
    #[must_use]
    pub fn is_oversubscribed(&self) -> bool {
        self.is_oversubscribed
    }

    /// The abort word and the announcements of the group.
    #[must_use]
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// Starts a round: `fill` writes this member's payload of `len` bytes, all of them or those that matter (what it
    /// leaves is old). Tag and length are what all members must agree on.
    ///
    /// # Panics
    /// If `len` is beyond [`FLAT_MAX`], or the previous round was not finished.
    #[inline]
    pub fn publish(&mut self, tag: u64, len: usize, fill: impl FnOnce(&mut [u8])) {
        assert!(len <= FLAT_MAX, "a flat exchange of {len} bytes; at most {FLAT_MAX}");
        assert!(self.state == State::Idle, "the previous flat round is not finished: {:?}", self.state);
        self.round += 1;
        let to = self.payload_ptr(self.member, len);
        // SAFETY: `payload_ptr` gives `len` bytes of this member's own memory, which nobody else writes, and which
        // nobody reads in this round before the word below is stored (module, 2). A peer that breaks the protocol
        // can read torn bytes, and hurts only itself; one that writes here garbles payload, and nothing else.
        fill(unsafe { slice::from_raw_parts_mut(to, len) });
        let line = self.line(self.member);
        word_at(line, LINE_TAG).store(tag, Ordering::Relaxed);
        let word = self.round << 32 | len as u64;
        word_at(line, 0).store(word, Ordering::Release);
        self.state = State::Waiting { tag, len };
        self.seen = 0;
        if self.is_oversubscribed {
            self.arrive();
        } else {
            self.arena.ring_bell();
        }
    }

    fn arrive(&self) {
        let before = self.arena.arrivals().fetch_add(1, Ordering::AcqRel);
        if before.wrapping_add(1) == self.round.wrapping_mul(self.ranks.len() as u64) {
            self.arena.epoch().store(self.round as u32, Ordering::Release);
            self.arena.ring_bell();
        }
    }

    /// Whether all members have published this round. Never blocks; remembers whom it has seen.
    ///
    /// # Errors
    /// If a member published another tag or length. The round is then over for good: no later one can start.
    #[inline]
    pub fn poll(&mut self) -> Result<bool, FlatMismatch> {
        let (tag, len) = match self.state {
            State::Waiting { tag, len } => (tag, len),
            State::Complete { .. } => return Ok(true),
            State::Idle => return Ok(false),
        };
        if self.is_oversubscribed && self.arena.epoch().load(Ordering::Acquire) != self.round as u32 {
            return Ok(false);
        }
        while self.seen < self.ranks.len() as u32 {
            let line = self.line(self.seen);
            let word = word_at(line, 0).load(Ordering::Acquire);
            if (word >> 32) as u32 != self.round as u32 {
                return Ok(false);
            }
            let (their_tag, their_len) =
                (word_at(line, LINE_TAG).load(Ordering::Relaxed), word as u32 as usize);
            if their_tag != tag || their_len != len {
                return Err(FlatMismatch { member: self.seen as usize, tag: their_tag, len: their_len });
            }
            self.seen += 1;
        }
        self.state = State::Complete { len };
        Ok(true)
    }

    /// What a member published in this round, this one included.
    ///
    /// # Panics
    /// Unless [`Flat::poll`] has said that the round is complete, and it is not finished.
    #[must_use]
    #[inline]
    pub fn payload(&self, member: usize) -> &[u8] {
        let State::Complete { len } = self.state else { panic!("the flat round is not complete") };
        assert!(member < self.ranks.len(), "member {member} of {}", self.ranks.len());
        let from = self.payload_ptr(member as u32, len);
        // SAFETY: `len` bytes of the member's memory for this round, visible through the acquire of its word. It
        // does not write there before this member publishes the next round (module, 2), for which the borrow of
        // `self` must have ended. A peer of this user that breaks the protocol can change these bytes meanwhile:
        // they are plain integers without invariants.
        unsafe { slice::from_raw_parts(from, len) }
    }

    /// Ends a complete round. The payloads may then no longer be read.
    ///
    /// # Panics
    /// Unless the round is complete.
    pub fn finish(&mut self) {
        assert!(matches!(self.state, State::Complete { .. }), "the flat round is not complete");
        self.state = State::Idle;
    }

    /// Members that have not published this round yet, for error texts.
    #[must_use]
    pub fn waiting_for(&self) -> Vec<usize> {
        if !matches!(self.state, State::Waiting { .. }) {
            return Vec::new();
        }
        let is_late = |m: &usize| {
            (word_at(self.line(*m as u32), 0).load(Ordering::Acquire) >> 32) as u32 != self.round as u32
        };
        (0..self.ranks.len()).filter(is_late).collect()
    }

    /// Declares that the owner is about to sleep, and gives the word to sleep on while it holds the value (with
    /// [`wait_word`](crate::wait_word)). The owner must poll once more before it sleeps, look again whenever it
    /// wakes, and call [`Flat::disarm`] after. Until then, further calls give the same again and change nothing:
    /// arm, poll, arm, sleep. The word also moves on [`Board::abort`].
    pub fn arm(&mut self) -> (&AtomicU32, u32) {
        let bell = self.arena.bell();
        let value = *self.armed_at.get_or_insert_with(|| {
            self.arena.sleepers().fetch_add(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            bell.load(Ordering::Acquire)
        });
        (bell, value)
    }

    /// Takes [`Flat::arm`] back.
    pub fn disarm(&mut self) {
        if self.armed_at.take().is_some() {
            self.arena.sleepers().fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn line(&self, member: u32) -> *mut u8 {
        debug_assert!((member as usize) < self.ranks.len());
        // SAFETY: the lines of all members lie one after another, and `member` is one of them.
        unsafe { self.lines[(self.round & 1) as usize].add(member as usize * LINE_BYTES) }
    }

    fn payload_ptr(&self, member: u32, len: usize) -> *mut u8 {
        if len <= FLAT_INLINE {
            // SAFETY: inside the line.
            unsafe { self.line(member).add(LINE_PAYLOAD) }
        } else {
            self.arena.flat_buffer(member, (self.round & 1) as usize)
        }
    }
}

impl Drop for Flat {
    fn drop(&mut self) {
        self.disarm();
    }
}

/// The word at `offset` of a flat line.
fn word_at<'a>(line: *mut u8, offset: usize) -> &'a AtomicU64 {
    // SAFETY: every caller passes a line of its arena, aligned to 128 bytes, and one of two constant offsets; the
    // reference is used within the statement, while the arena is borrowed; these words are reached as atomics only.
    unsafe { &*line.add(offset).cast::<AtomicU64>() }
}
