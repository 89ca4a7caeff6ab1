//! Messages that wait to be sent on one channel.
//!
//! A lane owns its end of the ring, once there is one, and the queue of posted messages that are not complete. It
//! knows nothing of peers, doorbells or connections.

use std::collections::VecDeque;
use std::sync::Arc;

use super::copier::{Copier, Stores};
use super::cursor::Cursor;
use super::producer::Producer;
use super::ring::Corrupt;
use super::shuttles::Shuttles;
use super::tried::{Route, Trial, Tried};
use crate::endpoint::{Packer, Token};

/// Origin of a message's bytes.
#[derive(Debug)]
pub(crate) enum Origin {
    /// The caller's pieces.
    Pieces(Cursor),
    /// The caller's packer.
    Packer(Packer),
}

// SAFETY: the packer's context belongs to the caller, who has promised that it stays valid until the token completes,
// and that the endpoint may call it from whichever thread polls.
unsafe impl Send for Origin {}

/// A message on its way out.
#[derive(Debug)]
struct Outgoing {
    tag: u64,
    total: usize,
    sent: usize,
    /// Whether the first piece has gone out. For an empty message, `sent` does not show it.
    is_started: bool,
    /// Whether the message goes by rendezvous, if the list of its ranges is short enough.
    by_rendezvous: bool,
    /// The number of freed cells that marks the answer to the message's request, once the request has been sent.
    mark: Option<u64>,
    /// Set if the message's time counts.
    trial: Option<Trial>,
    origin: Origin,
    token: Token,
}

/// Messages to one peer on one channel.
#[derive(Debug)]
pub(crate) struct SendLane {
    /// Index of the peer in the endpoint's table.
    pub(crate) peer: usize,
    /// Whether the endpoint's list of busy lanes has this one.
    pub(crate) is_listed: bool,
    /// Set once the peer has the segment.
    pub(crate) ring: Option<Producer>,
    /// Shared with the lane in the other direction.
    pub(crate) shuttles: Arc<Shuttles>,
    queue: VecDeque<Outgoing>,
    copier: Copier,
    /// Memory in the first-level cache, through which packed messages go.
    packed: Box<[u8]>,
    /// Which messages go by rendezvous where neither length nor pages tell.
    pub(crate) tried: Tried,
}

/// Outcome of passing a message to a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handed {
    /// The whole message is in the ring.
    Over,
    /// The message waits; part of it may be in the ring.
    Queued {
        /// Whether anything went into the ring.
        moved: bool,
    },
}

impl SendLane {
    pub(crate) fn new(peer: usize, stores: Stores, shuttles: Arc<Shuttles>) -> Self {
        let copier = Copier::new(stores);
        Self {
            peer,
            is_listed: false,
            ring: None,
            shuttles,
            queue: VecDeque::new(),
            copier,
            packed: Box::default(),
            tried: Tried::default(),
        }
    }

    /// Returns whether the receiver reads this process's memory.
    pub(crate) fn may_rendezvous(&self) -> bool {
        self.ring.as_ref().is_some_and(Producer::may_rendezvous)
    }

    /// Takes a message of `total` bytes. Puts into the ring as much as fits at once, up to about `budget` bytes.
    ///
    /// # Safety
    /// As [`Endpoint::post_send`](crate::Endpoint::post_send); the origin has `total` bytes.
    pub(crate) unsafe fn hand(
        &mut self,
        tag: u64,
        origin: Origin,
        total: usize,
        token: Token,
        budget: usize,
        route: Route,
    ) -> Handed {
        let mut message = Outgoing {
            tag,
            total,
            sent: 0,
            is_started: false,
            by_rendezvous: route.by_rendezvous,
            mark: None,
            trial: route.trial,
            origin,
            token,
        };
        let mut moved = 0;
        if matches!(message.origin, Origin::Packer(_)) && self.packed.is_empty() {
            self.packed = vec![0; PACKED_BYTES].into();
        }
        let mut tools = (&mut self.copier, &mut *self.packed);
        if let (true, Some(ring)) = (self.queue.is_empty(), &mut self.ring) {
            while moved < budget {
                // SAFETY: the caller's promise. `advance` meets a corrupt ring again, and reports it.
                match unsafe { put_next(ring, &mut message, &mut tools) } {
                    Ok(Some(_)) if message.is_over() => {
                        note(&mut self.tried, message.trial, ring);
                        return Handed::Over;
                    }
                    Ok(Some(bytes)) => moved += bytes.max(1),
                    Ok(None) | Err(_) => break,
                }
            }
        }
        self.queue.push_back(message);
        Handed::Queued { moved: moved > 0 }
    }

