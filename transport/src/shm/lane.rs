//! The messages that wait on one channel in one direction.
//!
//! A lane owns its end of the ring, once there is one, and the queue of what was posted and is not over yet. It
//! knows nothing of peers, doorbells or connections.

use std::collections::VecDeque;

use super::copy::STREAMING_BYTES;
use super::cursor::Cursor;
use super::ring::{Consumer as RingConsumer, Corrupt, INLINE_BYTES, Producer};
use crate::endpoint::{Consumer, GRAIN_BYTES, Piece, Sink, Token};
use crate::error::ErrorKind;

/// A message on its way out.
#[derive(Debug)]
struct Outgoing {
    tag: u64,
    total: usize,
    sent: usize,
    /// Whether the first piece has gone; `sent` does not tell for an empty message.
    is_started: bool,
    source: Cursor,
    token: Token,
}

/// Messages to one peer on one channel.
#[derive(Debug)]
pub(crate) struct SendLane {
    /// Index of the peer in the endpoint's table.
    pub(crate) peer: usize,
    /// Whether the endpoint's list of busy lanes has this one.
    pub(crate) is_listed: bool,
    /// Set once the segment exists.
    pub(crate) ring: Option<Producer>,
    queue: VecDeque<Outgoing>,
}

/// Outcome of handing a message to a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handed {
    /// All of it is in the ring.
    Over,
    /// It waits, and perhaps part of it is in the ring.
    Queued {
        /// Whether anything went into the ring.
        moved: bool,
    },
}

impl SendLane {
    pub(crate) fn new(peer: usize) -> Self {
        Self { peer, is_listed: false, ring: None, queue: VecDeque::new() }
    }

    /// Takes a message of `total` bytes, and puts into the ring what fits at once, up to about `budget` bytes.
    ///
    /// # Safety
    /// As [`Endpoint::post_send`](crate::Endpoint::post_send); `total` is the sum of the pieces.
    pub(crate) unsafe fn hand(
        &mut self,
        tag: u64,
        pieces: &[Piece],
        total: usize,
        token: Token,
        budget: usize,
    ) -> Handed {
        let mut message =
            Outgoing { tag, total, sent: 0, is_started: false, source: Cursor::new(pieces), token };
        let mut moved = 0;
        if let (true, Some(ring)) = (self.queue.is_empty(), &mut self.ring) {
            while moved < budget {
                // SAFETY: the caller's promise. A corrupt ring is found again, and reported, by `advance`.
                match unsafe { put_piece(ring, &mut message) } {
                    Ok(Some(_)) if message.is_over() => return Handed::Over,
                    Ok(Some(bytes)) => moved += bytes.max(1),
                    Ok(None) | Err(_) => break,
                }
            }
        }
        self.queue.push_back(message);
        Handed::Queued { moved: moved > 0 }
    }

    /// Puts up to about `budget` bytes of what waits into the ring. Calls `done` for every message that is over.
    /// Returns whether anything moved.
    pub(crate) fn advance(&mut self, budget: usize, mut done: impl FnMut(Token)) -> Result<bool, Corrupt> {
        let Some(ring) = &mut self.ring else { return Ok(false) };
        let mut moved = 0;
        while let Some(message) = self.queue.front_mut() {
            // SAFETY: the message is still pending, so the promise of `post_send` holds.
            let Some(bytes) = (unsafe { put_piece(ring, message)? }) else { break };
            moved += bytes + PIECE_COST_BYTES;
            if message.is_over() {
                done(message.token);
                self.queue.pop_front();
            }
            if moved >= budget {
                break;
            }
        }
        Ok(moved > 0)
    }

    /// Whether nothing waits here.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Gives up everything that waits.
    pub(crate) fn fail_all(&mut self, mut failed: impl FnMut(Token)) {
        self.ring = None;
        for message in self.queue.drain(..) {
            failed(message.token);
        }
    }
}

/// What handling a piece costs, as bytes copied in the same time: bounds the number of small messages per visit.
const PIECE_COST_BYTES: usize = 1024;

impl Outgoing {
    fn is_over(&self) -> bool {
        self.is_started && self.sent == self.total
    }
}

/// Puts the next piece of a message into the ring, if there is room; returns its length.
///
/// # Safety
/// The promise of `post_send` holds for the message.
#[inline]
unsafe fn put_piece(ring: &mut Producer, message: &mut Outgoing) -> Result<Option<usize>, Corrupt> {
    let Some(space) = ring.reserve(message.total - message.sent)? else { return Ok(None) };
    // SAFETY: `space.len` is at most what is left of the message, and `space` is writable for as much.
    unsafe { message.source.gather(space.ptr, space.len) };
    let first = (!message.is_started).then_some((message.tag, message.total as u64));
    ring.publish(&space, first);
    message.is_started = true;
    message.sent += space.len;
    Ok(Some(space.len))
}

/// Where a message goes.
#[derive(Debug)]
enum Target {
    Place(Cursor),
    Consume(Consumer),
}

/// A message expected.
#[derive(Debug)]
struct Incoming {
    tag: u64,
    expected: usize,
    /// Tag and length that arrived, once the first piece has.
    arrived: Option<(u64, u64)>,
    received: u64,
    target: Target,
    token: Token,
}

