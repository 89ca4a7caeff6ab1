//! Matching of messages and receives: by context, source and tag, in the order of posting.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::body::{Completion, Finished, Recv, Sink};
use super::{Net, PENDING, wire};
use crate::error::{Class, Fail};
use crate::staging;

/// The posted receives and the unexpected messages of one context.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    pub(super) posted: VecDeque<Recv>,
    unexpected: VecDeque<Unexpected>,
}

#[derive(Debug)]
pub(super) struct Unexpected {
    pub(super) source: u32,
    pub(super) tag: i32,
    pub(super) body: Body,
}

/// The part of an unexpected message that has arrived.
#[derive(Debug)]
pub(super) enum Body {
    /// The whole message.
    Whole(Vec<u8>),
    /// The announcement only. The message waits at its sender.
    Announced(wire::Announcement),
}

impl Body {
    fn bytes(&self) -> usize {
        match self {
            Self::Whole(data) => data.len(),
            Self::Announced(announcement) => announcement.bytes,
        }
    }
}

/// The context, the source and the tag of a message for which a probe waits; `None` for any.
pub type Wanted = (u32, Option<u32>, Option<i32>);

/// A message that a probe has found.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// World rank of the sender.
    pub source: u32,
    /// Tag.
    pub tag: i32,
    /// Length in bytes.
    pub bytes: usize,
}

/// A message that a matching probe has taken out of the queue.
#[derive(Debug)]
pub struct Claimed(Unexpected);

impl Claimed {
    /// Returns the envelope of the message.
    #[must_use]
    pub fn found(&self) -> Found {
        Found { source: self.0.source, tag: self.0.tag, bytes: self.0.body.bytes() }
    }
}

impl Mailbox {
    pub(super) fn lengths(&self) -> (u64, u64) {
        (self.posted.len() as u64, self.unexpected.len() as u64)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.posted.is_empty() && self.unexpected.is_empty()
    }

    pub(super) fn take_posted(&mut self, source: u32, tag: i32) -> Option<Recv> {
        let at = self.posted.iter().position(|recv| recv.takes(source, tag))?;
        self.posted.remove(at)
    }

    /// Removes a receive that no message has matched. Returns whether it was there.
    pub(super) fn remove_posted(&mut self, done: &Arc<Completion>) -> bool {
        let found = self.posted.iter().position(|recv| Arc::ptr_eq(&recv.done, done));
        found.is_some_and(|at| self.posted.remove(at).is_some())
    }

    /// Returns whether there is a message that a receive would match, or an earlier receive that would match such messages first.
    pub(super) fn has_for(&self, source: u32, tag: Option<i32>) -> bool {
        let meets = |recv: &Recv| {
            tag.map_or(recv.source.is_none_or(|from| from == source), |tag| recv.takes(source, tag))
        };
        self.posted.iter().any(meets) || self.find(Some(source), tag).is_some()
    }

    pub(super) fn keep(&mut self, message: Unexpected) {
        self.unexpected.push_back(message);
    }

    /// Removes the announcement of a message that no receive has matched. Returns whether it was there.
    pub(super) fn remove_announced(&mut self, source: u32, number: u64) -> bool {
        let is_it = |message: &Unexpected| {
            message.source == source
                && matches!(&message.body, Body::Announced(announcement) if announcement.number == number)
        };
        let found = self.unexpected.iter().position(is_it);
        found.is_some_and(|at| self.unexpected.remove(at).is_some())
    }

    /// Returns the messages that no receive has matched.
    pub(super) fn unmatched(&self) -> impl Iterator<Item = Found> {
        let found = |it: &Unexpected| Found { source: it.source, tag: it.tag, bytes: it.body.bytes() };
        self.unexpected.iter().map(found)
    }

    fn find(&self, source: Option<u32>, tag: Option<i32>) -> Option<usize> {
        self.unexpected.iter().position(|message| {
            source.is_none_or(|wanted| wanted == message.source)
                && tag.is_none_or(|wanted| wanted == message.tag)
        })
    }
}

