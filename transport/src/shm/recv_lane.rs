//! Receives that wait for messages from one peer on one channel.
//!
//! Like a [`SendLane`](super::lane::SendLane), a receiving lane owns its end of the ring and the queue of posted
//! receives. It also knows how to read the peer's memory.

use std::collections::VecDeque;
use std::sync::Arc;

use super::copy::STREAMING_BYTES;
use super::cursor::Cursor;
use super::get::Get;
use super::lane::{Handed, PIECE_COST_BYTES};
use super::remote::Remote;
use super::ring::{Consumer as RingConsumer, Corrupt, INLINE_BYTES};
use super::shuttles::Shuttles;
use super::tried::{Trial, Tried};
use crate::endpoint::{Consumer, Event, Fits, GRAIN_BYTES, Piece, Short, Sink, Token};
use crate::error::ErrorKind;

/// Destination of a message.
#[derive(Debug)]
enum Target {
    Place(Cursor),
    Consume(Consumer),
}

/// A posted receive.
#[derive(Debug)]
struct Incoming {
    tag: u64,
    expected: usize,
    /// Tag and length that arrived, once the first piece has.
    arrived: Option<(u64, u64)>,
    received: u64,
    target: Target,
    /// Whether the receive comes back if another message arrives.
    conditional: bool,
    /// Progress of a message by rendezvous, or of exposed memory, and the front of its destination.
    get: Option<(Get, Cursor)>,
    /// Set if the time counts that the receive takes.
    trial: Option<Trial>,
    token: Token,
}

// SAFETY: the consumer's context belongs to the caller, who has promised that it stays valid until the token
// completes, and that the endpoint may call it from whichever thread polls.
unsafe impl Send for Incoming {}

/// Reason why a channel cannot go on.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The sender wrote invalid values.
    Corrupt(Corrupt),
    /// The sender has taken its request back, or has ended.
    Gone,
    /// Not a failure of the channel: the first receive is conditional and does not fit the next message.
    Unfit,
}

impl From<Corrupt> for Trouble {
    fn from(corrupt: Corrupt) -> Self {
        Self::Corrupt(corrupt)
    }
}

/// The message that a receive expects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) tag: u64,
    pub(crate) len: usize,
    /// Whether the receive comes back if another message arrives.
    pub(crate) conditional: bool,
}

/// Outcome of a receive.
pub(crate) type Verdict = Result<(), ErrorKind>;

/// Receives from one peer on one channel.
#[derive(Debug)]
pub(crate) struct RecvLane {
    /// Index of the peer in the endpoint's table.
    pub(crate) peer: usize,
    pub(crate) channel: u16,
    /// Whether the endpoint's list of busy lanes has this one.
    pub(crate) is_listed: bool,
    /// Set once the peer has delivered its segment.
    pub(crate) ring: Option<RingConsumer>,
    /// Shared with the lane in the other direction.
    pub(crate) shuttles: Arc<Shuttles>,
    /// The peer's memory, if this side reads it.
    remote: Option<Remote>,
    queue: VecDeque<Incoming>,
    /// Gets of memory that the peer has exposed on this channel.
    gets: VecDeque<Incoming>,
    /// Which exposed messages are fetched, and the trial of the next one.
    tried: Tried,
    trial: Option<Trial>,
    /// Whether the owner wants the envelope of the next message although no receive is posted.
    pub(crate) is_probed: bool,
}

impl RecvLane {
    pub(crate) fn new(peer: usize, channel: u16, remote: Option<Remote>, shuttles: Arc<Shuttles>) -> Self {
        Self {
            peer,
            channel,
            is_listed: false,
            ring: None,
            shuttles,
            remote,
            queue: VecDeque::new(),
            gets: VecDeque::new(),
            tried: Tried::default(),
            trial: None,
            is_probed: false,
        }
    }

