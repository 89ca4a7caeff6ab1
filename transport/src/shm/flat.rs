//! The tiny path: exchanges of a few kilobytes among all ranks of one host.
//!
//! # A round
//! Every member publishes one payload of at most [`FLAT_MAX`] bytes, or only that it is there, and waits for those
//! members whose payload it needs ([`Needs`]): for everybody in an all-reduce, for the root in a broadcast, for nobody
//! where it only gives. Small payloads lie in the line that carries the flag, so a round costs each member one line
//! transfer per peer.
//!
//! ```text
//! line:   0  word     round (mod 2^24, in the upper bits) | digest of tag and length
//!         8  tag      for error texts
//!        16  payload  up to 112 bytes, of which 48 share the line with the word
//! ```
//! A longer payload lies in the member's buffer. The word is stored last with release, and loaded with acquire.
//!
//! # Why a few lines and buffers are enough
//! With D = [`FLAT_DEPTH`], round `k` uses the lines `k mod D`, and of as many buffers as there are for its length, d, the
//! one `k mod d`. Only the member itself writes them.
//! 1. A member publishes round `k` only after it has done with the payloads of all rounds before: [`Flat::payload`]
//!    borrows the `Flat` that [`Flat::publish`] needs for itself.
//! 2. It publishes round `k` only after it has seen everybody publish round `k - D + 1`, or `k - d + 1` if it fills a
//!    buffer ([`Flat::is_free`]). So everybody is done with the round whose line or buffer it overwrites.
//! 3. A member that looks for round `r` at somebody's line finds `r - D` or `r` or `r + D`. Not later, by rule 2,
//!    because it looks for all rounds in turn and has not published round `r + D` itself. Rounds are compared mod 2^24.
//! 4. Tags and lengths must agree. A member that finds `r` compares the digests, which came with the round in one load:
//!    the line may be overwritten at any time if this member was not needed. One that finds `r + D` need not compare,
//!    since then the other has: by rule 2 it has seen this one's round `r + 1`, and `r` before.
//!
//! # Sleeping
//! A member that waits may sleep on the bell, which everybody who publishes rings if there are sleepers: see
//! [`Flat::arm`]. The argument is that of the doorbells.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::arena::{Arena, FLAT_DEPTH, FLAT_GREATS, FLAT_LONG, FLAT_LONGS, FLAT_MAX, FLAT_SHORT};
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
    /// The tag it published, or one of a later round if it has gone on.
    pub tag: u64,
}

/// Whose payload a member needs before its part in a round is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Everybody's.
    All,
    /// That of one member.
    Only(usize),
    /// That of the members before this one.
    Below(usize),
    /// Nobody's: it only gives.
    Nobody,
}

/// What a member published. Other processes can write there at any time, so nobody makes a reference to these bytes: they are
/// reached by address, or copied out. With members that keep the protocol they do not change while this lives.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a> {
    start: *const u8,
    len: usize,
    _flat: PhantomData<&'a Flat>,
}

impl Payload<'_> {
    /// The address of `len` bytes from `at` on, valid for reads as long as this is.
    ///
    /// # Panics
    /// If they are not all there.
    #[must_use]
    #[inline(always)]
    pub fn part(self, at: usize, len: usize) -> *const u8 {
        assert!(
            at <= self.len && len <= self.len - at,
            "{at}..{at}+{len} of a payload of {} bytes",
            self.len
        );
        self.start.wrapping_add(at)
    }

    /// Copies the bytes from `at` on.
    ///
    /// # Panics
    /// If there are not as many.
    #[inline]
    pub fn read(self, at: usize, to: &mut [u8]) {
        let from = self.part(at, to.len());
        // SAFETY: `part` has checked that the bytes are there, in memory that is mapped; `to` is memory of this process's own.
        unsafe { to.as_mut_ptr().copy_from_nonoverlapping(from, to.len()) };
    }

    /// A copy of all of it.
    #[must_use]
    pub fn to_vec(self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.read(0, &mut bytes);
        bytes
    }
}

