//! One channel's connection, and the memory that all connections of an endpoint share.

use std::net::SocketAddr;
use std::time::Instant;

use socket2::Socket;

use super::dial::Dial;
use super::inbound::Inbound;
use super::memory::{IoList, Line, bytes_of};
use super::outbound::{BATCH, Outbound};
use super::wire::HEADER_BYTES;
use crate::endpoint::Channel;

/// Bytes received at a time for a consumer: fits into half of a common second-level cache (512 KiB to 2 MiB), and is
/// long enough that the system call does not count (64 MiB messages both ways over loopback: 64 KiB 6.4 GB/s,
/// 128 KiB 8.8, 256 KiB 9.5).
pub(super) const SCRATCH_BYTES: usize = 256 << 10;

/// Where a channel's connection stands.
#[derive(Debug)]
pub(super) enum State {
    /// Nobody has asked for it.
    Idle,
    /// This side dials.
    Dialing(Box<Dial>),
    /// The peer dials; this side waits for it.
    Awaited(Awaiting),
    /// It is there.
    Open(Socket),
    /// The peer is lost or given up.
    Gone,
}

/// A wait for the peer to dial.
#[derive(Debug)]
pub(super) struct Awaiting {
    /// When this side dials itself, if it has not.
    pub(super) dial_at: Option<Instant>,
    /// When the peer is lost.
    pub(super) lose_at: Option<Instant>,
    /// What came of this side's own dial.
    pub(super) tried: Option<String>,
}

impl Awaiting {
    /// When something is to be done.
    pub(super) fn due(&self) -> Option<Instant> {
        self.dial_at.into_iter().chain(self.lose_at).min()
    }
}

/// A channel.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) channel: Channel,
    pub(super) state: State,
    pub(super) inbound: Inbound,
    pub(super) outbound: Outbound,
    /// Whether it is in the endpoint's list of links with something pending.
    pub(super) listed: bool,
    /// Whether the socket may have something to read, as far as epoll has told.
    pub(super) readable: bool,
    /// Whether the socket may take something.
    pub(super) writable: bool,
    /// Whether the peer has closed, as far as epoll has told.
    pub(super) hung_up: bool,
    /// For the summary.
    pub(super) route: Option<Route>,
}

/// How a connection came about.
#[derive(Clone, Debug)]
pub(super) struct Route {
    pub(super) remote: Option<SocketAddr>,
    pub(super) congestion: String,
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
            route: None,
        }
    }

    pub(super) fn has_work(&self) -> bool {
        self.inbound.probed || self.has_tokens()
    }

    /// Whether something is posted and not over.
    pub(super) fn has_tokens(&self) -> bool {
        !self.inbound.queue.is_empty() || !self.outbound.queue.is_empty()
    }
}

/// What every transfer needs for the duration of one call, made once.
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

    /// [`SCRATCH_BYTES`] of memory, there from the first use on.
    pub(super) fn scratch(&mut self) -> &mut [u8] {
        if self.scratch.is_empty() {
            self.scratch = vec![Line([0; 64]); SCRATCH_BYTES / 64];
        }
        bytes_of(&mut self.scratch)
    }

    /// Appends a range of the scratch to the list.
    pub(super) fn ask_scratch(&mut self, from: usize, to: usize) {
        self.scratch();
        let scratch = bytes_of(&mut self.scratch);
        if to > from {
            self.io.push_target(&mut scratch[from..to]);
        }
    }
}
