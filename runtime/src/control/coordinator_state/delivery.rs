//! Delivery of long messages: directly, or forwarded by the ranks.

use bytes::Bytes;

use super::CoordinatorState;
use crate::control::coordinator_gathers::Delivery;
use crate::control::forwarding::{self, InFlight};
use crate::control::ranks;
use crate::control::wire::{FromCoordinator, GatherKey, PREFIX_BYTES, encode};

impl CoordinatorState {
    pub(super) fn deliver(&mut self, deliveries: Vec<Delivery>) {
        for delivery in deliveries {
            match delivery {
                Delivery::To(rank, frame) => self.send_frame(rank, frame),
                Delivery::Completed { key, members, frame } => {
                    self.send_to_all_of(Some(key), members, frame);
                }
            }
        }
    }

    /// Sends the welcome, or the blobs of an all-gather, to these ranks, or has them pass it on to each other.
    pub(super) fn send_to_all_of(&mut self, key: Option<GatherKey>, ranks: Vec<u32>, frame: Bytes) {
        if !self.settings.forwards || !forwarding::is_worthwhile(frame.len(), ranks.len()) {
            return ranks.into_iter().for_each(|rank| self.send_frame(rank, frame.clone()));
        }
        let message = frame.slice(PREFIX_BYTES..).to_vec();
        let first = encode(&FromCoordinator::Forward { key, message });
        for (place, &rank) in ranks.iter().enumerate() {
            if forwarding::next(None, ranks.len()).contains(&place) || self.unreached.contains(&rank) {
                self.send_frame(rank, first.clone());
            }
        }
        let patience = forwarding::patience(frame.len());
        let waiting = ranks.iter().copied().collect();
        self.in_flight.push(InFlight { key, frame, receivers: ranks, waiting, patience, left: patience });
    }

    /// Sends messages directly to ranks that still lack them after a while.
    pub(super) fn resend_overdue(&mut self) {
        let mut all = std::mem::take(&mut self.in_flight);
        all.retain_mut(|in_flight| {
            if in_flight.waiting.is_empty() {
                return false;
            }
            in_flight.left -= 1;
            if in_flight.left > 0 {
                return true;
            }
            self.unreached.extend(in_flight.unreached());
            self.send_directly(in_flight);
            false
        });
        self.in_flight = all;
    }

    /// Sends all messages directly to ranks that may still lack them, for when the coordinator closes: an all-gather that is
    /// complete must not fail on some ranks.
    pub(super) fn send_all_directly(&mut self) {
        for in_flight in std::mem::take(&mut self.in_flight) {
            self.send_directly(&in_flight);
        }
    }

    fn send_directly(&mut self, in_flight: &InFlight) {
        let waiting: Vec<u32> = in_flight.waiting.iter().copied().collect();
        if !waiting.is_empty() {
            tracing::debug!(ranks = ranks::compact(&waiting), "a message was not forwarded to them");
        }
        waiting.into_iter().for_each(|rank| self.send_frame(rank, in_flight.frame.clone()));
    }
}