/// Where a member puts what it publishes; others can read it, and against the protocol write it, at any time.
#[derive(Debug)]
pub struct Slot<'a> {
    start: *mut u8,
    len: usize,
    _flat: PhantomData<&'a mut Flat>,
}

impl Slot<'_> {
    /// The address of `len` bytes from `at` on, valid for writes as long as this is.
    ///
    /// # Panics
    /// If they are not all there.
    #[must_use]
    #[inline(always)]
    pub fn part(&mut self, at: usize, len: usize) -> *mut u8 {
        assert!(at <= self.len && len <= self.len - at, "{at}..{at}+{len} of a slot of {} bytes", self.len);
        self.start.wrapping_add(at)
    }

    /// Writes the bytes from `at` on.
    ///
    /// # Panics
    /// If there is not so much room.
    #[inline]
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        let to = self.part(at, bytes.len());
        // SAFETY: `part` has checked that the bytes are there, in memory that is mapped and is not this process's own.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Between rounds.
    Idle,
    /// Published, not all seen that are needed.
    Waiting,
    /// All seen that are needed, their payloads may be read.
    Complete,
}

/// One member's part in flat exchanges. All ranks of the communicator are members, in rank order.
#[derive(Debug)]
pub struct Flat {
    arena: Arena,
    board: Board,
    ranks: Vec<u32>,
    member: u32,
    /// Lines of all members for all rounds mod [`FLAT_DEPTH`].
    lines: *mut u8,
    /// The current round, or the last one between rounds. The first is 1.
    round: u64,
    state: State,
    /// Of the current round: who is needed, and how long payloads are.
    needs: Needs,
    len: usize,
    /// The last round that each member was seen to have published, of those looked for.
    seen: Vec<u64>,
    /// Everybody was seen to have published so much.
    all_seen: u64,
    /// What the bell was when the owner said that it would sleep.
    armed_at: Option<u32>,
}

