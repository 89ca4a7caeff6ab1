//! The messages from one rank, and the receives that wait for them.

use std::collections::VecDeque;

use kolo_transport::Envelope;

use super::unexpected::Stored;

/// The receiving side of one rank's stream of messages.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    /// Receives that are not posted at the transport, in the order of the calls.
    pub(super) waiting: VecDeque<u16>,
    /// Number of receives that are posted, including that of `storing`. They come before those in `waiting`.
    pub(super) posted: u32,
    /// The next message, which the transport holds. Nothing is posted then.
    pub(super) head: Option<Envelope>,
    /// A message that is being buffered.
    pub(super) storing: Option<Stored>,
    /// Unexpected messages, in the order of their arrival.
    pub(super) stored: VecDeque<Stored>,
    /// Whether the transport will report the next message.
    pub(super) probed: bool,
    /// Whether messages come in another order than the receives were called. One receive at a time is then posted,
    /// since all posted receives come back with every message that belongs to another.
    pub(super) narrow: bool,
    /// Whether the inbox is in the list of those to look at.
    pub(super) dirty: bool,
}

impl Inbox {
    /// Returns whether a receive may go straight to the transport.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        let nothing_here = self.storing.is_none() && self.stored.is_empty() && self.head.is_none();
        self.waiting.is_empty() && !self.narrow && nothing_here
    }

    /// Ends the posting of one receive at a time, once no receive waits any more.
    pub(super) fn calm_down(&mut self) {
        self.narrow &= !self.waiting.is_empty() || self.posted > 0;
    }

    /// Forgets everything; the transport has been told to abort.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
