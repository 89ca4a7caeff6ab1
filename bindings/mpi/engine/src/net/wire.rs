//! Messages on the wire: envelopes, announcements and answers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use kolo_transport::{
    Channel, Endpoint, Envelope, Error, ErrorKind, Fits, OnMisfit, Piece, Posted, Short, Sink as Place, Token,
};

use super::body::{Completion, Elements, Finished, Recv, Sink};
use super::claims::may_come;
use super::direct::Direct;
use super::eager::EAGER_BYTES;
use super::matching::{Body, Unexpected};
use super::source::Source;
use super::{Net, PENDING};
use crate::error::{Class, Fail};
use crate::staging;

/// The longest message for which sending or taking it at once, without a slot, is worth a try.
pub(super) const SHORT_BYTES: usize = 16 << 10;

pub(super) const HEADS: u16 = 0;
pub(super) const BYTES: u16 = 1;

pub(super) const WHOLE: u64 = 0;
pub(super) const ANNOUNCED: u64 = 1;
pub(super) const ANSWER: u64 = 2;
pub(super) const WINDOW: u64 = 3;
pub(super) const CANCEL: u64 = 4;
pub(super) const CANCELLED: u64 = 5;

/// Makes an envelope of kind, context and tag.
pub(super) const fn envelope(kind: u64, context: u32, tag: i32) -> u64 {
    kind << 61 | (context as u64) << 30 | tag as u64
}

/// The bits of an envelope that hold the tag.
pub(super) const TAG_BITS: u64 = (1 << 30) - 1;

pub(super) const fn tag_of(envelope: u64) -> i32 {
    (envelope & TAG_BITS) as i32
}

const fn context_of(envelope: u64) -> u32 {
    (envelope >> 30 & ((1 << 31) - 1)) as u32
}

/// A message that waits for its receiver's answer.
pub(super) struct Parked {
    pub(super) to: u32,
    pub(super) context: u32,
    pub(super) tag: i32,
    pub(super) data: Source,
    pub(super) done: Arc<Completion>,
    /// The reason why the program gives the message up, if it does.
    pub(super) given_up: Option<Fail>,
}

/// Facts about a long message, as its sender tells them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Announcement {
    pub(super) bytes: usize,
    /// The sender's name for the message.
    pub(super) number: u64,
    /// Where the message lies in the sender's memory, if this rank may get it from there.
    pub(super) at: Option<u64>,
}

impl Announcement {
    /// Reads the words of an announcement.
    fn read(words: &[u8]) -> Option<Self> {
        let (number, bytes) = (word(words, 0)?, word(words, 1)?);
        Some(Self { bytes: usize::try_from(bytes).ok()?, number, at: word(words, 2) })
    }
}

/// Returns the word at an index.
fn word(words: &[u8], at: usize) -> Option<u64> {
    words.get(8 * at..8 * at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

/// The most words of an announcement or an answer.
pub(super) const WORDS: usize = 3;

/// The state of an operation posted at a transport. It stays at its address until the transport is done with it.
pub(super) struct Slot {
    pub(super) piece: Piece,
    words: [u64; WORDS],
    kept: Vec<u8>,
    /// The elements that a message is packed from, or unpacked into.
    pub(super) elements: Option<Elements>,
    pub(super) op: Op,
}

/// The way in which the next head of a peer is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// The transport has been asked to report it.
    Watched,
    /// A receive is posted for it.
    Taken,
    /// A thread looks for it.
    Sought,
    /// A thread has looked for it. The next poll asks the transport to report it.
    Resting,
}

// SAFETY: the pieces name memory of the slot itself, or memory that the program has lent to the operation.
unsafe impl Send for Slot {}

impl Slot {
    /// Names the memory for `len` bytes: the receive's, or memory of the slot itself.
    pub(super) fn receive_to(&mut self, sink: Option<&Sink>, len: usize) {
        let ptr = match sink {
            Some(Sink::Flat { ptr, .. }) => *ptr,
            Some(Sink::Typed(elements)) => {
                self.elements = Some(elements.clone());
                std::ptr::null_mut()
            }
            None => {
                self.kept.clear();
                self.kept.resize(len, 0);
                self.kept.as_mut_ptr()
            }
        };
        self.piece = Piece { ptr, len };
    }

    /// Returns the memory that [`Slot::receive_to`] has named.
    pub(super) fn place(&self) -> Place<'_> {
        match &self.elements {
            Some(elements) => Place::Consume { len: self.piece.len, consumer: elements.consumer() },
            None => Place::Place(std::slice::from_ref(&self.piece)),
        }
    }

    /// Names the data of a message.
    pub(super) fn send_from(&mut self, data: &Source) {
        (self.piece, self.elements) = (data.piece(), data.elements().cloned());
    }

    /// Posts the message whose data [`Slot::send_from`] has named.
    ///
    /// # Safety
    /// The slot is boxed, and neither it nor the memory that it names changes until its token comes back.
    pub(super) unsafe fn post(
        &self,
        end: &mut dyn Endpoint,
        on: Channel,
        envelope: u64,
        token: Token,
    ) -> Result<Posted, Error> {
        // SAFETY: the caller's promise.
        unsafe {
            match &self.elements {
                Some(from) => end.post_send_packed(on, envelope, self.piece.len, from.packer(), token),
                None => end.post_send(on, envelope, std::slice::from_ref(&self.piece), token),
            }
        }
    }
}

