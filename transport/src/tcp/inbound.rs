//! The receiving half of a channel.
//!
//! A system call asks for exactly the bytes that the posted receives expect: the rest of a header, the payload into its place, and, while
//! messages are small, the headers and payloads of the receives behind it. Each header is checked before its message is reported.
//!
//! If a header differs from the one expected, the bytes behind it went to wrong places. They are collected from there, in the order of the
//! stream, into the `stash`; the payload of the mismatched message is dropped, and the stream continues from the stash until it is empty. A
//! mismatch therefore costs its token, not the channel.
//!
//! If that receive was conditional, all posted receives go back instead, and the message is *held*: its header is kept, and its payload
//! waits, in stash and socket, for the next receive. A header that is being probed for is read, and the message held, without any receive.
//!
//! The payload of a striped message comes in parts, over all strands of the channel: see `parts` and `stripes`.

use std::collections::VecDeque;

use socket2::Socket;

use super::NAME;
use super::link::{SCRATCH_BYTES, Workspace};
use super::outbound::{BATCH, BURST_BYTES};
use super::socket::{self, Stop};
use super::stripes::STRIPED_BYTES;
use super::wire::{HEADER_BYTES, Header};
use crate::endpoint::{Channel, Envelope, Event, GRAIN_BYTES, Token};
use crate::error::{Error, ErrorKind};
use crate::pieces::{Cursor, Eater, Pieces};

mod parts;

/// Where a message goes.
#[derive(Debug)]
pub(super) enum Landing {
    Place(Pieces),
    Eat(Eater),
}

/// A posted receive.
#[derive(Debug)]
pub(super) struct Recv {
    pub(super) token: Token,
    pub(super) tag: u64,
    pub(super) len: usize,
    pub(super) landing: Landing,
    /// Whether it goes back if another message comes.
    pub(super) conditional: bool,
}

/// Why receiving stopped.
#[derive(Debug)]
pub(super) enum Halt {
    /// Nothing is posted.
    Idle,
    /// Nothing is there.
    Blocked,
    /// There may be more.
    Budget,
    /// A striped message is at the front: its parts are to be received.
    Parts,
    /// The connection is closed.
    Closed(Option<std::io::Error>),
    /// The peer sends what no peer sends.
    Corrupt(&'static str),
}

/// Receives posted and not complete, and how far the front one is.
#[derive(Debug)]
pub(super) struct Inbound {
    pub(super) queue: VecDeque<Recv>,
    /// Header of the front message, as far as it is there.
    header: [u8; HEADER_BYTES],
    header_bytes: usize,
    /// Payload of the front message that is there.
    payload_bytes: usize,
    cursor: Cursor,
    /// The end of that payload that makes no whole grain yet, for a consumer.
    grain: [u8; GRAIN_BYTES],
    grain_bytes: usize,
    /// Number of the front message.
    sequence: u32,
    /// Whether the header of the next message is wanted though nothing is posted.
    pub(super) probed: bool,
    /// Whether the front header is of a message that waits for a receive.
    held: bool,
    /// Bytes of a mismatched payload still to drop.
    skip: u64,
    /// The striped message whose parts are received.
    striped: Option<Striped>,
    /// Which of its bytes have come: where runs begin and end, in order and apart.
    runs: Vec<(usize, usize)>,
    /// The header of the message behind it, if that came first.
    ahead: Option<[u8; HEADER_BYTES]>,
    /// Whether long messages are likely to be striped, so that nothing is asked for behind their headers.
    pub(super) expects_parts: bool,
    /// Bytes read too far, and where they begin.
    stash: Vec<u8>,
    stash_start: usize,
    /// The defect that made the stream unreadable for good.
    corrupt: Option<&'static str>,
}

/// A striped message.
#[derive(Clone, Copy, Debug)]
struct Striped {
    sequence: u32,
    len: usize,
    got: usize,
    /// Whether nobody wants it.
    is_dropped: bool,
}

impl Default for Inbound {
    fn default() -> Self {
        Self {
            queue: VecDeque::new(),
            header: [0; HEADER_BYTES],
            header_bytes: 0,
            payload_bytes: 0,
            cursor: Cursor::default(),
            grain: [0; GRAIN_BYTES],
            grain_bytes: 0,
            sequence: 0,
            probed: false,
            held: false,
            skip: 0,
            striped: None,
            runs: Vec::new(),
            ahead: None,
            expects_parts: false,
            stash: Vec::new(),
            stash_start: 0,
            corrupt: None,
        }
    }
}

impl Inbound {
    /// Receives up to about `budget` bytes, and appends what completes. `exhaust` goes on until the kernel says
    /// that there is no more, instead of guessing it from a short read. Returns the bytes moved, and why it ended.
    pub(super) fn progress(
        &mut self,
        socket: &Socket,
        on: Channel,
        work: &mut Workspace,
        budget: usize,
        exhaust: bool,
        events: &mut Vec<Event>,
    ) -> (usize, Halt) {
        let mut total = 0;
        loop {
            if let Some(what) = self.corrupt {
                return (total, Halt::Corrupt(what));
            }
            if self.queue.is_empty() && !self.probed {
                return (total, Halt::Idle);
            }
            if self.striped.is_some() {
                return (total, Halt::Parts);
            }
            if total >= budget {
                return (total, Halt::Budget);
            }
            let (moved, wanted) = if self.held {
                // A receive was posted for the message since its header came, or it is asked for again.
                self.held = false;
                self.corrupt = self.settle(on, events).err();
                (0, 0)
            } else if self.has_stash() {
                let moved = self.unstash(work);
                self.corrupt = self.settle(on, events).err();
                (moved, moved)
            } else if self.skip > 0 {
                match self.drop_payload(socket, work) {
                    Ok(moved) => moved,
                    Err(stop) => return (total, stop.into()),
                }
            } else {
                self.ask(work, budget - total);
                let wanted = work.io.bytes();
                match socket::recv(socket, &mut work.io) {
                    Ok(moved) => {
                        self.corrupt = self.account(moved, on, work, events).err();
                        (moved, wanted)
                    }
                    Err(stop) => return (total, stop.into()),
                }
            };
            total += moved;
            if moved < wanted && !exhaust && self.corrupt.is_none() && !self.has_stash() {
                return (total, Halt::Blocked);
            }
        }
    }

