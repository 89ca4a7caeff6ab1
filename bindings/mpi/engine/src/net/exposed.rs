//! Long messages that a receive has matched: they are got from their senders' memory, or asked for.

use kolo_transport::{Channel, Token};

use super::Net;
use super::body::{Finished, Recv, Sink};
use super::wire::{ANSWER, Announcement, BYTES, GIVEN_UP, HEADS, Op, WHOLE, broken, envelope};
use crate::world;

impl Net {
    /// Gets an announced message that a receive has matched, or asks its sender for it.
    pub(super) fn answer(&mut self, recv: Recv, source: u32, tag: i32, message: Announcement) {
        let Announcement { bytes, number, at } = message;
        if source == self.rank {
            let Some(mut parked) = self.parked.remove(&number) else {
                let failed = Finished::failed(source, tag, broken(source, GIVEN_UP));
                return self.finish(&recv.done, failed);
            };
            parked.data.with_bytes(|bytes| recv.sink.put(bytes));
            self.received(&recv, source, tag, bytes);
            return self.finish(&parked.done, Finished::sent());
        }
        let wanted = bytes.min(recv.sink.room());
        if wanted == 0 {
            self.post_words(source, HEADS, envelope(ANSWER, 0, 0), &[number, 0]);
            return self.received(&recv, source, tag, bytes);
        }
        // The kernel copies runs, and many short ones slowly. In a job that has failed, the sender may have given the message up and use
        // the memory for other data, so it is asked.
        let can_get =
            |_: &u64| recv.sink.is_flat() && !world::has_failed() && self.prefers_get(source, wanted);
        let Some(from) = at.filter(can_get) else {
            return self.ask(recv, source, tag, bytes, number);
        };
        let sink = recv.sink.clone();
        let op = Op::Bytes { recv, source, tag, total: bytes, got: Some(number) };
        self.post_get(source, from, op, &sink, wanted);
    }

    /// Asks the sender of a message for its data.
    fn ask(&mut self, recv: Recv, source: u32, tag: i32, total: usize, number: u64) {
        let (wanted, sink) = (total.min(recv.sink.room()), recv.sink.clone());
        let op = Op::Bytes { recv, source, tag, total, got: None };
        self.post_words(source, HEADS, envelope(ANSWER, 0, 0), &[number, wanted as u64]);
        self.post_recv(
            source,
            BYTES,
            envelope(WHOLE, 0, (number & 0xff_ffff) as i32),
            op,
            Some(&sink),
            wanted,
        );
    }

    /// Asks the sender for a message that the kernel does not read from its memory. Returns whether the operation that
    /// failed was to get one.
    pub(super) fn asks_instead(&mut self, token: Token) -> bool {
        let at = token.0 as u32;
        if !matches!(self.slots[at as usize].op, Op::Bytes { got: Some(_), .. }) {
            return false;
        }
        if let (Op::Bytes { recv, source, tag, total, got: Some(number) }, _) = self.leave(at) {
            self.ask(recv, source, tag, total, number);
        }
        true
    }

    /// Returns whether a peer gets messages from this process's memory.
    pub(super) fn exposes(&mut self, to: u32) -> bool {
        self.via[to as usize].is_some_and(|via| self.ends[via].exposes(Channel { peer: to, index: BYTES }))
    }

    /// Returns whether this rank should get a message from its sender's memory, rather than ask for it.
    fn prefers_get(&mut self, from: u32, len: usize) -> bool {
        let on = Channel { peer: from, index: BYTES };
        self.via[from as usize].is_some_and(|via| self.ends[via].prefers_get(on, len))
    }

    /// Gets `len` bytes at address `far` in a peer's process.
    fn post_get(&mut self, from: u32, far: u64, op: Op, sink: &Sink, len: usize) {
        let at = self.slot(op);
        let Some(via) = self.via[from as usize] else { return self.failed(at, "MPI has been finalized") };
        let slot = &mut self.slots[at as usize];
        slot.receive_to(Some(sink), len);
        let (on, token) = (Channel { peer: from, index: BYTES }, Token(at.into()));
        // SAFETY: the slot is boxed, and neither it nor the memory that its piece names changes until its token comes
        // back. Test: `long_messages` in tests/c/messages.c.
        let posted = unsafe { self.ends[via].post_get(on, far, std::slice::from_ref(&slot.piece), token) };
        self.settle(at, posted);
    }
}
