//! The fast path of `MPI_Recv` and `MPI_Send`: receives for which a thread waits at once, and messages that leave at once.
//!
//! If no other receive could match the message that such a receive names, its thread looks for the message at the transport itself. A
//! short message that fits is then in place as soon as it is found, without a slot, token or event. For a longer message, the receive is
//! posted at the transport on the condition that the next message has the same tag and length; the message then arrives in place within
//! the poll that finds it. If the next message is another one, the transport returns the receive, which goes to its mailbox like any
//! other.
//!
//! 1. A receive is direct only while nothing else uses the heads of its source and no posted receive of its context could match its
//!    messages. So it is the oldest receive that matches such messages, and remains so: later ones are posted behind it.
//! 2. At most one direct receive is posted for a source. While it is, nothing else is posted on that channel, and nothing probes it.
//! 3. A direct receive that the transport returns goes to the front of its mailbox, because of rule 1.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use kolo_transport::{Channel, Fits, OnMisfit, Posted, Short, Token};

use super::body::{Completion, Finished, Recv, Sink};
use super::source::Source;
use super::wire::{HEADS, Head, Op, TAG_BITS, WHOLE, broken, envelope, tag_of};
use super::{Net, PENDING, matching};
use crate::error::{Class, Fail, Outcome, fail};

/// A receive for which a thread waits.
#[derive(Debug)]
pub enum Awaited {
    /// The receive is complete, since its message was there.
    Over(Finished),
    /// The thread looks for the message.
    Sought(Sought),
    /// The receive is posted at the transport, in this slot.
    Direct(u32),
    /// The receive is in a mailbox, or its message is on its way.
    Posted(u32, Arc<Completion>),
}

/// A receive whose thread looks for the message itself.
#[derive(Clone, Debug)]
pub struct Sought {
    context: u32,
    source: u32,
    tag: Option<i32>,
    sink: Sink,
}

impl Sought {
    fn fits(&self) -> Fits {
        let (tag, mask) = match self.tag {
            Some(tag) => (tag, u64::MAX),
            None => (0, !TAG_BITS),
        };
        Fits { tag: envelope(WHOLE, self.context, tag), mask, room: self.sink.room() }
    }
}

/// State of a direct receive.
#[derive(Debug)]
pub(super) enum Direct {
    /// The receive is posted at the transport.
    Out { source: u32, context: u32, tag: i32, sink: Sink },
    /// The message is in place.
    Here { source: u32, tag: i32, bytes: usize },
    /// Another message came, so the receive is in its mailbox.
    Returned(u32, Arc<Completion>),
    /// The receive has failed.
    Failed(u32, Box<Fail>),
}

impl Net {
    /// Posts a receive for which the caller waits at once, with [`Net::ended`].
    pub fn recv_awaited(
        &mut self,
        context: u32,
        source: Option<u32>,
        tag: Option<i32>,
        sink: Sink,
    ) -> Awaited {
        if let Some(source) = source
            && self.may_seek(context, source, tag)
        {
            let sought = Sought { context, source, tag, sink };
            return match self.look(source, sought.fits(), &sought.sink) {
                Short::Taken { tag, len } => Awaited::Over(self.found(&sought, tag, len)),
                Short::NotYet => {
                    self.seek(source);
                    Awaited::Sought(sought)
                }
                Short::Other => self.post_sought(sought),
            };
        }
        let done = Completion::new();
        self.recv(context, Recv { source, tag, sink, done: Arc::clone(&done) });
        Awaited::Posted(context, done)
    }

    /// Returns whether a receive may be direct: rule 1.
    fn may_seek(&self, context: u32, source: u32, tag: Option<i32>) -> bool {
        matches!(self.heads.get(source as usize), Some(Head::Watched | Head::Resting))
            && self.boxes.get(&context).is_none_or(|mailbox| !mailbox.has_for(source, tag))
    }

    /// Reserves the heads of a source for the thread that looks for one.
    fn seek(&mut self, source: u32) {
        match std::mem::replace(&mut self.heads[source as usize], Head::Sought) {
            Head::Resting => self.resting.retain(|peer| *peer != source),
            _ => {
                let Some(via) = self.via[source as usize] else { return };
                self.ends[via].cancel_probe(Channel { peer: source, index: HEADS });
            }
        }
    }

    /// Releases the heads of a source, if a thread has looked for one.
    fn rest(&mut self, source: u32) {
        let head = &mut self.heads[source as usize];
        if *head == Head::Sought {
            *head = Head::Resting;
            self.resting.push(source);
        }
    }