    /// Whether anybody waits for a message, so that the end of the stream is met.
    pub(super) fn is_wanted(&self) -> bool {
        self.probed || !self.queue.is_empty()
    }

    /// Whether there is something to do without the socket.
    pub(super) fn is_ready(&self) -> bool {
        self.held || self.has_stash()
    }

    fn has_stash(&self) -> bool {
        self.stash_start < self.stash.len()
    }

    /// The message that the peer's end of stream cuts short, for people.
    pub(super) fn position(&self) -> String {
        match self.queue.front() {
            Some(recv) if self.header_bytes > 0 => format!(
                "in the middle of message {}, after {} of {} bytes",
                self.sequence,
                self.received_bytes(),
                recv.len
            ),
            _ => format!("before message {}", self.sequence),
        }
    }

    /// Fills the list with what the posted receives expect next.
    fn ask(&mut self, work: &mut Workspace, budget: usize) {
        work.io.clear();
        if self.header_bytes < HEADER_BYTES {
            work.io.push_target(&mut self.header[self.header_bytes..]);
        }
        let Some(front) = self.queue.front() else { return };
        let left = front.len - self.payload_bytes;
        if self.expects_parts && left >= STRIPED_BYTES && self.header_bytes < HEADER_BYTES {
            return;
        }
        match &front.landing {
            Landing::Eat(_) => {
                let scratch = work.scratch();
                scratch[..self.grain_bytes].copy_from_slice(&self.grain[..self.grain_bytes]);
                let end = SCRATCH_BYTES.min(self.grain_bytes.saturating_add(left));
                work.ask_scratch(self.grain_bytes, end);
                return;
            }
            Landing::Place(pieces) => {
                if work.io.gather(pieces, self.cursor, left.min(budget)) < left {
                    return;
                }
            }
        }
        for (at, recv) in self.queue.iter().enumerate().take(BATCH).skip(1) {
            let Landing::Place(pieces) = &recv.landing else { return };
            if recv.len > BURST_BYTES || work.io.room() < 2 {
                return;
            }
            work.io.push_target(&mut work.headers[at]);
            if work.io.gather(pieces, Cursor::START, recv.len) < recv.len {
                return;
            }
        }
    }

