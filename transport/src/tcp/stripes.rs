//! Striping: long messages go in parts over several connections of a channel.
//!
//! A channel begins with one connection. If there are more [rails](super::rails) to its peer, the end that dialed the
//! first connection dials one more over each of the others when the first long message is sent (`strands`). All
//! connections of a channel are its *strands*; the first one is the original connection.
//!
//! The header of a striped message goes over the first strand. Its payload is cut into parts, each behind a header
//! that gives its position. Each strand gets a first part. The parts' lengths are chosen from the rates that the
//! kernel has measured, such that all strands would finish at the same time, including the bytes that their sockets
//! hold already. Of a longer message, the first part is half of the strand's share, and a strand with room in the
//! kernel takes the next part. The sender alone thus decides the load of the strands, without an agreement; strands
//! may be added while a message is in flight. The kernel keeps few unsent bytes ([`UNSENT_BYTES`]), because no fast
//! strand can carry the bytes that it has accepted for a slow one.
//!
//! # Rules
//!
//! 1. Only the front message of a queue is in flight, at both ends. A message behind it waits until all parts are in
//!    the kernel (or have arrived), so messages keep their order.
//! 2. A strand is read only while the front receive is a striped message that fits, or one that is dropped. Bytes of
//!    other messages stay in the kernel, as on the first connection.
//! 3. Parts come from a peer: each is checked against the message's length, and no byte is taken twice.
//! 4. The end of a strand between parts ends only that strand. A reset ends the link, because it may have discarded parts
//!    that the sender has reported as sent; only a strand that has never carried a part may be reset alone.

use socket2::Socket;

use super::congestion::{self, Losses};
use super::link::Workspace;
use super::outbound::Send;
use super::socket::{self, Stop, TcpInfo, is_silence};
use super::window::Window;
use super::wire::{HEADER_BYTES, Header, Part};
use crate::endpoint::GRAIN_BYTES;
use crate::pieces::Cursor;
use crate::sys::unshared::Unshared;

/// Length in bytes from which messages are striped. Shorter ones take little longer than the latency of the path.
pub(super) const STRIPED_BYTES: usize = 128 << 10;

/// Length of the shortest part, except the last: two of them fill a bundle of packets as the kernel hands it to an
/// adapter.
const PART_BYTES: usize = 32 << 10;

/// Length up to which a message is divided completely at its beginning: there is no time for corrections.
const SHORT_BYTES: usize = 1 << 20;

/// Maximum number of bytes that the kernel keeps unsent on a strand: enough for the time in which the sender wakes
/// up, at 25 Gbit/s.
pub(super) const UNSENT_BYTES: u32 = 128 << 10;

/// Weight of the latest rate of a path against the earlier ones.
const LATEST: f64 = 0.25;

/// A path to a peer on which there are connections, with this end's experience of it.
#[derive(Clone, Debug)]
pub(super) struct Path {
    pub(super) remote: std::net::IpAddr,
    /// This rank's interface; empty if it is unknown.
    pub(super) interface: String,
    /// Bytes per second of one of its strands, as measured by the kernel; 0 if unknown.
    pub(super) rate: f64,
    /// Number of bytes of striped messages sent.
    pub(super) sent: u64,
    /// Whether it has carried full segments both ways.
    pub(super) is_proven: bool,
    /// The reason why it is not used, if it is not.
    pub(super) problem: Option<String>,
    /// Time of that failure.
    pub(super) failed_at: Option<std::time::Instant>,
}

/// One of a channel's connections.
#[derive(Debug)]
pub(super) struct Strand {
    /// The socket; `None` for the first strand, whose socket belongs to the link.
    pub(super) socket: Option<Unshared<Socket>>,
    /// Number of the path, in the list of the peer.
    pub(super) path: usize,
    /// Bytes per second expected of it, or only its weight relative to the others.
    rate: f64,
    /// Bytes in its socket when the front message began.
    backlog: f64,
    /// Bytes of the front message that were assigned to it.
    sent: u64,
    /// Its losses, while they may still change its congestion control. For the first strand, the link keeps them.
    pub(super) losses: Option<Losses>,
    /// Its send buffer, where the transport manages it. For the first strand, the link keeps it.
    pub(super) window: Option<Window>,
    out: Outgoing,
    pub(super) inward: Incoming,
}

