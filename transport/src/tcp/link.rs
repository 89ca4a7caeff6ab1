//! A channel's connection, and the memory that all connections of an endpoint share.

use std::net::SocketAddr;
use std::time::Instant;

use socket2::Socket;

use super::congestion::{self, Losses};
use super::dial::Dial;
use super::inbound::{Halt, Inbound};
use super::memory::{IoList, Line, bytes_of};
use super::outbound::{BATCH, Outbound};
use super::pacing::Pace;
use super::socket::Stop;
use super::stripes::{Bundle, Path};
use super::window::Window;
use super::wire::HEADER_BYTES;
use crate::endpoint::{Channel, Event, Token};
use crate::sys::unshared::Unshared;

/// Number of bytes received at a time for a consumer. It fits into half of a common second-level cache (512 KiB to 2
/// MiB), and is so large that the system call is cheap in comparison (64 MiB messages both ways over loopback: 64 KiB
/// 6.4 GB/s, 128 KiB 8.8, 256 KiB 9.5).
pub(super) const SCRATCH_BYTES: usize = 256 << 10;

/// State of a channel's connection.
#[derive(Debug)]
pub(super) enum State {
    /// No connection has been requested.
    Idle,
    /// This side dials.
    Dialing(Box<Dial>),
    /// The peer dials; this side waits for it.
    Awaited(Box<Awaiting>),
    /// The connection is open.
    Open(Unshared<Socket>),
    /// The peer is lost or given up.
    Gone,
}

/// A wait for the peer to dial.
#[derive(Debug)]
pub(super) struct Awaiting {
    /// Time at which this side dials itself, for the first time or again.
    pub(super) dial_at: Option<Instant>,
    /// Outcome of this side's own dial.
    pub(super) tried: Option<String>,
}

/// A channel: its connection and both directions of its messages.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) channel: Channel,
    pub(super) state: State,
    pub(super) inbound: Inbound,
    pub(super) outbound: Outbound,
    /// Whether it is in the endpoint's list of links with pending messages.
    pub(super) listed: bool,
    /// Whether the socket may have bytes to read, as far as epoll has reported.
    pub(super) readable: bool,
    /// Whether the socket may take bytes.
    pub(super) writable: bool,
    /// Whether the peer has closed, as far as epoll has reported.
    pub(super) hung_up: bool,
    /// Time since which a connection is wanted.
    pub(super) asked_at: Option<Instant>,
    /// Number of times that this end has dialed and met silence, since a connection is wanted.
    pub(super) silences: u32,
    /// Time at which a peer that has made no connection counts as lost, once this end has failed to make one.
    pub(super) lose_at: Option<Instant>,
    /// Time at which this end last called the relay.
    pub(super) called_at: Option<Instant>,
    /// Description of the connection, for the summary.
    pub(super) route: Option<Route>,
    /// The connection's losses, while they may still change its congestion control.
    pub(super) losses: Option<Losses>,
    /// Its send buffer, where the transport manages it.
    pub(super) window: Option<Window>,
    /// Its pace.
    pub(super) pace: Pace,
    /// The connections over which long messages go, where there may be several.
    pub(super) bundle: Option<Box<Bundle>>,
    /// Whether further connections are wanted or being made.
    pub(super) strands: Strands,
    /// A bit for each number of a further connection that the peer has made.
    pub(super) joined: u16,
}

/// Progress of making a channel's further connections.
#[derive(Debug)]
pub(super) enum Strands {
    /// No long message has been sent yet, or the peer makes them.
    None,
    /// A long message has been sent, so that they are to be made.
    Wanted,
    /// This end dials them. Each entry holds the number of the path and the dial.
    Dialing(Vec<(usize, Dial)>),
}

/// Facts about how a connection was made.
#[derive(Clone, Debug)]
pub(super) struct Route {
    pub(super) remote: Option<SocketAddr>,
    pub(super) congestion: String,
    /// Whether this end dialed.
    pub(super) is_dialed: bool,
    /// Whether it goes through a relay.
    pub(super) is_relayed: bool,
}

impl Link {
    pub(super) fn new(channel: Channel) -> Self {
        Self {
            channel,
            state: State::Idle,
            inbound: Inbound::default(),
            outbound: Outbound::default(),
            listed: false,
            readable: true,
            writable: true,
            hung_up: false,
            asked_at: None,
            silences: 0,
            lose_at: None,
            called_at: None,
            route: None,
            losses: None,
            window: None,
            pace: Pace::default(),
            bundle: None,
            strands: Strands::None,
            joined: 0,
        }
    }

    /// Returns the time of the next action while the peer is to dial.
    pub(super) fn awaited_until(&self) -> Option<Instant> {
        let State::Awaited(awaiting) = &self.state else { return None };
        awaiting.dial_at.into_iter().chain(self.lose_at).min()
    }