    /// Takes in `left` bytes that the kernel has put where [`Inbound::ask`] said.
    fn account(
        &mut self,
        mut left: usize,
        on: Channel,
        work: &mut Workspace,
        events: &mut Vec<Event>,
    ) -> Result<(), &'static str> {
        if self.queue.is_empty() {
            self.header_bytes += left;
            return self.settle(on, events);
        }
        let mut at = 0;
        while left > 0 {
            let Some(front) = self.queue.front() else { return Err("more bytes than asked for") };
            if self.header_bytes < HEADER_BYTES {
                let bytes = left.min(HEADER_BYTES - self.header_bytes);
                if at > 0 {
                    // Only the front's header was asked for in place.
                    self.header[..bytes].copy_from_slice(&work.headers[at][..bytes]);
                }
                self.header_bytes += bytes;
                left -= bytes;
                if self.header_bytes < HEADER_BYTES {
                    return Ok(());
                }
                let (header, fits) = self.meet()?;
                if !fits || header.striped {
                    self.stash_rest(at, left, work);
                    self.take_up(header, fits, on, events);
                    return Ok(());
                }
            }
            let bytes = left.min(front.len - self.payload_bytes);
            left -= bytes;
            match &front.landing {
                Landing::Place(pieces) => {
                    pieces.advance(&mut self.cursor, bytes);
                    self.payload_bytes += bytes;
                }
                Landing::Eat(_) => self.eat(bytes, work),
            }
            self.complete(events);
            at += 1;
        }
        Ok(())
    }

    /// Collects `left` bytes that were put behind a mismatched header, the `at`th of this call.
    fn stash_rest(&mut self, at: usize, mut left: usize, work: &mut Workspace) {
        self.stash.clear();
        self.stash_start = 0;
        for (behind, recv) in self.queue.iter().enumerate() {
            if left == 0 {
                return;
            }
            if behind > 0 {
                let bytes = left.min(HEADER_BYTES);
                self.stash.extend_from_slice(&work.headers[at + behind][..bytes]);
                left -= bytes;
            }
            let bytes = left.min(recv.len);
            match &recv.landing {
                Landing::Place(pieces) => pieces.copy_out(Cursor::default(), bytes, &mut self.stash),
                Landing::Eat(_) => self.stash.extend_from_slice(&work.scratch()[..bytes]),
            }
            left -= bytes;
        }
    }

    /// Takes bytes of the stash; returns how many.
    fn unstash(&mut self, work: &mut Workspace) -> usize {
        let there = self.stash.len() - self.stash_start;
        let start = self.stash_start;
        let bytes;
        if self.skip > 0 {
            bytes = usize::try_from(self.skip).unwrap_or(usize::MAX).min(there);
            self.skip -= bytes as u64;
        } else if self.header_bytes < HEADER_BYTES {
            bytes = there.min(HEADER_BYTES - self.header_bytes);
            self.header[self.header_bytes..][..bytes].copy_from_slice(&self.stash[start..start + bytes]);
            self.header_bytes += bytes;
        } else {
            let Some(front) = self.queue.front() else { return 0 };
            let left = front.len - self.payload_bytes;
            match &front.landing {
                Landing::Place(pieces) => {
                    bytes = there.min(left);
                    pieces.fill(&mut self.cursor, &self.stash[start..start + bytes]);
                    self.payload_bytes += bytes;
                }
                Landing::Eat(_) => {
                    bytes = there.min(left).min(SCRATCH_BYTES - self.grain_bytes);
                    let scratch = work.scratch();
                    scratch[..self.grain_bytes].copy_from_slice(&self.grain[..self.grain_bytes]);
                    scratch[self.grain_bytes..][..bytes].copy_from_slice(&self.stash[start..start + bytes]);
                    self.eat(bytes, work);
                }
            }
        }
        self.leave_stash(bytes);
        bytes
    }

    /// Bytes of the stash have been taken.
    fn leave_stash(&mut self, bytes: usize) {
        self.stash_start += bytes;
        if !self.has_stash() {
            // It may be large, and is rarely needed again.
            self.stash = Vec::new();
            self.stash_start = 0;
        }
    }

