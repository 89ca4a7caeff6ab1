//! Cancelling: a receive that no message has matched, and a message that no receive has matched.
//!
//! The sender of an announced message asks the receiver to withdraw it. The receiver does so, and says so, if no receive or matching probe
//! has taken the announcement. Otherwise it does not answer, since the message is under way and the send completes in the normal way. A
//! message that has been sent as a whole cannot be cancelled.

use std::sync::Arc;

use super::Net;
use super::body::{Completion, Finished};
use super::wire::{CANCEL, CANCELLED, envelope};
use crate::error::Fail;

impl Net {
    /// Cancels a receive that no message has matched yet.
    pub fn cancel_recv(&mut self, context: u32, done: &Arc<Completion>) {
        if self.boxes.get_mut(&context).is_some_and(|mailbox| mailbox.remove_posted(done)) {
            self.finish(done, Finished::cancelled());
        }
    }

    /// Fails an operation, whatever it is, that has no match yet.
    pub(super) fn cancel(&mut self, done: &Arc<Completion>, why: &Fail) {
        if self.boxes.values_mut().any(|mailbox| mailbox.remove_posted(done)) {
            return self.finish(done, Finished::failed(0, 0, why.clone()));
        }
        if let Some(parked) = self.parked.values_mut().find(|parked| Arc::ptr_eq(&parked.done, done)) {
            parked.given_up = Some(why.clone());
            self.cancel_send(done);
        }
    }

    /// Gives up an operation that could not be cancelled. Nothing touches its memory after this.
    pub(super) fn give_up(&mut self, done: &Arc<Completion>, why: &Fail) {
        if let Some(number) =
            self.parked.iter().find_map(|(number, parked)| Arc::ptr_eq(&parked.done, done).then_some(*number))
        {
            self.withdrawn(number);
            self.withheld.insert(number);
            return;
        }
        // A receive that has matched its message is no longer in the mailbox, and its source may still be sending.
        if let Some(peer) = self.slots.iter().find_map(|slot| slot.op.peer_of(done)) {
            self.abandon(peer, &why.text);
        }
    }

    /// Cancels a send that no receive has matched yet. The receiver decides whether that is so.
    pub fn cancel_send(&mut self, done: &Arc<Completion>) {
        let Some((number, parked)) = self.parked.iter().find(|(_, parked)| Arc::ptr_eq(&parked.done, done))
        else {
            return;
        };
        let (number, to) = (*number, parked.to);
        if to != self.rank {
            self.post_words(to, envelope(CANCEL, 0, 0), &[number, 0]);
        } else if self.remove_announced(to, number) {
            self.withdrawn(number);
        }
    }

    /// Withdraws a message at its sender's request.
    pub(super) fn withdraw(&mut self, from: u32, number: u64) {
        if self.remove_announced(from, number) {
            self.post_words(from, envelope(CANCELLED, 0, 0), &[number, 0]);
        }
    }

    /// Completes a send whose message has been withdrawn.
    pub(super) fn withdrawn(&mut self, number: u64) {
        self.withheld.remove(&number);
        if let Some(parked) = self.parked.remove(&number) {
            let failed = |why| Finished::failed(parked.to, 0, why);
            self.finish(&parked.done, parked.given_up.map_or(Finished::cancelled(), failed));
        }
    }

    fn remove_announced(&mut self, source: u32, number: u64) -> bool {
        self.boxes.values_mut().any(|mailbox| mailbox.remove_announced(source, number))
    }
}
