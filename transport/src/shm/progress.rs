//! Progress: moves pieces, and wakes the peers that wait for them.

use std::sync::atomic::Ordering;

use super::arena::Wake;
use super::endpoint::ShmEndpoint;
use super::establish::NAME;
use super::peer::Peer;
use super::recv_lane::{RecvLane, Trouble};
use super::ring::Corrupt;
use crate::endpoint::{Channel, Envelope, Event, Token};
use crate::error::{Error, ErrorKind};
use crate::sys::unix;

/// Number of pieces that a poll moves on one channel: half a ring, so that the peer can work on the other half. With
/// one piece at a time, the fence and the doorbell check after each piece cost 5 % of the bandwidth.
const PIECES_A_VISIT: usize = 4;
/// Number of passes of the last poll before sleeping: enough to empty or fill a ring of many short pieces.
const PASSES_BEFORE_SLEEP: usize = 64;

/// Result of a pass over the lanes.
#[derive(Default)]
struct Passed {
    /// Whether anything moved.
    any: bool,
    /// The last error, with the index of the peer that caused it.
    trouble: Option<(usize, Trouble)>,
}

impl ShmEndpoint {
    /// Checks a peer's doorbell after something was published for it or freed, and wakes the peer if it sleeps.
    #[inline]
    pub(super) fn ring_doorbell(&self, peer: usize) {
        self.fence();
        self.ring_doorbell_after_fence(peer);
    }

    /// Executes the light fence that must precede a doorbell check.
    #[inline]
    fn fence(&self) {
        if let Some(arena) = &self.arena {
            arena.fences().light();
        }
    }

    #[inline]
    fn ring_doorbell_after_fence(&self, peer: usize) {
        let Some(arena) = &self.arena else { return };
        if arena.wake(self.peers[peer].member) == Wake::Nudge {
            self.nudge(&self.peers[peer]);
        }
    }

