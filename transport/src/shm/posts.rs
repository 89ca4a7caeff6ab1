//! Messages and receives on their way from the endpoint to the lanes.

use super::endpoint::{ShmEndpoint, too_long, total};
use super::lane::{Handed, Origin, SendLane};
use super::peer::NO_LANE;
use super::progress::received;
use super::recv_lane::{RecvLane, Wanted};
use super::tried::Route;
use crate::endpoint::{Channel, OnMisfit, Posted, Short, Sink, Token};
use crate::error::{Error, ErrorKind};

impl ShmEndpoint {
    /// Hands a message to a peer's lane.
    ///
    /// # Safety
    /// As [`Endpoint::post_send`].
    pub(super) unsafe fn hand_send(
        &mut self,
        (peer, id): (usize, u32),
        tag: u64,
        (origin, total): (Origin, usize),
        token: Token,
        route: Route,
    ) -> Posted {
        let lane = &mut self.send_lanes[id as usize];
        // SAFETY: the caller's promise is the one that the lane asks for.
        match unsafe { lane.hand(tag, origin, total, token, self.options.ring_bytes, route) } {
            Handed::Over => {
                self.ring_doorbell(peer);
                Posted::Done
            }
            Handed::Queued { moved } => {
                self.pending += 1;
                if !lane.is_listed {
                    lane.is_listed = true;
                    self.busy_sends.push(id);
                }
                if moved {
                    self.ring_doorbell(peer);
                }
                Posted::Pending
            }
        }
    }

    /// Takes a short message with `take`, which gets the lane.
    #[inline]
    pub(super) fn take_with(&mut self, on: Channel, take: impl FnOnce(&mut RecvLane) -> Short) -> Short {
        let Some(peer) = self.peer_at_hand(on.peer) else { return Short::Other };
        let at = |lanes: &[u32]| lanes.get(usize::from(on.index)).copied().unwrap_or(NO_LANE) as usize;
        let (to_peer, from_peer) = (at(&self.peers[peer].send_lanes), at(&self.peers[peer].recv_lanes));
        let Some(lane) = self.recv_lanes.get_mut(from_peer) else { return Short::Other };
        let answer = take(lane);
        match answer {
            Short::Taken { .. } => self.ring_doorbell(peer),
            Short::NotYet => self.send_lanes.get_mut(to_peer).map_or((), SendLane::claim_next),
            Short::Other => {}
        }
        answer
    }

    /// Hands a receive to its lane.
    ///
    /// # Safety
    /// As [`Endpoint::post_recv`].
    pub(super) unsafe fn hand_recv(
        &mut self,
        on: Channel,
        tag: u64,
        dst: Sink<'_>,
        on_misfit: OnMisfit,
        token: Token,
    ) -> Result<Posted, Error> {
        let peer = self.peer_for_post(on)?;
        let expected = match dst {
            Sink::Place(pieces) => total(pieces),
            Sink::Consume { len, .. } => (len <= isize::MAX as usize).then_some(len),
        };
        let Some(len) = expected else { return Err(too_long(on.peer)) };
        let wanted = Wanted { tag, len, conditional: on_misfit == OnMisfit::Return };
        self.check_can_receive(peer)?;
        let id = self.recv_lane(peer, on.index)?;
        let lane = &mut self.recv_lanes[id as usize];
        self.pending -= usize::from(std::mem::take(&mut lane.is_probed));
        let deferred = &mut self.deferred;
        let mut is_right = true;
        let done = |token, verdict: Result<(), ErrorKind>| {
            is_right = verdict.is_ok();
            if !is_right {
                deferred.push_back(received(token, verdict, on.peer));
            }
        };
        // SAFETY: the caller's promise is the one that the lane asks for.
        match unsafe { lane.hand(wanted, dst, token, self.options.ring_bytes, done) } {
            Handed::Over => {
                self.ring_doorbell(peer);
                Ok(if is_right { Posted::Done } else { Posted::Pending })
            }
            Handed::Queued { moved } => {
                self.pending += 1;
                self.list_recv(id);
                if moved {
                    self.ring_doorbell(peer);
                }
                Ok(Posted::Pending)
            }
        }
    }
}