pub(super) enum Op {
    Idle,
    /// An operation whose end nothing waits for.
    Quiet,
    Send {
        to: u32,
        done: Arc<Completion>,
        data: Source,
    },
    Head {
        from: u32,
        envelope: u64,
        recv: Option<Recv>,
        bytes: usize,
    },
    Bytes {
        recv: Recv,
        source: u32,
        tag: i32,
        total: usize,
        /// The message's number, if this rank gets it from its sender's memory.
        got: Option<u64>,
    },
    Direct(Direct),
}

impl Op {
    /// Returns the peer if this operation moves the message of `done`.
    pub(super) fn peer_of(&self, done: &Arc<Completion>) -> Option<u32> {
        let (peer, own) = match self {
            Self::Head { recv: Some(recv), from, .. } => (from, &recv.done),
            Self::Bytes { recv, source, .. } => (source, &recv.done),
            Self::Send { to, done, .. } => (to, done),
            _ => return None,
        };
        Arc::ptr_eq(own, done).then_some(*peer)
    }
}

/// Makes the failure of a message that the transport could not carry.
pub(super) fn broken(peer: u32, why: &str) -> Fail {
    let text = format!("a message between this rank and rank {peer} of the world failed: {why}");
    Fail::new(Class::ProcFailed, text)
}

/// The reason for the failure of a receive whose message does not come.
pub(super) const GIVEN_UP: &str = "its sender has given it up";

const NO_PIECE: Piece = Piece { ptr: std::ptr::null_mut(), len: 0 };

impl Net {
    /// Sends. With `asks`, the receiver answers first, so that the send completes only when a receive has matched it.
    pub fn send(
        &mut self,
        to: u32,
        context: u32,
        tag: i32,
        data: Source,
        asks: bool,
        done: &Arc<Completion>,
    ) {
        PENDING.fetch_add(1, Ordering::Relaxed);
        self.counters.sent += 1;
        self.counters.sent_bytes += data.len() as u64;
        if to == self.rank {
            return self.send_home(context, tag, data, asks, done);
        }
        if let Some(why) = &self.lost[to as usize] {
            let error = Fail::new(Class::ProcFailed, why);
            return self.finish(done, Finished::failed(to, tag, error));
        }
        if !asks && self.send_now(to, envelope(WHOLE, context, tag), &data) {
            return self.finish(done, Finished::sent());
        }
        if asks || self.is_announced(to, data.len()) {
            let (piece, data_is_flat) = (data.piece(), data.elements().is_none());
            let number = self.park(to, (context, tag), data, done);
            let words = [number, piece.len as u64, piece.ptr.expose_provenance() as u64];
            let count = if data_is_flat && self.exposes(to) { 3 } else { 2 };
            self.post_words(to, HEADS, envelope(ANNOUNCED, context, tag), &words[..count]);
        } else {
            let op = Op::Send { to, done: Arc::clone(done), data };
            self.post_send(to, HEADS, envelope(WHOLE, context, tag), op);
        }
    }

