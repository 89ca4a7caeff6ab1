//! Decides which receive gets which message.
//!
//! # The rule
//! The rule is that of MPI (MPI-4.1, 3.5): a receive names a source, or any source, and a label, the lower half of the
//! tag. Messages of one rank are examined in the order in which they were sent, and each goes to the earliest receive
//! that names its source and label. Only then are type (the upper half of the tag) and length compared; a difference is
//! an error.
//!
//! # How
//! A transport's channel knows neither labels nor sources, only a next message. Receives are therefore posted there in
//! the order of the calls, on condition that they fit. In this usual case no message is examined twice, and each lands
//! in its place. If another message comes, the receives come back and the message waits (rule 9 of the transport). It
//! goes to the first receive that it fits. If there is none, it is buffered ([`super::unexpected`]), as far as the
//! limit permits, so that the message behind it can be examined.
//!
//! A receive from any source is not posted: while there is one, the streams on which nothing is posted are probed. A
//! receive that names its source is not posted while an earlier one from any source might take the same message.

use kolo_transport::{Channel, Endpoint, Envelope, Error, ErrorKind, OnMisfit, Sink};

use super::links::Links;
use super::token::{Kind, Name};
use super::transfers::{ANY_SOURCE, TRANSFER_CHANNEL, Transfers, misfit};
use super::unexpected::Stored;

/// Returns the caller's label, by which messages are matched. The rest of a tag stands for type and communicator.
pub(crate) const fn label(tag: u64) -> u32 {
    tag as u32
}

/// Position of a waiting receive.
#[derive(Clone, Copy, Debug)]
enum Place {
    Inbox(usize),
    Anyone(usize),
}

impl Transfers {
    /// Starts a receive.
    pub(super) fn start_recv(&mut self, slot: u16, links: &mut Links) -> Result<(), Error> {
        let peer = self.slots[slot as usize].peer;
        if peer == ANY_SOURCE {
            return self.start_recv_any(slot, links);
        }
        let inbox = &mut self.inboxes[peer as usize];
        if peer == self.rank {
            inbox.waiting.push_back(slot);
            return self.match_self();
        }
        if inbox.is_plain() && self.anyone.is_empty() {
            return self.post(slot, peer, OnMisfit::Return, links);
        }
        if !self.take_stored(peer, slot)? {
            self.inboxes[peer as usize].waiting.push_back(slot);
            self.look_at(peer);
        }
        self.settle(links)
    }

    fn start_recv_any(&mut self, slot: u16, links: &mut Links) -> Result<(), Error> {
        let tag = self.slots[slot as usize].tag;
        let first_of = |inbox: &super::inbox::Inbox| {
            inbox.stored.iter().find(|stored| label(stored.tag) == label(tag)).map(|stored| stored.arrival)
        };
        let oldest = (0..self.inboxes.len())
            .filter_map(|peer| first_of(&self.inboxes[peer]).map(|arrival| (arrival, peer as u32)))
            .min();
        if let Some((_, peer)) = oldest {
            self.slots[slot as usize].peer = peer;
            self.take_stored(peer, slot)?;
            return self.settle(links);
        }
        let arriving = (0..self.inboxes.len()).find(|peer| {
            let storing = &self.inboxes[*peer].storing;
            storing.as_ref().is_some_and(|s| s.claimed.is_none() && label(s.tag) == label(tag))
        });
        if let Some(peer) = arriving {
            self.slots[slot as usize].peer = peer as u32;
            self.take_stored(peer as u32, slot)?;
            return self.settle(links);
        }
        self.anyone.push_back(slot);
        self.match_self()?;
        // Messages that already wait are taken before the next poll reports more, so one busy rank does not keep the
        // others out.
        for peer in 0..self.inboxes.len() as u32 {
            if self.anyone.is_empty() {
                break;
            }
            self.look_at(peer);
            self.settle(links)?;
        }
        Ok(())
    }

    /// Ends a posted receive from `peer`.
    #[inline]
    pub(super) fn received(&mut self, slot: u16) {
        let peer = self.slots[slot as usize].peer;
        self.completed(slot);
        self.one_less_posted(peer);
    }

