//! Cancelling: a receive that no message has matched, and a message that no receive has matched.
//!
//! The sender of an announced message asks the receiver to withdraw it. The receiver does so, and says so, if no receive or matching probe
//! has taken the announcement. Otherwise it does not answer, since the message is under way and the send completes in the normal way. A
//! message that has been sent as a whole cannot be cancelled.

use std::sync::Arc;

use super::Net;
use super::body::{Completion, Finished};
use super::wire::{CANCEL, CANCELLED, HEADS, envelope};
use crate::error::Fail;

impl Net {
    /// Cancels a receive that no message has matched yet.
    pub fn cancel_recv(&mut self, context: u32, done: &Arc<Completion>) {
        if self.boxes.get_mut(&context).is_some_and(|mailbox| mailbox.remove_posted(done)) {
            self.finish(done, Finished::cancelled());
        }
    }

    /// Fails an operation, whatever it is, that has no match yet.
    pub(crate) fn cancel(&mut self, done: &Arc<Completion>, why: &Fail) {
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
        if let Some((number, parked)) = self.parked.iter().find(|(_, parked)| Arc::ptr_eq(&parked.done, done))
        {
            let (number, to) = (*number, parked.to);
            self.withdrawn(number);
            if to != self.rank {
                self.withheld.insert(number, to);
            }
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
            self.post_words(to, HEADS, envelope(CANCEL, 0, 0), &[number, 0]);
        } else if self.remove_announced(to, number) {
            self.withdrawn(number);
        }
    }

    /// Withdraws a message at its sender's request.
    pub(super) fn withdraw(&mut self, from: u32, number: u64) {
        if self.remove_announced(from, number) {
            self.post_words(from, HEADS, envelope(CANCELLED, 0, 0), &[number, 0]);
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

#[cfg(test)]
mod tests {
    use kolo_transport::{Error, ErrorKind, Event, Token};

    use super::super::body::{Recv, Sink};
    use super::super::source::Source;
    use super::super::wire::{GIVEN_UP, Op, WHOLE};
    use super::*;
    use crate::error::Class;

    /// Returns the messages of rank 0 of two, which no transport carries.
    fn net() -> Net {
        Net::new(0, Vec::new(), vec![None, None])
    }

    fn recv(room: &mut [u8]) -> Recv {
        let sink = Sink::Flat { ptr: room.as_mut_ptr(), room: room.len() };
        Recv { source: None, tag: None, sink, done: Completion::new() }
    }

    fn failure(done: &Completion) -> String {
        let failure = done.get().and_then(|finished| finished.error.as_ref());
        failure.map_or_else(|| "none".to_owned(), |failure| failure.text.to_string())
    }

    #[test]
    fn messages_that_were_given_up_are_forgotten_with_their_receivers() {
        let (mut net, why) = (net(), Fail::new(Class::Other, "the job has failed"));
        let [home, away] = [0, 1].map(|to| {
            let done = Completion::new();
            net.send(to, 3, 4, Source::Kept(vec![1]), true, &done);
            done
        });
        let claimed = net.claim(3, Some(0), Some(4)).expect("the message to this rank");
        for done in [&home, &away] {
            net.cancel(done, &why);
            assert!(!done.is_done());
            net.give_up(done, &why);
            assert_eq!(failure(done), why.text.to_string());
        }
        assert_eq!(net.withheld.values().collect::<Vec<_>>(), [&1]);
        let (mut room, told) = ([0], Completion::new());
        net.recv_claimed(claimed, Recv { done: Arc::clone(&told), ..recv(&mut room) });
        assert!(failure(&told).contains(GIVEN_UP) && room == [0]);
        net.lose(1, "it has died");
        assert!(net.withheld.is_empty());
    }

    #[test]
    fn only_a_message_that_was_given_up_is_reported_as_such() {
        for (kind, is_given_up) in [(CANCELLED, true), (WHOLE, false)] {
            let (mut net, mut room, done) = (net(), [0], Completion::new());
            let recv = Recv { done: Arc::clone(&done), ..recv(&mut room) };
            let at = net.slot(Op::Bytes { recv, source: 1, tag: 4, total: 1, got: None });
            let (expected_tag, tag) = (envelope(WHOLE, 0, 4), envelope(kind, 0, 4));
            let mismatch = ErrorKind::Mismatch { expected_tag, tag, expected_len: 1, len: 0 };
            let error = Error::new(mismatch, "shm", Some(1), "another message");
            net.happened(Event::Failed(Token(at.into()), error));
            assert_eq!(failure(&done).contains(GIVEN_UP), is_given_up, "{}", failure(&done));
            assert_eq!(failure(&done).contains("another message"), !is_given_up);
        }
    }
}