    /// Sends a message for a window. The result completes when the message has left; `None` if this rank has handled it.
    pub fn send_to_window(&mut self, to: u32, message: Vec<u8>) -> Option<Arc<Completion>> {
        if to == self.rank {
            if let Some(handle) = self.on_window {
                handle(self, to, &message);
            }
            return None;
        }
        let done = Completion::new();
        PENDING.fetch_add(1, Ordering::Relaxed);
        let op = Op::Send { to, done: Arc::clone(&done), data: Source::Staged(message.into()) };
        self.post_send(to, HEADS, envelope(WINDOW, 0, 0), op);
        Some(done)
    }

    fn send_home(&mut self, context: u32, tag: i32, data: Source, asks: bool, done: &Arc<Completion>) {
        let (rank, mut data) = (self.rank, data);
        if let Some(recv) = self.boxes.entry(context).or_default().take_posted(rank, tag) {
            data.with_bytes(|bytes| recv.sink.put(bytes));
            self.received(&recv, rank, tag, data.len());
            return self.finish(done, Finished::sent());
        }
        let body = if asks || data.len() > EAGER_BYTES {
            let bytes = data.len();
            let number = self.park(rank, (context, tag), data, done);
            Body::Announced(Announcement { bytes, number, at: None })
        } else {
            let bytes = data.with_bytes(<[u8]>::to_vec);
            self.finish(done, Finished::sent());
            Body::Whole(bytes)
        };
        self.boxes.entry(context).or_default().keep(Unexpected { source: rank, tag, body });
        self.counters.unexpected += 1;
    }

    fn park(&mut self, to: u32, (context, tag): (u32, i32), data: Source, done: &Arc<Completion>) -> u64 {
        self.next_parked += 1;
        let parked = Parked { to, context, tag, data, done: Arc::clone(done), given_up: None };
        self.parked.insert(self.next_parked, parked);
        self.next_parked
    }

    /// Handles a receiver's answer: sends the data that it asks for. If this rank has given the message up, an empty one ends the
    /// receive, which it does not fit.
    fn answered(&mut self, to: u32, number: u64, wanted: u64) {
        let tag = (number & 0xff_ffff) as i32;
        let Some(parked) = self.parked.remove(&number) else {
            if self.withheld.remove(&number).is_some() && wanted > 0 {
                self.post_words(to, BYTES, envelope(CANCELLED, 0, tag), &[]);
            }
            return;
        };
        let Parked { mut data, done, .. } = parked;
        if wanted == 0 {
            return self.finish(&done, Finished::sent());
        }
        data.truncate(wanted as usize);
        self.post_send(to, BYTES, envelope(WHOLE, 0, tag), Op::Send { to, done, data });
    }

    /// Sends a short message at once, if nothing stands in the way.
    pub(super) fn send_now(&mut self, to: u32, envelope: u64, data: &Source) -> bool {
        let Some(via) = self.via[to as usize] else { return false };
        let on = Channel { peer: to, index: HEADS };
        let Some(elements) = data.elements() else {
            // SAFETY: the program has lent the memory to this send, or it is a copy. Test: `messages`.
            return unsafe { self.ends[via].send_short(on, envelope, data.piece()) };
        };
        let len = data.len();
        if len > self.packed.len() {
            return false;
        }
        let ptr = self.packed.as_mut_ptr();
        // SAFETY: the program has lent the elements, and there is room for their bytes. Test: `typed_messages`.
        unsafe {
            elements.of.pack_range(elements.ptr, elements.count, 0..len, ptr);
            self.ends[via].send_short(on, envelope, Piece { ptr, len })
        }
    }

    pub(super) fn watch(&mut self, peer: u32) {
        if let Some(via) = self.via[peer as usize] {
            // The result is ignored, since the transport reports the loss of a peer itself.
            let _ = self.ends[via].probe(Channel { peer, index: HEADS });
            self.heads[peer as usize] = Head::Watched;
        }
    }

