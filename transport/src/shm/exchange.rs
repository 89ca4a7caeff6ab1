//! The compiled short exchange: one round of the host's area 0 among all ranks, as a state machine of its own.
//!
//! Every member publishes one payload of at most [`FLAT_MAX`] bytes, as long for all, or only that it is there, and waits for those
//! members whose payload it needs ([`Needs`]). `rounds` tells the layout, and why nobody overwrites bytes that others read;
//! [`Exchange::payload`] borrows the `Exchange` that [`Exchange::publish`] needs for itself, so nobody publishes before it has done with
//! the payloads.
//!
//! # Sleeping
//! A member that waits may sleep on the bell, which everybody who publishes rings if there are sleepers: see
//! [`Exchange::arm`]. The argument is that of the doorbells.

use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::sync::atomic::Ordering;

use super::arena::{Arena, FLAT_MAX, bell_bit};
use super::board::Board;
use super::copier::Copier;
#[cfg(all(test, kolo_model = "transport"))]
use super::copier::Stores;
use super::endpoint::ShmEndpoint;
use super::places::Places;
use super::rounds::Rounds;
use crate::stage::{Awaited, Needs, StageMismatch};
use crate::sys::atomic::AtomicU32;

/// A member's payload. Other processes can write there at any time, so nobody makes a reference to these bytes: they are reached by
/// address, or copied out. With members that keep the protocol they do not change while this lives.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a> {
    start: *const u8,
    len: usize,
    _borrow: PhantomData<&'a Exchange>,
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

/// Destination of a member's payload; others can read it, and against the protocol write it, at any time.
#[derive(Debug)]
pub struct Slot<'a> {
    start: *mut u8,
    len: usize,
    copier: &'a mut Copier,
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
        unsafe { self.copier.copy(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Writes `len` bytes from `at` on.
    ///
    /// # Safety
    /// `from` is readable for as much, memory of this process's own.
    ///
    /// # Panics
    /// If there is not so much room.
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
    /// Published, not all seen that are needed.
    Waiting,
    /// All seen that are needed, their payloads may be read.
    Complete,
}

/// One member's part in exchanges. All ranks of the communicator are members, in rank order.
#[derive(Debug)]
pub struct Exchange {
    rounds: Rounds,
    board: Board,
    ranks: Vec<u32>,
    state: State,
    /// Of the current round: who is needed, and how long payloads are.
    needs: Needs,
    len: usize,
    /// The bell's value when the owner said that it would sleep.
    armed_at: Option<u32>,
    copier: Copier,
    /// Of buffers that members read in place.
    pub(super) places: Places,
}

impl ShmEndpoint {
    /// The compiled exchange, if all ranks of the world are on this host. Once per endpoint, after
    /// [`establish`](crate::Endpoint::establish); it stays usable without the endpoint.
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
            armed_at: None,
            copier: Copier::new(self.stores),
            places: Places::of(self),
        })
    }
}

#[cfg(all(test, kolo_model = "transport"))]
impl Exchange {
    /// Without an endpoint.
    pub(super) fn modelled(arena: Arena, member: u32) -> Self {
        Self {
            ranks: (0..arena.members()).collect(),
            rounds: Rounds::new(arena.clone(), 0, member),
            board: Board::modelled(arena, member),
            state: State::Idle,
            needs: Needs::Nobody,
            len: 0,
            armed_at: None,
            copier: Copier::new(Stores::Ordinary),
            places: Places::default(),
        }
    }
}

impl Exchange {
    /// Number of members.
    #[must_use]
    pub fn members(&self) -> usize {
        self.ranks.len()
    }

    /// This rank's index among the members.
    #[must_use]
    pub fn member(&self) -> usize {
        self.rounds.member()
    }

