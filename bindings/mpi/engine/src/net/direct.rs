//! Receives that a thread waits for at once, and messages that leave at once: the short way of `MPI_Recv` and `MPI_Send`.
//!
//! Where nothing else could meet the message that such a receive names, a thread looks for it at the transport itself. A short message
//! that fits is then in place as soon as it is found, and no slot, token or event has to do with it. Of a longer one, the receive is
//! posted at the transport, on the condition that the next message is the one: tag and length are the same. It arrives in place
//! within the poll that finds it. If the next message is another, the transport hands the receive back, and it goes to its mailbox as
//! any other would.
//!
//! 1. A receive goes directly only while nobody else has to do with the heads of its source and no posted receive of
//!    its context takes what it takes. So it is the oldest that takes such messages, and stays that: those posted later
//!    come behind it.
//! 2. At most one is out for a source. While it is, nothing else is posted on that channel and nobody probes it.
//! 3. Handed back, it goes to the front of its mailbox, where rule 1 has it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use kolo_transport::{Channel, Fits, Piece, Posted, Short, Sink as Place, Token};

use super::body::{Completion, Finished, Recv, Sink};
use super::wire::{EAGER_BYTES, HEADS, Head, Op, Source, TAG_BITS, WHOLE, broken, envelope, tag_of};
use super::{Net, PENDING};
use crate::error::{Class, Fail, Outcome, fail};

/// A receive that a thread waits for.
#[derive(Debug)]
pub enum Awaited {
    /// Over, since its message was there.
    Over(Finished),
    /// Its thread looks for the message.
    Sought(Sought),
    /// At the transport, in this slot.
    Direct(u32),
    /// In a mailbox, or under way from there.
    Posted(u32, Arc<Completion>),
}

/// A receive whose thread looks for the message.
#[derive(Clone, Copy, Debug)]
pub struct Sought {
    context: u32,
    source: u32,
    tag: Option<i32>,
    ptr: *mut u8,
    room: usize,
}

impl Sought {
    const fn fits(&self) -> Fits {
        let (tag, mask) = match self.tag {
            Some(tag) => (tag, u64::MAX),
            None => (0, !TAG_BITS),
        };
        Fits { tag: envelope(WHOLE, self.context, tag), mask, room: self.room }
    }
}

/// State of a receive at the transport.
#[derive(Debug)]
pub(super) enum Direct {
    /// It is there.
    Out { source: u32, context: u32, tag: i32, ptr: *mut u8, room: usize },
    /// The message is where it belongs.
    Here { source: u32, tag: i32, bytes: usize },
    /// Another message came: it is in its mailbox.
    Returned(u32, Arc<Completion>),
    /// It has failed.
    Failed(u32, Box<Fail>),
}

