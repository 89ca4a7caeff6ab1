//! The messages from one rank, and the receives that wait for them.

use std::collections::VecDeque;

use kolo_transport::Envelope;

use super::unexpected::Stored;

/// The receiving side of one rank's stream of messages.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    /// Receives that are not posted at the transport, in the order of the calls.
    pub(super) waiting: VecDeque<u16>,
    /// Receives that are, that of `storing` included. They come before those in `waiting`.
    pub(super) posted: u32,
    /// The next message, which the transport holds: then nothing is posted.
    pub(super) head: Option<Envelope>,
    /// A message on its way into memory of ours.
    pub(super) storing: Option<Stored>,
    /// Unexpected messages, in the order of their arrival.
    pub(super) stored: VecDeque<Stored>,
    /// Whether the transport will tell of the next message.
    pub(super) probed: bool,
    /// Messages come in another order than the receives were called: one receive at a time is posted, since all that
    /// are come back with each message that is another's.
    pub(super) narrow: bool,
    /// Whether it is in the list of those to look at.
    pub(super) dirty: bool,
}

impl Inbox {
    /// Whether a receive may go straight to the transport.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        let nothing_here = self.storing.is_none() && self.stored.is_empty() && self.head.is_none();
        self.waiting.is_empty() && !self.narrow && nothing_here
    }

    /// Ends the posting of one receive at a time when no receive waits any more.
    pub(super) fn calm_down(&mut self) {
        self.narrow &= !self.waiting.is_empty() || self.posted > 0;
    }

    /// Forgets everything; the transport has been told to abort.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