    /// Sends a message at once, if no message waits before it, it fits into one piece and there is room.
    ///
    /// # Safety
    /// `from` is readable for `len` bytes.
    #[inline]
    pub(crate) unsafe fn put_whole(&mut self, tag: u64, from: *const u8, len: usize) -> bool {
        match &mut self.ring {
            // SAFETY: the caller's promise. The next post meets a corrupt ring again, and reports it.
            Some(ring) if self.queue.is_empty() => unsafe {
                ring.put_whole(tag, from, len, &mut self.copier).unwrap_or(false)
            },
            _ => false,
        }
    }

    /// Prepares the place of the next message, while the owner awaits an answer anyway.
    #[inline]
    pub(crate) fn claim_next(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.claim_next();
        }
    }

    /// Puts up to about `budget` bytes of waiting messages into the ring. Calls `done` for every message that is
    /// complete. Returns whether anything moved.
    pub(crate) fn advance(&mut self, budget: usize, mut done: impl FnMut(Token)) -> Result<bool, Corrupt> {
        let Some(ring) = &mut self.ring else { return Ok(false) };
        let mut moved = 0;
        let mut tools = (&mut self.copier, &mut *self.packed);
        while let Some(message) = self.queue.front_mut() {
            // SAFETY: the message is still pending, so the promise of `post_send` holds.
            let Some(bytes) = (unsafe { put_next(ring, message, &mut tools)? }) else { break };
            moved += bytes + PIECE_COST_BYTES;
            if message.is_over() {
                note(&mut self.tried, message.trial, ring);
                done(message.token);
                self.queue.pop_front();
            }
            if moved >= budget {
                break;
            }
        }
        Ok(moved > 0)
    }

    /// Returns whether no message waits here.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Calls `done` if a pending request has been served. This counts even if the peer has gone since.
    pub(crate) fn settle(&mut self, done: impl FnOnce(Token)) {
        let (Some(ring), Some(message)) = (&mut self.ring, self.queue.front_mut()) else { return };
        // Nothing more is read from a corrupt ring.
        if matches!(message.answer(ring), Ok(Some(Answer::Taken))) {
            done(message.token);
            self.queue.pop_front();
        }
    }

    /// Returns whether the first message waits for the receiver to fetch it.
    #[cfg(test)]
    pub(crate) fn has_requested(&self) -> bool {
        self.queue.front().is_some_and(|message| message.mark.is_some())
    }

    /// Takes back a pending request and all exposed memory, so that the memory may be released.
    pub(crate) fn withdraw(&self) {
        if let Some(ring) = &self.ring {
            ring.withdraw();
        }
    }

    /// Drops all waiting messages and calls `failed` for each.
    pub(crate) fn fail_all(&mut self, mut failed: impl FnMut(Token)) {
        self.withdraw();
        self.ring = None;
        for message in self.queue.drain(..) {
            failed(message.token);
        }
    }
}

/// Cost of handling a piece, as the number of bytes copied in the same time. It bounds the number of small messages
/// per visit.
pub(super) const PIECE_COST_BYTES: usize = 1024;

impl Outgoing {
    fn is_over(&self) -> bool {
        self.is_started && self.sent == self.total
    }

    /// Takes the next step of a rendezvous.
    ///
    /// # Safety
    /// The promise of `post_send` holds for the message.
    #[cold]
    unsafe fn rendezvous(&mut self, ring: &mut Producer) -> Result<Handshake, Corrupt> {
        if self.mark.is_some() {
            return Ok(match self.answer(ring)? {
                None => Handshake::Waits,
                Some(Answer::Taken) => Handshake::Advanced,
                Some(Answer::Declined) => Handshake::UseRing,
            });
        }
        let rts = match &self.origin {
            // SAFETY: the caller's promise; no part of the message has been sent.
            Origin::Pieces(pieces) => unsafe { pieces.rts(self.total) },
            Origin::Packer(_) => None,
        };
        let Some(rts) = rts else {
            self.by_rendezvous = false;
            return Ok(Handshake::UseRing);
        };
        self.mark = ring.request(self.tag, self.total as u64, &rts)?;
        Ok(if self.mark.is_some() { Handshake::Advanced } else { Handshake::Waits })
    }

