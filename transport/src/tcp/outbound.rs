//! The sending half of a channel.

use std::collections::VecDeque;

use socket2::Socket;

use super::link::Workspace;
use super::memory::{IO_PIECES, IoList};
use super::socket::{self, Stop};
use super::stripes::STRIPED_BYTES;
use super::wire::{HEADER_BYTES, Header};
use crate::endpoint::Token;
use crate::pieces::{Cursor, Pieces};

/// Maximum number of messages gathered into one system call: as many as the list takes, with a header and a payload
/// each.
pub(super) const BATCH: usize = IO_PIECES / 2;

/// Length up to which messages wait for the next poll if their channel has had a send since the last one. A burst
/// thus costs one system call, and a single message is not delayed. 16 KiB take about as long to copy as a call.
pub(super) const BURST_BYTES: usize = 16 << 10;

/// Bytes of messages that share a train of packets. Fewer are not worth a system call and packets of their own.
const LEAST_TRAIN_BYTES: usize = 8 << 10;

/// How bytes are divided into trains: packets that the kernel sends in one go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Train {
    /// Trains of about equal length, of up to this many bytes.
    UpTo(usize),
    /// A train for each message.
    Message,
}

/// A message that waits to be sent or is partly sent.
#[derive(Debug)]
pub(super) struct Send {
    pub(super) token: Token,
    pub(super) tag: u64,
    pub(super) len: usize,
    pub(super) pieces: Pieces,
    cursor: Cursor,
    /// Number of bytes sent, header included.
    sent: usize,
}

impl Send {
    pub(super) fn new(token: Token, tag: u64, len: usize, pieces: Pieces) -> Self {
        Self { token, tag, len, pieces, cursor: Cursor::default(), sent: 0 }
    }
}

/// Messages that are posted and not yet in the kernel.
#[derive(Debug, Default)]
pub(super) struct Outbound {
    pub(super) queue: VecDeque<Send>,
    /// Sequence number of the front message.
    pub(super) sequence: u32,
    /// Whether long messages are striped over several connections.
    pub(super) stripes: bool,
    /// Number of the poll after which the last send was posted.
    pub(super) posted_after: Option<u32>,
}

impl Outbound {
    /// Hands up to about `budget` bytes to the kernel in one call, and calls `done` for each message that the kernel
    /// has taken whole. Returns the number of bytes moved; if fewer were moved than offered, the kernel is full.
    pub(super) fn flush(
        &mut self,
        socket: &Socket,
        work: &mut Workspace,
        budget: usize,
        done: impl FnMut(Token),
    ) -> Result<usize, Stop> {
        self.flush_by(socket::send, socket, work, budget, done)
    }

    /// Hands bytes to the kernel as [`Outbound::flush`] does, but in trains of packets. Returns the number of bytes, and
    /// whether the kernel is full.
    pub(super) fn flush_trains(
        &mut self,
        socket: &Socket,
        work: &mut Workspace,
        budget: usize,
        train: Train,
        mut done: impl FnMut(Token),
    ) -> Result<(usize, bool), Stop> {
        let left = self.left_bytes();
        let mut total = 0;
        while total < budget
            && let Some(front) = self.queue.front()
        {
            let most = match train {
                Train::UpTo(longest) => left.div_ceil(left.div_ceil(longest).max(1)),
                Train::Message => (front.len + HEADER_BYTES - front.sent).max(LEAST_TRAIN_BYTES),
            };
            match self.flush_by(socket::send_train, socket, work, most.min(budget - total), &mut done) {
                Ok(moved) => total += moved,
                Err(Stop::Blocked) if total > 0 => return Ok((total, true)),
                Err(stop) => return Err(stop),
            }
        }
        Ok((total, false))
    }