    /// Handles an unexpected message that has fully arrived.
    pub(super) fn stored(&mut self, peer: u32) -> Result<(), Error> {
        let Some(mut stored) = self.inboxes[peer as usize].storing.take() else { return Ok(()) };
        match stored.claimed {
            Some(slot) => self.deliver(slot, &stored)?,
            None => {
                stored.arrival = self.allowance.arrival();
                self.inboxes[peer as usize].stored.push_back(stored);
            }
        }
        self.one_less_posted(peer);
        Ok(())
    }

    /// Handles a receive that has come back from the transport.
    pub(super) fn returned(&mut self, slot: u16) {
        let Some(peer) = self.slots.get(slot as usize).map(|transfer| transfer.peer) else { return };
        let order = self.slots[slot as usize].order;
        let slots = &self.slots;
        let Some(inbox) = self.inboxes.get_mut(peer as usize) else { return };
        let at = inbox.waiting.partition_point(|other| slots[*other as usize].order < order);
        inbox.waiting.insert(at, slot);
        inbox.posted -= 1;
        inbox.narrow = true;
        self.look_at(peer);
    }

    /// Notes that a message waits at the transport.
    pub(super) fn waits(&mut self, envelope: Envelope) {
        if let Some(inbox) = self.inboxes.get_mut(envelope.on.peer as usize) {
            inbox.head = Some(envelope);
            inbox.probed = false;
            self.look_at(envelope.on.peer);
        }
    }

    /// Attends to the streams on which something has happened.
    #[inline]
    pub(super) fn settle(&mut self, links: &mut Links) -> Result<(), Error> {
        while let Some(peer) = self.dirty.pop() {
            self.inboxes[peer as usize].dirty = false;
            self.attend(peer, links)?;
        }
        Ok(())
    }

    pub(super) fn look_at(&mut self, peer: u32) {
        let inbox = &mut self.inboxes[peer as usize];
        if !inbox.dirty && peer != self.rank {
            inbox.dirty = true;
            self.dirty.push(peer);
        }
    }

    #[inline]
    fn one_less_posted(&mut self, peer: u32) {
        let inbox = &mut self.inboxes[peer as usize];
        inbox.posted -= 1;
        if !self.anyone.is_empty() || !self.probes.is_empty() || inbox.narrow || !inbox.waiting.is_empty() {
            self.look_at(peer);
        }
    }

    /// Matches the message at the head of a rank's stream, and posts the receives that may be posted.
    fn attend(&mut self, peer: u32, links: &mut Links) -> Result<(), Error> {
        loop {
            if let Some(head) = self.inboxes[peer as usize].head {
                let Some(place) = self.find(peer, head.tag) else {
                    self.answer_probes();
                    if self.store(peer, head, links)? {
                        continue;
                    }
                    return Ok(());
                };
                let slot = self.remove(peer, place);
                let transfer = &mut self.slots[slot as usize];
                transfer.peer = peer;
                if transfer.tag != head.tag || transfer.piece.get().len as u64 != head.len {
                    return Err(misfit(peer, transfer.tag, transfer.piece.get().len, head.tag, head.len));
                }
                self.inboxes[peer as usize].head = None;
                self.post(slot, peer, OnMisfit::Fail, links)?;
                continue;
            }
            self.inboxes[peer as usize].calm_down();
            match self.next_to_post(peer) {
                Some(slot) => {
                    self.inboxes[peer as usize].waiting.pop_front();
                    self.post(slot, peer, OnMisfit::Return, links)?;
                }
                None => return self.probe(peer, links),
            }
        }
    }

    /// Returns the first receive of a rank that may be posted before its message is seen.
    fn next_to_post(&self, peer: u32) -> Option<u16> {
        let inbox = &self.inboxes[peer as usize];
        let slot = *inbox.waiting.front()?;
        let (order, tag) = (self.slots[slot as usize].order, self.slots[slot as usize].tag);
        let rivals = |other: &u16| {
            let other = &self.slots[*other as usize];
            other.order < order && label(other.tag) == label(tag)
        };
        let may = (!inbox.narrow || inbox.posted == 0) && !self.anyone.iter().any(rivals);
        may.then_some(slot)
    }

