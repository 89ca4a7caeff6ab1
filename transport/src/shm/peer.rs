//! State that an endpoint keeps about one peer.

use std::os::fd::OwnedFd;
use std::time::Instant;

use super::address::Address;
use super::host::NAME_BYTES;
use super::remote::Remote;
use super::segment::Segment;
use crate::error::Error;
use crate::sys::unix;

/// Marks a channel that has no lane yet.
pub(crate) const NO_LANE: u32 = u32::MAX;

/// The half of a link that this side made: its own segment, and the stream that carried it to the peer.
#[derive(Debug)]
pub(crate) struct Outward {
    pub(crate) segment: Segment,
    /// The segment's descriptor, until it is delivered.
    pub(crate) parcel: Option<OwnedFd>,
    /// Open as long as both ends live: when it ends, the peer is gone.
    pub(crate) stream: Option<unix::Socket>,
    /// Time since which this rank has had no descriptor for the stream.
    pub(crate) hungry_since: Option<Instant>,
}

/// The half of a link that the peer made.
#[derive(Debug)]
pub(crate) struct Inward {
    pub(crate) segment: Segment,
    /// Kept open for the same reason as in [`Outward`].
    pub(crate) stream: unix::Socket,
}

/// State of a peer.
#[derive(Debug)]
pub(crate) enum Fate {
    /// No failure is known.
    Fine,
    /// The peer is gone, but the data that it left in the rings may still be received.
    Leaving {
        /// The error with which its tokens fail.
        cause: Error,
        /// Whether to report the loss once nothing is left to receive: the peer did not close in good order, or a
        /// token has failed.
        report: bool,
    },
    /// The peer is gone, and all its resources are released.
    Lost(Error),
}

/// One peer on this host.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) rank: u32,
    /// Its index in the arena.
    pub(crate) member: u32,
    pub(crate) address: Address,
    pub(crate) bell_name: [u8; NAME_BYTES],
    /// Access to its memory, if this side reads it.
    pub(crate) remote: Option<Remote>,
    /// Lane by channel, or [`NO_LANE`].
    pub(crate) send_lanes: Box<[u32]>,
    /// Lane by channel, or [`NO_LANE`].
    pub(crate) recv_lanes: Box<[u32]>,
    pub(crate) outward: Option<Outward>,
    pub(crate) inward: Option<Inward>,
    pub(crate) fate: Fate,
    /// Whether something was published for it, or freed, since its doorbell was last checked.
    pub(crate) is_dirty: bool,
}

impl Peer {
    pub(crate) fn new(rank: u32, address: Address, remote: Option<Remote>, channels: u16) -> Self {
        let none = || vec![NO_LANE; channels.into()].into_boxed_slice();
        Self {
            rank,
            member: 0,
            bell_name: address.bell_name(),
            address,
            remote,
            send_lanes: none(),
            recv_lanes: none(),
            outward: None,
            inward: None,
            fate: Fate::Fine,
            is_dirty: false,
        }
    }
}
