//! A segment: one sender's memory for all its channels to one receiver.
//!
//! ```text
//! page 0            offset   0  used: bit c is set before the first message of channel c
//!                   offset 128  the receiver's word `can_get`: 1 once it reads the sender's memory itself
//! then, for each channel c, at a fixed distance:
//!   control page    offset   0  the sender's line: size of the ring, set before the first message
//!                   offset 128  the receiver's line: cells freed, ring bytes freed
//!                   offset 256  30 cells of 128 bytes
//!   ring            `ring_max` bytes, of which the sender uses as many as it says in its line
//!   shuttles        see the `shuttles` module
//! ```
//! The file is sparse: an unused channel, and the part of a ring beyond its size, cost address space only. Lines with
//! different writers are 128 bytes apart, because processors fetch lines of 64 bytes in pairs.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::options::{CHANNELS_MAX, CONTROL_BYTES, RING_MAX_BYTES, RING_MIN_BYTES, Share};
use super::producer::Producer;
use super::ring::{CAN_GET, Consumer};
use super::shuttles::{SHUTTLES_BYTES, Shuttles};
use crate::sys::atomic::{AtomicU32, AtomicU64};
use crate::sys::map::Mapping;
use crate::sys::memfd;

const HEADER_BYTES: usize = 4096;
const CAN_GET_AT: usize = 128;

/// Shape of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Number of channels.
    pub(crate) channels: u16,
    /// Bytes reserved for each ring.
    pub(crate) ring_max: usize,
}

impl Geometry {
    /// Returns the geometry that a peer claims, if this version can have made it.
    pub(crate) fn checked(channels: u32, ring_max: u32) -> Option<Self> {
        let channels = u16::try_from(channels).ok().filter(|c| (1..=CHANNELS_MAX).contains(c))?;
        let ring_max = usize::try_from(ring_max).ok()?;
        let fits = (RING_MIN_BYTES..=RING_MAX_BYTES).contains(&ring_max) && ring_max.is_multiple_of(4096);
        fits.then_some(Self { channels, ring_max })
    }

    fn bytes(self) -> usize {
        HEADER_BYTES + usize::from(self.channels) * self.stride()
    }

    fn channel_offset(self, channel: u16) -> usize {
        assert!(channel < self.channels, "channel {channel} of {}", self.channels);
        HEADER_BYTES + usize::from(channel) * self.stride()
    }

    fn shuttles_offset(self, channel: u16) -> usize {
        self.channel_offset(channel) + CONTROL_BYTES + self.ring_max
    }

    /// Returns the distance between channels.
    fn stride(self) -> usize {
        CONTROL_BYTES + self.ring_max + SHUTTLES_BYTES
    }
}

/// A segment as mapped by either end.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    map: Arc<Mapping>,
    geometry: Geometry,
}

impl Segment {
    /// Creates a segment. The descriptor is for the receiver.
    pub(crate) fn create(geometry: Geometry) -> io::Result<(Self, OwnedFd)> {
        let fd = memfd::create_sealed("kolo-segment", geometry.bytes())?;
        Ok((Self::map(&fd, geometry)?, fd))
    }

    /// Maps the segment that a sender has handed over.
    pub(crate) fn open(fd: impl AsFd, geometry: Geometry) -> io::Result<Self> {
        memfd::check_sealed(&fd, geometry.bytes())?;
        Self::map(fd, geometry)
    }

    fn map(fd: impl AsFd, geometry: Geometry) -> io::Result<Self> {
        Ok(Self { map: Arc::new(Mapping::new(fd, geometry.bytes())?), geometry })
    }

    /// Opens a channel for sending, with this share of the staging. Called once per channel.
    pub(crate) fn producer(
        &self,
        channel: u16,
        share: Share,
        piece_bytes: usize,
        shuttles: Arc<Shuttles>,
    ) -> Producer {
        let offset = self.geometry.channel_offset(channel);
        let ring_bytes = share.ring_bytes.min(self.geometry.ring_max);
        shuttles.add_own(self.map.clone(), self.geometry.shuttles_offset(channel), share.has_shuttles);
        let producer = Producer::new(self.map.clone(), offset, ring_bytes, piece_bytes, shuttles)
            .with_rendezvous(CAN_GET_AT);
        self.used().fetch_or(1 << channel, Ordering::AcqRel);
        producer
    }

    /// Opens a channel for receiving. Called once per channel, before or after the sender opens it.
    pub(crate) fn consumer(&self, channel: u16, shuttles: Arc<Shuttles>) -> Consumer {
        shuttles.add_peers(self.map.clone(), self.geometry.shuttles_offset(channel));
        let offset = self.geometry.channel_offset(channel);
        Consumer::new(self.map.clone(), offset, self.geometry.ring_max, shuttles)
    }

    /// Tells the sender that it may send rendezvous requests instead of copying messages into the ring.
    pub(crate) fn allow_rendezvous(&self) {
        self.map.atomic::<AtomicU32>(CAN_GET_AT).store(CAN_GET, Ordering::Release);
    }

    /// Returns whether the sender has ever used this channel.
    pub(crate) fn is_used(&self, channel: u16) -> bool {
        self.used().load(Ordering::Acquire) & 1 << channel != 0
    }

    /// Returns the number of channels.
    pub(crate) fn channels(&self) -> u16 {
        self.geometry.channels
    }

    fn used(&self) -> &AtomicU64 {
        self.map.atomic(0)
    }

    /// Returns the mapping, for tests that play a hostile peer.
    #[cfg(test)]
    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.map
    }

    /// Returns the offset of a channel's control page, for tests that play a hostile peer.
    #[cfg(test)]
    pub(crate) fn control_offset(&self, channel: u16) -> usize {
        self.geometry.channel_offset(channel)
    }
}
