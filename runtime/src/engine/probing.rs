//! Probes: describe a waiting message without taking it.
//!
//! A probe is a transfer without memory. It sees messages that no receive has asked for: a message that is buffered, is
//! being buffered, waits at the head of a stream, or was sent by this rank to itself. The message stays where it is.
//! While a probe waits, the streams on which nothing is posted are probed at their transports, as for a receive from
//! any source.

use std::ops::RangeInclusive;

use kolo_transport::{Error, Piece};

use super::links::Links;
use super::matching::label;
use super::transfers::{ANY_SOURCE, Transfers};

/// Labels that a probe looks for.
pub(crate) type Labels = RangeInclusive<u32>;

/// A message that a probe has found.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Found {
    pub(crate) source: u32,
    pub(crate) tag: u64,
    pub(crate) bytes: usize,
}

impl Transfers {
    /// Starts a probe.
    pub(super) fn start_probe(&mut self, slot: u16, links: &mut Links) -> Result<(), Error> {
        if self.answer(slot) {
            return Ok(());
        }
        self.probes.push(slot);
        for peer in 0..self.inboxes.len() as u32 {
            if self.is_sought(peer) {
                self.look_at(peer);
            }
        }
        self.settle(links)
    }

    /// Returns whether a probe waits for messages of a rank.
    pub(super) fn is_sought(&self, peer: u32) -> bool {
        self.probes.iter().any(|slot| [peer, ANY_SOURCE].contains(&self.slots[*slot as usize].peer))
    }

    /// Answers the probes that can be answered, since something new may wait.
    pub(super) fn answer_probes(&mut self) {
        let mut waiting = std::mem::take(&mut self.probes);
        waiting.retain(|slot| !self.answer(*slot));
        self.probes = waiting;
    }

    /// Withdraws a probe. Streams stay probed at their transports until a message comes.
    pub(crate) fn withdraw_probe(&mut self, slot: u16) {
        self.probes.retain(|other| *other != slot);
        drop(self.finish(slot));
    }

    /// Returns the message that a probe has found.
    pub(crate) fn found(&self, slot: u16) -> Found {
        let transfer = &self.slots[slot as usize];
        Found { source: transfer.peer, tag: transfer.tag, bytes: transfer.piece.get().len }
    }

    /// Ends a probe if a message that it looks for waits: the oldest buffered one, or else the next one of some rank.
    fn answer(&mut self, slot: u16) -> bool {
        let transfer = &self.slots[slot as usize];
        let Some(labels) = &transfer.labels else { return false };
        let fits = |tag: u64| labels.contains(&label(tag));
        let ranks = match transfer.peer {
            ANY_SOURCE => 0..self.inboxes.len() as u32,
            peer => peer..peer + 1,
        };
        let stored = ranks.clone().filter_map(|rank| {
            let found = self.inboxes[rank as usize].stored.iter().find(|stored| fits(stored.tag))?;
            Some((found.arrival, (rank, found.tag, found.len())))
        });
        let oldest = stored.min_by_key(|(arrival, _)| *arrival).map(|(_, found)| found);
        let next = || {
            ranks.clone().find_map(|rank| {
                let inbox = &self.inboxes[rank as usize];
                let arriving =
                    inbox.storing.as_ref().filter(|stored| stored.claimed.is_none() && fits(stored.tag));
                // A head that has just come may not have been matched yet.
                let is_free = |tag: u64| fits(tag) && !self.is_wanted(rank, tag);
                let head = inbox.head.as_ref().filter(|head| is_free(head.tag));
                arriving.map(|stored| (rank, stored.tag, stored.len())).or_else(|| {
                    head.map(|head| (rank, head.tag, usize::try_from(head.len).unwrap_or(usize::MAX)))
                })
            })
        };
        let own = || {
            let sent = self.sends_to_self.iter().map(|send| &self.slots[*send as usize]);
            let mut sent = sent.filter(|send| ranks.contains(&self.rank) && fits(send.tag));
            sent.next().map(|send| (self.rank, send.tag, send.piece.get().len))
        };
        let Some((source, tag, len)) = oldest.or_else(next).or_else(own) else { return false };
        let transfer = &mut self.slots[slot as usize];
        (transfer.peer, transfer.tag) = (source, tag);
        transfer.piece.set(Piece { ptr: std::ptr::null_mut(), len });
        self.completed(slot);
        true
    }
}