// SAFETY: the pointer goes into the arena's mapping, which `arena` keeps alive and which belongs to no thread.
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
            lines: arena.flat_lines(),
            arena,
            board,
            seen: vec![0; self.members.len()],
            ranks: self.members.clone(),
            member: self.member,
            round: 0,
            state: State::Idle,
            needs: Needs::Nobody,
            len: 0,
            all_seen: 0,
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

    /// The abort word and the announcements of the group.
    #[must_use]
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// Whether the next round can be published with a payload of `len` bytes. Never blocks. False while somebody is so
    /// far behind that it may still read what would be overwritten.
    ///
    /// # Errors
    /// If a member published another tag or length in an earlier round. The exchange is then over for good.
    #[inline]
    pub fn is_free(&mut self, len: usize) -> Result<bool, FlatMismatch> {
        let least = self.least_seen(len);
        Ok(self.all_seen >= least || self.see_all(least)?)
    }

    /// What everybody must have published before this member publishes the next round.
    fn least_seen(&self, len: usize) -> u64 {
        let depth = if len <= FLAT_SHORT {
            FLAT_DEPTH
        } else if len <= FLAT_LONG {
            FLAT_LONGS
        } else {
            FLAT_GREATS
        };
        (self.round + 2).saturating_sub(depth as u64)
    }

    /// Starts a round of payloads of `len` bytes. `fill` writes this member's, all of it or what matters (what it
    /// leaves is old); a member that has nothing to give passes none. Tag and length are what all must agree on.
    ///
    /// # Panics
    /// If `len` is beyond [`FLAT_MAX`], the previous round was not finished, or [`Flat::is_free`] was not asked or has
    /// not said yes for the length of what is filled in (0 for none).
    #[inline]
    pub fn publish<F: FnOnce(Slot<'_>)>(&mut self, tag: u64, len: usize, needs: Needs, fill: Option<F>) {
        assert!(len <= FLAT_MAX, "a flat exchange of {len} bytes; at most {FLAT_MAX}");
        assert!(self.state == State::Idle, "the previous flat round is not finished: {:?}", self.state);
        let given = if fill.is_some() { len } else { 0 };
        assert!(self.all_seen >= self.least_seen(given), "somebody may still read what would be overwritten");
        self.round += 1;
        if let Some(fill) = fill {
            // `len` bytes of this member's own memory, which nobody else writes, and which nobody reads in this round before
            // the word below is stored (module, 2). A peer that breaks the protocol can read torn bytes, and hurts only
            // itself; one that writes here garbles payload, and nothing else.
            fill(Slot { start: self.payload_ptr(self.member, len), len, _flat: PhantomData });
        }
        let line = self.line(self.member, self.round);
        word_at(line, LINE_TAG).store(tag, Ordering::Relaxed);
        word_at(line, 0).store(word_of(self.round, tag, len), Ordering::Release);
        self.seen[self.member as usize] = self.round;
        (self.state, self.needs, self.len) = (State::Waiting, needs, len);
        self.arena.ring_bell();
    }

    /// Whether all have published this round that are needed. Never blocks; remembers whom it has seen.
    ///
    /// # Errors
    /// If a member published another tag or length. The exchange is then over for good.
    #[inline]
    pub fn poll(&mut self) -> Result<bool, FlatMismatch> {
        if self.state != State::Waiting {
            return Ok(self.state == State::Complete);
        }
        let is_complete = match self.needs {
            Needs::All => self.see_all(self.round)?,
            Needs::Only(member) => self.see(member, self.round)?,
            Needs::Below(end) => {
                let mut member = 0;
                while member < end && self.see(member, self.round)? {
                    member += 1;
                }
                member == end
            }
            Needs::Nobody => true,
        };
        if is_complete {
            self.state = State::Complete;
        }
        Ok(is_complete)
    }

    #[inline]
    fn see_all(&mut self, round: u64) -> Result<bool, FlatMismatch> {
        for member in 0..self.seen.len() {
            if !self.see(member, round)? {
                return Ok(false);
            }
        }
        self.all_seen = round;
        Ok(true)
    }

    /// Whether a member has published a round; looks at those before it too.
    #[inline]
    fn see(&mut self, member: usize, upto: u64) -> Result<bool, FlatMismatch> {
        while self.seen[member] < upto {
            let round = self.seen[member] + 1;
            let line = self.line(member as u32, round);
            let word = word_at(line, 0).load(Ordering::Acquire);
            if word != word_at(self.line(self.member, round), 0).load(Ordering::Relaxed) {
                let ahead = rounds_ahead(word, round);
                if ahead < 0 {
                    return Ok(false);
                }
                if ahead == 0 {
                    return Err(FlatMismatch {
                        member,
                        tag: word_at(line, LINE_TAG).load(Ordering::Relaxed),
                    });
                }
            }
            self.seen[member] = round;
        }
        Ok(true)
    }

    /// What a member published in this round, this one included.
    ///
    /// # Panics
    /// Unless [`Flat::poll`] has said that the round is complete, it is not finished, and this is one of the members
    /// that were [needed](Needs) or this one itself.
    #[must_use]
    #[inline]
    pub fn payload(&self, member: usize) -> Payload<'_> {
        assert!(self.state == State::Complete, "the flat round is not complete");
        let is_needed = match self.needs {
            Needs::All => true,
            Needs::Only(other) => member == other,
            Needs::Below(end) => member < end,
            Needs::Nobody => false,
        };
        assert!(is_needed || member == self.member as usize, "member {member} was not waited for");
        assert!(member < self.ranks.len(), "member {member} of {}", self.ranks.len());
        // `len` bytes of the member's memory for this round, visible through the acquire of its word. It does not write there
        // before this member publishes the next round (module, 2), for which the borrow of `self` must have ended.
        Payload { start: self.payload_ptr(member as u32, self.len), len: self.len, _flat: PhantomData }
    }

    /// Ends a complete round. The payloads may then no longer be read.
    ///
    /// # Panics
    /// Unless the round is complete.
    #[inline]
    pub fn finish(&mut self) {
        assert!(self.state == State::Complete, "the flat round is not complete");
        self.state = State::Idle;
    }

    /// Members that are waited for, for error texts: in a round, those that are needed and have not published it;
    /// between rounds, those that are so far behind that a payload of `len` bytes cannot be published.
    #[must_use]
    pub fn waiting_for(&self, len: usize) -> Vec<usize> {
        let all = 0..self.ranks.len();
        let (round, among) = match (self.state, self.needs) {
            (State::Idle, _) => (self.least_seen(len), all),
            (State::Waiting, Needs::All) => (self.round, all),
            (State::Waiting, Needs::Only(member)) => (self.round, member..member + 1),
            (State::Waiting, Needs::Below(end)) => (self.round, 0..end),
            (State::Waiting, Needs::Nobody) | (State::Complete, _) => return Vec::new(),
        };
        let is_late = |m: &usize| {
            let word = word_at(self.line(*m as u32, round), 0).load(Ordering::Acquire);
            self.seen[*m] < round && rounds_ahead(word, round) < 0
        };
        among.filter(is_late).collect()
    }

    /// Declares that the owner is about to sleep, and gives the word to sleep on while it holds the value (with
    /// [`wait_word`](crate::wait_word)). The owner must poll once more before it sleeps, look again whenever it
    /// wakes, and call [`Flat::disarm`] after. Until then, further calls give the same again and change nothing:
    /// arm, poll, arm, sleep. The word also moves on [`Board::abort`].
    pub fn arm(&mut self) -> (&AtomicU32, u32) {
        let bell = self.arena.bell();
        let value = *self.armed_at.get_or_insert_with(|| {
            self.arena.sleepers().fetch_add(1, Ordering::SeqCst);
            self.arena.fences().heavy();
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

    #[inline]
    fn line(&self, member: u32, round: u64) -> *mut u8 {
        debug_assert!((member as usize) < self.ranks.len());
        let index = round as usize % FLAT_DEPTH * self.ranks.len() + member as usize;
        // SAFETY: the lines of all members for each of the rounds lie one after another, and `member` is one of them.
        unsafe { self.lines.add(index * LINE_BYTES) }
    }

    #[inline]
    fn payload_ptr(&self, member: u32, len: usize) -> *mut u8 {
        if len <= FLAT_INLINE {
            // SAFETY: inside the line.
            unsafe { self.line(member, self.round).add(LINE_PAYLOAD) }
        } else {
            self.arena.flat_buffer(member, self.round, len)
        }
    }
}

impl Drop for Flat {
    fn drop(&mut self) {
        self.disarm();
    }
}

/// Bits of a word that hold the round.
const ROUND_BITS: u32 = 24;

/// What a member publishes: the round, and a digest of what all must agree on.
#[inline]
fn word_of(round: u64, tag: u64, len: usize) -> u64 {
    // Multiplications by odd numbers (of the golden ratio and of Steele and Vigna's mixers) spread both over the upper bits.
    let digest = tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (len as u64).wrapping_mul(0xd134_2543_de82_ef95);
    round << (64 - ROUND_BITS) | digest >> ROUND_BITS
}

/// How many rounds a word is ahead of a round.
#[inline]
fn rounds_ahead(word: u64, round: u64) -> i64 {
    (word & !(u64::MAX >> ROUND_BITS)).wrapping_sub(round << (64 - ROUND_BITS)) as i64 >> (64 - ROUND_BITS)
}

/// The word at `offset` of a flat line.
#[inline]
fn word_at<'a>(line: *mut u8, offset: usize) -> &'a AtomicU64 {
    // SAFETY: every caller passes a line of its arena, aligned to 128 bytes, and one of two constant offsets; the
    // reference is used within the statement, while the arena is borrowed; these words are reached as atomics only.
    unsafe { &*line.add(offset).cast::<AtomicU64>() }
}