    /// Returns whether an exposed message of `len` bytes should be fetched, by the times that earlier ones took.
    pub(crate) fn prefers_get(&mut self, len: usize) -> bool {
        let route = self.tried.route(len);
        // Where several messages are on their way, each waits for the others, so their times say nothing.
        let is_alone = self.is_idle();
        self.queue.iter_mut().chain(&mut self.gets).for_each(|message| message.trial = None);
        self.trial = route.trial.filter(|_| is_alone);
        route.by_rendezvous
    }

    /// Takes a receive and serves it with the data that has arrived, up to about `budget` bytes, so that a sender
    /// that keeps pace cannot keep the owner here. If the receive completes, `done` gets the verdict and the result
    /// is [`Handed::Over`]. A `conditional` receive that does not fit the next message stays in the queue until
    /// [`RecvLane::advance`] reports it.
    ///
    /// # Safety
    /// As [`Endpoint::post_recv`](crate::Endpoint::post_recv); `len` is the length of the sink.
    pub(crate) unsafe fn hand(
        &mut self,
        Wanted { tag, len: expected, conditional }: Wanted,
        sink: Sink<'_>,
        token: Token,
        budget: usize,
        done: impl FnOnce(Token, Verdict),
    ) -> Handed {
        let target = match sink {
            Sink::Place(pieces) => Target::Place(Cursor::new(pieces)),
            Sink::Consume { consumer, .. } => Target::Consume(consumer),
        };
        let trial = self.trial.take();
        let mut message = Incoming {
            tag,
            expected,
            arrived: None,
            received: 0,
            target,
            conditional,
            get: None,
            trial,
            token,
        };
        let mut moved = 0;
        if let (true, Some(ring)) = (self.queue.is_empty(), &mut self.ring) {
            while moved < budget {
                // SAFETY: the caller's promise. `advance` meets an error again, and reports it.
                match unsafe { take_next(ring, self.remote.as_ref(), &mut message) } {
                    Ok(Some(_)) if message.is_over() => {
                        note(&mut self.tried, message.trial);
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

    /// Takes a get of `len` bytes at address `from` in the peer's process, and fetches the first of them.
    ///
    /// # Safety
    /// As [`Endpoint::post_get`](crate::Endpoint::post_get); `len` is the sum of the pieces.
    pub(crate) unsafe fn hand_get(&mut self, from: u64, dst: &[Piece], len: usize, token: Token) -> Handed {
        let mut message = Incoming {
            tag: 0,
            expected: len,
            arrived: Some((0, len as u64)),
            received: 0,
            target: Target::Place(Cursor::new(dst)),
            conditional: false,
            get: Some((Get::at(from, len), Cursor::new(dst))),
            trial: self.trial.take(),
            token,
        };
        if let (true, Some(ring)) = (self.gets.is_empty(), &mut self.ring) {
            // SAFETY: the caller's promise. `advance` meets a refusal or an error again, and reports it.
            let fetched = unsafe { fetch(ring, self.remote.as_ref(), &mut message) };
            if fetched.is_ok() && message.is_over() {
                note(&mut self.tried, message.trial);
                return Handed::Over;
            }
        }
        self.gets.push_back(message);
        Handed::Queued { moved: false }
    }

    /// Takes the next message at once, if no receive is posted and the message has arrived in one piece and fits. `take`
    /// gets its bytes, which are readable during the call.
    #[inline]
    pub(crate) fn take_whole(&mut self, fits: Fits, take: impl FnOnce(*const u8, usize)) -> Short {
        let Some(ring) = &mut self.ring else { return Short::NotYet };
        if !self.queue.is_empty() {
            return Short::Other;
        }
        // The next post meets a corrupt ring again, and reports it.
        let Ok(arrival) = ring.peek() else { return Short::Other };
        let Some(arrival) = arrival else { return Short::NotYet };
        let (tag, len) = ring.envelope();
        if arrival.is_rts() || arrival.len as u64 != len || !fits.takes(tag, arrival.len) {
            return Short::Other;
        }
        if arrival.len > 0 {
            take(arrival.ptr, arrival.len);
        }
        ring.release(&arrival);
        Short::Taken { tag, len: arrival.len }
    }

    /// Serves waiting receives with up to about `budget` bytes of the data that has arrived. Calls `done` for every
    /// receive that is complete. Returns whether anything moved.
    #[inline]
    pub(crate) fn advance(
        &mut self,
        budget: usize,
        mut done: impl FnMut(Token, Verdict),
    ) -> Result<bool, Trouble> {
        let Some(ring) = &mut self.ring else { return Ok(false) };
        let mut moved = 0;
        if let Some(message) = self.gets.front_mut() {
            // SAFETY: the get is still pending, so the promise of `post_get` holds.
            let fetched = unsafe { fetch(ring, self.remote.as_ref(), message)? };
            moved += fetched.unwrap_or(0) + PIECE_COST_BYTES;
            if fetched.is_none() {
                note(&mut self.tried, message.trial.map(Trial::declined));
                done(message.token, Err(ErrorKind::System));
                self.gets.pop_front();
            } else if message.is_over() {
                note(&mut self.tried, message.trial);
                done(message.token, Ok(()));
                self.gets.pop_front();
            }
        }
        while let Some(message) = self.queue.front_mut() {
            // SAFETY: the message is still pending, so the promise of `post_recv` holds.
            let Some(bytes) = (unsafe { take_next(ring, self.remote.as_ref(), message)? }) else {
                break;
            };
            moved += bytes + PIECE_COST_BYTES;
            if message.is_over() {
                note(&mut self.tried, message.trial);
                done(message.token, message.verdict());
                self.queue.pop_front();
            }
            if moved >= budget {
                break;
            }
        }
        Ok(moved > 0)
    }

    /// Returns whether no receive and no get waits here.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.gets.is_empty()
    }

    /// Returns whether a receive, a get or a probe waits here.
    pub(crate) fn has_work(&self) -> bool {
        self.is_probed || !self.is_idle()
    }

    /// Returns whether the first receive, if there is one, is conditional and no part of its message has arrived.
    pub(crate) fn can_return(&self) -> bool {
        self.queue.front().is_none_or(|message| message.conditional && message.arrived.is_none())
    }

    /// Returns all receives. The first must be one that [`RecvLane::advance`] has reported as [`Trouble::Unfit`], or be
    /// able to [return](RecvLane::can_return).
    pub(crate) fn take_back(&mut self, pending: &mut usize, events: &mut Vec<Event>) {
        *pending -= self.queue.len();
        events.extend(self.queue.drain(..).map(|message| Event::Returned(message.token)));
    }

    /// Returns tag and length of the next message, if it has arrived. Valid only while no receive is posted.
    pub(crate) fn envelope(&mut self) -> Result<Option<(u64, u64)>, Corrupt> {
        let Some(ring) = &mut self.ring else { return Ok(None) };
        Ok(ring.peek()?.map(|_| ring.envelope()))
    }

    /// Drops all waiting receives and gets, and calls `failed` for each.
    pub(crate) fn fail_all(&mut self, mut failed: impl FnMut(Token)) {
        self.ring = None;
        for message in self.queue.drain(..).chain(self.gets.drain(..)) {
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

    /// Forgets what has been fetched of a message, whose bytes will come through the ring.
    fn begin_again(&mut self) {
        if let Some((_, front)) = self.get.take() {
            (self.target, self.received) = (Target::Place(front), 0);
        }
    }

    fn is_other(&self, tag: u64, len: u64) -> bool {
        tag != self.tag || len != self.expected as u64
    }
}

/// Notes the time of a message that has arrived, if it counts.
#[inline]
fn note(tried: &mut Tried, trial: Option<Trial>) {
    if let Some(trial) = trial {
        tried.over(trial, 0);
    }
}

/// Takes the next piece of a message from the ring, if it has arrived; returns its length. The payload of a message
/// that is not the expected one is dropped.
///
/// # Safety
/// The promise of `post_recv` holds for the message.
#[inline]
unsafe fn take_next(
    ring: &mut RingConsumer,
    remote: Option<&Remote>,
    message: &mut Incoming,
) -> Result<Option<usize>, Trouble> {
    if message.get.is_some() {
        // SAFETY: the caller's promise.
        return unsafe { get_some(ring, remote, message).map(Some) };
    }
    let Some(arrival) = ring.peek()? else { return Ok(None) };
    if message.conditional && message.arrived.is_none() {
        let (tag, total) = ring.envelope();
        if message.is_other(tag, total) {
            return Err(Trouble::Unfit);
        }
    }
    if arrival.is_rts() {
        let (tag, total) = ring.envelope();
        if message.arrived.is_some() {
            return Err(Corrupt("a rendezvous request in the middle of a message".to_owned()).into());
        }
        let get = Get::checked(&ring.rts_words(), arrival.len, total)?;
        message.arrived = Some((tag, total));
        let Target::Place(front) = &message.target else {
            ring.decline();
            return Ok(Some(0));
        };
        message.get = Some((get, front.clone()));
        // SAFETY: the caller's promise.
        return unsafe { get_some(ring, remote, message).map(Some) };
    }
    let (tag, total) = *message.arrived.get_or_insert_with(|| ring.envelope());
    let left = total - message.received;
    let len = arrival.len;
    if len as u64 != left {
        let is_proper = (len as u64) < left && len > INLINE_BYTES && len.is_multiple_of(GRAIN_BYTES);
        if !is_proper {
            return Err(Corrupt(format!("a piece of {len} bytes, but {left} of {total} are left")).into());
        }
    }
    if !message.is_other(tag, total) && len > 0 {
        let offset = message.received as usize;
        match &mut message.target {
            // SAFETY: the arrival is readable for `len` bytes until it is released; the list has `expected` bytes,
            // which is `total`, and `received + len <= total`.
            Target::Place(cursor) => unsafe {
                // A message touches its source and its destination.
                cursor.scatter(arrival.ptr, len, 2 * message.expected >= STREAMING_BYTES);
            },
            // SAFETY: the caller's promise covers the context; the data is readable for the duration of the call.
            Target::Consume(consumer) => unsafe {
                (consumer.call)(consumer.context, offset, arrival.ptr, len);
            },
        }
    }
    ring.release(&arrival);
    message.received += len as u64;
    Ok(Some(len))
}

/// Fetches the next part of a message by rendezvous; returns its length. A message that is not the expected one is
/// skipped, and one that the kernel does not read is asked for through the ring.
///
/// # Safety
/// The promise of `post_recv` holds for the message.
unsafe fn get_some(
    ring: &mut RingConsumer,
    remote: Option<&Remote>,
    message: &mut Incoming,
) -> Result<usize, Trouble> {
    let fetched = match message.arrived {
        Some((tag, total)) if message.is_other(tag, total) => {
            message.received = total;
            Some(0)
        }
        // SAFETY: the caller's promise.
        _ => unsafe { fetch(ring, remote, message)? },
    };
    let Some(len) = fetched else {
        message.begin_again();
        ring.decline();
        return Ok(0);
    };
    if message.is_over() {
        ring.release_cell();
    }
    Ok(len)
}

/// Fetches the next part of a message from the sender's memory; returns its length, or `None` if the kernel does not read
/// that memory.
///
/// # Safety
/// The promise of `post_recv` or `post_get` holds for the message, which is the expected one.
unsafe fn fetch(
    ring: &RingConsumer,
    remote: Option<&Remote>,
    message: &mut Incoming,
) -> Result<Option<usize>, Trouble> {
    let (Some((get, _)), Target::Place(cursor)) = (&mut message.get, &mut message.target) else {
        return Ok(Some(0));
    };
    let Some(remote) = remote else {
        return Err(Corrupt("memory is exposed to a receiver that cannot read it".to_owned()).into());
    };
    let left = message.expected - message.received as usize;
    // SAFETY: the caller's promise; the list has `expected` bytes, of which `received` lie before the cursor.
    let fetched = unsafe { get.place(remote, ring, cursor, left)? };
    message.received += fetched.unwrap_or(0) as u64;
    Ok(fetched)
}