    /// Returns whether a receive takes a message of `peer`.
    pub(super) fn is_wanted(&self, peer: u32, tag: u64) -> bool {
        self.find(peer, tag).is_some()
    }

    /// Returns the earliest receive that takes a message of `peer`.
    fn find(&self, peer: u32, tag: u64) -> Option<Place> {
        let wants = |slot: &u16| label(self.slots[*slot as usize].tag) == label(tag);
        let order = |slot: u16| self.slots[slot as usize].order;
        let waiting = &self.inboxes[peer as usize].waiting;
        let named = waiting.iter().position(wants);
        let any = self.anyone.iter().position(wants);
        match (named, any) {
            (Some(named), Some(any)) if order(self.anyone[any]) < order(waiting[named]) => {
                Some(Place::Anyone(any))
            }
            (Some(named), _) => Some(Place::Inbox(named)),
            (None, any) => any.map(Place::Anyone),
        }
    }

    fn remove(&mut self, peer: u32, place: Place) -> u16 {
        let slot = match place {
            Place::Inbox(at) => self.inboxes[peer as usize].waiting.remove(at),
            Place::Anyone(at) => self.anyone.remove(at),
        };
        if let Place::Anyone(_) = place {
            // Receives that had to wait for this one may go on, and a probe that is not needed any more ends.
            for other in 0..self.inboxes.len() as u32 {
                let inbox = &self.inboxes[other as usize];
                if !inbox.waiting.is_empty() || (inbox.probed && self.anyone.is_empty()) {
                    self.look_at(other);
                }
            }
        }
        slot.expect("a position that was just found")
    }

    /// Buffers a message that no receive wants, if a receive waits for a message behind it and the limit permits.
    fn store(&mut self, peer: u32, head: Envelope, links: &mut Links) -> Result<bool, Error> {
        let waiting = &self.inboxes[peer as usize].waiting;
        if waiting.is_empty() && self.anyone.is_empty() && !self.is_sought(peer) {
            return Ok(false);
        }
        let Some(len) = self.allowance.take(head.len) else {
            self.held_up = true;
            return Ok(false);
        };
        let stored = Stored::new(head.tag, len);
        let pieces = stored.pieces();
        let on = Channel { peer, index: TRANSFER_CHANNEL };
        let token = Name::of_store(peer).token();
        // SAFETY: the list and its memory stay in place when their owner moves into the inbox, which keeps both until
        // the token completes. An engine drops its links before its transfers.
        let post = |endpoint: &mut dyn Endpoint| unsafe {
            endpoint.post_recv(on, head.tag, Sink::Place(pieces), OnMisfit::Fail, token)
        };
        let posted = links.endpoint(peer).and_then(post);
        match posted {
            Ok(posted) => {
                let inbox = &mut self.inboxes[peer as usize];
                inbox.head = None;
                inbox.posted += 1;
                inbox.storing = Some(stored);
                if posted == kolo_transport::Posted::Done {
                    self.stored(peer)?;
                }
                Ok(true)
            }
            Err(error) => {
                self.allowance.give_back(len);
                // A peer that has left takes its messages along. That ends a call only if the call wants one of them.
                let left =
                    error.kind == ErrorKind::PeerLost && self.inboxes[peer as usize].waiting.is_empty();
                if left { Ok(false) } else { Err(error) }
            }
        }
    }