    /// Wakes a peer that sleeps on its descriptors. Errors are ignored: if its socket is full, the peer is awake; if
    /// the peer is gone, its stream shows it.
    #[cold]
    pub(super) fn nudge(&self, peer: &Peer) {
        let _ = unix::nudge(&self.bell, &peer.bell_name);
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

    /// Moves everything that can be moved: the owner may sleep after this poll, and no peer wakes it for data that
    /// was there before. If peers keep adding data, this end wakes itself instead.
    pub(super) fn pass_before_sleep(&mut self, events: &mut Vec<Event>) -> bool {
        let mut any = false;
        for _ in 0..PASSES_BEFORE_SLEEP {
            if !self.pass(events) {
                return any;
            }
            any = true;
        }
        self.wake_owner();
        any
    }

    /// Ends the sleep of this end's own owner.
    pub(super) fn wake_owner(&self) {
        if let Some(arena) = &self.arena
            && arena.wake(self.member) == Wake::Nudge
        {
            let _ = unix::nudge(&self.bell, &self.identity.bell_name());
        }
    }

    /// Moves pending pieces, up to a few per lane. If a peer causes an error, that peer is lost.
    pub(super) fn pass(&mut self, events: &mut Vec<Event>) -> bool {
        let mut passed = Passed::default();
        self.pass_sends(events, &mut passed);
        self.pass_recvs(events, &mut passed);
        if !self.dirty.is_empty() {
            self.fence();
            while let Some(peer) = self.dirty.pop() {
                self.peers[peer as usize].is_dirty = false;
                self.ring_doorbell_after_fence(peer as usize);
            }
        }
        if let Some((peer, trouble)) = passed.trouble {
            self.suffer(peer, trouble, events);
            passed.any = true;
        }
        passed.any
    }

    #[inline]
    fn pass_sends(&mut self, events: &mut Vec<Event>, passed: &mut Passed) {
        let budget = PIECES_A_VISIT * self.options.piece_bytes;
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
                    passed.any = true;
                    Self::mark_dirty(&mut self.dirty, &mut self.peers, lane.peer);
                }
                Ok(false) => {}
                Err(error) => passed.trouble = Some((lane.peer, Trouble::Corrupt(error))),
            }
            if lane.is_idle() {
                lane.is_listed = false;
                self.busy_sends.swap_remove(i);
            } else {
                i += 1;
            }
        }
    }

    #[inline]
    fn pass_recvs(&mut self, events: &mut Vec<Event>, passed: &mut Passed) {
        let budget = PIECES_A_VISIT * self.options.piece_bytes;
        let mut i = 0;
        while i < self.busy_recvs.len() {
            let lane = &mut self.recv_lanes[self.busy_recvs[i] as usize];
            let (pending, rank) = (&mut self.pending, self.peers[lane.peer].rank);
            let result = lane.advance(budget, |token, verdict| {
                *pending -= 1;
                events.push(received(token, verdict, rank));
            });
            // Messages before one that does not fit may have been taken.
            if !matches!(result, Ok(false)) {
                passed.any = true;
                Self::mark_dirty(&mut self.dirty, &mut self.peers, lane.peer);
            }
            match result {
                Ok(false) if lane.is_probed => match tell_waiting(lane, rank, &mut self.pending, events) {
                    Ok(told) => passed.any |= told,
                    Err(error) => passed.trouble = Some((lane.peer, Trouble::Corrupt(error))),
                },
                Ok(_) => {}
                Err(Trouble::Unfit) => give_back(lane, rank, &mut self.pending, events),
                Err(error) => passed.trouble = Some((lane.peer, error)),
            }
            if !lane.has_work() {
                lane.is_listed = false;
                self.busy_recvs.swap_remove(i);
            } else {
                i += 1;
            }
        }
    }

    /// Handles an error that a peer caused.
    #[cold]
    fn suffer(&mut self, peer: usize, trouble: Trouble, events: &mut Vec<Event>) {
        let rank = Some(self.peers[peer].rank);
        let cause = match trouble {
            Trouble::Corrupt(error) => {
                let detail = format!("invalid data in shared memory: {}", error.0);
                Error::new(ErrorKind::Corrupt, NAME, rank, detail)
            }
            Trouble::Gone => {
                // Its other messages may still be whole.
                self.part_with(peer);
                self.see_off(events);
                return;
            }
            Trouble::Unfit => return,
        };
        self.lose(peer, cause, true, events);
    }
}

/// Reports the message that waits in a probed lane, if there is one.
fn tell_waiting(
    lane: &mut RecvLane,
    rank: u32,
    pending: &mut usize,
    events: &mut Vec<Event>,
) -> Result<bool, Corrupt> {
    let Some((tag, len)) = lane.envelope()? else { return Ok(false) };
    *pending -= usize::from(std::mem::take(&mut lane.is_probed));
    events.push(Event::Waiting(Envelope { on: Channel { peer: rank, index: lane.channel }, tag, len }));
    Ok(true)
}

/// Returns the receives of a lane whose first one does not fit the next message, and reports that message.
pub(super) fn give_back(lane: &mut RecvLane, rank: u32, pending: &mut usize, events: &mut Vec<Event>) {
    lane.take_back(pending, events);
    if let Ok(Some((tag, len))) = lane.envelope() {
        events.push(Event::Waiting(Envelope { on: Channel { peer: rank, index: lane.channel }, tag, len }));
    }
}

/// Returns the event for a completed receive or get.
pub(super) fn received(token: Token, verdict: Result<(), ErrorKind>, rank: u32) -> Event {
    match verdict {
        Ok(()) => Event::Done(token),
        Err(ErrorKind::System) => {
            let detail =
                "the kernel does not read memory that the peer exposes: a device's, or secret memory";
            Event::Failed(token, Error::new(ErrorKind::System, NAME, Some(rank), detail))
        }
        Err(kind) => {
            let detail = "the peer sent a different message from the one expected: do all ranks make the \
                          same calls, with the same sizes, in the same order?";
            Event::Failed(token, Error::new(kind, NAME, Some(rank), detail))
        }
    }
}