    /// Takes a head that waits on its channel.
    pub(super) fn arrived(&mut self, head: Envelope) {
        let Envelope { on, tag: bits, len } = head;
        let (from, bytes) = (on.peer, len as usize);
        if !may_come(bits >> 61, bytes) {
            return self.reject(from, &format!("it has sent a head of {bytes} bytes, which no rank sends"));
        }
        let mut recv = None;
        if bits >> 61 == WHOLE
            && let Some(mailbox) = self.boxes.get_mut(&context_of(bits))
        {
            recv = mailbox.take_posted(from, tag_of(bits));
        }
        let sink = recv.as_ref().filter(|recv| bytes <= recv.sink.room()).map(|recv| recv.sink.clone());
        self.heads[from as usize] = Head::Taken;
        if bytes <= SHORT_BYTES {
            let mut kept = if sink.is_none() { vec![0; bytes] } else { Vec::new() };
            let own = Sink::Flat { ptr: kept.as_mut_ptr(), room: bytes };
            let fits = Fits { tag: bits, mask: u64::MAX, room: bytes };
            if matches!(self.look(from, fits, sink.as_ref().unwrap_or(&own)), Short::Taken { .. }) {
                self.took(from, bits, recv, bytes, kept);
                return self.watch(from);
            }
        }
        let op = Op::Head { from, envelope: bits, recv, bytes };
        self.post_recv(from, HEADS, bits, op, sink.as_ref(), bytes);
    }

    /// Takes a head if it is there and fits.
    pub(super) fn look(&mut self, from: u32, fits: Fits, sink: &Sink) -> Short {
        let Some(via) = self.via[from as usize] else { return Short::Other };
        let on = Channel { peer: from, index: HEADS };
        // SAFETY: the callers' memory is as long as `fits` says: a receive's, which the program has lent, or their own. Test:
        // `messages`.
        unsafe {
            match sink {
                Sink::Flat { ptr, .. } => self.ends[via].take_short(on, fits, *ptr),
                Sink::Typed(elements) => self.ends[via].consume_short(on, fits, elements.consumer()),
            }
        }
    }

    /// Returns whether the transport packs messages to a peer.
    pub(super) fn packs(&self, to: u32) -> bool {
        self.via[to as usize].is_none_or(|via| self.ends[via].caps().can_pack)
    }

    pub(super) fn slot(&mut self, op: Op) -> u32 {
        if let Some(at) = self.free.pop() {
            self.slots[at as usize].op = op;
            return at;
        }
        let (words, kept, elements) = ([0; WORDS], Vec::new(), None);
        self.slots.push(Box::new(Slot { piece: NO_PIECE, words, kept, elements, op }));
        self.slots.len() as u32 - 1
    }

    pub(super) fn post_words(&mut self, to: u32, index: u16, envelope: u64, words: &[u64]) {
        let at = self.slot(Op::Quiet);
        let slot = &mut self.slots[at as usize];
        slot.words[..words.len()].copy_from_slice(words);
        slot.piece = Piece { ptr: slot.words.as_mut_ptr().cast(), len: size_of_val(words) };
        self.post(to, index, envelope, at);
    }

    fn post_send(&mut self, to: u32, index: u16, envelope: u64, op: Op) {
        let mut op = op;
        let packs = self.packs(to);
        if let Op::Send { data, .. } = &mut op
            && !packs
        {
            data.stage();
        }
        let at = self.slot(op);
        let slot = &mut *self.slots[at as usize];
        let Slot { piece, elements, op, .. } = slot;
        if let Op::Send { data, .. } = op {
            (*piece, *elements) = (data.piece(), data.elements().cloned());
        }
        self.post(to, index, envelope, at);
    }

    fn post(&mut self, to: u32, index: u16, envelope: u64, at: u32) {
        let Some(via) = self.via[to as usize] else { return self.failed(at, "MPI has been finalized") };
        let slot = &self.slots[at as usize];
        let (on, token) = (Channel { peer: to, index }, Token(at.into()));
        // SAFETY: the slot is boxed, and neither it nor the memory that it names changes until its token comes back.
        let posted = unsafe { slot.post(&mut *self.ends[via], on, envelope, token) };
        self.settle(at, posted);
    }

    pub(super) fn post_recv(
        &mut self,
        from: u32,
        index: u16,
        envelope: u64,
        op: Op,
        sink: Option<&Sink>,
        len: usize,
    ) {
        let at = self.slot(op);
        let Some(via) = self.via[from as usize] else { return self.failed(at, "MPI has been finalized") };
        let slot = &mut self.slots[at as usize];
        if sink.is_none() {
            let Some(kept) = staging::reserve(len) else {
                let why = format!("this rank has no memory for its message of {len} bytes");
                self.failed(at, &why);
                return self.reject(from, &why);
            };
            slot.kept = kept;
        }
        slot.receive_to(sink, len);
        let (on, token) = (Channel { peer: from, index }, Token(at.into()));
        // SAFETY: as above; the piece is the slot's own memory, or the receive's, with room for `len` bytes.
        let posted = unsafe { self.ends[via].post_recv(on, envelope, slot.place(), OnMisfit::Fail, token) };
        self.settle(at, posted);
    }

