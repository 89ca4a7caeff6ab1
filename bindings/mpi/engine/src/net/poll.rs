//! Polling the endpoints, and the handling of their events.

use std::sync::atomic::Ordering;

use kolo_transport::{Error, ErrorKind, Event};

use super::wire::{CANCELLED, GIVEN_UP};
use super::{Net, PENDING};

/// A transport reports one head of a peer at a time. A caller that waits for several messages takes up to this many before it checks
/// whether its own were among them.
const PASSES_FOR_MANY: usize = 8;

impl Net {
    /// Advances all messages, for a caller that waits for several. Returns whether anything moved.
    pub fn poll_for_many(&mut self) -> bool {
        let mut passes = 0;
        while passes < PASSES_FOR_MANY && self.poll() {
            passes += 1;
            if PENDING.load(Ordering::Relaxed) == 0 {
                break;
            }
        }
        passes > 0
    }

    /// Advances all messages. Returns whether anything moved.
    pub fn poll(&mut self) -> bool {
        let mut moved = false;
        while let Some(peer) = self.resting.pop() {
            self.watch(peer);
        }
        for at in 0..self.ends.len() {
            let mut events = std::mem::take(&mut self.events);
            moved |= self.ends[at].poll(&mut events);
            for event in events.drain(..) {
                moved = true;
                self.happened(event);
            }
            self.events = events;
        }
        moved
    }

    pub(super) fn happened(&mut self, event: Event) {
        match event {
            Event::Done(token) => self.done(token.0 as u32),
            Event::Waiting(envelope) => self.arrived(envelope),
            Event::Failed(token, error) if error.kind == ErrorKind::System && self.asks_instead(token) => {}
            Event::Failed(token, Error { kind: ErrorKind::Mismatch { tag, .. }, .. })
                if tag >> 61 == CANCELLED =>
            {
                self.failed(token.0 as u32, GIVEN_UP);
            }
            Event::Failed(token, error) => self.failed(token.0 as u32, &error.to_string()),
            Event::Down { peer, cause } => {
                self.lose(peer, &format!("rank {peer} of the world is lost: {cause}"))
            }
            Event::Returned(token) => self.returned(token.0 as u32),
            Event::Warning(_) => {}
        }
    }
}