    /// Records that a sought message is in place, and returns its result.
    fn found(&mut self, sought: &Sought, envelope: u64, bytes: usize) -> Finished {
        self.fitting[sought.source as usize] = bytes == sought.sink.room();
        self.counters.received += 1;
        self.counters.received_bytes += bytes as u64;
        let (source, tag) = (sought.source, tag_of(envelope));
        let error = matching::misfit(&sought.sink, source, tag, bytes);
        Finished { source, tag, bytes, error, ..Finished::sent() }
    }

    /// Posts a receive whose message is not a short one that fits, at the transport or in its mailbox.
    fn post_sought(&mut self, sought: Sought) -> Awaited {
        let Sought { context, source, tag, sink } = sought;
        self.rest(source);
        if let Some(tag) = tag
            && !self.is_announced(source, sink.room())
            && self.fitting[source as usize]
        {
            self.seek(source);
            return Awaited::Direct(self.post_direct(context, source, tag, sink));
        }
        let done = Completion::new();
        let recv = Recv { source: Some(source), tag, sink, done: Arc::clone(&done) };
        if let Some(why) = &self.lost[source as usize] {
            let error = Fail::new(Class::ProcFailed, why);
            done.set(Finished::failed(source, 0, error));
        } else {
            PENDING.fetch_add(1, Ordering::Relaxed);
            self.boxes.entry(context).or_default().posted.push_front(recv);
        }
        Awaited::Posted(context, done)
    }

    /// Posts a receive whose thread is about to sleep and no longer looks for the message itself.
    pub(super) fn look_no_more(&mut self, awaited: &mut Awaited) {
        if let Awaited::Sought(sought) = awaited {
            *awaited = self.post_sought(sought.clone());
        }
    }

    /// Returns the result of a receive if it is complete, and then forgets the receive.
    pub fn ended(&mut self, awaited: &mut Awaited) -> Option<Finished> {
        match awaited {
            Awaited::Over(finished) => Some(finished.clone()),
            Awaited::Sought(sought) => match self.look(sought.source, sought.fits(), &sought.sink) {
                Short::Taken { tag, len } => {
                    self.rest(sought.source);
                    Some(self.found(sought, tag, len))
                }
                Short::NotYet => None,
                Short::Other => {
                    *awaited = self.post_sought(sought.clone());
                    self.ended(awaited)
                }
            },
            Awaited::Direct(at) => match self.direct_end(*at)? {
                Direct::Here { source, tag, bytes } => {
                    Some(Finished { source, tag, bytes, ..Finished::sent() })
                }
                Direct::Failed(source, why) => Some(Finished::failed(source, 0, *why)),
                Direct::Returned(context, done) => {
                    let finished = done.get().cloned();
                    *awaited = Awaited::Posted(context, done);
                    finished
                }
                Direct::Out { .. } => None,
            },
            Awaited::Posted(_, done) => done.get().cloned(),
        }
    }

    /// Takes back a direct receive from the transport, unless its message has begun to arrive: rule 3.
    pub(super) fn take_back(&mut self, awaited: &Awaited) {
        if let Awaited::Direct(at) = awaited
            && let Op::Direct(Direct::Out { source: peer, .. }) = self.slots[*at as usize].op
            && let Some(via) = self.via[peer as usize]
        {
            let mut events = Vec::new();
            if self.ends[via].cancel_recvs(Channel { peer, index: HEADS }, &mut events) {
                events.into_iter().for_each(|event| self.happened(event));
                self.watch(peer);
            }
        }
    }

    /// Gives up a receive, since the job has failed. Its memory is not touched after this.
    pub fn forsake(&mut self, awaited: Awaited, why: &Fail) {
        let source = match &awaited {
            Awaited::Over(_) => None,
            // Only its own thread touches its memory.
            Awaited::Sought(sought) => return self.rest(sought.source),
            Awaited::Direct(at) => match &self.slots[*at as usize].op {
                Op::Direct(Direct::Out { source, .. }) => Some(*source),
                _ => None,
            },
            Awaited::Posted(context, done) => {
                self.cancel_recv(*context, done);
                return self.give_up(done, why);
            }
        };
        if let Some(source) = source {
            self.abandon(source, &why.text);
        }
        if let Awaited::Direct(at) = awaited {
            self.direct_end(at);
        }
    }