    pub(super) fn settle(&mut self, at: u32, posted: Result<Posted, Error>) {
        match posted {
            Ok(Posted::Done) => self.done(at),
            Ok(Posted::Pending) => {}
            Err(error) => self.failed(at, &error.to_string()),
        }
    }

    /// Frees a slot; returns its operation and its memory.
    pub(super) fn leave(&mut self, at: u32) -> (Op, Vec<u8>) {
        let slot = &mut self.slots[at as usize];
        self.free.push(at);
        slot.elements = None;
        (std::mem::replace(&mut slot.op, Op::Idle), std::mem::take(&mut slot.kept))
    }

    pub(super) fn done(&mut self, at: u32) {
        if matches!(self.slots[at as usize].op, Op::Direct(_)) {
            return self.direct_here(at);
        }
        match self.leave(at) {
            (Op::Idle | Op::Quiet | Op::Direct(_), _) => {}
            (Op::Send { done, .. }, _) => self.finish(&done, Finished::sent()),
            (Op::Bytes { recv, source, tag, total, got }, _) => {
                if let Some(number) = got {
                    self.post_words(source, HEADS, envelope(ANSWER, 0, 0), &[number, 0]);
                }
                self.received(&recv, source, tag, total);
            }
            (Op::Head { from, envelope, recv, bytes }, kept) => {
                self.took(from, envelope, recv, bytes, kept);
                self.watch(from);
            }
        }
    }

    /// Handles a head that has been received.
    fn took(&mut self, from: u32, envelope: u64, recv: Option<Recv>, bytes: usize, kept: Vec<u8>) {
        let tag = tag_of(envelope);
        if let Some(recv) = recv {
            // Nothing is kept of a message that went to its place.
            recv.sink.put(&kept);
            return self.received(&recv, from, tag, bytes);
        }
        let body = match envelope >> 61 {
            WHOLE => Body::Whole(kept),
            ANNOUNCED => match Announcement::read(&kept) {
                Some(announcement) => Body::Announced(announcement),
                None => return,
            },
            ANSWER => {
                let (Some(number), Some(wanted)) = (word(&kept, 0), word(&kept, 1)) else { return };
                return self.answered(from, number, wanted);
            }
            CANCEL => return word(&kept, 0).map_or((), |number| self.withdraw(from, number)),
            CANCELLED => return word(&kept, 0).map_or((), |number| self.withdrawn(number)),
            _ => {
                if let Some(handle) = self.on_window {
                    handle(self, from, &kept);
                }
                return staging::recycle(kept);
            }
        };
        let message = Unexpected { source: from, tag, body };
        let mailbox = self.boxes.entry(context_of(envelope)).or_default();
        match mailbox.take_posted(from, tag) {
            Some(recv) => self.deliver(message, recv),
            None => {
                mailbox.keep(message);
                self.counters.unexpected += 1;
            }
        }
    }

    pub(super) fn failed(&mut self, at: u32, why: &str) {
        if self.direct_failed(at, why) {
            return;
        }
        let failure = |peer: u32| Finished::failed(peer, 0, broken(peer, why));
        match self.leave(at).0 {
            Op::Send { done, to, .. } => self.finish(&done, failure(to)),
            Op::Head { recv: Some(recv), from: source, .. } | Op::Bytes { recv, source, .. } => {
                self.finish(&recv.done, failure(source));
            }
            Op::Idle | Op::Quiet | Op::Head { .. } | Op::Direct(_) => {}
        }
    }

    /// Gives up on a peer: the transport no longer writes anything that the peer sends.
    pub(crate) fn abandon(&mut self, peer: u32, why: &str) {
        let Some(via) = self.via[peer as usize] else { return };
        let cause = Error::new(ErrorKind::Aborted, "mpi", Some(peer), why);
        let mut events = Vec::new();
        self.ends[via].abandon(peer, &cause, &mut events);
        events.into_iter().for_each(|event| self.happened(event));
        self.lose(peer, why);
    }
}