/// The part that a strand is sending.
#[derive(Debug)]
struct Outgoing {
    /// The header of the message, of the part, or both.
    head: [u8; 2 * HEADER_BYTES],
    head_len: usize,
    head_sent: usize,
    /// Number of payload bytes left, and the position of the next one.
    left: usize,
    cursor: Cursor,
}

impl Outgoing {
    fn is_idle(&self) -> bool {
        self.head_sent == self.head_len && self.left == 0
    }
}

/// The part that a strand is receiving.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) header: [u8; HEADER_BYTES],
    pub(super) header_bytes: usize,
    /// Number of payload bytes left; 0 between parts.
    pub(super) left: usize,
    /// Position of the next bytes in the message.
    pub(super) offset: usize,
    pub(super) cursor: Cursor,
    /// The end of the received bytes that does not fill a grain yet, for a consumer.
    pub(super) grain: [u8; GRAIN_BYTES],
    pub(super) grain_bytes: usize,
    /// Whether the stream has brought anything for this end.
    pub(super) has_brought: bool,
    /// Whether the stream has ended.
    pub(super) has_ended: bool,
}

impl Incoming {
    /// Returns whether the stream may end here for that reason, without the loss of the peer.
    pub(super) fn may_end(&self, reason: Option<&std::io::Error>) -> bool {
        // A peer that leaves resets a strand whose welcome it has not read. Silence of its host concerns all strands.
        let is_harmless = reason.is_none() || !self.has_brought && !is_silence(reason);
        self.left == 0 && self.header_bytes == 0 && is_harmless
    }
}

impl Strand {
    pub(super) fn new(socket: Option<Unshared<Socket>>, path: usize) -> Self {
        let cursor = Cursor::START;
        let head = [0; 2 * HEADER_BYTES];
        // The first strand brings the headers of messages.
        let has_brought = socket.is_none();
        Self {
            socket,
            path,
            rate: 1.0,
            backlog: 0.0,
            sent: 0,
            losses: None,
            window: None,
            out: Outgoing { head, head_len: 0, head_sent: 0, left: 0, cursor },
            inward: Incoming {
                header: [0; HEADER_BYTES],
                header_bytes: 0,
                left: 0,
                offset: 0,
                cursor,
                grain: [0; GRAIN_BYTES],
                grain_bytes: 0,
                has_brought,
                has_ended: false,
            },
        }
    }

    /// Writes bytes of its part; returns how many, and whether the kernel is full.
    fn write(
        &mut self,
        first: &Socket,
        front: &Send,
        work: &mut Workspace,
        budget: usize,
    ) -> Result<(usize, bool), Stop> {
        work.io.clear();
        let out = &mut self.out;
        if out.head_sent < out.head_len {
            work.io.push_source(&out.head[out.head_sent..out.head_len]);
        }
        work.io.gather(&front.pieces, out.cursor, out.left.min(budget));
        let moved = match socket::send(self.socket.as_deref().unwrap_or(first), &mut work.io) {
            Ok(moved) => moved,
            Err(Stop::Blocked) => return Ok((0, true)),
            Err(stop) => return Err(stop),
        };
        let head = moved.min(out.head_len - out.head_sent);
        out.head_sent += head;
        out.left -= moved - head;
        front.pieces.advance(&mut out.cursor, moved - head);
        Ok((moved, moved < work.io.bytes()))
    }
}