    pub(super) fn arena(&self) -> &Arena {
        self.rounds.arena()
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

    /// Whether the next round can be published with a payload of `len` bytes. Never blocks. False while a member is so
    /// far behind that it may still read what would be overwritten.
    ///
    /// # Errors
    /// If a member published another tag or length in an earlier round. The exchange is then over for good.
    #[inline]
    pub fn is_free(&mut self, len: usize) -> Result<bool, StageMismatch> {
        self.rounds.is_free(len)
    }

    /// Starts a round of payloads of `len` bytes. `fill` writes this member's, all of it or what matters (what it
    /// leaves is old); a member that has nothing to give passes none. Tag and length are what all must agree on.
    ///
    /// # Panics
    /// If `len` is beyond [`FLAT_MAX`], the previous round was not finished, or [`Exchange::is_free`] was not asked or has
    /// not said yes for the length of what is filled in (0 for none).
    #[inline]
    pub fn publish<F: FnOnce(Slot<'_>)>(&mut self, tag: u64, len: usize, needs: Needs, fill: Option<F>) {
        assert!(len <= FLAT_MAX, "an exchange of {len} bytes; at most {FLAT_MAX}");
        assert!(self.state == State::Idle, "the previous exchange is not finished: {:?}", self.state);
        let given = if fill.is_some() { len } else { 0 };
        assert!(self.rounds.is_known_free(given), "somebody may still read what would be overwritten");
        if let Some(fill) = fill {
            // `len` bytes of this member's own memory, which nobody else writes, and which nobody reads in this round before
            // the word is stored (`rounds`, 2). A peer that breaks the protocol can read torn bytes, and hurts only
            // itself; one that writes here garbles payload, and nothing else.
            fill(Slot { start: self.rounds.slot(len), len, copier: &mut self.copier });
        }
        self.rounds.publish(tag, len as u64);
        (self.state, self.needs, self.len) = (State::Waiting, needs, len);
        self.rounds.arena().ring_bell(self.rounds.member());
    }

    /// Whether all have published this round that are needed. Never blocks; remembers whom it has seen.
    ///
    /// # Errors
    /// If a member published another tag or length. The exchange is then over for good.
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

    /// A member's payload in this round, this member's own included.
    ///
    /// # Panics
    /// Unless [`Exchange::poll`] has said that the round is complete, it is not finished, and this is one of the members
    /// that were [needed](Needs) or this one itself.
    #[must_use]
    #[inline]
    pub fn payload(&self, member: usize) -> Payload<'_> {
        assert!(self.state == State::Complete, "the exchange is not complete");
        let is_known = self.needs.include(member) || member == self.rounds.member();
        assert!(is_known, "member {member} was not waited for");
        assert!(member < self.ranks.len(), "member {member} of {}", self.ranks.len());
        // `len` bytes of the member's memory for this round, visible through the acquire of its word. It does not write there
        // before this member publishes the next round (`rounds`, 2), for which the borrow of `self` must have ended.
        Payload { start: self.rounds.payload(member, self.len), len: self.len, _borrow: PhantomData }
    }

    /// Ends a complete round. The payloads may then no longer be read.
    ///
    /// # Panics
    /// Unless the round is complete.
    #[inline]
    pub fn finish(&mut self) {
        assert!(self.state == State::Complete, "the exchange is not complete");
        self.state = State::Idle;
    }

    /// Members that are waited for, for error texts: in a round, those that are needed and have not published it;
    /// between rounds, those that are so far behind that a payload of `len` bytes cannot be published.
    #[must_use]
    pub fn waiting_for(&self, len: usize) -> Vec<usize> {
        match self.state {
            State::Idle => self.rounds.late(Awaited::Room(len)),
            State::Waiting => self.rounds.late(Awaited::Payloads(self.needs)),
            State::Complete => Vec::new(),
        }
    }

    /// Declares that the owner is about to sleep, and gives the word to sleep on while it holds the value (with
    /// [`wait_word`](crate::wait_word)). The owner must poll once more before it sleeps, look again whenever it
    /// wakes, and call [`Exchange::disarm`] after. Until then, further calls give the same again and change nothing:
    /// arm, poll, arm, sleep. The word also moves on [`Board::abort`].
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

    /// For whom to be woken, for [`wait_word_for`](crate::wait_word_for) in place of [`wait_word`](crate::wait_word): for the first
    /// member that has not published what this one waits for. Ask after the last poll before the sleep. Where all wait for all,
    /// everybody would else wake at everybody's word.
    #[must_use]
    pub fn awaited(&self) -> NonZeroU32 {
        match self.state {
            State::Waiting => self.rounds.first_late(self.needs).map_or(NonZeroU32::MAX, bell_bit),
            // Only the owner knows its wait between rounds.
            State::Idle | State::Complete => NonZeroU32::MAX,
        }
    }

    /// Takes [`Exchange::arm`] back.
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
