//! Decorators that break a transport on purpose, to prove that the suite notices, and to test how the layers above
//! react when a transport fails.

use std::time::Instant;

use crate::arm::{Armed, ParkBy};
use crate::endpoint::{Caps, Channel, Endpoint, Event, OnMisfit, Packer, Piece, Posted, Reach, Sink, Token};
use crate::error::{Error, ErrorKind};
use crate::memory::{Backing, MemoryCounters, Registered};
use crate::stage::Stage;

/// The defect of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No defect, but only one poll in this many does anything. Everything must still work.
    Slow(u32),
    /// The completion of this number is reported twice.
    TwiceDone(u64),
    /// The event of this number is swallowed.
    LostEvent(u64),
    /// Tags are changed on the way out, from the send of this number on.
    WrongTag(u64),
    /// The first byte of the message of this number is changed, if it is received into place.
    WrongByte(u64),
    /// The owner is told that it need not be woken.
    DeafSleep,
    /// All peers are lost after this many posts.
    LostPeers(u64),
}

/// An endpoint with a defect.
#[derive(Debug)]
pub struct Sabotaged {
    inner: Box<dyn Endpoint>,
    fault: Fault,
    count: u64,
    polls: u32,
    victim: Option<(Token, SendPtr)>,
    world_size: u32,
    lost: bool,
}

#[derive(Clone, Copy, Debug)]
struct SendPtr(*mut u8);

// SAFETY: the pointer leads into a posted receive, which is lent to the endpoint on whichever thread that lives.
unsafe impl Send for SendPtr {}

impl Sabotaged {
    /// Wraps an endpoint of a world of `world_size` ranks.
    #[must_use]
    pub fn new(inner: Box<dyn Endpoint>, world_size: u32, fault: Fault) -> Self {
        Self { inner, fault, count: 0, polls: 0, victim: None, world_size, lost: false }
    }

    fn count(&mut self) -> u64 {
        self.count += 1;
        self.count
    }
}

impl Endpoint for Sabotaged {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn address(&self) -> &[u8] {
        self.inner.address()
    }

    fn introduce(&mut self, peer: u32, address: &[u8]) -> Result<Reach, Error> {
        self.inner.introduce(peer, address)
    }

    fn establish(&mut self, is_aborted: &dyn Fn() -> bool, deadline: Instant) -> Result<(), Error> {
        self.inner.establish(is_aborted, deadline)
    }

    unsafe fn post_send(
        &mut self,
        on: Channel,
        tag: u64,
        src: &[Piece],
        token: Token,
    ) -> Result<Posted, Error> {
        let fault = self.fault;
        let tag = match fault {
            Fault::WrongTag(after) if self.count() >= after => !tag,
            Fault::LostPeers(_) => {
                self.count();
                tag
            }
            _ => tag,
        };
        // SAFETY: the caller's obligation, unchanged.
        unsafe { self.inner.post_send(on, tag, src, token) }
    }

    unsafe fn post_recv(
        &mut self,
        on: Channel,
        tag: u64,
        dst: Sink<'_>,
        on_misfit: OnMisfit,
        token: Token,
    ) -> Result<Posted, Error> {
        match self.fault {
            Fault::WrongByte(number) => {
                if let Sink::Place(list) = dst
                    && let Some(piece) = list.iter().find(|piece| piece.len > 0)
                    && self.count() == number
                {
                    self.victim = Some((token, SendPtr(piece.ptr)));
                }
            }
            Fault::LostPeers(_) => drop(self.count()),
            _ => {}
        }
        // SAFETY: the caller's obligation, unchanged.
        unsafe { self.inner.post_recv(on, tag, dst, on_misfit, token) }
    }

    fn stage(&self) -> Option<&dyn Stage> {
        self.inner.stage()
    }

    fn stage_mut(&mut self) -> Option<&mut dyn Stage> {
        self.inner.stage_mut()
    }

    fn probe(&mut self, on: Channel) -> Result<(), Error> {
        self.inner.probe(on)
    }

    fn cancel_recvs(&mut self, on: Channel, events: &mut Vec<Event>) -> bool {
        self.inner.cancel_recvs(on, events)
    }

    unsafe fn post_send_packed(
        &mut self,
        on: Channel,
        tag: u64,
        len: usize,
        packer: Packer,
        token: Token,
    ) -> Result<Posted, Error> {
        // SAFETY: the caller's obligation, unchanged.
        unsafe { self.inner.post_send_packed(on, tag, len, packer, token) }
    }

    fn cancel_probe(&mut self, on: Channel) {
        self.inner.cancel_probe(on);
    }

    fn look_for(&mut self, peer: u32) -> Result<(), Error> {
        self.inner.look_for(peer)
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> bool {
        self.polls = self.polls.wrapping_add(1);
        if let Fault::Slow(every) = self.fault
            && !self.polls.is_multiple_of(every)
        {
            return false;
        }
        let before = events.len();
        let moved = self.inner.poll(events);
        if let Fault::LostPeers(after) = self.fault
            && self.count >= after
            && !self.lost
        {
            self.lost = true;
            let cause = Error::new(ErrorKind::PeerLost, "sabotage", None, "the link was cut on purpose");
            self.inner.abort(&cause, events);
            events.extend((0..self.world_size).map(|peer| Event::Down { peer, cause: cause.clone() }));
            return true;
        }
        let mut at = before;
        while at < events.len() {
            let done = match events[at] {
                Event::Done(token) => Some(token),
                Event::Failed(..)
                | Event::Returned(_)
                | Event::Waiting(_)
                | Event::Down { .. }
                | Event::Warning(_) => None,
            };
            match (self.fault, done) {
                (Fault::TwiceDone(number), Some(token)) if self.count() == number => {
                    events.push(Event::Done(token));
                }
                (Fault::LostEvent(number), _) if self.count() == number => {
                    events.remove(at);
                    continue;
                }
                (Fault::WrongByte(_), Some(token)) => {
                    if let Some((_, SendPtr(byte))) = self.victim.take_if(|(victim, _)| *victim == token) {
                        // SAFETY: this is the first byte of a receive whose completion the owner has not seen yet.
                        unsafe { *byte ^= 1 };
                    }
                }
                _ => {}
            }
            at += 1;
        }
        moved
    }

    fn arm(&mut self, by: ParkBy) -> Armed<'_> {
        if self.fault == Fault::DeafSleep { Armed::Idle } else { self.inner.arm(by) }
    }

    fn disarm(&mut self) {
        self.inner.disarm();
    }

    fn abandon(&mut self, peer: u32, cause: &Error, events: &mut Vec<Event>) {
        self.inner.abandon(peer, cause, events);
    }

    fn abort(&mut self, cause: &Error, events: &mut Vec<Event>) {
        self.inner.abort(cause, events);
    }

    fn is_hearing(&self, peer: u32) -> bool {
        self.inner.is_hearing(peer)
    }

    fn is_sending(&self, peer: u32) -> bool {
        self.inner.is_sending(peer)
    }

    fn is_unheard(&self, peer: u32) -> bool {
        self.inner.is_unheard(peer)
    }

    fn leave(&mut self) {
        self.inner.leave();
    }

    fn is_flushed(&self) -> bool {
        self.inner.is_flushed()
    }

    unsafe fn register(&mut self, memory: Piece, backing: Backing<'_>) -> Result<Registered, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.inner.register(memory, backing) }
    }

    fn deregister(&mut self, memory: Piece) {
        self.inner.deregister(memory);
    }

    fn memory_counters(&self) -> MemoryCounters {
        self.inner.memory_counters()
    }
}