    /// Starts or stops probing a stream, depending on whether a receive from any source may find something there.
    fn probe(&mut self, peer: u32, links: &mut Links) -> Result<(), Error> {
        let sought = self.is_sought(peer);
        let inbox = &mut self.inboxes[peer as usize];
        let on = Channel { peer, index: TRANSFER_CHANNEL };
        let wanted = (!self.anyone.is_empty() || sought) && inbox.posted == 0;
        if wanted == inbox.probed {
            return Ok(());
        }
        if !wanted {
            inbox.probed = false;
            // A post ends the probe by itself.
            if inbox.posted == 0
                && let Ok(endpoint) = links.endpoint(peer)
            {
                endpoint.cancel_probe(on);
            }
            return Ok(());
        }
        match links.endpoint(peer).and_then(|endpoint| endpoint.probe(on)) {
            Ok(()) => inbox.probed = true,
            // The other ranks may still send.
            Err(error) if error.kind == ErrorKind::PeerLost => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Gives a receive the first buffered message with its label, if there is one.
    fn take_stored(&mut self, peer: u32, slot: u16) -> Result<bool, Error> {
        let (tag, len) = (self.slots[slot as usize].tag, self.slots[slot as usize].piece.get().len);
        let inbox = &mut self.inboxes[peer as usize];
        let fits = |stored: &Stored| {
            if stored.tag == tag && stored.len() == len {
                return Ok(());
            }
            Err(misfit(peer, tag, len, stored.tag, stored.len() as u64))
        };
        if let Some(at) = inbox.stored.iter().position(|stored| label(stored.tag) == label(tag)) {
            fits(&inbox.stored[at])?;
            if let Some(stored) = inbox.stored.remove(at) {
                self.deliver(slot, &stored)?;
            }
            return Ok(true);
        }
        match &mut inbox.storing {
            Some(stored) if stored.claimed.is_none() && label(stored.tag) == label(tag) => {
                fits(stored)?;
                stored.claimed = Some(slot);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Copies a buffered message to its receive.
    fn deliver(&mut self, slot: u16, stored: &Stored) -> Result<(), Error> {
        let len = self.slots[slot as usize].piece.get().len;
        debug_assert_eq!(len, stored.len(), "compared when it was claimed");
        // SAFETY: the receive is not over, so its memory is valid by the promise to `start`, and it is as long as the
        // message.
        unsafe { self.put(slot, stored.bytes().as_ptr()) }?;
        self.allowance.give_back(len);
        self.completed(slot);
        if std::mem::take(&mut self.held_up) {
            for peer in 0..self.inboxes.len() as u32 {
                if self.inboxes[peer as usize].head.is_some() {
                    self.look_at(peer);
                }
            }
        }
        Ok(())
    }

    /// Posts a receive. It is conditional unless its message is known to fit.
    fn post(&mut self, slot: u16, peer: u32, on_misfit: OnMisfit, links: &mut Links) -> Result<(), Error> {
        let on = Channel { peer, index: TRANSFER_CHANNEL };
        let transfer = &self.slots[slot as usize];
        let token = transfer.name(slot, Kind::Recv).token();
        let sink = Sink::Place(transfer.piece.pieces());
        // SAFETY: the list stays in place and is not changed while posted; the memory is valid by the promise to
        // `start`.
        let posted = unsafe { links.endpoint(peer)?.post_recv(on, transfer.tag, sink, on_misfit, token) }?;
        let inbox = &mut self.inboxes[peer as usize];
        inbox.posted += 1;
        inbox.probed = false;
        if posted == kolo_transport::Posted::Done {
            self.received(slot);
        }
        Ok(())
    }

    /// Matches messages from this rank to itself.
    pub(super) fn match_self(&mut self) -> Result<(), Error> {
        let mut at = 0;
        while let Some(&send) = self.sends_to_self.get(at) {
            let Some(place) = self.find(self.rank, self.slots[send as usize].tag) else {
                at += 1;
                continue;
            };
            let recv = self.remove(self.rank, place);
            self.slots[recv as usize].peer = self.rank;
            let (from, to) = (&self.slots[send as usize], &self.slots[recv as usize]);
            if from.piece.get().len != to.piece.get().len || from.tag != to.tag {
                return Err(misfit(
                    self.rank,
                    to.tag,
                    to.piece.get().len,
                    from.tag,
                    from.piece.get().len as u64,
                ));
            }
            let from = from.piece.get().ptr.cast_const();
            // SAFETY: both are valid by the promise to `start`, and a message to oneself is in host memory.
            unsafe { self.put(recv, from) }?;
            self.sends_to_self.remove(at);
            self.completed(send);
            self.completed(recv);
        }
        Ok(())
    }
}