    /// Sends memory that the caller lends until the send is complete. Returns `None` if it is already complete.
    ///
    /// # Errors
    /// If the peer is lost.
    pub fn send_awaited(
        &mut self,
        to: u32,
        context: u32,
        tag: i32,
        data: Source,
        asks: bool,
    ) -> Outcome<Option<Arc<Completion>>> {
        if asks || to == self.rank || self.is_announced(to, data.len()) {
            let done = Completion::new();
            self.send(to, context, tag, data, asks, &done);
            return Ok(Some(done));
        }
        if let Some(why) = &self.lost[to as usize] {
            return fail(Class::ProcFailed, why);
        }
        self.counters.sent += 1;
        self.counters.sent_bytes += data.len() as u64;
        if self.send_now(to, envelope(WHOLE, context, tag), &data) {
            return Ok(None);
        }
        let mut data = data;
        if !self.packs(to) {
            data.stage();
        }
        let at = self.slot(Op::Quiet);
        let Some(via) = self.via[to as usize] else { return fail(Class::Other, "MPI has been finalized") };
        let slot = &mut self.slots[at as usize];
        slot.send_from(&data);
        let (on, token) = (Channel { peer: to, index: HEADS }, Token(at.into()));
        // SAFETY: the slot is boxed, and neither it nor the memory that it names changes until its token comes back.
        match unsafe { slot.post(&mut *self.ends[via], on, envelope(WHOLE, context, tag), token) } {
            Ok(Posted::Done) => {
                self.leave(at);
                Ok(None)
            }
            Ok(Posted::Pending) => {
                let done = Completion::new();
                PENDING.fetch_add(1, Ordering::Relaxed);
                slot.op = Op::Send { to, done: Arc::clone(&done), data };
                Ok(Some(done))
            }
            Err(error) => {
                self.leave(at);
                Err(broken(to, &error.to_string()))
            }
        }
    }

    fn post_direct(&mut self, context: u32, source: u32, tag: i32, sink: Sink) -> u32 {
        let at = self.slot(Op::Direct(Direct::Out { source, context, tag, sink: sink.clone() }));
        let Some(via) = self.via[source as usize] else {
            self.failed(at, "MPI has been finalized");
            return at;
        };
        self.heads[source as usize] = Head::Taken;
        let slot = &mut self.slots[at as usize];
        slot.receive_to(Some(&sink), sink.room());
        let (on, token) = (Channel { peer: source, index: HEADS }, Token(at.into()));
        // SAFETY: as above; the program has lent the receive's memory until the call that waits returns.
        let posted = unsafe {
            self.ends[via].post_recv(on, envelope(WHOLE, context, tag), slot.place(), OnMisfit::Return, token)
        };
        self.settle(at, posted);
        at
    }

    /// Returns the state of a direct receive once the transport no longer touches its memory, and then frees its slot.
    fn direct_end(&mut self, at: u32) -> Option<Direct> {
        let slot = &mut self.slots[at as usize];
        if matches!(slot.op, Op::Direct(Direct::Out { .. })) {
            return None;
        }
        match self.leave(at).0 {
            Op::Direct(direct) => Some(direct),
            _ => None,
        }
    }

    /// Records that the message of a direct receive has arrived.
    pub(super) fn direct_here(&mut self, at: u32) {
        let Op::Direct(direct) = &mut self.slots[at as usize].op else { return };
        let Direct::Out { source, tag, sink, .. } = &*direct else { return };
        let (source, tag, room) = (*source, *tag, sink.room());
        *direct = Direct::Here { source, tag, bytes: room };
        self.counters.received += 1;
        self.counters.received_bytes += room as u64;
        self.watch(source);
    }

    /// Puts a direct receive into its mailbox, since another message has come, which the transport reports next.
    pub(super) fn returned(&mut self, at: u32) {
        let Op::Direct(direct) = &mut self.slots[at as usize].op else { return };
        let Direct::Out { source, context, tag, sink } = &*direct else { return };
        let (source, context, tag, sink) = (*source, *context, *tag, sink.clone());
        let done = Completion::new();
        *direct = Direct::Returned(context, Arc::clone(&done));
        let recv = Recv { source: Some(source), tag: Some(tag), sink, done };
        PENDING.fetch_add(1, Ordering::Relaxed);
        self.fitting[source as usize] = false;
        self.boxes.entry(context).or_default().posted.push_front(recv);
    }

    /// Fails the direct receive of a slot. Returns whether the slot has one.
    pub(super) fn direct_failed(&mut self, at: u32, why: &str) -> bool {
        let Op::Direct(direct) = &mut self.slots[at as usize].op else { return false };
        if let Direct::Out { source, .. } = *direct {
            *direct = Direct::Failed(source, Box::new(broken(source, why)));
        }
        true
    }
}
