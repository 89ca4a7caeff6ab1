//! The lengths that peers claim for their heads. This rank allocates the memory, so each claim is checked first.

use super::Net;
use super::eager::FAR_EAGER_BYTES;
use super::wire::{ANNOUNCED, ANSWER, CANCEL, CANCELLED, WHOLE, WINDOW, WORDS};

/// Whether a rank sends heads of this kind and length. The program chooses the length of messages for windows.
pub(super) const fn may_come(kind: u64, bytes: usize) -> bool {
    match kind {
        WHOLE => bytes <= FAR_EAGER_BYTES,
        ANNOUNCED | ANSWER | CANCEL | CANCELLED => bytes <= 8 * WORDS,
        WINDOW => true,
        _ => false,
    }
}

impl Net {
    /// Gives up on a peer that sends what no rank sends, or what this rank cannot hold.
    #[cold]
    pub(super) fn reject(&mut self, from: u32, why: &str) {
        self.abandon(from, &format!("rank {from} of the world is lost: {why}"));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use kolo_transport::{
        Armed, Caps, Channel, Endpoint, Envelope, Error, Event, OnMisfit, ParkBy, Piece, Posted, Reach, Sink,
        Token,
    };

    use super::super::wire::{HEADS, envelope};
    use super::*;

    /// An endpoint that reaches nobody and reports what a test gives to [`Net::happened`].
    #[derive(Debug)]
    struct StandIn(Caps);

    impl Endpoint for StandIn {
        fn caps(&self) -> &Caps {
            &self.0
        }

        fn address(&self) -> &[u8] {
            &[]
        }

        fn introduce(&mut self, _: u32, _: &[u8]) -> Result<Reach, Error> {
            Ok(Reach::No { because: "it is a stand-in".to_owned() })
        }

        fn establish(&mut self, _: &dyn Fn() -> bool, _: Instant) -> Result<(), Error> {
            Ok(())
        }

        unsafe fn post_send(&mut self, _: Channel, _: u64, _: &[Piece], _: Token) -> Result<Posted, Error> {
            Ok(Posted::Pending)
        }

        unsafe fn post_recv(
            &mut self,
            _: Channel,
            _: u64,
            _: Sink<'_>,
            _: OnMisfit,
            _: Token,
        ) -> Result<Posted, Error> {
            Ok(Posted::Pending)
        }

        fn poll(&mut self, _: &mut Vec<Event>) -> bool {
            false
        }

        fn arm(&mut self, _: ParkBy) -> Armed<'_> {
            Armed::Idle
        }

        fn disarm(&mut self) {}

        fn abandon(&mut self, _: u32, _: &Error, _: &mut Vec<Event>) {}

        fn abort(&mut self, _: &Error, _: &mut Vec<Event>) {}

        fn is_flushed(&self) -> bool {
            true
        }
    }

    /// Returns the reason why rank 1 is lost after it has sent a head of this kind and length, if it is.
    fn lost_by(kind: u64, len: u64) -> Option<Box<str>> {
        let caps = Caps {
            name: "stand-in",
            channels_max: 2,
            message_max: isize::MAX as usize,
            eager_max: 0,
            staging_per_channel: 0,
            park_word: false,
            park_fd: false,
            can_probe: false,
            can_cancel_recvs: false,
            can_pack: false,
            stage: None,
        };
        let mut net = Net::new(0, vec![Box::new(StandIn(caps))], vec![None, Some(0)]);
        let on = Channel { peer: 1, index: HEADS };
        net.happened(Event::Waiting(Envelope { on, tag: envelope(kind, 3, 4), len }));
        net.lost[1].take()
    }

    #[test]
    fn a_peer_that_claims_impossible_lengths_is_given_up() {
        for kind in [WHOLE, ANNOUNCED, ANSWER, WINDOW, CANCEL, CANCELLED, 6, 7] {
            for len in [1 << 62, i64::MAX as u64, u64::MAX] {
                let why = lost_by(kind, len).unwrap_or_else(|| panic!("{len} bytes of kind {kind}"));
                let problem = if kind == WINDOW { "no memory for its message of" } else { "a head of" };
                assert!(why.contains(&format!("{problem} {len} bytes")), "{why}");
            }
        }
        for (kind, most) in [(WHOLE, FAR_EAGER_BYTES as u64), (ANNOUNCED, 24), (ANSWER, 24), (CANCEL, 24)] {
            assert_eq!(lost_by(kind, most), None);
            assert!(lost_by(kind, most + 1).is_some(), "kind {kind}");
        }
        assert_eq!(lost_by(WINDOW, 1 << 20), None, "the program chooses the length");
    }
}
