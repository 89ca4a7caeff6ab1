//! The receiving half of a channel.
//!
//! A system call asks for exactly the bytes that the posted receives expect: the rest of a header, the payload into
//! its place, and, while messages are small, the headers and payloads of the receives behind it. Each header is
//! checked before its message is reported.
//!
//! If a header differs from the expected one, the bytes behind it went to wrong places. They are collected from
//! there, in the order of the stream, into the `stash`; the payload of the mismatched message is dropped, and the
//! stream continues from the stash until that is empty. A mismatch therefore costs its token, not the channel.
//!
//! If that receive was conditional, all posted receives are returned instead, and the message is *held*: its header
//! is kept, and its payload waits, in stash and socket, for the next receive. The memory of returned receives must
//! stay as it was, so the bytes behind the header of a conditional receive go to the scratch memory first, or are not
//! requested before the header is known. A header that is probed for is read, and its message held, without any
//! receive.
//!
//! The payload of a striped message comes in parts over all connections (*strands*) of the channel: see `parts` and
//! `stripes`.

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

#[cfg(any(test, fuzzing))]
pub(super) mod fuzz;
mod parts;

use parts::Striped;
mod stash;

/// Destination of a message.
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
    /// Whether the receive is returned if another message comes.
    pub(super) conditional: bool,
}

/// Reason why receiving stopped.
#[derive(Debug)]
pub(super) enum Halt {
    /// No receive is posted.
    Idle,
    /// No more bytes have arrived.
    Blocked,
    /// The budget is used up; there may be more.
    Budget,
    /// A striped message is at the front, and its parts must be received next.
    Parts,
    /// The connection is closed.
    Closed(Option<std::io::Error>),
    /// The peer sent bytes that no peer sends.
    Corrupt(&'static str),
}

/// Posted receives that are not complete, and the progress of the front one.
#[derive(Debug)]
pub(super) struct Inbound {
    pub(super) queue: VecDeque<Recv>,
    /// Header of the front message, as far as it has arrived.
    header: [u8; HEADER_BYTES],
    header_bytes: usize,
    /// Number of payload bytes of the front message that have arrived.
    payload_bytes: usize,
    cursor: Cursor,
    /// The end of that payload that does not fill a grain yet, for a consumer.
    grain: [u8; GRAIN_BYTES],
    grain_bytes: usize,
    /// Sequence number of the front message.
    sequence: u32,
    /// Whether the header of the next message is wanted although no receive is posted.
    pub(super) probed: bool,
    front: Front,
    /// Ranges of the bytes of a striped message that have arrived or are arriving, as begin and end, in ascending order
    /// and merged where they touch.
    runs: Vec<(usize, usize)>,
    /// The header of the message behind it, if that header came first.
    ahead: Option<[u8; HEADER_BYTES]>,
    /// Whether long messages are likely to be striped, so that no bytes are requested behind their headers.
    pub(super) expects_parts: bool,
    /// Bytes that were read too far, and the index of the first one that is not taken yet.
    stash: Vec<u8>,
    stash_start: usize,
}

/// Progress of the front of the stream.
#[derive(Clone, Copy, Debug)]
enum Front {
    /// A message arrives: its header, then its payload.
    Arriving,
    /// The header has arrived, and its message waits for a receive.
    Held,
    /// So many bytes of a mismatched payload, at least one, are still to be dropped.
    Dropped(u64),
    /// Parts of a striped message arrive.
    Striped(Striped),
    /// The stream is permanently unreadable, for this defect.
    Corrupt(&'static str),
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
            front: Front::Arriving,
            runs: Vec::new(),
            ahead: None,
            expects_parts: false,
            stash: Vec::new(),
            stash_start: 0,
        }
    }
}

