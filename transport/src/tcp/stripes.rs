//! Long messages in parts, over several connections of a channel.
//!
//! A channel begins with one connection. Where there are more [rails](super::rails) to its peer, the end that dialled the first
//! connection dials one more over each of the others, when the first long message goes (`strands`). These are the channel's *strands*,
//! the first of them being the connection that was there before.
//!
//! The header of a striped message goes over the first strand. Its payload is cut into parts, each behind a header that tells its place.
//! Each strand gets a first part, such that all would be done at the same time with what their sockets hold already, by the rates that
//! the kernel has measured. Of a longer message that is half of its share, and a strand that has room in the kernel takes the next part.
//! The strands' load is therefore the sender's affair, and needs no agreement; strands may come while a message is under way. The kernel
//! keeps few bytes that it has not sent ([`UNSENT_BYTES`]), because what it has taken for a slow strand no fast one can carry any more.
//!
//! # Rules
//!
//! 1. Only the front message of a queue is under way, at both ends. A message behind it waits until all parts are in the kernel (or
//!    have arrived), so that messages keep their order.
//! 2. A strand is read only while the front receive is a striped message that fits, or one that is dropped. Bytes of other messages
//!    stay in the kernel, as on the first connection.
//! 3. Parts come from a peer: each is checked against the message's length, and no byte is taken twice.

use socket2::Socket;

use super::congestion::{self, Losses};
use super::link::Workspace;
use super::outbound::Send;
use super::socket::{self, Stop, TcpInfo};
use super::window::Window;
use super::wire::{HEADER_BYTES, Header, Part};
use crate::endpoint::GRAIN_BYTES;
use crate::pieces::Cursor;

/// Messages from this length on are striped: shorter ones take little longer than the way that they go.
pub(super) const STRIPED_BYTES: usize = 128 << 10;

/// Shortest part but for the last: two of them take a bundle of packets as the kernel hands it to an adapter.
const PART_BYTES: usize = 32 << 10;

/// Messages up to this length are shared out at once: there is no time to correct anything.
const SHORT_BYTES: usize = 1 << 20;

/// Most bytes that the kernel keeps unsent on a strand: a wake-up of the sender at 25 Gbit/s.
pub(super) const UNSENT_BYTES: u32 = 128 << 10;

/// How much the latest rate of a path counts beside the earlier ones.
const LATEST: f64 = 0.25;

/// A way to a peer on which there are connections, as this end has used it.
#[derive(Clone, Debug)]
pub(super) struct Path {
    pub(super) remote: std::net::IpAddr,
    /// This rank's interface, or nothing where it is unknown.
    pub(super) interface: String,
    /// Bytes per second of one of its strands, as the kernel has measured them; 0 if it has not.
    pub(super) rate: f64,
    /// Bytes of striped messages sent.
    pub(super) sent: u64,
    /// Why it is not used.
    pub(super) problem: Option<String>,
}

/// One of a channel's connections.
#[derive(Debug)]
pub(super) struct Strand {
    /// None for the first, which belongs to the link.
    pub(super) socket: Option<Socket>,
    /// Number of the peer's path.
    pub(super) path: usize,
    /// Bytes per second that are expected of it, or relative to the others.
    rate: f64,
    /// Bytes in its socket when the front message began.
    backlog: f64,
    /// Bytes of the front message that it was given.
    sent: u64,
    /// Its losses, while they may change its congestion control. The link knows of the first.
    pub(super) losses: Option<Losses>,
    /// Its send buffer, where that is the transport's affair. The link knows of the first.
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
    /// Payload left, and where.
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
    /// Payload left; 0 between parts.
    pub(super) left: usize,
    /// Where it begins in the message.
    pub(super) offset: usize,
    pub(super) cursor: Cursor,
    /// The end of what was received that makes no whole grain yet, for a consumer.
    pub(super) grain: [u8; GRAIN_BYTES],
    pub(super) grain_bytes: usize,
    /// Whether the stream has ended.
    pub(super) has_ended: bool,
}

