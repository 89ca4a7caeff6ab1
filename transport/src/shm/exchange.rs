//! The compiled exchange for short calls: a state machine that runs rounds of the host's area 0 among all ranks.
//!
//! In a round, every member publishes one payload of at most [`EXCHANGE_MAX`] bytes, of the same length on all members,
//! or only the fact that it is there. It then waits for the members whose payload it needs ([`Needs`]). The `rounds`
//! module describes the layout, and why no member overwrites bytes that others read. [`Exchange::payload`] borrows
//! the `Exchange`, and [`Exchange::publish`] needs it exclusively, so a member cannot publish before it has finished
//! with the payloads.
//!
//! # Sleeping
//! A member that waits may sleep on the bell. Every member that publishes rings the bell if there are sleepers: see
//! [`Exchange::arm`]. The argument is that of the doorbells (see `arena`).

use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::sync::atomic::Ordering;

use super::arena::{Arena, EXCHANGE_MAX, bell_bit};
use super::board::Board;
use super::copier::Copier;
#[cfg(all(test, kolo_model))]
use super::copier::Stores;
use super::endpoint::ShmEndpoint;
use super::places::Places;
use super::rounds::{CLAIM_MAX_BYTES, CLAIM_MAX_WAITING_BYTES, Rounds};
use crate::stage::{Awaited, Needs, StageMismatch};
use crate::sys::atomic::AtomicU32;

/// A member's payload. Other processes can write there at any time, so no code makes a reference to these bytes: it
/// reaches them by address or copies them out. If all members keep the protocol, the bytes do not change during the
/// lifetime.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a> {
    start: *const u8,
    len: usize,
    _borrow: PhantomData<&'a Exchange>,
}

impl Payload<'_> {
    /// Returns the address of `len` bytes from `at` on, valid for reads during the lifetime of the payload.
    ///
    /// # Panics
    /// If the payload ends before `at + len`.
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

    /// Copies the bytes from `at` on into `to`.
    ///
    /// # Panics
    /// If the payload ends before `to` is full.
    #[inline]
    pub fn read(self, at: usize, to: &mut [u8]) {
        let from = self.part(at, to.len());
        // SAFETY: `part` has checked that the bytes lie in the payload, in mapped memory; `to` is memory of this
        // process alone.
        unsafe { to.as_mut_ptr().copy_from_nonoverlapping(from, to.len()) };
    }

    /// Returns a copy of the whole payload.
    #[must_use]
    pub fn to_vec(self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.read(0, &mut bytes);
        bytes
    }
}

/// Destination of a member's payload. Others can read it at any time, and can even write it if they break the
/// protocol.
#[derive(Debug)]
pub struct Slot<'a> {
    start: *mut u8,
    len: usize,
    copier: &'a mut Copier,
}