/// The strands of a channel, and the progress of the message that they send.
#[derive(Debug)]
pub(super) struct Bundle {
    /// The first strand is the channel's original connection.
    pub(super) strands: Vec<Strand>,
    /// Number of bytes of the front message that have been cut into parts.
    cut: usize,
    /// Position of the next part in the caller's memory.
    cursor: Cursor,
    /// Whether the header of the front message is on its way.
    has_begun: bool,
}

/// Result of a step of sending.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) bytes: usize,
    /// Whether all of the message is in the kernel.
    pub(super) is_over: bool,
}

impl Bundle {
    /// Returns the bundle of a channel that has one connection, on that path.
    pub(super) fn new(path: usize) -> Self {
        Self { strands: vec![Strand::new(None, path)], cut: 0, cursor: Cursor::START, has_begun: false }
    }

    /// Returns whether some of the front message may be in the kernel.
    pub(super) const fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Hands up to about `budget` bytes of the front message to the kernel, on each strand.
    pub(super) fn send(
        &mut self,
        first: &Socket,
        front: &Send,
        sequence: u32,
        paths: &mut [Path],
        work: &mut Workspace,
        budget: usize,
    ) -> Result<Sent, Stop> {
        if !self.has_begun {
            self.begin(first, front, sequence, paths);
        }
        let (mut bytes, mut full) = (0, 0_u64);
        loop {
            let before = bytes;
            for at in 0..self.strands.len() {
                if full >> at & 1 == 1 || self.strands[at].out.is_idle() && !self.cut_for(at, front, sequence)
                {
                    continue;
                }
                let (moved, is_full) = self.strands[at].write(first, front, work, budget)?;
                bytes += moved;
                full |= u64::from(is_full) << at;
            }
            if bytes == before || bytes >= budget * self.strands.len() {
                break;
            }
        }
        let is_over = self.cut == front.len && self.strands.iter().all(|strand| strand.out.is_idle());
        if is_over {
            self.has_begun = false;
            for strand in &mut self.strands {
                let sent = std::mem::take(&mut strand.sent);
                if let Some(socket) = &strand.socket {
                    congestion::watch(&mut strand.losses, socket, sent as usize);
                    if let Some(window) = &mut strand.window {
                        window.note(socket, sent as usize);
                    }
                }
                paths.get_mut(strand.path).into_iter().for_each(|path| path.sent += sent);
            }
        }
        Ok(Sent { bytes, is_over })
    }

    /// Starts the front message: its header, and a part for each strand whose share is long enough.
    fn begin(&mut self, first: &Socket, front: &Send, sequence: u32, paths: &mut [Path]) {
        (self.cut, self.cursor, self.has_begun) = (0, Cursor::START, true);
        let header = Header { tag: front.tag, len: front.len as u64, sequence, striped: true };
        let out = &mut self.strands[0].out;
        out.head[..HEADER_BYTES].copy_from_slice(&header.encode());
        (out.head_len, out.head_sent) = (HEADER_BYTES, 0);
        for strand in &mut self.strands {
            strand.backlog = 0.0;
            // The strand of the header may have no part, and its cursor may lie beyond a message that is shorter than the last.
            strand.out.cursor = Cursor::START;
            if let Some(info) = TcpInfo::of(strand.socket.as_deref().unwrap_or(first)) {
                strand.backlog = info.backlog_bytes() as f64;
                if let Some(path) = paths.get_mut(strand.path) {
                    path.note(info.delivered_per_second as f64);
                }
            }
        }
        let all = self.share_out(paths);
        let backlog: f64 = self.strands.iter().map(|strand| strand.backlog).sum();
        let until = (front.len as f64 + backlog) / all;
        // While there is only one strand, others may be on their way.
        let is_short = front.len <= SHORT_BYTES && self.strands.len() > 1;
        let fastest = self.fastest();
        for at in (0..self.strands.len()).filter(|at| *at != fastest) {
            let strand = &self.strands[at];
            let bytes = (strand.rate * until - strand.backlog).max(0.0) as usize;
            let bytes = if is_short { bytes } else { bytes / 2 };
            let bytes = bytes / GRAIN_BYTES * GRAIN_BYTES;
            if bytes >= PART_BYTES {
                self.cut(at, bytes.min(front.len - self.cut), front, sequence);
            }
        }
        let left = front.len - self.cut;
        let rest = left / 2 / GRAIN_BYTES * GRAIN_BYTES;
        self.cut(fastest, if is_short { left } else { rest }, front, sequence);
    }