    /// Returns the receiver's answer to a request, once there is one.
    fn answer(&mut self, ring: &mut Producer) -> Result<Option<Answer>, Corrupt> {
        let Some(mark) = self.mark else { return Ok(None) };
        if ring.freed()? < mark {
            return Ok(None);
        }
        self.mark = None;
        self.by_rendezvous = false;
        if ring.is_declined(mark) {
            self.trial = self.trial.map(Trial::declined);
            return Ok(Some(Answer::Declined));
        }
        (self.is_started, self.sent) = (true, self.total);
        Ok(Some(Answer::Taken))
    }
}

/// Notes the time of a message that has left, if it counts.
#[inline]
fn note(tried: &mut Tried, trial: Option<Trial>, ring: &Producer) {
    if let Some(trial) = trial {
        tried.over(trial, ring.unread());
    }
}

/// Outcome of a step of a rendezvous.
enum Handshake {
    /// The request was sent, or the receiver has the message.
    Advanced,
    /// There is no room for the request, or no answer yet.
    Waits,
    /// The message goes through the ring instead.
    UseRing,
}

/// The receiver's answer to a rendezvous request.
enum Answer {
    /// The receiver has the message.
    Taken,
    /// The receiver wants the message through the ring.
    Declined,
}

/// Bytes of a message that are packed at a time.
const PACKED_BYTES: usize = 8 << 10;

/// The lane's copier, and its memory for packed messages.
type Tools<'a> = (&'a mut Copier, &'a mut [u8]);

/// Packs `len` bytes of a message, from byte `at` on, into the ring. They take the way through a cache, because the
/// copier knows which stores suit the ring.
///
/// # Safety
/// The promise of `post_send_packed` holds for the message, and `to` is writable for `len` bytes.
unsafe fn pack(
    packer: Packer,
    at: usize,
    (to, len): (*mut u8, usize),
    copier: &mut Copier,
    packed: &mut [u8],
) {
    let mut done = 0;
    while done < len {
        let now = (len - done).min(packed.len());
        // SAFETY: the caller's promise; `packed` has room for `now` bytes. Test: `packed_messages` of the conformance suite.
        unsafe {
            (packer.call)(packer.context, at + done, packed.as_mut_ptr(), now);
            copier.copy(packed.as_ptr(), to.add(done), now);
        }
        done += now;
    }
}

/// Puts the next piece of a message into the ring, or a rendezvous request for it, if there is room, and returns how
/// many bytes went in. While a request is unanswered nothing more goes in, because the next step depends on the
/// answer.
///
/// # Safety
/// The promise of `post_send` holds for the message.
#[inline]
unsafe fn put_next(
    ring: &mut Producer,
    message: &mut Outgoing,
    tools: &mut Tools<'_>,
) -> Result<Option<usize>, Corrupt> {
    if message.by_rendezvous {
        // SAFETY: the caller's promise.
        match unsafe { message.rendezvous(ring)? } {
            Handshake::Advanced => return Ok(Some(0)),
            Handshake::Waits => return Ok(None),
            Handshake::UseRing => {}
        }
    }
    // SAFETY: the caller's promise.
    unsafe { put_piece(ring, message, tools) }
}

/// Puts the next piece of a message into the ring, if there is room; returns its length.
///
/// # Safety
/// The promise of `post_send` holds for the message.
#[inline]
unsafe fn put_piece(
    ring: &mut Producer,
    message: &mut Outgoing,
    (copier, packed): &mut Tools<'_>,
) -> Result<Option<usize>, Corrupt> {
    let Some(space) = ring.reserve(message.total - message.sent, message.total)? else { return Ok(None) };
    // SAFETY: `space.len` is at most what is left of the message, and `space` is writable for as much.
    unsafe {
        match &mut message.origin {
            Origin::Pieces(pieces) => pieces.gather(space.ptr, space.len, copier),
            Origin::Packer(packer) => pack(*packer, message.sent, (space.ptr, space.len), copier, packed),
        }
    }
    let first = (!message.is_started).then_some((message.tag, message.total as u64));
    ring.publish(&space, first);
    message.is_started = true;
    message.sent += space.len;
    Ok(Some(space.len))
}