    fn flush_by(
        &mut self,
        send: impl Fn(&Socket, &mut IoList) -> Result<usize, Stop>,
        socket: &Socket,
        work: &mut Workspace,
        budget: usize,
        mut done: impl FnMut(Token),
    ) -> Result<usize, Stop> {
        work.io.clear();
        for (at, send) in self.queue.iter().take(BATCH).enumerate() {
            // There must be room for a header and at least one piece, unless the message is the first.
            if work.io.bytes() >= budget || work.io.room() < 2 || at > 0 && self.is_to_be_striped(send) {
                break;
            }
            if send.sent < HEADER_BYTES {
                let sequence = self.sequence.wrapping_add(at as u32);
                let header = Header { tag: send.tag, len: send.len as u64, sequence, striped: false };
                work.headers[at] = header.encode();
                work.io.push_source(&work.headers[at][send.sent..]);
            }
            let left = send.len - send.sent.saturating_sub(HEADER_BYTES);
            let limit = left.min(budget.saturating_sub(work.io.bytes()));
            if work.io.gather(&send.pieces, send.cursor, limit) < left {
                break;
            }
        }
        let moved = send(socket, &mut work.io)?;
        self.account(moved, &mut done);
        Ok(moved)
    }

    /// Returns whether a message goes over several connections and has not begun.
    pub(super) fn is_to_be_striped(&self, send: &Send) -> bool {
        self.stripes && send.len >= STRIPED_BYTES && send.sent == 0
    }

    /// Returns the bytes of messages that are not in the kernel.
    pub(super) fn left_bytes(&self) -> usize {
        self.queue.iter().map(|send| send.len + HEADER_BYTES - send.sent).sum()
    }

    /// Removes the front message, which has reached the kernel by another path than [`Outbound::flush`].
    pub(super) fn pass(&mut self) {
        self.sequence = self.sequence.wrapping_add(1);
        self.queue.pop_front();
    }

    fn account(&mut self, mut moved: usize, done: &mut impl FnMut(Token)) {
        while let Some(send) = self.queue.front_mut() {
            let header = HEADER_BYTES.saturating_sub(send.sent).min(moved);
            let payload = (send.len + HEADER_BYTES - send.sent - header).min(moved - header);
            send.sent += header + payload;
            send.pieces.advance(&mut send.cursor, payload);
            moved -= header + payload;
            if send.sent < send.len + HEADER_BYTES {
                return;
            }
            done(send.token);
            self.pass();
            if moved == 0 {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use socket2::{Domain, Type};

    use super::*;
    use crate::endpoint::Piece;

    #[test]
    fn trains_have_about_one_length_or_are_messages() {
        let lengths = |train| trains_of([100_000, 50, 9000], train);
        assert_eq!(lengths(Train::UpTo(40_000)), [36_382, 36_382, 36_382]);
        assert_eq!(lengths(Train::Message), [100_032, 8_192, 922]);
        assert_eq!(trains_of([9000, 8_160, 100], Train::Message), [9032, 8192, 132]);
    }

    /// Sends messages of some lengths, and returns the lengths of the trains.
    fn trains_of(lengths: [usize; 3], train: Train) -> Vec<usize> {
        // A socket that keeps records apart shows what each call has sent.
        let (here, there) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None).expect("a pair");
        let mut bytes = vec![7_u8; 200_000];
        let mut outbound = Outbound::default();
        let messages = lengths.map(|len| [Piece { ptr: bytes.as_mut_ptr(), len }]);
        for (token, pieces) in (1..).zip(&messages) {
            let (pieces, len) = Pieces::new(pieces);
            outbound.queue.push_back(Send::new(Token(token), 5, len.expect("some"), pieces));
        }
        let (mut work, mut done) = (Workspace::new(), Vec::new());
        let sent = outbound.flush_trains(&here, &mut work, usize::MAX, train, |token| done.push(token));
        let all = lengths.iter().sum::<usize>() + 3 * HEADER_BYTES;
        assert!(matches!(sent, Ok((bytes, false)) if bytes == all), "{sent:?}");
        assert_eq!(done, [Token(1), Token(2), Token(3)]);
        there.set_nonblocking(true).expect("a socket");
        let mut into = vec![MaybeUninit::uninit(); all];
        std::iter::from_fn(|| there.recv(&mut into).ok()).collect()
    }
}