    /// Receives up to about `budget` bytes: see [`Inbound::progress`].
    pub(super) fn receive(
        &mut self,
        work: &mut Workspace,
        budget: usize,
        exhaust: bool,
        events: &mut Vec<Event>,
    ) -> (usize, Halt) {
        let State::Open(socket) = &self.state else { return (0, Halt::Idle) };
        let mut total = 0;
        loop {
            let left = budget.saturating_sub(total);
            let (moved, halt) = self.inbound.progress(socket, self.channel, work, left, exhaust, events);
            total += moved;
            if !matches!(halt, Halt::Parts) {
                return (total, halt);
            }
            if self.bundle.is_none() {
                // The peer knows of paths that this end does not.
                self.bundle = Some(Box::new(Bundle::new(0)));
            }
            let Some(bundle) = &mut self.bundle else { return (total, Halt::Blocked) };
            if matches!(self.strands, Strands::None) && bundle.strands.len() == 1 {
                self.strands = Strands::Wanted;
            }
            let left = budget.saturating_sub(total);
            let (moved, halt) = self.inbound.progress_parts(socket, bundle, work, left, exhaust, events);
            total += moved;
            if !matches!(halt, Halt::Parts) {
                return (total, halt);
            }
        }
    }

    /// Hands up to about `budget` bytes to the kernel, and calls `done` for each message that the kernel has taken
    /// whole. Returns the number of bytes, and whether the kernel is full.
    pub(super) fn transmit(
        &mut self,
        paths: &mut [Path],
        work: &mut Workspace,
        budget: usize,
        mut done: impl FnMut(Token),
    ) -> Result<(usize, bool), Stop> {
        let State::Open(socket) = &self.state else { return Err(Stop::Blocked) };
        if let Some(bundle) = &mut self.bundle
            && let Some(front) = self.outbound.queue.front()
            && (bundle.has_begun() || self.outbound.is_to_be_striped(front))
        {
            if matches!(self.strands, Strands::None) && bundle.strands.len() == 1 {
                self.strands = Strands::Wanted;
            }
            let (token, sequence) = (front.token, self.outbound.sequence);
            let sent = bundle.send(socket, front, sequence, paths, work, budget)?;
            self.note_sent(sent.bytes);
            if sent.is_over {
                done(token);
                self.outbound.pass();
            } else if sent.bytes == 0 {
                return Err(Stop::Blocked);
            }
            return Ok((sent.bytes, !sent.is_over && sent.bytes < budget));
        }
        let (moved, is_full) = match self.pace.train() {
            Some(train) => self.outbound.flush_trains(socket, work, budget, train, done)?,
            None => {
                let moved = self.outbound.flush(socket, work, budget, done)?;
                (moved, moved < work.io.bytes())
            }
        };
        self.note_sent(moved);
        Ok((moved, is_full))
    }

    /// Accounts for bytes sent on the first connection, by which its losses and its window are measured.
    fn note_sent(&mut self, bytes: usize) {
        let State::Open(socket) = &self.state else { return };
        if let Some(window) = &mut self.window {
            window.note(socket, bytes);
        }
        if let Some(congestion) = congestion::watch(&mut self.losses, socket, bytes)
            && let Some(route) = &mut self.route
        {
            route.congestion = congestion;
        }
    }

    pub(super) fn has_work(&self) -> bool {
        self.inbound.probed || self.has_tokens()
    }

    /// Returns whether something is posted and not complete.
    pub(super) fn has_tokens(&self) -> bool {
        !self.inbound.queue.is_empty() || !self.outbound.queue.is_empty()
    }
}

/// Working memory of all transfers, made once and used for the duration of one call.
#[derive(Debug)]
pub(super) struct Workspace {
    pub(super) io: IoList,
    pub(super) headers: [[u8; HEADER_BYTES]; BATCH],
    scratch: Vec<Line>,
}

impl Workspace {
    pub(super) fn new() -> Self {
        Self { io: IoList::new(), headers: [[0; HEADER_BYTES]; BATCH], scratch: Vec::new() }
    }

    /// Returns [`SCRATCH_BYTES`] of memory, which is allocated on first use.
    pub(super) fn scratch(&mut self) -> &mut [u8] {
        if self.scratch.is_empty() {
            self.scratch = vec![Line([0; 64]); SCRATCH_BYTES / 64];
        }
        bytes_of(&mut self.scratch)
    }

    /// Appends a range of the scratch memory to the I/O list.
    pub(super) fn ask_scratch(&mut self, from: usize, to: usize) {
        self.scratch();
        let scratch = bytes_of(&mut self.scratch);
        if to > from {
            self.io.push_target(&mut scratch[from..to]);
        }
    }
}