    /// Checks and completes the front message after bytes came out of the stash, or holds it.
    fn settle(&mut self, on: Channel, events: &mut Vec<Event>) -> Result<(), &'static str> {
        if self.skip > 0 || self.header_bytes < HEADER_BYTES {
            return Ok(());
        }
        if self.queue.is_empty() {
            if self.probed {
                self.hold(self.envelope()?, on, events);
            }
        } else {
            let (header, fits) = self.meet()?;
            self.take_up(header, fits, on, events);
        }
        Ok(())
    }

    /// Goes on with the front message, whose header is there.
    fn take_up(&mut self, header: Header, fits: bool, on: Channel, events: &mut Vec<Event>) {
        if !fits {
            self.refuse(header, on, events);
        } else if header.striped {
            self.begin_parts(header, false);
        } else {
            self.complete(events);
        }
    }

    /// Reads bytes of a mismatched payload; returns how many, and how many it wanted.
    fn drop_payload(&mut self, socket: &Socket, work: &mut Workspace) -> Result<(usize, usize), Stop> {
        let wanted = usize::try_from(self.skip).unwrap_or(usize::MAX).min(SCRATCH_BYTES);
        work.io.clear();
        work.ask_scratch(0, wanted);
        let moved = socket::recv(socket, &mut work.io)?;
        self.skip -= moved as u64;
        Ok((moved, wanted))
    }

    /// The front header, which is complete.
    fn envelope(&self) -> Result<Header, &'static str> {
        let header = Header::decode(&self.header).ok_or("bytes that are no message header")?;
        if header.sequence != self.sequence {
            return Err("a message out of sequence");
        }
        Ok(header)
    }

    /// The front header, and whether it is of the message that the front receive is for.
    fn meet(&self) -> Result<(Header, bool), &'static str> {
        let header = self.envelope()?;
        let fits = self.queue.front().is_some_and(|r| r.tag == header.tag && r.len as u64 == header.len);
        Ok((header, fits))
    }

    /// Meets a message that is not the front receive's: of which nothing has been taken in but the header.
    fn refuse(&mut self, header: Header, on: Channel, events: &mut Vec<Event>) {
        if self.queue.front().is_some_and(|front| front.conditional) {
            events.extend(self.queue.drain(..).map(|recv| Event::Returned(recv.token)));
            self.hold(header, on, events);
        } else {
            self.reject(header, on.peer, events);
        }
    }

    /// Lets the front message wait for the next receive.
    fn hold(&mut self, header: Header, on: Channel, events: &mut Vec<Event>) {
        (self.held, self.probed) = (true, false);
        events.push(Event::Waiting(Envelope { on, tag: header.tag, len: header.len }));
    }

    /// Fails the front receive; its payload will be dropped.
    fn reject(&mut self, header: Header, peer: u32, events: &mut Vec<Event>) {
        if let Some(recv) = self.queue.pop_front() {
            let kind = ErrorKind::Mismatch {
                expected_tag: recv.tag,
                tag: header.tag,
                expected_len: recv.len as u64,
                len: header.len,
            };
            let detail = "the peer sent another message than this rank expects; \
                          do all ranks call the same operations in the same order?";
            events.push(Event::Failed(recv.token, Error::new(kind, NAME, Some(peer), detail)));
        }
        if header.striped {
            self.begin_parts(header, true);
        } else {
            self.skip = header.len;
        }
        self.next();
    }

    /// Completes the front receive if all of it is there.
    fn complete(&mut self, events: &mut Vec<Event>) {
        if self.header_bytes == HEADER_BYTES
            && let Some(front) = self.queue.front()
            && front.len == self.payload_bytes
        {
            events.push(Event::Done(front.token));
            self.queue.pop_front();
            self.next();
        }
    }

    fn next(&mut self) {
        self.sequence = self.sequence.wrapping_add(1);
        self.header_bytes = 0;
        self.payload_bytes = 0;
        self.cursor = Cursor::default();
        self.grain_bytes = 0;
    }

    /// Feeds the front consumer what lies in the scratch: the begun grain and `bytes` more.
    fn eat(&mut self, bytes: usize, work: &mut Workspace) {
        let Some(Recv { len, landing: Landing::Eat(eater), .. }) = self.queue.front() else { return };
        let (there, offset) = (self.grain_bytes + bytes, self.payload_bytes - self.grain_bytes);
        self.payload_bytes += bytes;
        let whole = if self.payload_bytes == *len { there } else { there - there % GRAIN_BYTES };
        let scratch = work.scratch();
        self.grain_bytes = there - whole;
        self.grain[..self.grain_bytes].copy_from_slice(&scratch[whole..there]);
        eater.eat(offset, &scratch[..whole]);
    }
}

impl From<Stop> for Halt {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Blocked => Self::Blocked,
            Stop::Closed(error) => Self::Closed(error),
        }
    }
}

#[cfg(test)]
mod tests;