/// Returns why a message of so many bytes does not fit a receive.
#[inline]
pub(super) fn misfit(sink: &Sink, source: u32, tag: i32, bytes: usize) -> Option<Fail> {
    let room = sink.room();
    let message = || format!("{bytes} bytes from rank {source} of the world with tag {tag}");
    if bytes > room {
        Some(Fail::new(Class::Truncate, format!("{}, but room for only {room}", message())))
    } else if sink.ends_within_value(bytes) {
        let text = format!("{} end within a value of the receive's type", message());
        Some(Fail::new(Class::Type, text))
    } else {
        None
    }
}

impl Net {
    /// Posts a receive.
    pub fn recv(&mut self, context: u32, recv: Recv) {
        PENDING.fetch_add(1, Ordering::Relaxed);
        let mailbox = self.boxes.entry(context).or_default();
        let found = mailbox.find(recv.source, recv.tag).and_then(|at| mailbox.unexpected.remove(at));
        if let Some(message) = found {
            return self.deliver(message, recv);
        }
        if let Some(source) = recv.source
            && let Some(why) = &self.lost[source as usize]
        {
            let error = Fail::new(Class::ProcFailed, why);
            return self.finish(&recv.done, Finished::failed(source, 0, error));
        }
        mailbox.posted.push_back(recv);
    }

    /// Receives a claimed message.
    pub fn recv_claimed(&mut self, claimed: Claimed, recv: Recv) {
        PENDING.fetch_add(1, Ordering::Relaxed);
        self.deliver(claimed.0, recv);
    }

    /// Returns a matching message's envelope, if there is such a message.
    #[must_use]
    pub fn probe(&self, context: u32, source: Option<u32>, tag: Option<i32>) -> Option<Found> {
        let mailbox = self.boxes.get(&context)?;
        let message = &mailbox.unexpected[mailbox.find(source, tag)?];
        Some(Found { source: message.source, tag: message.tag, bytes: message.body.bytes() })
    }

    /// Takes a matching message out of the queue, if there is one.
    pub fn claim(&mut self, context: u32, source: Option<u32>, tag: Option<i32>) -> Option<Claimed> {
        let mailbox = self.boxes.get_mut(&context)?;
        let at = mailbox.find(source, tag)?;
        mailbox.unexpected.remove(at).map(Claimed)
    }

    /// Delivers a message to the receive that it matches.
    pub(super) fn deliver(&mut self, message: Unexpected, recv: Recv) {
        let Unexpected { source, tag, body } = message;
        match body {
            Body::Whole(data) => {
                recv.sink.put(&data);
                self.received(&recv, source, tag, data.len());
                staging::recycle(data);
            }
            Body::Announced(announcement) => self.answer(recv, source, tag, announcement),
        }
    }

    /// Completes a receive whose message is in place.
    pub(super) fn received(&mut self, recv: &Recv, source: u32, tag: i32, bytes: usize) {
        let room = recv.sink.room();
        self.fitting[source as usize] = bytes == room;
        self.counters.received += 1;
        self.counters.received_bytes += bytes as u64;
        let error = misfit(&recv.sink, source, tag, bytes);
        let finished = Finished { source, tag, bytes: bytes.min(room), error, cancelled: false };
        self.finish(&recv.done, finished);
    }

    pub(super) fn finish(&mut self, done: &Arc<Completion>, finished: Finished) {
        PENDING.fetch_sub(1, Ordering::Relaxed);
        done.set(finished);
    }

    /// Marks a rank as lost, and fails the operations that wait for it.
    pub(super) fn lose(&mut self, peer: u32, why: &str) {
        self.lost[peer as usize] = Some(why.into());
        self.withheld.retain(|_, to| *to != peer);
        let mut ended = Vec::new();
        for mailbox in self.boxes.values_mut() {
            let (gone, rest) = std::mem::take(&mut mailbox.posted)
                .into_iter()
                .partition(|recv| recv.source.is_none_or(|source| source == peer));
            mailbox.posted = rest;
            ended.push(gone);
        }
        for recv in ended.into_iter().flatten() {
            self.finish(&recv.done, Finished::failed(peer, 0, Fail::new(Class::ProcFailed, why)));
        }
        let waiting: Vec<u64> =
            self.parked.iter().filter(|(_, parked)| parked.to == peer).map(|(id, _)| *id).collect();
        for number in waiting {
            if let Some(parked) = self.parked.remove(&number) {
                self.finish(&parked.done, Finished::failed(peer, 0, Fail::new(Class::ProcFailed, why)));
            }
        }
    }
}