impl Net {
    /// Posts a receive that the caller waits for at once, with [`Net::ended`].
    pub fn recv_awaited(
        &mut self,
        context: u32,
        source: Option<u32>,
        tag: Option<i32>,
        sink: Sink,
    ) -> Awaited {
        if let (Some(source), Sink::Flat { ptr, room }) = (source, &sink)
            && self.may_seek(context, source, tag)
        {
            let sought = Sought { context, source, tag, ptr: *ptr, room: *room };
            return match self.look(source, sought.fits(), *ptr) {
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

    /// Whether a receive goes directly: rule 1.
    fn may_seek(&self, context: u32, source: u32, tag: Option<i32>) -> bool {
        matches!(self.heads.get(source as usize), Some(Head::Watched | Head::Resting))
            && self.boxes.get(&context).is_none_or(|mailbox| !mailbox.has_for(source, tag))
    }

    /// Keeps the heads of a source to the thread that looks for one.
    fn seek(&mut self, source: u32) {
        match std::mem::replace(&mut self.heads[source as usize], Head::Sought) {
            Head::Resting => self.resting.retain(|peer| *peer != source),
            _ => {
                let Some(via) = self.via[source as usize] else { return };
                self.ends[via].cancel_probe(Channel { peer: source, index: HEADS });
            }
        }
    }

    /// Gives the heads of a source back, if a thread has looked for one.
    fn rest(&mut self, source: u32) {
        let head = &mut self.heads[source as usize];
        if *head == Head::Sought {
            *head = Head::Resting;
            self.resting.push(source);
        }
    }

    /// A message that was looked for is in its place.
    fn found(&mut self, sought: &Sought, envelope: u64, bytes: usize) -> Finished {
        self.fitting[sought.source as usize] = bytes == sought.room;
        self.counters.received += 1;
        self.counters.received_bytes += bytes as u64;
        Finished { source: sought.source, tag: tag_of(envelope), bytes, ..Finished::sent() }
    }

    /// Posts a receive whose message is not a short one that fits: at the transport, or in its mailbox.
    fn post_sought(&mut self, sought: Sought) -> Awaited {
        let Sought { context, source, tag, ptr, room } = sought;
        self.rest(source);
        if let Some(tag) = tag
            && room <= EAGER_BYTES
            && self.fitting[source as usize]
        {
            self.seek(source);
            return Awaited::Direct(self.post_direct(context, source, tag, (ptr, room)));
        }
        let done = Completion::new();
        let recv =
            Recv { source: Some(source), tag, sink: Sink::Flat { ptr, room }, done: Arc::clone(&done) };
        if let Some(why) = &self.lost[source as usize] {
            let error = Fail::new(Class::ProcFailed, why);
            done.set(Finished::failed(source, 0, error));
        } else {
            PENDING.fetch_add(1, Ordering::Relaxed);
            self.boxes.entry(context).or_default().posted.push_front(recv);
        }
        Awaited::Posted(context, done)
    }

    /// Posts a receive whose thread is about to sleep and looks no more.
    pub(super) fn look_no_more(&mut self, awaited: &mut Awaited) {
        if let Awaited::Sought(sought) = awaited {
            *awaited = self.post_sought(*sought);
        }
    }

    /// How a receive has ended, if it has. It is forgotten then.
    pub fn ended(&mut self, awaited: &mut Awaited) -> Option<Finished> {
        match awaited {
            Awaited::Over(finished) => Some(finished.clone()),
            Awaited::Sought(sought) => match self.look(sought.source, sought.fits(), sought.ptr) {
                Short::Taken { tag, len } => {
                    self.rest(sought.source);
                    Some(self.found(sought, tag, len))
                }
                Short::NotYet => None,
                Short::Other => {
                    *awaited = self.post_sought(*sought);
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

    /// Nobody waits for a receive any more, since the job has failed: its memory is not touched after this.
    pub fn forsake(&mut self, awaited: Awaited, why: &Fail) {
        let source = match &awaited {
            Awaited::Over(_) => None,
            // Its memory is touched by nobody but its thread.
            Awaited::Sought(sought) => return self.rest(sought.source),
            Awaited::Direct(at) => match &self.slots[*at as usize].op {
                Op::Direct(Direct::Out { source, .. }) => Some(*source),
                _ => None,
            },
            Awaited::Posted(context, done) => {
                self.cancel(*context, done);
                // One that has met its message is no longer in the mailbox, and its source is still sending.
                self.slots.iter().find_map(|slot| slot.op.source_for(done))
            }
        };
        if let Some(source) = source {
            self.abandon(source, &why.text);
        }
        if let Awaited::Direct(at) = awaited {
            self.direct_end(at);
        }
    }

    /// Sends what the caller lends until the send is over. None if it is over already, and the memory may be used again.
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
        if asks || to == self.rank || data.len() > EAGER_BYTES {
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
        let at = self.slot(Op::Quiet);
        let Some(via) = self.via[to as usize] else { return fail(Class::Other, "MPI has been finalized") };
        let slot = &mut self.slots[at as usize];
        slot.piece = data.piece();
        let (on, token) = (Channel { peer: to, index: HEADS }, Token(at.into()));
        let piece = std::slice::from_ref(&slot.piece);
        // SAFETY: the slot is boxed, and neither it nor the memory that it names changes until its token comes back.
        match unsafe { self.ends[via].post_send(on, envelope(WHOLE, context, tag), piece, token) } {
            Ok(Posted::Done) => {
                self.free.push(at);
                Ok(None)
            }
            Ok(Posted::Pending) => {
                let done = Completion::new();
                PENDING.fetch_add(1, Ordering::Relaxed);
                slot.op = Op::Send { to, done: Arc::clone(&done), data };
                Ok(Some(done))
            }
            Err(error) => {
                self.free.push(at);
                Err(broken(to, &error.to_string()))
            }
        }
    }

    fn post_direct(&mut self, context: u32, source: u32, tag: i32, (ptr, room): (*mut u8, usize)) -> u32 {
        let at = self.slot(Op::Direct(Direct::Out { source, context, tag, ptr, room }));
        let Some(via) = self.via[source as usize] else {
            self.failed(at, "MPI has been finalized");
            return at;
        };
        self.heads[source as usize] = Head::Taken;
        let slot = &mut self.slots[at as usize];
        slot.piece = Piece { ptr, len: room };
        let (on, token) = (Channel { peer: source, index: HEADS }, Token(at.into()));
        let place = Place::Place(std::slice::from_ref(&slot.piece));
        // SAFETY: as above; the memory is the receive's, which the program has lent until the call that waits returns.
        let posted = unsafe { self.ends[via].post_recv_if(on, envelope(WHOLE, context, tag), place, token) };
        self.settle(at, posted);
        at
    }

    /// State of a receive at the transport, once nobody touches its memory. Its slot is free then.
    fn direct_end(&mut self, at: u32) -> Option<Direct> {
        let slot = &mut self.slots[at as usize];
        if matches!(slot.op, Op::Direct(Direct::Out { .. })) {
            return None;
        }
        self.free.push(at);
        match std::mem::replace(&mut slot.op, Op::Idle) {
            Op::Direct(direct) => Some(direct),
            _ => None,
        }
    }

    /// The message of a direct receive has come.
    pub(super) fn direct_here(&mut self, at: u32) {
        let Op::Direct(direct) = &mut self.slots[at as usize].op else { return };
        let Direct::Out { source, tag, room, .. } = *direct else { return };
        *direct = Direct::Here { source, tag, bytes: room };
        self.counters.received += 1;
        self.counters.received_bytes += room as u64;
        self.watch(source);
    }

    /// Another message has come than that of a direct receive, which tells of itself next.
    pub(super) fn returned(&mut self, at: u32) {
        let Op::Direct(direct) = &mut self.slots[at as usize].op else { return };
        let Direct::Out { source, context, tag, ptr, room } = *direct else { return };
        let done = Completion::new();
        *direct = Direct::Returned(context, Arc::clone(&done));
        let recv = Recv { source: Some(source), tag: Some(tag), sink: Sink::Flat { ptr, room }, done };
        PENDING.fetch_add(1, Ordering::Relaxed);
        self.fitting[source as usize] = false;
        self.boxes.entry(context).or_default().posted.push_front(recv);
    }

    /// Whether a slot has a direct receive, which has failed.
    pub(super) fn direct_failed(&mut self, at: u32, why: &str) -> bool {
        let Op::Direct(direct) = &mut self.slots[at as usize].op else { return false };
        if let Direct::Out { source, .. } = *direct {
            *direct = Direct::Failed(source, Box::new(broken(source, why)));
        }
        true
    }
}