impl Slot<'_> {
    /// Returns the address of `len` bytes from `at` on, valid for writes during the lifetime of the slot.
    ///
    /// # Panics
    /// If the slot ends before `at + len`.
    #[must_use]
    #[inline(always)]
    pub fn part(&mut self, at: usize, len: usize) -> *mut u8 {
        assert!(at <= self.len && len <= self.len - at, "{at}..{at}+{len} of a slot of {} bytes", self.len);
        self.start.wrapping_add(at)
    }

    /// Writes `bytes` from `at` on.
    ///
    /// # Panics
    /// If the slot is too short for them.
    #[inline]
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        let to = self.part(at, bytes.len());
        // SAFETY: `part` has checked that the bytes lie in the slot, in mapped memory that does not overlap `bytes`,
        // which is memory of this process alone.
        unsafe { self.copier.copy(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Writes `len` bytes from `at` on.
    ///
    /// # Safety
    /// `from` is valid for reads of `len` bytes, and is memory of this process alone.
    ///
    /// # Panics
    /// If the slot is too short for them.
    #[inline]
    pub unsafe fn copy(&mut self, at: usize, from: *const u8, len: usize) {
        let to = self.part(at, len);
        // SAFETY: as in `write`, with the caller's promise for `from`.
        unsafe { self.copier.copy(from, to, len) };
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Between rounds.
    Idle,
    /// Published; some of the needed members have not been seen yet.
    Waiting,
    /// All needed members have been seen; their payloads may be read.
    Complete,
}

/// One member's end of the exchange. All ranks of the communicator are members, in rank order.
#[derive(Debug)]
pub struct Exchange {
    rounds: Rounds,
    board: Board,
    ranks: Vec<u32>,
    state: State,
    /// The members needed in the current round, and the length of its payloads.
    needs: Needs,
    len: usize,
    /// Whether this member gave a payload in the latest round.
    gave: bool,
    /// The bell's value when the owner announced that it would sleep.
    armed_at: Option<u32>,
    copier: Copier,
    /// Whether the owner moves cache lines ahead of their use. Ranks that share processors have better uses for the time.
    pub(super) moves_lines: bool,
    /// Buffers that members read in place.
    pub(super) places: Places,
}

impl ShmEndpoint {
    /// Makes the compiled exchange, if all ranks of the world are on this host. Succeeds once per endpoint, after
    /// [`establish`](crate::Endpoint::establish). The exchange stays usable without the endpoint.
    pub(super) fn make_exchange(&mut self) -> Option<Exchange> {
        if self.is_exchange_taken || self.members.len() != self.world_size as usize {
            return None;
        }
        let arena = self.arena.clone()?;
        let board = self.board()?;
        self.is_exchange_taken = true;
        Some(Exchange {
            rounds: Rounds::new(arena, 0, self.member),
            board,
            ranks: self.members.clone(),
            state: State::Idle,
            needs: Needs::Nobody,
            len: 0,
            gave: false,
            armed_at: None,
            copier: Copier::new(self.stores),
            moves_lines: !self.shares_processors,
            places: Places::of(self),
        })
    }
}

#[cfg(all(test, kolo_model))]
impl Exchange {
    /// Makes an exchange without an endpoint.
    pub(super) fn modelled(arena: Arena, member: u32) -> Self {
        Self {
            ranks: (0..arena.members()).collect(),
            rounds: Rounds::new(arena.clone(), 0, member),
            board: Board::modelled(arena, member),
            state: State::Idle,
            needs: Needs::Nobody,
            len: 0,
            gave: false,
            armed_at: None,
            copier: Copier::new(Stores::Ordinary),
            moves_lines: false,
            places: Places::default(),
        }
    }
}

impl Exchange {
    /// Returns the number of members.
    #[must_use]
    pub fn members(&self) -> usize {
        self.ranks.len()
    }

    /// Returns this rank's index among the members.
    #[must_use]
    pub fn member(&self) -> usize {
        self.rounds.member()
    }

    pub(super) fn arena(&self) -> &Arena {
        self.rounds.arena()
    }

    /// Returns the ranks of the members, ascending.
    #[must_use]
    pub fn ranks(&self) -> &[u32] {
        &self.ranks
    }

    /// Returns the board: the abort word and the announcements of the group.
    #[must_use]
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// Returns whether the next round can be published with a payload of `len` bytes. Never blocks. The answer is
    /// `false` while a member is so far behind that it may still read the bytes that would be overwritten.
    ///
    /// # Errors
    /// If a member published another tag or length in an earlier round. The exchange is then unusable.
    #[inline]
    pub fn is_free(&mut self, len: usize) -> Result<bool, StageMismatch> {
        self.rounds.is_free(len)
    }

    /// Starts a round with payloads of `len` bytes. `fill` writes this member's payload, all of it or the parts that
    /// matter (the rest keeps old bytes). A member that contributes nothing passes `None`. All members must agree on
    /// tag and length.
    ///
    /// # Panics
    /// If `len` exceeds [`EXCHANGE_MAX`], if the previous round was not finished, or if [`Exchange::is_free`] has not
    /// returned `true` for the length that is filled in (0 for `None`).
    #[inline]
    pub fn publish<F: FnOnce(Slot<'_>)>(&mut self, tag: u64, len: usize, needs: Needs, fill: Option<F>) {
        assert!(len <= EXCHANGE_MAX, "an exchange of {len} bytes; at most {EXCHANGE_MAX}");
        assert!(self.state == State::Idle, "the previous exchange is not finished: {:?}", self.state);
        let gives = fill.is_some();
        let given = if gives { len } else { 0 };
        assert!(self.rounds.is_known_free(given), "somebody may still read what would be overwritten");
        if let Some(fill) = fill {
            // The slot is `len` bytes of this member's own memory. No other member writes it, and none reads it in
            // this round before the word is stored (`rounds`, rule 2). A peer that breaks the protocol by reading may
            // read torn bytes, which hurts only itself; one that writes here garbles payload and nothing else.
            fill(Slot { start: self.rounds.slot(len), len, copier: &mut self.copier });
            if self.moves_lines {
                self.rounds.hand_on(len);
            }
        }
        self.rounds.publish(tag, len as u64);
        (self.state, self.needs, self.len) = (State::Waiting, needs, len);
        self.rounds.arena().ring_bell(self.rounds.member());
        if self.moves_lines {
            let most = match gives {
                true => CLAIM_MAX_BYTES,
                // It gives in turn with others.
                false if self.gave => CLAIM_MAX_WAITING_BYTES,
                false => 0,
            };
            self.rounds.claim_next(len, most);
        }
        self.gave = gives;
    }

    /// Returns whether all needed members have published this round. Never blocks; remembers the members that it has
    /// seen.
    ///
    /// # Errors
    /// If a member published another tag or length. The exchange is then unusable.
    #[inline]
    pub fn poll(&mut self) -> Result<bool, StageMismatch> {
        if self.state != State::Waiting {
            return Ok(self.state == State::Complete);
        }
        let is_complete = self.rounds.have_published(self.needs)?;
        if is_complete {
            self.state = State::Complete;
        }
        Ok(is_complete)
    }

    /// Returns the payload of a member, or of this member itself, in the current round.
    ///
    /// # Panics
    /// Unless [`Exchange::poll`] has said that the round is complete, [`Exchange::finish`] has not been called since,
    /// and the member is [needed](Needs) or is this one.
    #[must_use]
    #[inline]
    pub fn payload(&self, member: usize) -> Payload<'_> {
        assert!(self.state == State::Complete, "the exchange is not complete");
        let is_known = self.needs.include(member) || member == self.rounds.member();
        assert!(is_known, "member {member} was not waited for");
        assert!(member < self.ranks.len(), "member {member} of {}", self.ranks.len());
        // The payload is `len` bytes of the member's memory for this round, visible through the acquire load of its
        // word. The member does not write there before this member publishes the next round (`rounds`, rule 2), which
        // requires that the borrow of `self` has ended.
        Payload { start: self.rounds.payload(member, self.len), len: self.len, _borrow: PhantomData }
    }

    /// Ends a complete round. Its payloads may no longer be read.
    ///
    /// # Panics
    /// Unless the round is complete.
    #[inline]
    pub fn finish(&mut self) {
        assert!(self.state == State::Complete, "the exchange is not complete");
        self.state = State::Idle;
    }

    /// Returns the members that are waited for, for error texts: during a round, the needed members that have not
    /// published it; between rounds, the members that are too far behind for a payload of `len` bytes to be
    /// published.
    #[must_use]
    pub fn waiting_for(&self, len: usize) -> Vec<usize> {
        match self.state {
            State::Idle => self.rounds.late(Awaited::Room(len)),
            State::Waiting => self.rounds.late(Awaited::Payloads(self.needs)),
            State::Complete => Vec::new(),
        }
    }

    /// Announces that the owner is about to sleep. Returns the bell word, and the value that it must still have when
    /// the owner sleeps on it (with [`wait_word`](crate::wait_word)). The owner must poll once more before it sleeps,
    /// poll whenever it wakes, and then call [`Exchange::disarm`]. Until then, further calls return the same and
    /// change nothing: arm, poll, arm, sleep. [`Board::abort`] changes the word too.
    pub fn arm(&mut self) -> (&AtomicU32, u32) {
        let arena = self.rounds.arena();
        let bell = arena.bell();
        let value = *self.armed_at.get_or_insert_with(|| {
            arena.sleepers().fetch_add(1, Ordering::SeqCst);
            arena.fences().heavy();
            bell.load(Ordering::Acquire)
        });
        (bell, value)
    }

    /// Arms for one of several threads of the owner, of which others may sleep already, and returns the present value of
    /// the bell. The thread must poll between this call and its sleep. The owner disarms after the last thread.
    pub fn arm_thread(&mut self) -> (&AtomicU32, u32) {
        let (bell, _) = self.arm();
        (bell, bell.load(Ordering::Acquire))
    }

    /// Returns the bits for [`wait_word_for`](crate::wait_word_for), to be used in place of
    /// [`wait_word`](crate::wait_word). They name the first member that has not published what this one waits for, so
    /// that its publication wakes the owner. Call this after the last poll before the sleep. Without the bits, where
    /// all members wait for all, every publication would wake all sleepers.
    #[must_use]
    pub fn awaited(&self) -> NonZeroU32 {
        match self.state {
            State::Waiting => self.rounds.first_late(self.needs).map_or(NonZeroU32::MAX, bell_bit),
            // Only the owner knows what it waits for between rounds.
            State::Idle | State::Complete => NonZeroU32::MAX,
        }
    }

    /// Cancels [`Exchange::arm`].
    pub fn disarm(&mut self) {
        if self.armed_at.take().is_some() {
            self.rounds.arena().sleepers().fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.disarm();
    }
}
