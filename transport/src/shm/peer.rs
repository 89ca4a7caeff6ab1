//! An endpoint's knowledge of one peer.

use std::os::fd::OwnedFd;

use super::address::Address;
use super::host::NAME_BYTES;
use super::remote::Remote;
use super::segment::Segment;
use crate::error::Error;

/// No lane yet.
pub(crate) const NO_LANE: u32 = u32::MAX;

/// The half of a link that this side made: its own segment, and the stream that took it to the peer.
#[derive(Debug)]
pub(crate) struct Outward {
    pub(crate) segment: Segment,
    /// The segment's descriptor, as long as it is not delivered.
    pub(crate) parcel: Option<OwnedFd>,
    /// Open for as long as both ends live: its end is the end of the peer.
    pub(crate) stream: Option<OwnedFd>,
}

/// The half of a link that the peer made.
#[derive(Debug)]
pub(crate) struct Inward {
    pub(crate) segment: Segment,
    /// Kept open, as in [`Outward`].
    pub(crate) stream: OwnedFd,
}

/// State of a peer.
#[derive(Debug)]
pub(crate) enum Fate {
    /// Well, as far as is known.
    Fine,
    /// It is gone, but what it left in the rings may still be received.
    Leaving {
        /// The error of its tokens.
        cause: Error,
        /// Whether the loss is to be reported as soon as nothing is left to receive: it did not close in good
        /// order, or a token has failed.
        report: bool,
    },
    /// It is gone, and everything of it is released.
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
    /// Its memory, if this side reads it.
    pub(crate) remote: Option<Remote>,
    /// Lane by channel, or [`NO_LANE`].
    pub(crate) send_lanes: Box<[u32]>,
    /// Lane by channel, or [`NO_LANE`].
    pub(crate) recv_lanes: Box<[u32]>,
    pub(crate) outward: Option<Outward>,
    pub(crate) inward: Option<Inward>,
    pub(crate) fate: Fate,
    /// Whether something was published for it, or freed, since its doorbell was last looked at.
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