    /// Sets the rate of each strand, and returns the sum of all rates.
    fn share_out(&mut self, paths: &[Path]) -> f64 {
        let rate = |strand: &Strand| paths.get(strand.path).map_or(0.0, |path| path.rate);
        let (sum, count) = self
            .strands
            .iter()
            .map(rate)
            .filter(|rate| *rate > 0.0)
            .fold((0.0, 0.0), |(sum, count), rate| (sum + rate, count + 1.0));
        // A strand of unknown rate is expected to carry the average of the others.
        let usual = if count > 0.0 { sum / count } else { 1.0 };
        for strand in &mut self.strands {
            let known = rate(strand);
            strand.rate = if known > 0.0 { known } else { usual };
        }
        self.strands.iter().map(|strand| strand.rate).sum()
    }

    fn fastest(&self) -> usize {
        let by_rate = |a: &usize, b: &usize| self.strands[*a].rate.total_cmp(&self.strands[*b].rate);
        // Of several equally fast strands, the first counts.
        (0..self.strands.len()).rev().max_by(by_rate).unwrap_or(0)
    }

    /// Assigns the next part of the message to a strand, if its share is long enough. Returns whether there is a
    /// part.
    fn cut_for(&mut self, at: usize, front: &Send, sequence: u32) -> bool {
        let all: f64 = self.strands.iter().map(|strand| strand.rate).sum();
        let len = part_len(front.len - self.cut, self.strands[at].rate / all, at == self.fastest());
        self.cut(at, len, front, sequence);
        len > 0
    }

    /// Assigns the next `len` bytes of the message to a strand.
    fn cut(&mut self, at: usize, len: usize, front: &Send, sequence: u32) {
        if len == 0 {
            return;
        }
        let out = &mut self.strands[at].out;
        if out.head_sent == out.head_len {
            (out.head_len, out.head_sent) = (0, 0);
        }
        let part = Part { offset: self.cut as u64, len: len as u64, sequence };
        out.head[out.head_len..][..HEADER_BYTES].copy_from_slice(&part.encode());
        out.head_len += HEADER_BYTES;
        (out.left, out.cursor) = (len, self.cursor);
        self.strands[at].sent += len as u64;
        front.pieces.advance(&mut self.cursor, len);
        self.cut += len;
    }
}

impl Path {
    /// Returns a path on which no bytes have gone yet.
    pub(super) const fn new(remote: std::net::IpAddr, interface: String) -> Self {
        Self { remote, interface, rate: 0.0, sent: 0, is_proven: false, problem: None, failed_at: None }
    }

    fn note(&mut self, rate: f64) {
        if rate > 0.0 {
            self.rate += if self.rate > 0.0 { LATEST * (rate - self.rate) } else { rate };
        }
    }
}

/// Returns the length of a strand's next part, where the strand should carry this share of the `left` bytes. It is
/// half of the share, so that strands which have become faster take more of the rest. It is 0 if the others will have
/// finished the message before this strand would finish the shortest part.
fn part_len(left: usize, share: f64, is_fastest: bool) -> usize {
    let share = (left as f64 * share) as usize;
    if share >= 2 * PART_BYTES {
        share / 2 / PART_BYTES * PART_BYTES
    } else if share >= PART_BYTES || is_fastest {
        PART_BYTES.min(left)
    } else {
        0
    }
}

/// Parts begin at multiples of a grain.
const _: () = assert!(PART_BYTES.is_multiple_of(GRAIN_BYTES) && STRIPED_BYTES >= 2 * PART_BYTES);

#[cfg(test)]
mod tests;
