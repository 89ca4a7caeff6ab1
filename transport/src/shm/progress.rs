//! Progress: moving pieces, and waking those who wait for them.

use std::sync::atomic::{Ordering, fence};

use super::arena::Wake;
use super::endpoint::ShmEndpoint;
use super::establish::NAME;
use super::peer::Peer;
use crate::endpoint::{Event, Token};
use crate::error::{Error, ErrorKind};
use crate::sys::unix;

/// Passes of one poll before sleeping: as many as it takes to empty or fill a ring of many short pieces.
const PASSES_BEFORE_SLEEP: usize = 64;

impl ShmEndpoint {
    /// Looks at a peer's doorbell after something was published for it or freed.
    #[inline]
    pub(super) fn ring_doorbell(&self, peer: usize) {
        fence(Ordering::SeqCst);
        self.ring_doorbell_after_fence(peer);
    }

    #[inline]
    fn ring_doorbell_after_fence(&self, peer: usize) {
        let Some(arena) = &self.arena else { return };
        if arena.wake(self.peers[peer].member) == Wake::Nudge {
            self.nudge(peer);
        }
    }

    /// Wakes a peer that sleeps on its descriptors. If its socket is full, it is awake; if it is gone, its stream
    /// tells.
    #[cold]
    fn nudge(&self, peer: usize) {
        let _ = unix::nudge(&self.bell, &self.peers[peer].bell_name);
    }

    /// Tells a peer to look at its sockets.
    pub(super) fn send_mail(&self, peer: usize) {
        if let Some(arena) = &self.arena {
            arena.mail(self.peers[peer].member).fetch_add(1, Ordering::Release);
            self.ring_doorbell(peer);
        }
    }

    fn mark_dirty(dirty: &mut Vec<u32>, peers: &mut [Peer], peer: usize) {
        if !peers[peer].is_dirty {
            peers[peer].is_dirty = true;
            dirty.push(peer as u32);
        }
    }

    /// Moves all that can be moved: the owner sleeps after this poll, whatever it brought, and nobody wakes it for what
    /// was there before. If peers keep pace, this end is woken instead.
    pub(super) fn pass_before_sleep(&mut self, events: &mut Vec<Event>) -> bool {
        let mut any = false;
        for _ in 0..PASSES_BEFORE_SLEEP {
            if !self.pass(events) {
                return any;
            }
            any = true;
        }
        if let Some(arena) = &self.arena
            && arena.wake(self.member) == Wake::Nudge
        {
            let _ = unix::nudge(&self.bell, &self.identity.bell_name());
        }
        any
    }

    /// Moves what can be moved, up to a piece per lane. Peers that wrote nonsense go into `corrupt`.
    pub(super) fn pass(&mut self, events: &mut Vec<Event>) -> bool {
        let budget = self.options.piece_bytes;
        let mut any = false;
        let mut corrupt = None;
        let mut i = 0;
        while i < self.busy_sends.len() {
            let lane = &mut self.send_lanes[self.busy_sends[i] as usize];
            let pending = &mut self.pending;
            let result = lane.advance(budget, |token| {
                *pending -= 1;
                events.push(Event::Done(token));
            });
            match result {
                Ok(true) => {
                    any = true;
                    Self::mark_dirty(&mut self.dirty, &mut self.peers, lane.peer);
                }
                Ok(false) => {}
                Err(error) => corrupt = Some((lane.peer, error)),
            }
            if lane.is_idle() {
                lane.is_listed = false;
                self.busy_sends.swap_remove(i);
            } else {
                i += 1;
            }
        }
        i = 0;
        while i < self.busy_recvs.len() {
            let lane = &mut self.recv_lanes[self.busy_recvs[i] as usize];
            let (pending, rank) = (&mut self.pending, self.peers[lane.peer].rank);
            let result = lane.advance(budget, |token, verdict| {
                *pending -= 1;
                events.push(received(token, verdict, rank));
            });
            match result {
                Ok(true) => {
                    any = true;
                    Self::mark_dirty(&mut self.dirty, &mut self.peers, lane.peer);
                }
                Ok(false) => {}
                Err(error) => corrupt = Some((lane.peer, error)),
            }
            if lane.is_idle() {
                lane.is_listed = false;
                self.busy_recvs.swap_remove(i);
            } else {
                i += 1;
            }
        }
        if !self.dirty.is_empty() {
            fence(Ordering::SeqCst);
            while let Some(peer) = self.dirty.pop() {
                self.peers[peer as usize].is_dirty = false;
                self.ring_doorbell_after_fence(peer as usize);
            }
        }
        if let Some((peer, error)) = corrupt {
            let detail = format!("nonsense in shared memory: {}", error.0);
            let cause = Error::new(ErrorKind::Corrupt, NAME, Some(self.peers[peer].rank), detail);
            self.lose(peer, cause, true, events);
            any = true;
        }
        any
    }
}

/// The event of a receive that is over.
pub(super) fn received(token: Token, verdict: Result<(), ErrorKind>, rank: u32) -> Event {
    match verdict {
        Ok(()) => Event::Done(token),
        Err(kind) => {
            let detail = "the peer sent another message than was expected: do all ranks make the same calls, with \
                          the same sizes, in the same order?";
            Event::Failed(token, Error::new(kind, NAME, Some(rank), detail))
        }
    }
}