// SAFETY: the consumer's context is the caller's, who has promised that it stays valid until the token completes, and
// that the endpoint may call it from whichever thread polls.
unsafe impl Send for Incoming {}

/// How a receive ended.
pub(crate) type Verdict = Result<(), ErrorKind>;

/// Messages from one peer on one channel.
#[derive(Debug)]
pub(crate) struct RecvLane {
    /// Index of the peer in the endpoint's table.
    pub(crate) peer: usize,
    /// Whether the endpoint's list of busy lanes has this one.
    pub(crate) is_listed: bool,
    /// Set once the peer has brought its segment.
    pub(crate) ring: Option<RingConsumer>,
    queue: VecDeque<Incoming>,
}

impl RecvLane {
    pub(crate) fn new(peer: usize) -> Self {
        Self { peer, is_listed: false, ring: None, queue: VecDeque::new() }
    }

    /// Takes a receive of `expected` bytes, and serves it with what has arrived, up to about `budget` bytes: a sender
    /// that keeps pace must not keep the owner here. A verdict comes through `done`, with [`Handed::Over`].
    ///
    /// # Safety
    /// As [`Endpoint::post_recv`](crate::Endpoint::post_recv); `expected` is the length of the sink.
    pub(crate) unsafe fn hand(
        &mut self,
        tag: u64,
        sink: Sink<'_>,
        expected: usize,
        token: Token,
        budget: usize,
        done: impl FnOnce(Token, Verdict),
    ) -> Handed {
        let target = match sink {
            Sink::Place(pieces) => Target::Place(Cursor::new(pieces)),
            Sink::Consume { consumer, .. } => Target::Consume(consumer),
        };
        let mut message = Incoming { tag, expected, arrived: None, received: 0, target, token };
        let mut moved = 0;
        if let (true, Some(ring)) = (self.queue.is_empty(), &mut self.ring) {
            while moved < budget {
                // SAFETY: the caller's promise. A corrupt ring is found again, and reported, by `advance`.
                match unsafe { take_piece(ring, &mut message) } {
                    Ok(Some(_)) if message.is_over() => {
                        done(token, message.verdict());
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

    /// Serves what waits with up to about `budget` bytes of what has arrived. Calls `done` for every message that is
    /// over. Returns whether anything moved.
    #[inline]
    pub(crate) fn advance(
        &mut self,
        budget: usize,
        mut done: impl FnMut(Token, Verdict),
    ) -> Result<bool, Corrupt> {
        let Some(ring) = &mut self.ring else { return Ok(false) };
        let mut moved = 0;
        while let Some(message) = self.queue.front_mut() {
            // SAFETY: the message is still pending, so the promise of `post_recv` holds.
            let Some(bytes) = (unsafe { take_piece(ring, message)? }) else { break };
            moved += bytes + PIECE_COST_BYTES;
            if message.is_over() {
                done(message.token, message.verdict());
                self.queue.pop_front();
            }
            if moved >= budget {
                break;
            }
        }
        Ok(moved > 0)
    }

    /// Whether nothing waits here.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Gives up everything that waits.
    pub(crate) fn fail_all(&mut self, mut failed: impl FnMut(Token)) {
        self.ring = None;
        for message in self.queue.drain(..) {
            failed(message.token);
        }
    }
}

impl Incoming {
    fn is_over(&self) -> bool {
        self.arrived.is_some_and(|(_, total)| self.received == total)
    }

    fn verdict(&self) -> Verdict {
        match self.arrived {
            Some((tag, len)) if self.is_other(tag, len) => Err(ErrorKind::Mismatch {
                expected_tag: self.tag,
                tag,
                expected_len: self.expected as u64,
                len,
            }),
            _ => Ok(()),
        }
    }

    fn is_other(&self, tag: u64, len: u64) -> bool {
        tag != self.tag || len != self.expected as u64
    }
}

/// Takes the next piece of a message from the ring, if it is there; returns its length. The payload of a message that
/// is not the one expected is dropped.
///
/// # Safety
/// The promise of `post_recv` holds for the message.
#[inline]
unsafe fn take_piece(ring: &mut RingConsumer, message: &mut Incoming) -> Result<Option<usize>, Corrupt> {
    let Some(arrival) = ring.peek()? else { return Ok(None) };
    let (tag, total) = *message.arrived.get_or_insert_with(|| ring.envelope());
    let left = total - message.received;
    let len = arrival.len;
    if len as u64 != left {
        let is_proper = (len as u64) < left && len > INLINE_BYTES && len.is_multiple_of(GRAIN_BYTES);
        if !is_proper {
            return Err(Corrupt(format!("a piece of {len} bytes where {left} of {total} are left")));
        }
    }
    if !message.is_other(tag, total) && len > 0 {
        let offset = message.received as usize;
        match &mut message.target {
            // SAFETY: the arrival is readable for `len` bytes until it is released; the list has `expected` bytes,
            // which is `total`, and `received + len <= total`.
            Target::Place(cursor) => unsafe {
                cursor.scatter(arrival.ptr, len, message.expected >= STREAMING_BYTES);
            },
            // SAFETY: the caller's promise for the context; the data is readable for the duration of the call.
            Target::Consume(consumer) => unsafe {
                (consumer.call)(consumer.context, offset, arrival.ptr, len);
            },
        }
    }
    ring.release(&arrival);
    message.received += len as u64;
    Ok(Some(len))
}