impl Strand {
    pub(super) fn new(socket: Option<Socket>, path: usize) -> Self {
        let cursor = Cursor::START;
        let head = [0; 2 * HEADER_BYTES];
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
                has_ended: false,
            },
        }
    }

    /// Writes some of what it has; returns how much, and whether the kernel is full.
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
        let moved = match socket::send(self.socket.as_ref().unwrap_or(first), &mut work.io) {
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

/// The strands of a channel.
#[derive(Debug)]
pub(super) struct Bundle {
    /// The first is the connection that the channel began with.
    pub(super) strands: Vec<Strand>,
    /// Bytes of the front message that are parts of it by now.
    cut: usize,
    /// Where the next part begins.
    cursor: Cursor,
    /// Whether the header of the front message is on its way.
    has_begun: bool,
}

/// Result of sending.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) bytes: usize,
    /// Whether all of the message is in the kernel.
    pub(super) is_over: bool,
}

impl Bundle {
    /// A channel's only connection yet, on that path.
    pub(super) fn new(path: usize) -> Self {
        Self { strands: vec![Strand::new(None, path)], cut: 0, cursor: Cursor::START, has_begun: false }
    }

    /// Whether some of the front message may be in the kernel.
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

    /// Starts the front message: its header, and a part for each strand that is worth one.
    fn begin(&mut self, first: &Socket, front: &Send, sequence: u32, paths: &mut [Path]) {
        (self.cut, self.cursor, self.has_begun) = (0, Cursor::START, true);
        let header = Header { tag: front.tag, len: front.len as u64, sequence, striped: true };
        let out = &mut self.strands[0].out;
        out.head[..HEADER_BYTES].copy_from_slice(&header.encode());
        (out.head_len, out.head_sent) = (HEADER_BYTES, 0);
        for strand in &mut self.strands {
            strand.backlog = 0.0;
            if let Some(info) = TcpInfo::of(strand.socket.as_ref().unwrap_or(first)) {
                strand.backlog = info.backlog_bytes() as f64;
                if let Some(path) = paths.get_mut(strand.path) {
                    path.note(info.delivered_per_second as f64);
                }
            }
        }
        let all = self.share_out(paths);
        let backlog: f64 = self.strands.iter().map(|strand| strand.backlog).sum();
        let until = (front.len as f64 + backlog) / all;
        // While there is one strand only, others may be on their way.
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

    /// Sets what each strand carries in a second, and returns what all do.
    fn share_out(&mut self, paths: &[Path]) -> f64 {
        let rate = |strand: &Strand| paths.get(strand.path).map_or(0.0, |path| path.rate);
        let (sum, count) = self
            .strands
            .iter()
            .map(rate)
            .filter(|rate| *rate > 0.0)
            .fold((0.0, 0.0), |(sum, count), rate| (sum + rate, count + 1.0));
        // Of a strand that nothing is known of, as much is expected as of the others.
        let usual = if count > 0.0 { sum / count } else { 1.0 };
        for strand in &mut self.strands {
            let known = rate(strand);
            strand.rate = if known > 0.0 { known } else { usual };
        }
        self.strands.iter().map(|strand| strand.rate).sum()
    }

    fn fastest(&self) -> usize {
        let by_rate = |a: &usize, b: &usize| self.strands[*a].rate.total_cmp(&self.strands[*b].rate);
        // Of equal ones the first.
        (0..self.strands.len()).rev().max_by(by_rate).unwrap_or(0)
    }

    /// Gives a strand the next part of the message, if there is one for it; whether there is.
    fn cut_for(&mut self, at: usize, front: &Send, sequence: u32) -> bool {
        let all: f64 = self.strands.iter().map(|strand| strand.rate).sum();
        let len = part_len(front.len - self.cut, self.strands[at].rate / all, at == self.fastest());
        self.cut(at, len, front, sequence);
        len > 0
    }

    /// Gives a strand the next bytes of the message.
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
    /// One on which nothing has gone yet.
    pub(super) const fn new(remote: std::net::IpAddr, interface: String) -> Self {
        Self { remote, interface, rate: 0.0, sent: 0, problem: None }
    }

    fn note(&mut self, rate: f64) {
        if rate > 0.0 {
            self.rate += if self.rate > 0.0 { LATEST * (rate - self.rate) } else { rate };
        }
    }
}

/// How long the next part of a strand is that should carry such a share of the `left` bytes: half of it, so that strands which are
/// faster than they were take the rest. 0 if the others will be through with everything before this strand is with the
/// shortest part.
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