impl Inbound {
    /// Receives up to about `budget` bytes, and appends the events of completed receives. With `exhaust`, goes on
    /// until the kernel reports that there is no more, instead of concluding that from a short read. Returns the
    /// number of bytes moved and the reason why it stopped.
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
            if let Front::Corrupt(what) = self.front {
                return (total, Halt::Corrupt(what));
            }
            if self.queue.is_empty() && !self.probed {
                return (total, Halt::Idle);
            }
            if matches!(self.front, Front::Striped(_)) {
                return (total, Halt::Parts);
            }
            if total >= budget {
                return (total, Halt::Budget);
            }
            match self.take_in(socket, on, work, budget - total, events) {
                Ok((moved, wanted)) => {
                    total += moved;
                    let goes_on = exhaust || matches!(self.front, Front::Corrupt(_)) || self.has_stash();
                    if moved < wanted && !goes_on {
                        return (total, Halt::Blocked);
                    }
                }
                Err(stop) => return (total, stop.into()),
            }
        }
    }

    /// Takes in some bytes, from the stash or the socket; returns how many, and how many it asked for.
    fn take_in(
        &mut self,
        socket: &Socket,
        on: Channel,
        work: &mut Workspace,
        budget: usize,
        events: &mut Vec<Event>,
    ) -> Result<(usize, usize), Stop> {
        let (moved, wanted, settled) = match self.front {
            // A receive was posted for the message since its header came, or it is probed for again.
            Front::Held => {
                self.front = Front::Arriving;
                (0, 0, self.settle(on, events))
            }
            _ if self.has_stash() => {
                let moved = self.unstash(work);
                (moved, moved, self.settle(on, events))
            }
            Front::Dropped(left) => {
                let (moved, wanted) = self.drop_payload(left, socket, work)?;
                (moved, wanted, Ok(()))
            }
            _ => {
                self.ask(work, budget);
                let wanted = work.io.bytes();
                let moved = socket::recv(socket, &mut work.io)?;
                (moved, wanted, self.account(moved, on, work, events))
            }
        };
        if let Err(what) = settled {
            self.front = Front::Corrupt(what);
        }
        Ok((moved, wanted))
    }

    /// Returns all receives, unless the first is not conditional or has a message, whose header is then complete. Returns
    /// whether no receive is posted any more.
    pub(super) fn take_back(&mut self, events: &mut Vec<Event>) -> bool {
        if self.queue.front().is_some_and(|front| !front.conditional || self.header_bytes == HEADER_BYTES) {
            return false;
        }
        self.return_recvs(events);
        true
    }

    fn return_recvs(&mut self, events: &mut Vec<Event>) {
        events.extend(self.queue.drain(..).map(|recv| Event::Returned(recv.token)));
    }

    /// Returns whether a receive or a probe waits for a message, so that the end of the stream would be noticed.
    pub(super) fn is_wanted(&self) -> bool {
        self.probed || !self.queue.is_empty()
    }

    /// Returns whether there is something to do without the socket.
    pub(super) fn is_ready(&self) -> bool {
        matches!(self.front, Front::Held) || self.has_stash()
    }

    /// Describes where in the stream its end cut the messages off, for error texts.
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

    /// Fills the I/O list with the memory for the bytes that the posted receives expect next.
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
        if self.goes_aside() {
            work.ask_scratch(0, self.wanted_aside().min(budget));
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
            if recv.conditional || recv.len > BURST_BYTES || work.io.room() < 2 {
                return;
            }
            work.io.push_target(&mut work.headers[at]);
            if work.io.gather(pieces, Cursor::START, recv.len) < recv.len {
                return;
            }
        }
    }

    /// Returns whether the bytes behind the front header go to the scratch memory, because the front receive may have
    /// to be returned.
    fn goes_aside(&self) -> bool {
        let front = self.queue.front().filter(|_| self.header_bytes < HEADER_BYTES);
        front.is_some_and(|front| front.conditional && matches!(front.landing, Landing::Place(_)))
    }

    /// Returns how many bytes behind the front header may go to the scratch memory. Copying a short message is cheaper
    /// than a system call for its header alone.
    fn wanted_aside(&self) -> usize {
        let mut bytes = 0;
        for (at, recv) in self.queue.iter().enumerate().take(BATCH) {
            let next = bytes + if at > 0 { HEADER_BYTES } else { 0 } + recv.len.min(SCRATCH_BYTES);
            if recv.len > BURST_BYTES || next > SCRATCH_BYTES || matches!(recv.landing, Landing::Eat(_)) {
                return bytes;
            }
            bytes = next;
        }
        bytes
    }

    /// Accounts for `got` bytes, of which those behind the front header lie in the scratch memory.
    fn account_aside(
        &mut self,
        got: usize,
        on: Channel,
        work: &mut Workspace,
        events: &mut Vec<Event>,
    ) -> Result<(), &'static str> {
        let first = got.min(HEADER_BYTES - self.header_bytes);
        self.header_bytes += first;
        if self.header_bytes < HEADER_BYTES {
            return Ok(());
        }
        let mut left = &work.scratch()[..got - first];
        loop {
            let (header, fits) = self.meet()?;
            if !fits || header.striped {
                self.stash = left.to_vec();
                self.stash_start = 0;
                self.take_up(header, fits, on, events);
                return Ok(());
            }
            let Some(Recv { len, landing: Landing::Place(pieces), .. }) = self.queue.front() else {
                return Err("more bytes than asked for");
            };
            let (bytes, behind) = left.split_at(left.len().min(*len));
            pieces.fill(&mut self.cursor, bytes);
            self.payload_bytes = bytes.len();
            self.complete(events);
            let (header, behind) = behind.split_at(behind.len().min(HEADER_BYTES));
            if header.is_empty() {
                return Ok(());
            }
            self.header[..header.len()].copy_from_slice(header);
            self.header_bytes = header.len();
            if self.header_bytes < HEADER_BYTES {
                return Ok(());
            }
            left = behind;
        }
    }

    /// Accounts for `left` bytes that the kernel has put where [`Inbound::ask`] said.
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
        if self.goes_aside() {
            return self.account_aside(left, on, work, events);
        }
        let mut at = 0;
        while left > 0 {
            let Some(front) = self.queue.front() else { return Err("more bytes than asked for") };
            if self.header_bytes < HEADER_BYTES {
                let bytes = left.min(HEADER_BYTES - self.header_bytes);
                if at > 0 {
                    // Only the header of the front message was requested in place.
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

    /// Checks the front message after bytes came from the stash, then completes or holds it.
    fn settle(&mut self, on: Channel, events: &mut Vec<Event>) -> Result<(), &'static str> {
        if matches!(self.front, Front::Dropped(_)) || self.header_bytes < HEADER_BYTES {
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

    /// Continues with the front message, whose header is complete.
    fn take_up(&mut self, header: Header, fits: bool, on: Channel, events: &mut Vec<Event>) {
        if !fits {
            self.refuse(header, on, events);
        } else if header.striped {
            self.begin_parts(header, false);
        } else {
            self.complete(events);
        }
    }

    /// Reads and drops bytes of a mismatched payload; returns how many, and how many it asked for.
    fn drop_payload(
        &mut self,
        left: u64,
        socket: &Socket,
        work: &mut Workspace,
    ) -> Result<(usize, usize), Stop> {
        let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(SCRATCH_BYTES);
        work.io.clear();
        work.ask_scratch(0, wanted);
        let moved = socket::recv(socket, &mut work.io)?;
        self.drop_next(left - moved as u64);
        Ok((moved, wanted))
    }

    /// Drops the next bytes, if there are any.
    fn drop_next(&mut self, bytes: u64) {
        self.front = if bytes > 0 { Front::Dropped(bytes) } else { Front::Arriving };
    }

    /// Returns the front header, which must be complete.
    fn envelope(&self) -> Result<Header, &'static str> {
        let header = Header::decode(&self.header).ok_or("bytes that are not a message header")?;
        if header.sequence != self.sequence {
            return Err("a message out of sequence");
        }
        Ok(header)
    }

    /// Returns the front header, and whether its message fits the front receive.
    fn meet(&self) -> Result<(Header, bool), &'static str> {
        let header = self.envelope()?;
        let fits = self.queue.front().is_some_and(|r| r.tag == header.tag && r.len as u64 == header.len);
        Ok((header, fits))
    }

    /// Handles a message that does not fit the front receive. Only its header has been taken in.
    fn refuse(&mut self, header: Header, on: Channel, events: &mut Vec<Event>) {
        if self.queue.front().is_some_and(|front| front.conditional) {
            self.return_recvs(events);
            self.hold(header, on, events);
        } else {
            self.reject(header, on.peer, events);
        }
    }

    /// Holds the front message for the next receive.
    fn hold(&mut self, header: Header, on: Channel, events: &mut Vec<Event>) {
        (self.front, self.probed) = (Front::Held, false);
        events.push(Event::Waiting(Envelope { on, tag: header.tag, len: header.len }));
    }

    /// Fails the front receive; the payload of its message will be dropped.
    fn reject(&mut self, header: Header, peer: u32, events: &mut Vec<Event>) {
        if let Some(recv) = self.queue.pop_front() {
            let kind = ErrorKind::Mismatch {
                expected_tag: recv.tag,
                tag: header.tag,
                expected_len: recv.len as u64,
                len: header.len,
            };
            let detail = "the peer sent a different message from the one this rank expects; do all ranks \
                          call the same operations in the same order?";
            events.push(Event::Failed(recv.token, Error::new(kind, NAME, Some(peer), detail)));
        }
        if header.striped {
            self.begin_parts(header, true);
        } else {
            self.drop_next(header.len);
        }
        self.next();
    }

    /// Completes the front receive if its message has arrived whole.
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

    /// Passes the contents of the scratch memory to the front consumer: the incomplete grain and `bytes` more.
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
